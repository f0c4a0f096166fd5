"""A policy over arrays of which each rank has a copy: its outputs and gradients beside those of this process alone."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.policy.replicated.replicas import Replicas
from grouprl.policy.sharded.ranks import Ranks, follow, leading
from grouprl.processes.current_ranks import own_rank
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.testing import check_policy

NAMES = (LOG_PROB, ENTROPY, VALUE)


def rows(lengths: tuple[int, ...], seed: int = 0) -> ArrayInputs:
    luck = np.random.default_rng(seed)
    return ArrayInputs.of(
        [luck.normal(size=(n, 3)).astype(np.float32) for n in lengths], [luck.integers(0, 4, n) for n in lengths]
    )


def gradients(policy: Mlp) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters()]


def gap(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(mine, theirs, strict=True))


def compare(ranks: Ranks, build: Build) -> dict[str, float]:
    """How far the policy with helpers is from its copy without, after each of several calls."""
    shared, inputs = Mlp(build, hidden=[5], normalise=True), rows((4, 1, 3, 2, 6))
    shared.helpers = Replicas(ranks, shared)
    found: dict[str, float] = {}
    for turn in range(2):
        with torch.no_grad():
            for parameter in shared.parameters():
                parameter.data += 0.1 * turn  # not through the tensor that counts its changes
        shared.observe(inputs)
        shared.renew()
        alone = shared.copied(value_head=True)
        assert alone.helpers is None
        alone.load_trainable_state(shared.trainable_state())
        outputs = [policy.evaluate(inputs, NAMES) for policy in (shared, alone)]
        found[f"outputs {turn}"] = gap(*([each[name] for name in NAMES] for each in outputs))
        for policy in (shared, alone):
            policy.module.zero_grad()
            policy.critic.zero_grad()
            for seed in range(2):  # the second adds to the first
                cotangents = {name: torch.linspace(-1, seed, x.numel()).view(x.shape) for name, x in outputs[0].items()}
                policy.backward(inputs, cotangents)
        found[f"gradients {turn}"] = gap(gradients(shared), gradients(alone))
        found[f"moved {turn}"] = float(sum(g.abs().sum() for g in gradients(alone)))
    found["none"] = float(shared.evaluate(rows(()), NAMES)[LOG_PROB].numel())
    found["one row"] = gap(*([p.evaluate(rows((2,)), NAMES)[LOG_PROB]] for p in (shared, alone)))
    check_policy(shared, inputs, values=True)
    return found


def main() -> None:
    if own_rank():
        return follow(lambda: None)
    torch.manual_seed(0)
    with leading() as ranks:
        ranks.begin(120.0)
        build = Build(spaces=Spaces(Box((3,)), Discrete(4)), values=True, dtype=torch.float64, positions=5)
        print(json.dumps(compare(ranks, build)))
    return None


if __name__ == "__main__":
    main()
    sys.stdout.flush()
