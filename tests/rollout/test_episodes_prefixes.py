"""Episodes that go on from given first turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import toy_envs
from episode_runs import launch, resumed_is_the_same
from grouprl import InputError
from grouprl.algorithms.augment.prefix_turns import led, turns_of
from grouprl.algorithms.augment.resampling import splice
from grouprl.algorithms.data_part import Augmentation
from grouprl.algorithms.part import part
from grouprl.envs import Observation, Step
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset, to_batch
from grouprl.rollout.episodes import Start, play
from prefix_runs import policy, row_source, sampled


class Lucky(toy_envs.Asking):
    """Shows the parity of its seed on the first turn, so that luck can be told."""

    def reset(self, example: Any, seed: int) -> Observation:
        self.seed = seed
        return super().reset(example, seed)

    def step(self, action: str) -> Step:
        step = super().step(action)
        if self.turn == 1:
            return replace(step, observation=Observation("ab"[self.seed % 2] * (1 + self.seed % 3), state="s"))
        return step


class LuckyTask(toy_envs.AskTask):
    """As above."""

    def environment(self) -> Any:
        return Lucky()


def test_the_whole_lead_gives_the_episode_again() -> None:
    made, rows = sampled(LuckyTask())
    for row in range(len(rows)):
        again = made.rows([led(rows, row, 2, train_prefix=True)])
        assert again.rollout.response_ids == (rows.rollout.response_ids[row],)
        assert again.scores.reward_b[0] == rows.scores.reward_b[row]
        width = len(again.rollout.response_ids[0])
        want = rows.rollout.logp_bt[row, :width]
        torch.testing.assert_close(again.rollout.logp_bt[0], want, atol=2e-6, rtol=0)
        torch.testing.assert_close(again.rollout.entropy_bt[0], rows.rollout.entropy_bt[row, :width], atol=2e-6, rtol=0)


def test_what_follows_a_lead_is_sampled_anew_and_alone_trained() -> None:
    made, rows = sampled(LuckyTask())
    request = replace(led(rows, 2, 1), completions=16)
    assert request.first == 6
    more = made.rows([request])
    first = turns_of(rows, 2)[0][1]
    assert all(ids[: len(first)] == first for ids in more.rollout.response_ids)
    assert len(set(more.rollout.response_ids)) > 1
    batch = to_batch(more, max_length=9)
    led_bt = torch.arange(batch.size[1]) < len(first)
    assert not (batch.mask_bt & led_bt).any()
    assert (batch.turn_bt[batch.mask_bt] == 1).all()
    assert set(more.sample_b.tolist()) == set(range(6, 22))
    assert set(more.extras["keys.luck"].tolist()) == {2}
    assert batch.turn_reward_bs[:, 0].unique().tolist() == [rows.extras["turn_reward_bs"][2, 0]]


def test_a_branch_of_a_branch_keeps_the_first_ones_luck() -> None:
    made, rows = sampled(LuckyTask())
    more = made.rows([led(rows, 4, 1)])
    last = made.rows([led(more, 0, 1, skip=30)])
    assert last.extras["keys.luck"].tolist() == [4]
    assert last.records[0].turns[0].seen == rows.records[4].turns[0].seen
    assert last.valid_b.all()


def test_a_lead_that_reaches_the_end_leaves_nothing_to_train_on() -> None:
    made, rows = sampled(LuckyTask())
    assert not made.rows([led(rows, 0, 2)]).valid_b.any()


class Restless(Lucky):
    """Shows something else each time."""

    def step(self, action: str) -> Step:
        type(self).steps = getattr(type(self), "steps", 0) + 1
        step = super().step(action)
        return replace(step, observation=Observation("c" * type(self).steps))


def test_an_environment_that_cannot_be_played_again_is_named() -> None:
    task = LuckyTask()
    task.environment = Restless  # type: ignore[method-assign]
    made, rows = sampled(task, 1)
    again = made.rows([led(rows, 0, 1)])
    (problem,) = again.scores.problems
    assert "is not reproducible: after the same 1 actions with the same seed it showed 'ccc'" in problem.what
    assert "where it had shown 'c'" in problem.what
    assert "prompt 'ask/train/3'" in problem.what
    assert not again.valid_b.any()


def test_a_patched_action_is_acted_out() -> None:
    task = toy_envs.AskTask()
    made, rows = sampled(task)
    own = policy()
    request = led(rows, 0, 1)
    request = replace(request, prefix_turns=((*own.encode("k"), own.eos_ids[0]),), prefix_observations=())
    more = made.rows([request])
    assert more.records[0].turns[0].action == "k"
    assert more.records[0].turns[0].seen == task.example("train", 3).columns["letter"]


def test_turns_of_several_agents_are_acted_out_in_order() -> None:
    task = toy_envs.TeamTask()
    made = row_source(task)
    rows = made.rows([RolloutRequest(0, 0, task.example("train", 0), 64)])
    assert rows.context_b.any()
    row = int((rows.context_b >= 1).argmax())
    known = turns_of(rows, row)
    assert [turn.number for turn, _ in known] == list(range(len(known)))
    again = made.rows([led(rows, row, len(known) - 1)])
    assert again.valid_b.sum() == 1
    assert again.records[0].agent == "boss"
    both = subset(rows, np.arange(len(rows)) != row - rows.context_b[row])
    with pytest.raises(InputError, match=r"turn 0 of the episode of row .* is missing"):
        turns_of(both, row - 1)


def test_only_episodes_can_be_led() -> None:
    with pytest.raises(InputError, match="7 turns of an episode of 2"):
        led(sampled(LuckyTask())[1], 0, 7)
    bare = replace(sampled(LuckyTask())[1], records=None)
    with pytest.raises(InputError, match="row 0 is not an episode"):
        led(bare, 0, 1)


def test_a_lead_without_room_ends_the_episode() -> None:
    own = policy()
    task = toy_envs.AskTask()
    prefix = (tuple(own.encode("kkkk")) * 200,)
    (why,) = play(
        own, task.environment, [Start(task.example("train", 0), 0, prefix=((*own.encode("k"),), *prefix))],
        max_turns=3, max_new_tokens=2,
    ).ended  # fmt: skip
    assert why == "out_of_room"


@part("augment")
class BranchOnce(Augmentation):
    """Each prompt's last completion is replaced by one that branches off its first after one turn."""

    def words(self) -> str:
        return "branch once"

    needs_text = True

    def __call__(self, samples: ScoredSamples, context: Any) -> ScoredSamples:
        gone_b = samples.sample_b == samples.sample_b.max()
        requests = [led(samples, row, 1) for row in np.flatnonzero(samples.sample_b == 0).tolist()]
        return splice(samples, gone_b, [context.sample(requests)])


def test_runs_with_branches_resume_exactly(tmp_path: Path) -> None:
    method = {"base": "grpo", "augment": ["branch_once"]}
    changes: dict[str, Any] = {"task": f"{__file__}:LuckyTask", "method": method, "steps": 4}
    folder = launch(tmp_path / "run", run={"threads": 1, "checkpoint_every": 2}, **changes)
    rows = pq.read_table(folder / "rollouts" / "step-000004.parquet").to_pylist()
    branched = [row for row in rows if row["sample"] == 8]
    assert len(branched) == 8
    assert all(row["used"] and row["turn"][0] == 0 and not row["mask"][0] for row in branched)
    resumed_is_the_same(folder, tmp_path, changes)
