"""Small runs on several ranks: their configuration, and what they leave."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Starcoder2Config, Starcoder2ForCausalLM

from grouprl.policy.language.tiny import char_tokenizer
from ranks import free_port

TIMING = ("seconds", "tokens_per_second", "memory_mb", "tokens_per")
ALPHABET = "0123456789+=|- ?<>:;,.abcdefghijklmnopqrstuvwxyz"
PRELOADED = [
    *(
        "grouprl.cli.app",
        "grouprl.training.loop",
        "grouprl.policy.sharded.sharded_optimizer",
        "grouprl.policy.sharded.rank_checkpoint",
    ),
    *(
        "grouprl.policy.language.tiny",
        "transformers.models.gpt2.modeling_gpt2",
        "pyarrow.parquet",
        "torch.distributed.fsdp",
    ),
]
REWARD = """def digits(completion, **_):
    return min(1.0, sum(c in "0123" for c in completion) / 6)
"""


def save_model(folder: Path, *, seed: int = 0, width: int = 16, layers: int = 2, alphabet: str = ALPHABET) -> Path:
    """Write a small model that computes in float64 throughout: the norms of Llama round to float32 on their way."""
    tokenizer = char_tokenizer(alphabet)
    torch.manual_seed(seed)
    size = {"n_embd": width, "n_layer": layers, "n_head": 2, "n_positions": 64, "vocab_size": len(tokenizer)}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GPT2LMHeadModel(GPT2Config(**size, **ends)).double().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_cut_model(folder: Path) -> Path:
    """Write a small model of float64 throughout that transformers has a plan for: Starcoder 2."""
    path = folder / "starcoder2"
    if not path.is_dir():
        tokenizer = char_tokenizer(ALPHABET)
        torch.manual_seed(0)
        size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        more = {"num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
        Starcoder2ForCausalLM(Starcoder2Config(**size, **more, **ends)).double().save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path


def write_episodes(folder: Path) -> Path:
    """Write the configuration of a run of episodes of several turns."""
    turns = {"task": {"name": "guess", "noise": 0.3}, "method": "grpo", "reward": None}
    return write_config(folder, "episodes", **turns, warmup={"steps": 12, "batch": 16, "lr": 3e-3})


def write_pretrained(folder: Path, model: Path) -> Path:
    """Write the configuration of two steps of a pretrained model."""
    return write_config(
        folder,
        "pretrained",
        model={"name": str(model), "dtype": "float32", "engine": "transformers"},
        method="grpo",
        steps=2,
        optim={"lr": 1e-5},
        warmup={"steps": 0},
        batch={"prompts": 2, "group_size": 4, "minibatches": 1, "tokens_per_microbatch": 512},
        sampling={"max_new_tokens": 12},
        eval={"every": 0, "prompts": 2, "final_prompts": 2},
        run={"rank_timeout": 600},
    )


KILLER = str(Path(__file__).with_name("rank_killer.py"))
"""The plugin that lets a rank meet a fault."""
RUN: dict[str, Any] = {"run": {"checkpoint_every": 2, "rank_timeout": 60}}


def write_config(folder: Path, name: str = "run", /, **more: Any) -> Path:
    """Write the configuration of a run of four steps, changed by `more`, with its model and reward beside it."""
    (folder / "score.py").write_text(REWARD)
    if not (folder / "gpt2").is_dir():
        save_model(folder / "gpt2")
    config: dict[str, Any] = {
        "task": "addition",
        "model": {"name": str(folder / "gpt2"), "dtype": "float64"},
        "method": "grpo@nemo_rl",
        "reward": {"function": str(folder / "score.py:digits"), "workers": 1},
        "steps": 4,
        "optim": {"lr": 1e-3},
        "warmup": {"steps": 3, "batch": 8},
        "batch": {"prompts": 6, "group_size": 4, "minibatches": 2, "tokens_per_microbatch": 128},
        "eval": {"every": 0, "prompts": 8, "final_prompts": 8},
        **RUN,
        "plugins": [KILLER],
        **more,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
    return path


def rank_child(environment: dict[str, str], arguments: list[str], log: Path) -> None:
    """Be one rank of a run, with its output in `log`."""
    from grouprl.cli.app import app

    os.environ.update(environment)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["RANK_FOLDER"] = arguments[arguments.index("--folder") + 1]
    try:
        app(arguments, prog_name="grouprl")
    finally:
        log.with_suffix(".peak").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def peak_mb(folder: Path, rank: int) -> int:
    """The most memory that a rank of the run had, in MB."""
    return int(folder.with_name(f"{folder.name}.{rank}.peak").read_text())


def on_ranks(
    ranks: int,
    config: Path,
    folder: Path,
    *more: str,
    fault: str = "",
    killed: tuple[int, float] | None = None,
    timeout: float = 600,
) -> tuple[list[int | None], str]:
    """Train on so many ranks, forked from a process that has imported everything; return exit codes and rank 0's words.

    `fault` is one of `rank_killer`; `killed` is a rank that is killed after so many seconds. Ranks end by themselves,
    whatever becomes of one of them; those that do not are killed after `timeout` seconds, or a minute after rank 0.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    arguments = ["train", str(config), "--folder", str(folder), *more]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    started, logs = [], [folder.with_name(f"{folder.name}.{rank}.log") for rank in range(ranks)]
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "RANK_FAULT": fault}
        process = context.Process(target=rank_child, args=({**meeting, **own}, arguments, logs[rank]))
        process.start()
        started.append(process)
    if killed is not None:
        started[killed[0]].join(killed[1])
        started[killed[0]].kill()
    started[0].join(timeout)
    for process in started:
        process.join(60)
        process.kill()
        process.join()
    return [process.exitcode for process in started], logs[0].read_text()


def train_on(ranks: int, config: Path, folder: Path, *more: str, timeout: float = 600) -> None:
    """Train on so many ranks; all must end well."""
    codes, said = on_ranks(ranks, config, folder, *more, timeout=timeout)
    assert codes == [0] * ranks, (codes, said)


def command(config: Path, folder: Path | None, *more: str) -> list[str]:
    named = [] if folder is None else ["--folder", str(folder)]
    return [sys.executable, "-m", "grouprl", "train", str(config), *named, *more]


def torchrun(
    ranks: int,
    config: Path,
    folder: Path | None,
    *more: str,
    fault: str = "",
    restarts: int = 0,
    place: Path | None = None,
) -> tuple[int, str]:
    """Run `torchrun … -m grouprl train` with a fault of `rank_killer` in `place`; return its exit code and all that was
    said.

    Waits until none of its processes is left.
    """
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    line += ["--max-restarts", str(restarts), "--log-dir", str(config.parent / "said")]  # not in the temporary folder
    line += command(config, folder, *more)[1:]
    mark = f"rank-run-{free_port()}-{time.monotonic_ns()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        line,
        cwd=place,
        env={**environment, "RANK_FAULT": fault, "RANK_RUN": mark},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = process.communicate(timeout=600)  # ends when all that write to it have ended
    until = time.monotonic() + 60
    while (left := _with_mark(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left, (left, said)
    return process.returncode, said


def _with_mark(mark: str) -> list[int]:
    """The processes whose environment holds the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def launch(ranks: int, config: Path, folder: Path, *more: str, fault: str = "") -> tuple[int, str]:
    """Run `grouprl launch` with a fault of `rank_killer`; return its exit code and all that it said.

    No process is left.
    """
    line = [*command(config, folder, *more)]
    line[3:3] = ["launch", "-n", str(ranks)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    mark = f"rank-run-{free_port()}-{time.monotonic_ns()}"
    marked = {**environment, "RANK_FAULT": fault, "RANK_RUN": mark}
    found = subprocess.run(line, env=marked, text=True, capture_output=True, timeout=400)
    assert not _with_mark(mark), found.stdout + found.stderr
    return found.returncode, found.stdout + found.stderr


def evidence(folder: Path) -> dict[str, object]:
    """Everything a run leaves that must not depend on interruptions."""
    rollouts = {path.name: path.read_bytes() for path in sorted((folder / "rollouts").iterdir())}
    model = [path.read_bytes() for path in sorted((folder / "model").rglob("*.safetensors"))]
    assert model
    assert rollouts
    samples = (folder / "samples.json").read_text()
    last = max((folder / "checkpoints").glob("step-*")) / "shards"
    parts = {path.name: path.read_bytes() for path in sorted(last.glob("*.distcp"))}
    return {"metrics": metrics(folder), "rollouts": rollouts, "model": model, "samples": samples, "parts": parts}


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(TIMING)} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next((folder / "model").glob("*.safetensors")))


def apart(one: Path, other: Path) -> dict[str, float]:
    """How far apart two runs ended: their metrics, relative to 1 + the number, and their weights."""
    rows = list(zip(metrics(one), metrics(other), strict=True))
    assert all(mine.keys() == theirs.keys() for mine, theirs in rows)
    pairs = [(mine[k], theirs[k]) for mine, theirs in rows for k in mine if not isinstance(mine[k], str)]
    mine, theirs = weights(one), weights(other)
    return {
        "metrics": max(abs(a - b) / (1 + abs(a)) for a, b in pairs),
        "weights": max(float((mine[k] - theirs[k]).abs().max()) for k in mine),
        "samples": float((one / "samples.json").read_text() != (other / "samples.json").read_text()),
    }
