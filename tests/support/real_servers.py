"""What must hold of an engine with real servers, whoever wrote them: `make vllm`, `make sglang`."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.errors import RunError
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.servers.engine import ServerEngine
from grouprl.training.loop import train
from served_policies import LETTERS
from served_policies import moved as moved_by

PROMPTS = ((3, 4, 5), (3, 4, 6, 7), (40, 41))
REQUESTS = [Request(PROMPTS[i % 3], 12, 7919 * i + 2**63) for i in range(24)]
LONG = 480
"""Tokens of a completion that takes a while; the model has 512 positions."""
ROUNDING = 1e-4
"""Nats by which two programs differ that both compute in float32."""
LORA = {"r": 4, "alpha": 8, "target_modules": "all-linear"}


def saved_model(folder: Path) -> Path:
    """The folder of the model of these tests."""
    load_policy("tiny", alphabet=LETTERS, seed=1, hidden=64, layers=2, heads=2).save(folder / "model")
    return folder / "model"


def moved(policy: Any, seed: int = 0, scale: float = 0.02) -> None:
    """Change the weights by more than a step does."""
    moved_by(policy, seed, scale)


def apart_bt(policy: Any, requests: Sequence[Request[Any]], samples: Any, temperature: float = 1.0) -> np.ndarray:
    """The differences of the server's log-probs to the policy's."""
    before, policy.temperature = policy.temperature, temperature
    with torch.no_grad():
        logp_bt = policy.logp(Tokens.of([r.prompt for r in requests], samples.actions)).numpy()
    policy.temperature = before
    found: np.ndarray = np.abs(logp_bt - samples.logp_bt)
    return found


def apart(policy: Any, requests: Sequence[Request[Any]], samples: Any, temperature: float = 1.0) -> float:
    """The largest of those differences."""
    return float(apart_bt(policy, requests, samples, temperature).max())


def versions(samples: Any) -> set[int]:
    """The versions of the weights that sampled the tokens."""
    return set(samples.version_bt[samples.version_bt >= 0].tolist())


def wait_until(happened: Callable[[], object]) -> None:
    """Wait for minutes, if need be."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() - begun < 300, "it does not happen"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------ samples


def check_log_probs(engine: ServerEngine, policy: Any, temperature: float) -> None:
    """Log-probs are the policy's, and completions end where it ends them."""
    requests = [replace(request, temperature=temperature) for request in REQUESTS]
    samples = engine.sample(requests)
    assert apart(policy, requests, samples, temperature) < ROUNDING
    assert all(len(ids) == 12 or ids[-1] in policy.eos_ids for ids in samples.actions)
    assert samples.truncated_b.tolist() == [ids[-1] not in policy.eos_ids for ids in samples.actions]


def check_greedy(engine: ServerEngine, policy: Any, **more: Any) -> None:
    """Greedy samples are the local ones; at temperature 1, whatever else a request says."""
    requests = [replace(request, greedy=True, budget=8, **more) for request in REQUESTS[:3]]
    samples = engine.sample(requests)
    assert samples.actions == LocalSampler(policy).sample(requests).actions
    assert apart(policy, requests, samples) < ROUNDING


def check_ends(engine: ServerEngine, policy: Any) -> None:
    """Texts and sequences end completions."""
    requests = [replace(request, budget=60) for request in REQUESTS]
    plain = engine.sample(requests)
    row = max(range(len(requests)), key=lambda i: len(plain.actions[i]))
    ids = plain.actions[row]
    assert len(ids) > 12
    text = policy.decode_all([ids[4:6]])[0]
    ended = engine.sample([replace(requests[row], stop_texts=(text,))])
    said = policy.decode_all(ended.actions)[0]
    assert said.endswith(text)
    assert text not in said[:-1]
    assert ended.actions[0] == ids[: len(ended.actions[0])]
    assert not ended.truncated_b[0]
    assert engine.sample([replace(requests[row], stop=(ids[4:6],))]).actions[0][-2:] == ids[4:6]


# ------------------------------------------------------------------------------------------------------ weights


def check_new_weights(engine: ServerEngine, policy: Any) -> None:
    """Each version arrives, under its name."""
    for version in range(3):
        moved(policy, version)
        engine.publish(version, policy)
        samples = engine.sample(REQUESTS)
        assert apart(policy, REQUESTS, samples) < ROUNDING
        assert 0 < engine.gap < ROUNDING
        assert versions(samples) == {version}


def check_merged_adapters(model: Path, make: Callable[[Any], ServerEngine]) -> None:
    """Adapters arrive, merged into the weights."""
    pytest.importorskip("peft")
    adapted: Any = load_policy(str(model), lora=LORA)
    engine = make(adapted)
    for version in range(2):
        moved(adapted, version, 0.1)
        engine.publish(version, adapted)
        assert apart(adapted, REQUESTS, engine.sample(REQUESTS)) < ROUNDING
    engine.close()


def check_small_step(engine: ServerEngine, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step as small as an optimiser's is told from none."""
    engine.publish(0, policy)
    moved(policy, 1, 1e-5)
    memory = engine.served.memory
    with monkeypatch.context() as patched, pytest.raises(RunError, match="earlier weights"):
        patched.setattr(memory, "write", lambda policy: memory.written)
        engine.publish(1, policy)
    engine.publish(2, policy)


def check_each_version(policy: Any, requests: Sequence[Request[Any]], samples: Any, states: Sequence[Any]) -> None:
    """Each token has the log-prob that the policy gives it with the weights that sampled it."""
    for version, state in enumerate(states):
        policy.load_trainable_state(state)
        own_bt = samples.version_bt == version
        if own_bt.any():
            assert apart_bt(policy, requests, samples)[own_bt].max() < ROUNDING, f"version {version}"


# --------------------------------------------------------------------------------------------------------- runs


def configured(engine: str, model: Path, address: str, **more: Any) -> Any:
    """A short run that samples with a server."""
    return parse_config(
        {
            "task": {"name": "reverse", "length": 3},
            "model": {"name": str(model)},
            "warmup": {"steps": 60, "batch": 32},
            "optim": {"lr": 1e-3},
            "steps": 4,
            "batch": {"prompts": 8, "group_size": 8},
            "eval": {"every": 2, "prompts": 8, "final_prompts": 16},
            "sampling": {"engine": engine, engine: {"addresses": [address]}},
            **more,
        }
    )


def run(config: Any, folder: Path) -> list[dict[str, Any]]:
    """The records of a run's training steps."""
    path = train(config, folder=folder, console=Console(file=io.StringIO())).folder
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["phase"] == "train"]


def largest(records: Sequence[dict[str, Any]], name: str) -> float:
    """The largest value of a metric; 0 where it is in no record."""
    return max(record.get(name, 0.0) for record in records)
