"""Policies that act by a context: what it is read from, what each output moves, and errors in hindsight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.core.errors import InputError
from grouprl.policy import ArrayInputs, Build, Hindsight
from grouprl.protocols import Box, Discrete, MultiDiscrete, Spaces
from grouprl.testing import check_policy
from grouprl.training.update import Learner
from small import small

LENGTHS = (6, 1, 4, 2)
SPACES = Spaces(Box((2,)), Discrete(3))
VECTORS = Spaces(Box((2,)), Box((2,)))
ROWS = ("context_score", "goal_score", "context_size_error")


def policy_of(spaces: Spaces = SPACES, **settings: Any) -> Hindsight:
    return Hindsight(
        Build(spaces, values=settings.pop("values", False), dtype=torch.float64),
        **{"window": 3, "width": 8, "dims": 3, **settings},
    )


def taken(space: Any, luck: np.random.Generator, length: int) -> np.ndarray:
    if isinstance(space, Box):
        return luck.normal(size=(length, 2)).astype(np.float32)
    return luck.integers(0, 2, (length, 2) if isinstance(space, MultiDiscrete) else length)


def rows_of(spaces: Spaces = SPACES, lengths: tuple[int, ...] = LENGTHS) -> ArrayInputs:
    luck = np.random.default_rng(0)
    seen = [luck.normal(size=(n, 2)).astype(np.float32) for n in lengths]
    return ArrayInputs.of(
        seen,
        [taken(spaces.action, luck, n) for n in lengths],
        final_b=[x[0] for x in seen],
        seed_b=list(range(len(lengths))),
    )


@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 3)), Box((2,))])
@pytest.mark.parametrize("window", [1, 3])
def test_it_conforms(action: Any, window: int) -> None:
    spaces = Spaces(Box((2,)), action)
    check_policy(policy_of(spaces, values=True, window=window, hidden=[8]), rows_of(spaces), values=True)


def test_a_context_is_that_of_the_whole_row_and_no_other() -> None:
    policy, inputs = policy_of(), rows_of()
    whole_bz = policy.contexts(inputs)
    for row in range(len(LENGTHS)):
        torch.testing.assert_close(policy.contexts(inputs.rows([row]))[0], whole_bz[row])
    for place in range(6):
        acted_bt = inputs.action_bt.clone()
        acted_bt[0, place] = (acted_bt[0, place] + 1) % 3
        moved = ArrayInputs(inputs.observation_bt, acted_bt, inputs.length_b)
        changed_b = (policy.contexts(moved) - whole_bz).abs().amax(1) > 1e-9
        assert changed_b.tolist() == [True, False, False, False]


def test_outputs_are_what_they_say_of_contexts() -> None:
    policy, inputs = policy_of(), rows_of()
    assert float(policy.goal.detach().norm()) == pytest.approx(1, abs=1e-6)
    context_bz, found = policy.contexts(inputs).detach(), policy.evaluate(inputs, ROWS)
    distance_b = (context_bz - policy.goal.detach()).square().sum(1).sqrt()
    torch.testing.assert_close(found["context_score"], -distance_b)
    torch.testing.assert_close(found["goal_score"], -distance_b)
    torch.testing.assert_close(found["context_size_error"], (context_bz.square().sum(1).sqrt() - 1) ** 2)


@pytest.mark.parametrize("spaces", [SPACES, VECTORS])
def test_errors_in_hindsight_are_those_of_acting_by_the_rows_own_context(spaces: Spaces) -> None:
    policy, inputs = policy_of(spaces, hidden=[8]), rows_of(spaces)
    error_bt = policy.evaluate(inputs, ("hindsight_error",))["hindsight_error"]
    for row, length in enumerate(LENGTHS):
        alone = inputs.rows([row])
        policy.goal.data.copy_(policy.contexts(alone)[0])
        if spaces is SPACES:
            expected_t = -policy.evaluate(alone, ("log_prob",))["log_prob"][0]
        else:
            mean_na = policy.distribution(alone.seen(policy.device, policy.dtype), 1.0).mean
            expected_t = (mean_na - alone.action_bt[0]).square().mean(-1)
        torch.testing.assert_close(error_bt[row, :length], expected_t)
        assert error_bt[row, length:].tolist() == [0.0] * (max(LENGTHS) - length)


def moves(policy: Hindsight, inputs: ArrayInputs, name: str) -> dict[str, torch.Tensor]:
    """The gradient of the sum of an output, of the parameters that have one."""
    policy.module.zero_grad()
    shape = (len(inputs),) if name in ROWS else (len(inputs), inputs.width)
    policy.backward(inputs, {name: torch.ones(shape, dtype=torch.float64)})
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}


@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("context_score", {"encoder"}),
        ("goal_score", {"goal"}),
        ("context_size_error", {"encoder"}),
        ("hindsight_error", {"encoder", "memory", "mean"}),
        ("log_prob", {"goal", "memory", "mean"}),
    ],
)
def test_gradients_are_those_of_small_steps_with_what_is_held_constant(name: str, reaches: set[str]) -> None:
    policy, inputs = policy_of(), rows_of()
    found = moves(policy, inputs, name)
    assert {n.partition(".")[0] for n in found} == reaches
    for parameter, slope in found.items():
        flat = dict(policy.named_parameters())[parameter].data.view(-1)
        place, step, values = int(slope.abs().argmax()), 1e-6, []
        for sign in (1, -1):
            flat[place] += sign * step
            values.append(float(policy.evaluate(inputs, (name,))[name].sum()))
            flat[place] -= sign * step
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(slope.view(-1)[place]), rel=1e-5, abs=1e-8)


def test_a_context_at_the_one_that_acts_and_one_of_length_0_have_finite_gradients() -> None:
    policy, inputs = policy_of(), rows_of(lengths=(3,))
    policy.goal.data.copy_(policy.contexts(inputs)[0])
    assert moves(policy, inputs, "goal_score") == {}
    for parameter in policy.module["encoder"].out.parameters():  # type: ignore[index,union-attr]
        parameter.data.zero_()
    assert all(bool(torch.isfinite(x).all()) for x in moves(policy, inputs, "context_size_error").values())


@pytest.mark.parametrize("positions", [1, 8, 1000])
def test_a_step_is_the_same_however_it_goes_through_the_policy(positions: int) -> None:
    policy, inputs = policy_of(), rows_of()
    batch = small([1.0, 0.0, 0.0, 2.0], list(LENGTHS), groups=[0, 0, 1, 1], old_bt=None).replace(inputs=inputs)
    method = grouprl.method("oppo")
    ready, names = method.prepare(batch), method.outputs
    whole = method.loss(None, ready, outputs=policy.evaluate(inputs, names, grad=True)).value
    whole.backward()
    expected = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
    policy.module.zero_grad()
    policy.positions = positions
    learner = Learner(policy, torch.optim.SGD(policy.parameters(), 0.0), method)
    learner.accumulate(ready)
    found = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    assert expected.keys() <= found.keys()
    for name, slope in expected.items():
        torch.testing.assert_close(found[name], slope, rtol=1e-9, atol=1e-12)


def test_sizes_that_cannot_be_are_refused() -> None:
    for wrong in ({"window": 0}, {"width": 7}, {"dims": 0}, {"layers": 0}):
        with pytest.raises(InputError, match="Sizes are 1 or more"):
            policy_of(**wrong)
