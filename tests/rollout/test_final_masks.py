"""The mask of what may follow the last action bounds the values that are bootstrapped from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.policy import ArrayInputs, Build, ChoiceValues, Mlp, TeamValues
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Spaces
from grouprl.records.offline import StoredEpisode, stored_of
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.records.serialize import pack, unpack
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import Start
from grouprl.rollout.episodes import Episodes
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks import Example, load_task
from grouprl.tasks.adapters.trajectories.files import write
from grouprl.training.logprobs import add_statistics, with_final_values
from narrowing import OPEN, WORTH, Narrowing, PairInTurns, PairTogether

NAMED = f"env:{Path(__file__).parents[1] / 'support' / 'narrowing.py'}:Narrowing"
CUT = [1 + 0.5 * (4 + 1), 1 + 0.5 * (4 + 2)]
"""Targets of two actions, the second cut: the reward and half of the best open choice, which began at 4."""


def by_worth() -> ChoiceValues:
    """A policy whose value of a choice is what it is worth."""
    policy = ChoiceValues(Build(Narrowing.spaces), hidden=(), explore=0.5)
    with torch.no_grad():
        policy.part("single")[0].weight.copy_(torch.tensor([[0.0, 1.0]]))  # type: ignore[index]
    policy.follow()
    return policy


def targets(batch: Batch) -> list[list[float]]:
    entry = grouprl.method("rlap", gamma=0.5)
    known = add_statistics(by_worth(), batch, entry.needs())
    adv_bt = entry.compute_advantages(known.replace(old_bt=torch.zeros(batch.size))).advantage_bt
    assert adv_bt is not None
    return [row[:n].tolist() for row, n in zip(adv_bt, batch.mask_bt.sum(1).tolist(), strict=True)]


def played(make: Any, turns: int, policy: Any, count: int = 3) -> Episodes:
    starts = [Start(Example(f"q{i}", "", {}), i, action_seed=1000 * i) for i in range(count)]
    agents = getattr(make(), "_agents", ("",)) if make is PairInTurns else ("",)
    return play_arrays(local_engine(policy), make, starts, spaces=make().spaces, max_turns=turns, agents=agents)


def batch_of(found: Episodes) -> Batch:
    inputs: Any = found.rollout.inputs
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(len(inputs)),
        reward_b=torch.ones(len(inputs)) * 2,
        turn_bt=torch.arange(2).expand(len(inputs), -1),
        turn_reward_bs=torch.ones(len(inputs), 2),
        truncated_b=found.rollout.truncated_b,
        inputs=inputs,
    )


@pytest.mark.parametrize("cut", [2, 99])
def test_a_limit_leaves_only_the_open_choices_to_bootstrap_from(cut: int) -> None:
    """At the environment's limit and at task.turns."""
    found = played(_cut(cut), 2, by_worth())
    assert targets(batch_of(found)) == [CUT] * 3
    assert found.rollout.inputs.final_legal_ba.tolist() == [OPEN.tolist()] * 3  # type: ignore[attr-defined]


def _cut(cut: int, **more: Any) -> Any:
    class Cut(Narrowing):
        def __init__(self) -> None:
            super().__init__(cut=cut, **more)

    return Cut


def test_no_choice_follows_an_end() -> None:
    found = played(_cut(99, end=2), 5, by_worth())
    assert targets(batch_of(found)) == [[CUT[0], 1.0]] * 3
    assert found.rollout.inputs.final_legal_ba is None  # type: ignore[attr-defined]


def test_a_mask_without_an_open_choice_at_a_limit_says_nothing() -> None:
    found = played(_cut(2, closed=True), 5, by_worth())
    assert targets(batch_of(found)) == [[CUT[0], 1 + 0.5 * 11]] * 3


def lanes(horizon: int) -> Any:
    config = parse_config(
        {
            "task": {"name": NAMED, "turns": 9, "horizon": horizon},
            "model": {"name": "choice_values", "settings": {"hidden": [], "explore": 0.5}},
            "method": "rlap",
            "batch": {"prompts": 2, "group_size": 1},
            "environment": {"workers": 0},
        }
    )
    run = resolve(config)
    policy: Any = build_policy(run)
    errors = ErrorPolicy("drop_row", max_fraction=1.0)
    return open_rows(run.config, run.task, policy, run.reward, 1, errors, kind=run.row_kind)


def test_a_piece_under_way_ends_with_the_mask_of_what_follows() -> None:
    """Two pieces of an episode that is under way: the values that follow are 4 + 2, then 4 + 3 and 4 + 4."""
    source = lanes(2)
    asked = [RolloutRequest(i, i, source.task.example("train", i), 1) for i in range(4)]
    first, second = source.rows(asked[:2]), source.rows(asked[2:])
    assert targets(to_batch(first, max_length=2)) == [CUT] * 2
    assert targets(to_batch(second, max_length=2)) == [[1 + 0.5 * 7, 1 + 0.5 * 8]] * 2
    packed: Any = unpack(pack(first), source.task).inputs
    assert torch.equal(packed.final_legal_ba, first.inputs.final_legal_ba)


def episode(final: np.ndarray | None) -> StoredEpisode:
    seen = {
        "state": np.arange(3, dtype=np.float32)[:, None],
        "choices": (WORTH + np.arange(3, dtype=np.float32)[:, None])[..., None],
    }
    legal = np.stack([np.ones(3, bool), OPEN])
    return StoredEpisode(seen, np.array([0, 1]), np.ones(2), False, legal=legal, final_legal=final)


def stored(path: Path) -> ScoredSamples:
    run = resolve(
        parse_config(
            {
                "task": {"name": f"trajectories:{path}", "of": {"name": NAMED, "turns": 9}},
                "model": {"name": "choice_values", "settings": {"hidden": []}},
                "method": "rlap",
                "batch": {"prompts": 2, "group_size": 1},
            }
        )
    )
    policy: Any = build_policy(run)
    source = open_rows(run.config, run.task, policy, run.reward, 1, ErrorPolicy())
    return source.rows([RolloutRequest(i, i, run.task.example("train", i), 1) for i in range(2)])


@pytest.mark.parametrize("kind", ["jsonl", "npz"])
def test_a_stored_trajectory_may_say_what_would_follow(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"cut.{kind}"
    whole = [episode(OPEN)] * 2
    if kind == "jsonl":
        write(path, whole)
    else:
        columns: dict[str, Any] = {"actions": [e.actions for e in whole], "rewards": [e.rewards for e in whole]}
        columns |= {f"observations.{name}": [e.observations[name] for e in whole] for name in ("state", "choices")}
        flat = {name: np.concatenate(parts) for name, parts in columns.items()}
        masks: Any = np.concatenate([e.masks() for e in whole])
        np.savez(path, **flat, legal=masks, lengths=np.array([2, 2]), terminated=np.zeros(2, bool))
    assert targets(to_batch(stored(path), max_length=2)) == [CUT] * 2
    task = load_task({"name": f"trajectories:{path}", "of": {"name": NAMED, "turns": 9}})
    assert stored_of(task, task.example("train", 0))[0] == episode(OPEN)
    assert stored_of(task, task.example("train", 0))[0] != episode(None)


def test_masks_of_another_length_are_refused(tmp_path: Path) -> None:
    long = replace(episode(OPEN), legal=np.ones((3, 3), bool))
    write(tmp_path / "long.jsonl", [long])
    with pytest.raises(InputError, match=r"They are \(2, 3\), or with the one after the last action \(3, 3\)"):
        load_task({"name": f"trajectories:{tmp_path / 'long.jsonl'}", "of": {"name": NAMED, "turns": 9}})


class Counting(Mlp):
    """The value of a state is the number of legal actions."""

    def value(self, seen: Any) -> torch.Tensor:
        assert seen.legal_na is not None
        return seen.legal_na.sum(-1).to(self.dtype)


def test_a_critic_sees_what_may_follow_a_cut() -> None:
    inputs = ArrayInputs.of([np.zeros((2, 1)), np.zeros((1, 1))], [[0, 0], [0]], final_b=[np.zeros(1)] * 2)
    inputs = replace(inputs, final_legal_ba=torch.tensor([OPEN.tolist(), [True] * 3]))
    policy = Counting(Build(Spaces(Box((1,)), Discrete(3)), values=True), hidden=(2,))
    batch = Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(2),
        reward_b=torch.zeros(2),
        truncated_b=torch.tensor([True, True]),
    )
    assert with_final_values(policy, batch, inputs).final_value_b.tolist() == [2, 3]  # type: ignore[union-attr]
    longer: Any = inputs.extended()
    assert longer.legal_bta.sum(-1).tolist() == [[3, 3, 2], [3, 3, 0]]


def test_masks_stay_with_their_rows() -> None:
    masked = ArrayInputs.of(
        [np.zeros((2, 1)), np.zeros((1, 1))], [[0, 0], [0]], final_b=[np.zeros(1)] * 2, final_legal_ba=[OPEN, None]
    )
    assert masked.final_legal_ba.tolist() == [OPEN.tolist(), [True] * 3]  # type: ignore[union-attr]
    plain = ArrayInputs.of([np.zeros((1, 1))], [[0]], final_b=[np.zeros(1)])
    both = masked.rows([1, 0]).joined([plain])
    assert both.final_legal_ba.tolist() == [[True] * 3, OPEN.tolist(), [True] * 3]  # type: ignore[union-attr]
    assert plain.joined([plain]).final_legal_ba is None
    with pytest.raises(InputError, match="shapes"):
        replace(masked, final_legal_ba=torch.ones(3, 3, dtype=torch.bool))


def test_agents_that_a_limit_cuts_keep_their_masks() -> None:
    world = PairInTurns()
    policy = Mlp(Build(world.spaces), hidden=(2,))
    found: Any = played(PairInTurns, 9, policy).rollout
    assert found.truncated_b.all()
    assert found.inputs.final_legal_ba.tolist() == [OPEN.tolist(), np.roll(OPEN, 1).tolist()] * 3


def test_a_team_s_values_are_of_what_each_may_do_after_a_cut() -> None:
    """Values of the agents' choices are 5, 2, 1: the first may take 2 at most, the second 5, and both 5 before."""
    spaces = Spaces(DictSpace({"own": Box((2, 1))}), MultiDiscrete((3, 3)))
    policy = TeamValues(Build(spaces), hidden=(), mixer="sum", explore=0.5)
    with torch.no_grad():
        policy.part("single")[0].weight.zero_()  # type: ignore[index]
        policy.part("single")[0].bias.copy_(torch.tensor([5.0, 2.0, 1.0]))  # type: ignore[index]
    policy.follow()
    found = played(PairTogether, 9, policy)
    masks = np.concatenate([OPEN, np.roll(OPEN, 1)]).tolist()
    assert found.rollout.inputs.final_legal_ba.tolist() == [masks] * 3  # type: ignore[attr-defined]
    known = policy.evaluate(found.rollout.inputs, ("best_after",))["best_after"]
    assert known.tolist() == [[7, 7]] * 3
