"""Measure sampling with a server of vLLM: its log-probs, exchanges of weights, and runs.

    python scripts/vllm_record.py .venv-vllm/bin/vllm     start a server of the program
    python scripts/vllm_record.py http://127.0.0.1:8000   use a running one of the model that --folder holds

It writes docs/vllm.json; docs/vllm.md tells of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from finished import finished
from grouprl.config.run import parse_config
from grouprl.config.sections import Vllm
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.vllm.engine import VllmEngine

RESULT = Path(__file__).parent.parent / "docs" / "vllm.json"
SIZE = {"hidden": 64, "layers": 2, "heads": 2}
LETTERS = "".join(map(chr, range(32, 127))) + "\n"
REQUESTS, BUDGET = 128, 64


def agreement(engine: VllmEngine, policy: Any) -> dict[str, float]:
    """Differences of log-probs to the policy's, and the seconds of an exchange of weights."""
    requests = [Request((3 + i % 16, 5, 7, 9), BUDGET, i) for i in range(REQUESTS)]
    seconds = []
    for _ in range(5):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        engine.publish(engine.version + 1, policy)
        seconds.append(engine.seconds)
    samples = engine.sample(requests)
    logp_bt = policy.logp(Tokens.of([r.prompt for r in requests], samples.actions)).detach().numpy()
    gap = abs(logp_bt - samples.logp_bt)
    tokens = sum(map(len, samples.actions))
    size = sum(p.numel() * p.element_size() for p in policy.parameters())
    return {
        "tokens": tokens,
        "gap_mean": float(gap.sum() / tokens),
        "gap_max": float(gap.max()),
        "exchange_seconds": statistics.median(seconds),
        "megabytes": size / 1e6,
    }


def runs(folder: Path, address: str, steps: int) -> dict[str, Any]:
    """The same short run with the local engine, with the server, and with the server ahead of training."""
    kinds: dict[str, dict[str, Any]] = {
        "local": {"sampling": {}},
        "vllm": {"sampling": {"engine": "vllm", "vllm": {"addresses": [address]}}},
        "vllm, two steps ahead": {
            "sampling": {"engine": "vllm", "vllm": {"addresses": [address]}},
            "run": {"threads": 1, "async_steps": 2},
        },
    }
    return {name: run(folder, steps, **{"run": {"threads": 1}, **more}) for name, more in kinds.items()}


def run(folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """A short run's rewards and seconds, step by step."""
    config = parse_config(
        {
            "task": {"name": "reverse", "length": 2},
            "model": {"name": str(folder)},
            "warmup": {"steps": 120, "batch": 32},
            "optim": {"lr": 1e-3},
            "steps": steps,
            "batch": {"prompts": 8, "group_size": 8, "minibatches": 2},
            "eval": {"every": 0, "prompts": 64, "final_prompts": 64},
            **more,
        }
    )
    with tempfile.TemporaryDirectory() as tmp:
        path = finished(config, Path(tmp) / "run").folder
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    steps_ = [record for record in records if record["phase"] == "train"]
    names = ("reward_mean", "logp_gap_mean", "canary_gap", "entropy", "staleness_mean")
    names += ("seconds", "seconds_rollout", "seconds_update", "seconds_sync", "seconds_wait", "seconds_sampler_idle")
    return {"steps": [{name: record[name] for name in names if name in record} for record in steps_]}


def machine() -> dict[str, Any]:
    """What was measured on."""
    text = Path("/proc/cpuinfo").read_text()
    name = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in text]
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "flags": flags,
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", help="the program vllm, or the address of a running server")
    parser.add_argument("--folder", type=Path, help="the model of a running server")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", choices=("agreement", "runs"), help="measure one thing, keep the others")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        folder = given.folder or Path(tmp) / "model"
        if given.folder is None:
            load_policy("tiny", alphabet=LETTERS, seed=1, **SIZE).save(folder)
        running = given.server.startswith("http")
        settings = Vllm(addresses=(given.server,)) if running else Vllm(command=(given.server,))
        policy = load_policy(str(folder))
        begun = time.perf_counter()
        engine = VllmEngine(policy, settings)
        found: dict[str, Any] = json.loads(RESULT.read_text()) if given.only and RESULT.is_file() else {}
        found |= {"machine": machine(), "vllm": engine.fleet.up()[0].wire.get("/version")["version"]}
        if not running:
            found["seconds_to_start"] = time.perf_counter() - begun
        address = engine.fleet.servers[0].wire.address
        parts: dict[str, Callable[[], Any]] = {
            "agreement": lambda: agreement(engine, policy),
            "runs": lambda: runs(folder, address, given.steps),
        }
        for name, measure in parts.items():
            if given.only in (None, name):
                found[name] = measure()
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
        engine.close()


if __name__ == "__main__":
    main()
