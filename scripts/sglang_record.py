"""Measure the engine `sglang` with a server of SGLang itself and write docs/sglang.json: `make sglang`.

python scripts/sglang_record.py PYTHON [ADDRESS]: the python of SGLang's environment, and a server that runs already.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grouprl.config.sections import Sglang
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.sglang.engine import SglangEngine

TOP = Path(__file__).parents[1]
PROGRAM = TOP / "tests" / "sglang" / "serve_on_cpu.py"
LETTERS = "".join(map(chr, range(32, 127))) + "\n"
REQUESTS = [Request((3 + i % 90, 4, 5), 64, i) for i in range(128)]
EXCHANGES = 10


def moved(policy: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def gaps(engine: SglangEngine, temperature: float) -> dict[str, float]:
    """How far the server's log-probs are from the policy's, in nats."""
    requests = [replace(request, temperature=temperature) for request in REQUESTS]
    samples, engine.policy.temperature = engine.sample(requests), temperature
    with torch.no_grad():
        logp_bt = engine.policy.logp(Tokens.of([r.prompt for r in requests], samples.actions)).numpy()
    engine.policy.temperature = 1.0
    own_bt = np.arange(logp_bt.shape[1])[None, :] < np.array([len(ids) for ids in samples.actions])[:, None]
    off = np.abs(logp_bt - samples.logp_bt)[own_bt]
    return {"tokens": int(own_bt.sum()), "mean": float(off.mean()), "largest": float(off.max())}


def exchanges(engine: SglangEngine) -> dict[str, float]:
    """Seconds of an exchange with its canary, and the largest gap of the canary."""
    seconds, gap = [], 0.0
    for version in range(EXCHANGES):
        moved(engine.policy, version)
        engine.publish(version, engine.policy)
        seconds.append(engine.seconds)
        gap = max(gap, engine.gap)
    return {"seconds": float(np.median(seconds)), "canary": gap}


def repeated(engine: SglangEngine) -> dict[str, int]:
    """Completions that are other ones in other company: alone, turned around, among greedy and among cut ones."""
    whole = engine.sample(REQUESTS).actions
    count = {"alone": sum(engine.sample([r]).actions[0] != ids for r, ids in zip(REQUESTS[:16], whole, strict=False))}
    count["turned"] = sum(a != b for a, b in zip(engine.sample(REQUESTS[::-1]).actions[::-1], whole, strict=True))
    for name, others in (("greedy", {"greedy": True}), ("cut", {"top_k": 5, "top_p": 0.9})):
        mixed = [each for request in REQUESTS for each in (request, replace(request, **others))]
        count[name] = sum(a != b for a, b in zip(engine.sample(mixed).actions[::2], whole, strict=True))
    return count


def speed(engine: SglangEngine) -> float:
    """Tokens per second, the median of five turns."""
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        found.append(sum(map(len, engine.sample(REQUESTS).actions)) / (time.perf_counter() - begun))
    return float(np.median(found))


def main(python: str, *addresses: str) -> None:
    """Measure, and write what was found."""
    with tempfile.TemporaryDirectory() as folder:
        load_policy("tiny", alphabet=LETTERS, seed=1, hidden=64, layers=2, heads=2).save(folder)
        policy, begun = load_policy(folder), time.perf_counter()
        first = SglangEngine(
            policy, Sglang(addresses=addresses) if addresses else Sglang(command=(python, str(PROGRAM)))
        )
        first.fleet.up()
        found: dict[str, Any] = {"start_seconds": None if addresses else time.perf_counter() - begun}
        found["shared_memory"] = exchanges(first)
        found["log_probs"] = {str(t): gaps(first, t) for t in (0.7, 1.0, 1.3)}
        found["other_than_before"] = repeated(first)
        found["tokens_per_second"] = speed(first)
        disk = SglangEngine(policy, Sglang(addresses=(first.fleet.servers[0].wire.address,), weights="disk"))
        found["disk"] = exchanges(disk)
        disk.close()
        first.close()
    (TOP / "docs" / "sglang.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
