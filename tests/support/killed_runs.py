"""Runs in processes of their own, to be killed, and everything they leave."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import train

TIMING = ("seconds", "tokens_per_second", "memory_mb")
ASKED = ("judge_requests", "judge_kept", "judge_prompt_tokens", "judge_reply_tokens")
"""What a judge was really asked: a resumed run finds the answers that it had before."""


PRELOADED = [
    "grouprl.training.loop",
    "grouprl.policy.language.tiny",
    "transformers.models.llama.modeling_llama",
    "pyarrow.parquet",
]


def child(config: Path, folder: Path, resume: bool, log: Path) -> None:
    """Run in a process of its own, with its output in `log`; the final model is not checked in one more process."""
    from grouprl.config.run import load_config
    from grouprl.training import loop

    loop.check_final_model = lambda *given: None
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        summary = loop.train(load_config(str(config)), folder=folder, resume=resume)
    sys.stdout.flush()
    os._exit(130 if summary.interrupted else 0)


def log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")


def finished(process: BaseProcess, folder: Path, code: int = 0) -> str:
    process.join(timeout=240)
    output = log_of(folder).read_text()
    assert process.exitcode == code, output
    return output


def evidence(folder: Path) -> dict[str, object]:
    """Everything a run leaves that must not depend on interruptions."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith((*TIMING, *ASKED))} for line in lines]
    rollouts = {path.name: path.read_bytes() for path in sorted((folder / "rollouts").iterdir())}
    last = max((folder / "checkpoints").glob("step-*"))
    states = {name: (last / name).read_bytes() for name in ("policy.safetensors", "optimizer.pt", "data.pt")}
    model = [path.read_bytes() for path in sorted((folder / "model").rglob("*.safetensors"))]
    assert model
    return {
        "metrics": metrics,
        "rollouts": rollouts,
        "model": model,
        "samples": (folder / "samples.json").read_text(),
        **states,
    }


def assert_goes_on_equally(whole: Path, copy: Path, config: Mapping[str, object]) -> None:
    """Continue a copy of a finished run without its newest checkpoint, as if it had been killed before that one."""
    shutil.copytree(whole, copy)
    shutil.rmtree(max((copy / "checkpoints").glob("step-*")))
    train(parse_config(config), folder=copy, resume=True, console=Console(file=io.StringIO()))
    assert evidence(copy) == evidence(whole)
