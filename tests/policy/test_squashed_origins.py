"""Squashed actions near a bound: rows keep what they were made of, so that log-probs are those of what was sampled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.config.run import parse_config
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.policy import ArrayInputs, Build, Squashed
from grouprl.protocols import Box, Spaces
from grouprl.records.requests import RolloutRequest
from grouprl.records.serialize import pack, unpack
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows

pytest.importorskip("gymnasium")

SPACES = Spaces(observation=Box((3,)), action=Box((1,), -2.0, 2.0))
FAR = 9.0


def pushed(mean: float = FAR, dtype: torch.dtype = torch.float64) -> Squashed:
    """A policy whose mean before squashing is `mean`, with the deviation 1."""
    return push(Squashed(Build(SPACES, seed=1, dtype=dtype), hidden=(4,)), mean)


def push(policy: Any, mean: float) -> Any:
    last = policy._module["mean"][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(mean)
    return policy


def log_density(before: float, mean: float) -> float:
    """log N(u; mean, 1) - log(2·(1 - tanh² u)) of a = 2·tanh(u), with 1 - tanh² u = 4/(e^u + e^-u)²."""
    slope = math.log(2) + math.log(4) - 2 * math.log(math.exp(before) + math.exp(-before))
    return -0.5 * math.log(2 * math.pi) - 0.5 * (before - mean) ** 2 - slope


def kept(policy: Squashed) -> tuple[ArrayInputs, Any]:
    seen = ArrayInputs.of([np.zeros((5, 3), np.float32)], [np.zeros((5, 1), np.float32)])
    turn = policy.act(seen.seen(policy.device, policy.dtype), range(5), [1.0] * 5)
    rows = ArrayInputs.of([np.zeros((5, 3), np.float32)], [np.stack(turn.actions())], origin_bta=[turn.origins()])
    return rows, turn


def test_the_log_prob_of_a_sample_is_its_own_far_beyond_what_can_be_read_back() -> None:
    rows, turn = kept(pushed())
    before = turn.origin_r[:, 0].tolist()
    assert min(before) > 7.5
    expected = [log_density(u, FAR) for u in before]
    assert turn.logp_r.tolist() == pytest.approx(expected, abs=1e-9)
    assert pushed().logp(rows)[0].tolist() == pytest.approx(expected, abs=1e-4)  # u is kept in single precision
    # The score of the mean is u - mean, which is what pulls it; read back it would be 7.25 - mean everywhere.
    policy = pushed()
    policy.score(rows, ("log_prob",))["log_prob"].sum().backward()  # type: ignore[no-untyped-call]
    slope = policy._module["mean"][-1].bias.grad  # type: ignore[index,union-attr]
    assert float(slope[0]) == pytest.approx(sum(u - FAR for u in before), abs=1e-4)  # type: ignore[index]


def test_a_stored_action_at_the_bound_is_read_as_near_to_it() -> None:
    edge = math.atanh(1 - 1e-6)
    rows = ArrayInputs.of([np.zeros((2, 3), np.float32)], [np.array([[2.0], [-2.0]], np.float32)])
    assert pushed(1.0).logp(rows)[0].tolist() == pytest.approx([log_density(edge, 1.0), log_density(-edge, 1.0)])


def test_rows_that_know_and_rows_that_do_not_are_scored_each_by_its_own() -> None:
    rows, turn = kept(pushed())
    stored = replace(rows, origin_bta=None)
    both = rows.joined([stored])
    found = pushed().logp(both)
    assert found[0].tolist() == pytest.approx(turn.logp_r.tolist(), abs=1e-4)
    assert torch.allclose(found[1], pushed().logp(stored)[0])
    assert torch.equal(pushed().logp(both.rows([1, 0])), found[[1, 0]])
    assert torch.allclose(pushed().logp(rows.positions())[:, 0], found[0])
    assert rows.fingerprints() != stored.fingerprints()
    assert both.fingerprints() == [*rows.fingerprints(), *stored.fingerprints()]


def sampled(**task: Any) -> tuple[Any, Any]:
    config = parse_config(
        {
            "task": {"name": "control:Pendulum-v1", "turns": 6, **task},
            "model": {"name": "squashed", "settings": {"hidden": [4]}},
            "method": "ppo_control",
            "batch": {"prompts": 2, "group_size": 1},
            "environment": {"workers": 0},
        }
    )
    run = resolve(config)
    policy = push(build_policy(run), FAR)
    source = open_rows(run.config, run.task, policy, run.reward, 1, ErrorPolicy(), kind=run.row_kind)
    rows = source.rows([RolloutRequest(i, i, run.task.example("train", i), 1) for i in range(2)])
    return policy, unpack(pack(rows), run.task)


@pytest.mark.parametrize("task", [{}, {"horizon": 4}])
def test_rows_of_episodes_and_of_pieces_keep_it(task: Any) -> None:
    policy, rows = sampled(**task)
    assert (rows.inputs.origin_bta.abs() > 7).any()
    known = rows.rollout.logp_bt
    assert torch.allclose(policy.logp(rows.inputs).cpu(), known, atol=1e-4)
    read_back = policy.logp(replace(rows.inputs, origin_bta=None)).cpu()
    assert float((read_back - known).abs().max()) > 1
