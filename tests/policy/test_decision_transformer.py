"""Policies that are asked for a return: what an action is read from, and errors of what they foresee, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation
from grouprl.policy import ArrayInputs, Build, DecisionTransformer
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Request, Spaces
from grouprl.rollout.engines import local_engine
from grouprl.testing import check_policy

LENGTHS = (6, 1, 4, 2)
SPACES = Spaces(DictSpace({"seen": Box((2,)), "to_go": Box((1,)), "before": Discrete(4)}), Discrete(3))


def policy_of(spaces: Spaces = SPACES, **settings: Any) -> DecisionTransformer:
    return DecisionTransformer(
        Build(spaces, values=settings.pop("values", False), dtype=settings.pop("dtype", torch.float64)),
        **{"window": 3, "width": 8, **settings},
    )


def shown(length: int, luck: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "seen": luck.normal(size=(length, 2)).astype(np.float32),
        "to_go": luck.normal(size=(length, 1)).astype(np.float32),
        "before": luck.integers(0, 4, length),
    }


def rows_of(lengths: tuple[int, ...] = LENGTHS) -> ArrayInputs:
    luck = np.random.default_rng(0)
    return ArrayInputs.of(
        [shown(n, luck) for n in lengths],
        [luck.integers(0, 3, n) for n in lengths],
        final_b=[{name: x[0] for name, x in shown(1, luck).items()} for _ in lengths],
        seed_b=list(range(len(lengths))),
    )


@pytest.mark.parametrize(
    ("action", "before", "taken"),
    [
        (Discrete(3), Discrete(4), lambda luck, n: luck.integers(0, 3, n)),
        (MultiDiscrete((2, 3)), MultiDiscrete((3, 4)), lambda luck, n: luck.integers(0, 2, (n, 2))),
        (Box((2,)), Box((2,)), lambda luck, n: luck.normal(size=(n, 2)).astype(np.float32)),
    ],
)
@pytest.mark.parametrize("window", [1, 3])
def test_it_conforms(action: Any, before: Any, taken: Any, window: int) -> None:
    spaces = Spaces(DictSpace({"seen": Box((2,)), "to_go": Box((1,)), "before": before}), action)
    luck = np.random.default_rng(0)
    seen = [{**shown(n, luck), "before": taken(luck, n)} for n in LENGTHS]
    inputs = ArrayInputs.of(
        seen,
        [taken(luck, n) for n in LENGTHS],
        final_b=[{name: x[0] for name, x in each.items()} for each in seen],
        seed_b=list(range(len(LENGTHS))),
    )
    check_policy(policy_of(spaces, values=True, window=window, hidden=[8]), inputs, values=True)


@pytest.mark.parametrize("layers", [1, 2])
def test_rows_are_scored_as_they_were_sampled_step_by_step(layers: int) -> None:
    policy, luck = policy_of(layers=layers), np.random.default_rng(3)
    seen, engine = [shown(n, luck) for n in LENGTHS], local_engine(policy)
    actions: list[list[Any]] = [[] for _ in LENGTHS]
    logp: list[list[float]] = [[] for _ in LENGTHS]
    with engine.session() as session:
        for step in range(max(LENGTHS)):
            living = [row for row, n in enumerate(LENGTHS) if step < n][:: (-1) ** step]  # in another order each time
            at = [{name: x[step] for name, x in seen[row].items()} for row in living]
            asked = [Request(ArrayObservation(x), 1, 9 * r + step, name=r) for r, x in zip(living, at, strict=True)]
            found = session.sample(asked)
            assert found.logp_bt is not None
            for place, row in enumerate(living):
                actions[row] += found.actions[place]
                logp[row].append(float(found.logp_bt[place, 0]))
    scored_bt = policy.logp(ArrayInputs.of(seen, actions))
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(scored_bt[row, :n].tolist(), logp[row], rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["seen", "to_go"])
def test_an_action_is_read_from_the_window_alone(name: str, layers: int) -> None:
    policy, luck = policy_of(layers=layers), np.random.default_rng(0)
    seen, actions = shown(6, luck), luck.integers(0, 3, 6)
    base_t = policy.logp(ArrayInputs.of([seen], [actions]))[0]
    for changed in range(6):
        other = {key: x.copy() for key, x in seen.items()}
        other[name][changed] += 1
        moved_t = (policy.logp(ArrayInputs.of([other], [actions]))[0] - base_t).abs() > 1e-9
        assert moved_t.tolist() == [changed <= place < changed + 3 for place in range(6)]


def test_the_order_of_what_was_seen_counts() -> None:
    policy, luck = policy_of(), np.random.default_rng(0)
    seen, actions = shown(3, luck), luck.integers(0, 3, 3)
    turned = {name: x[[1, 0, 2]] for name, x in seen.items()}
    last, other = (policy.logp(ArrayInputs.of([each], [actions]))[0, 2] for each in (seen, turned))
    assert abs(float(last - other)) > 1e-6


def test_errors_are_those_of_the_next_observation_and_return_to_go() -> None:
    """Heads that always foresee 0: the errors are squares of what comes next, and end with the row."""
    policy, inputs = policy_of(), rows_of((3, 1))
    for parameter in policy.module["foresight"].parameters():  # type: ignore[index]
        torch.nn.init.zeros_(parameter)
    found = policy.evaluate(inputs, ("observation_error", "to_go_error"))
    next_tf, to_go_t = inputs.observation_bt["seen"][0].double(), inputs.observation_bt["to_go"][0, :, 0].double()  # type: ignore[index]
    expected = [float(next_tf[1].square().mean()), float(next_tf[2].square().mean()), 0.0]
    torch.testing.assert_close(found["observation_error"].tolist(), [expected, [0.0] * 3])
    torch.testing.assert_close(found["to_go_error"][0], torch.stack([to_go_t[1] ** 2, to_go_t[2] ** 2, to_go_t[0] * 0]))
    for parameter in policy.module["foresight"]["to_go_error"][-1:].parameters():  # type: ignore[index]
        torch.nn.init.constant_(parameter, 0.0)
    policy.module["foresight"]["to_go_error"][-1].bias.data.fill_(0.5)  # type: ignore[index]
    assert policy.evaluate(inputs, ("to_go_error",))["to_go_error"][:, [2, 0]].diag().tolist() == [0.25, 0.25]


def test_foresight_reads_the_action_and_moves_what_acts() -> None:
    policy, inputs = policy_of(), rows_of((4,))
    other = ArrayInputs.of([{k: v[0] for k, v in inputs.observation_bt.items()}], [(inputs.action_bt[0] + 1) % 3])  # type: ignore[union-attr]
    names = ("observation_error", "to_go_error")
    mine, yours = policy.evaluate(inputs, names), policy.evaluate(other, names)
    assert all(bool((mine[name] != yours[name])[0, :3].all()) for name in names)
    policy.backward(inputs, {"observation_error": torch.ones(1, 4, dtype=torch.float64)})
    moved = {name for name, p in policy.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert any(name.startswith("memory.") for name in moved)
    assert not any(name.startswith(("mean.", "foresight.to_go_error")) for name in moved)


def test_what_it_cannot_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"Set task\.target"):
        DecisionTransformer(Build(Spaces(Box((2,)), Discrete(3))))
    for wrong in ({"window": 0}, {"width": 7}, {"layers": 0}):
        with pytest.raises(InputError, match="Sizes are 1 or more"):
            policy_of(**wrong)
