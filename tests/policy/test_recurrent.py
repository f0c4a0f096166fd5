"""Policies that remember: rows scored whole are what was sampled step by step, whatever stands beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation
from grouprl.policy import ArrayInputs, Build, Recurrent
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Request, Spaces
from grouprl.rollout.engines import local_engine
from grouprl.testing import check_policy, check_sampler

SPACES = Spaces(Box((3,)), Discrete(4))
LENGTHS = (5, 1, 3, 2)


def policy_of(cell: str, spaces: Spaces = SPACES, **settings: Any) -> Recurrent:
    return Recurrent(Build(spaces, values=True, dtype=torch.float64), cell=cell, width=6, **settings)


def rows_of(lengths: tuple[int, ...] = LENGTHS) -> ArrayInputs:
    luck = np.random.default_rng(0)
    return ArrayInputs.of(
        [luck.normal(size=(n, 3)).astype(np.float32) for n in lengths],
        [luck.integers(0, 4, n) for n in lengths],
        final_b=[luck.normal(size=3).astype(np.float32) for _ in lengths],
        seed_b=list(range(len(lengths))),
    )


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("action", [Discrete(4), MultiDiscrete((2, 3)), Box((2,))])
def test_a_recurrent_policy_conforms(cell: str, action: Any) -> None:
    spaces = Spaces(Box((3,)), action, DictSpace({"map": Box((2,))}))
    luck = np.random.default_rng(0)
    taken: dict[type, Any] = {
        Discrete: lambda n: luck.integers(0, 4, n),
        MultiDiscrete: lambda n: luck.integers(0, 2, (n, 2)),
        Box: lambda n: luck.normal(size=(n, 2)).astype(np.float32),
    }
    inputs = ArrayInputs.of(
        [luck.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS],
        [taken[type(action)](n) for n in LENGTHS],
        context_b=[{"map": luck.normal(size=2).astype(np.float32)} for _ in LENGTHS],
        final_b=[np.zeros(3, np.float32) for _ in LENGTHS],
        seed_b=list(range(len(LENGTHS))),
    )
    check_policy(policy_of(cell, spaces, hidden=[8]), inputs, values=True)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_scored_as_they_were_sampled_step_by_step(cell: str, dtype: torch.dtype) -> None:
    policy = Recurrent(Build(SPACES, dtype=dtype), cell=cell, width=6)
    luck, engine = np.random.default_rng(3), local_engine(policy)
    seen = [luck.normal(size=(n, 3)).astype(np.float32) for n in LENGTHS]
    actions: list[list[Any]] = [[] for _ in LENGTHS]
    logp: list[list[float]] = [[] for _ in LENGTHS]
    with engine.session() as session:
        for step in range(max(LENGTHS)):
            living = [row for row, n in enumerate(LENGTHS) if step < n][:: (-1) ** step]  # in another order each time
            found = session.sample(
                [Request(ArrayObservation(seen[row][step]), 1, 9 * row + step, name=row) for row in living]
            )
            assert found.logp_bt is not None
            for place, row in enumerate(living):
                actions[row] += found.actions[place]
                logp[row].append(float(found.logp_bt[place, 0]))
    scored_bt = policy.logp(ArrayInputs.of(seen, actions))
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(scored_bt[row, :n].double(), torch.tensor(logp[row]).double(), rtol=0, atol=1e-6)
        alone_bt = policy.logp(ArrayInputs.of([seen[row]], [actions[row]]))
        torch.testing.assert_close(alone_bt[0], scored_bt[row, :n], rtol=0, atol=1e-6)


def test_an_action_depends_on_what_came_before_and_not_on_what_follows() -> None:
    policy, luck = policy_of("gru"), np.random.default_rng(0)
    seen, actions = luck.normal(size=(4, 3)).astype(np.float32), np.array([0, 1, 2, 3])
    base_t = policy.logp(ArrayInputs.of([seen], [actions]))[0]
    for changed in range(4):
        other = seen.copy()
        other[changed] += 1
        moved_t = (policy.logp(ArrayInputs.of([other], [actions]))[0] - base_t).abs() > 1e-9
        assert moved_t.tolist() == [place >= changed for place in range(4)]


def test_gradients_are_those_of_finite_differences_through_time() -> None:
    policy, inputs = policy_of("lstm"), rows_of((3, 2))
    cotangent_bt = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.3, 0.0]], dtype=torch.float64)
    policy.backward(inputs, {"log_prob": cotangent_bt})
    for name, parameter in policy.named_parameters():
        if name.startswith("value_head"):
            continue
        flat, place = parameter.data.view(-1), parameter.numel() // 2
        found, kept = [], float(flat[place])
        for move in (1e-6, -1e-6):
            flat[place] = kept + move
            found.append(float((policy.logp(inputs) * cotangent_bt).sum()))
        flat[place] = kept
        assert parameter.grad is not None
        assert float(parameter.grad.view(-1)[place]) == pytest.approx((found[0] - found[1]) / 2e-6, abs=1e-6)


def test_a_session_forgets_other_names_and_a_lone_request_begins() -> None:
    engine = local_engine(policy_of("gru"))
    first, later = (Request(ArrayObservation(np.full(3, x, np.float32)), 1, 5, name="one") for x in (2.0, 1.0))
    fresh = engine.sample([later]).logp_bt
    with engine.session() as session:
        session.sample([first])
        carried = session.sample([later]).logp_bt
        other = session.sample([Request(later.prompt, 1, 5, name="two")]).logp_bt
    assert fresh is not None
    assert carried is not None
    assert fresh != carried
    assert fresh == other
    check_sampler(engine, [Request(ArrayObservation(np.full(3, s, np.float32)), 1, s) for s in range(12)], pieces=False)


def test_final_observations_are_read_after_the_row() -> None:
    inputs = rows_of()
    extended = inputs.extended()
    assert extended is not None
    assert extended.length_b.tolist() == [n + 1 for n in LENGTHS]
    assert isinstance(extended.observation_bt, torch.Tensor)
    assert isinstance(inputs.final_b, torch.Tensor)
    for row, n in enumerate(LENGTHS):
        assert torch.equal(extended.observation_bt[row, n], inputs.final_b[row])
    policy = policy_of("gru")
    before_bt, after_bt = (policy.evaluate(x, ("value",))["value"] for x in (inputs, extended))
    torch.testing.assert_close(after_bt[:, : inputs.width] * inputs.present_bt(), before_bt, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"cell": "rnn"}, "gru, lstm"), ({"width": 0}, "one number or more"), ({"hidden": [0]}, "hidden")],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recurrent(Build(SPACES), **settings)


def test_a_horizon_is_refused() -> None:
    with pytest.raises(InputError, match="horizon"):
        Recurrent(Build(SPACES, task=SimpleNamespace(actions_per_step=8)))
