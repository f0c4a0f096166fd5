"""Stored successes: in the place of a failure, and learned from once more; the bonus for turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fake_context import FakeContext, judged_of
from grouprl import method
from grouprl.algorithms.augment.papers.success_replay import SuccessReplay
from grouprl.algorithms.buffer.papers.self_imitation import SelfImitation
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.turn_bonus import TurnBonus
from grouprl.algorithms.update.papers.replay_pass import ReplayPass
from grouprl.core.batch import SOURCES
from grouprl.records.samples import ScoredSamples, subset
from single_runs import launch, records
from small import near
from updates import gradient, learner_of, make_batch, make_policy


def solved_once(index: int, step: int) -> float:
    """Even prompts are solved in step 0 and never again; odd ones never."""
    return float(step == 0 and index % 2 == 0)


def explored(context: FakeContext, part: SuccessReplay) -> ScoredSamples:
    """One step: the first four prompts, four completions each."""
    rows = part(context.sample([context.request(i) for i in range(4)]), context)
    context.finish(rows, part, prepared=judged_of(context, rows))
    return rows


def endless(size: int, rate: Any) -> FakeContext:
    return FakeContext(rate, completions=size, prompts=4)


def test_a_success_takes_the_first_place_of_a_group_that_failed() -> None:
    context, part = endless(4, solved_once), SuccessReplay()
    assert set(explored(context, part).source_b) == {SOURCES["sampled"]}
    rows = explored(context, part)
    replayed = rows.source_b == SOURCES["replay"]
    assert rows.index_b[replayed].tolist() == [0, 2]
    assert rows.scores.reward_b[replayed].tolist() == [1.0, 1.0]
    assert all((rows.group_b == group).sum() == 4 for group in set(rows.group_b.tolist()))
    assert context.notes["successes_replayed"] == 2
    prepared = method("arpo_replay", scale="none").compute_advantages(context.batch(rows))
    helped = torch.from_numpy(np.isin(rows.index_b, [0, 2]))
    advantage_b = prepared.advantage_bt[:, 0]
    near(advantage_b[helped & torch.from_numpy(replayed)], [0.75, 0.75])
    near(advantage_b[helped & ~torch.from_numpy(replayed)], [-0.25] * 6)
    near(advantage_b[~helped], [0.0] * 8)


def test_a_replayed_success_has_a_number_of_its_own_and_the_log_probs_it_was_sampled_with() -> None:
    context, part = endless(4, solved_once), SuccessReplay()
    explored(context, part)
    rows = explored(context, part)
    assert len(set(rows.row_keys)) == len(rows)
    old = subset(rows, rows.source_b == SOURCES["replay"])
    assert not old.foreign_b.any()
    assert bool((context.batch(old).old_bt[context.batch(old).mask_bt] == -1).all())


@pytest.mark.parametrize(
    ("rewards", "failed"),
    [([0, 0, 0, 0], True), ([0, 0, 0, 1], False), ([0.3] * 4, False), ([0.19, 0.19], True), ([-1, -1], True)],
)
def test_a_group_failed_when_its_rewards_are_low_and_alike(rewards: list[float], failed: bool) -> None:
    assert SuccessReplay().has_failed(np.array(rewards, dtype=float)) is failed


def test_a_prompt_keeps_its_latest_successes() -> None:
    context, part = endless(4, lambda i, step: 1.0), SuccessReplay(capacity=3)
    for _ in range(2):
        explored(context, part)
    kept = context.state_of(part)["0/0"]
    assert len(kept) == 3
    assert {int(entry["group_b"][0]) for entry in kept} == {4}


def test_replayed_successes_are_not_stored_again() -> None:
    context, part = endless(4, solved_once), SuccessReplay()
    explored(context, part)
    before = [int(entry["group_b"][0]) for entry in context.state_of(part)["0/0"]]
    explored(context, part)
    assert [int(entry["group_b"][0]) for entry in context.state_of(part)["0/0"]] == before


def test_success_replay_says_when_no_prompt_comes_twice() -> None:
    assert SuccessReplay().idle(RunFacts(prompts=4, steps=10, examples=None))
    assert SuccessReplay().idle(RunFacts(prompts=4, steps=10, examples=40))
    assert not SuccessReplay().idle(RunFacts(prompts=4, steps=10, examples=20))


# --- self-imitation ---------------------------------------------------------------------------------------------------


def imitated(context: FakeContext, part: SelfImitation) -> ScoredSamples:
    rows = part.mix(context.sample(context.take(part.fresh(context))), context)
    context.finish(rows, part, prepared=judged_of(context, rows))
    return rows


def test_good_completions_come_back_when_there_are_many_and_then_the_buffer_is_empty() -> None:
    context, part = FakeContext([0.5] * 40, prompts=4, completions=8), SelfImitation(size=8)
    first = imitated(context, part)
    good = int(first.scores.correct_b.sum())
    assert good > 12
    second = imitated(context, part)
    old = second.source_b == SOURCES["replay"]
    assert old.sum() == 8
    means = sorted(float(first.scores.reward_b[first.group_b == g].mean()) for g in range(4))
    median = (means[1] + means[2]) / 2
    near(torch.from_numpy(second.extras["past.advantage"][old]), [1 - median] * 8)
    near(torch.from_numpy(second.extras["past.advantage"][~old]), [0.0] * 32)
    assert len(context.state_of(part)["steps"]) == int(second.scores.correct_b[~old].sum())


def test_with_a_scale_the_distance_is_divided_by_the_stored_percentile_of_the_spreads() -> None:
    """Spreads 0.2, 0.4, 0.6, 0.9: their 50th percentile is 0.5, that of the means 0.1, 0.2, 0.4, 0.6 is 0.3."""
    context, part = FakeContext([0.5] * 40, prompts=4, completions=8), SelfImitation(size=8, scale="sample_std")
    imitated(context, part)
    store = context.state_of(part)
    store["means"], store["spreads"] = torch.tensor([0.4, 0.1, 0.6, 0.2]), torch.tensor([0.9, 0.2, 0.4, 0.6])
    second = imitated(context, part)
    old = second.source_b == SOURCES["replay"]
    assert old.sum() == 8
    assert second.extras["past.advantage"][old] == pytest.approx([(1 - 0.3) / (0.5 + 1e-6)] * 8, rel=1e-6)


def test_too_few_good_completions_stay_and_grow_old() -> None:
    context, part = FakeContext([0.5] * 200, prompts=2, completions=4), SelfImitation(size=64, tolerate=2)
    for _ in range(6):
        assert (imitated(context, part).source_b == SOURCES["sampled"]).all()
    assert set(context.state_of(part)["steps"].tolist()) == {4, 5}


def test_completions_below_todays_baseline_are_dropped() -> None:
    """Correct completions are worth nothing any more once the median of the groups' means has reached 1."""
    context = FakeContext(lambda i, step: 0.5 if step == 0 else 1.0, prompts=4, completions=8)
    part = SelfImitation(size=2, tolerate=9)
    imitated(context, part)
    store = context.state_of(part)
    store["means"] = torch.ones(9, dtype=torch.float64)
    assert (imitated(context, part).source_b == SOURCES["sampled"]).all()


def test_the_number_that_comes_back_is_a_power_of_two() -> None:
    context, part = FakeContext([0.8] * 40, prompts=4, completions=8), SelfImitation(size=11)
    imitated(context, part)
    assert (imitated(context, part).source_b == SOURCES["replay"]).sum() == 8


def test_self_imitation_says_when_its_buffer_never_fills() -> None:
    assert SelfImitation().idle(RunFacts(prompts=4, group_size=8))
    assert not SelfImitation(size=8).idle(RunFacts(prompts=4, group_size=8))


# --- the pass of its own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "weight"), [(0, 0.0), (50, 0.5), (100, 1.0), (9999, 1.0)])
def test_the_weight_of_replay_rises(step: int, weight: float) -> None:
    batch = make_batch(make_policy()).replace(step=step)
    assert ReplayPass(coef=2.0, rise=100).weight(batch) == pytest.approx(2 * weight)


def test_new_and_replayed_completions_are_updates_of_their_own() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    old_b = torch.arange(batch.size[0]) % 2 == 1
    batch = batch.replace(source_b=torch.where(old_b, SOURCES["replay"], 0), step=50)
    chosen = method("grpo").with_parts(update=ReplayPass(rise=100))
    prepared, learner = chosen.compute_advantages(batch), learner_of(policy, chosen)
    with_weights = [(prepared.rows(~old_b), 1.0), (prepared.rows(old_b), 0.5)]
    wanted = []
    for rows, weight in with_weights:
        learner.accumulate(chosen.compute_loss_weights(rows))
        wanted.append(weight * gradient(policy))
    seen: list[torch.Tensor] = []

    class Watching:
        method, steps = chosen, staticmethod(learner.steps)

        @staticmethod
        def take(step: Any) -> dict[str, float]:
            learner.accumulate(step)
            seen.append(gradient(policy))
            return {}

    assert len(list(chosen.update(Watching(), prepared))) == 2
    assert all(float(x.norm()) > 0 for x in wanted)
    for found, right in zip(seen, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-13)


def test_without_replayed_completions_there_is_one_update() -> None:
    policy = make_policy()
    chosen = method("grpo").with_parts(update=ReplayPass())
    prepared = chosen.compute_advantages(make_batch(policy).replace(step=500))
    assert len(list(chosen.update(learner_of(policy, chosen), prepared))) == 1


# --- the bonus --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "share"), [(0, 1.0), (100, 0.5), (200, 0.0), (1000, 0.0)])
def test_the_bonus_for_turns_fades(step: int, share: float) -> None:
    batch = make_batch(make_policy())
    turn_bt = torch.where(batch.mask_bt, torch.arange(batch.size[1]), -1)
    shaped = TurnBonus(each=0.25, limit=0.5)(batch.replace(turn_bt=turn_bt, step=step))
    turns_b = turn_bt.amax(1).double()
    near(shaped.reward_b - batch.reward_b, share * (0.25 * turns_b).clamp(max=0.5))


def test_the_bonus_is_idle_where_there_are_no_turns() -> None:
    assert TurnBonus().idle(RunFacts(environment=False))
    assert not TurnBonus().idle(RunFacts(environment=True))


# --- runs -------------------------------------------------------------------------------------------------------------

KEYS = {"name": "keys", "size": 3}
AGENTS: dict[str, Any] = {
    "arpo_replay": {"name": "arpo_replay"},
    "spear": {"name": "spear", "size": 2, "replay_rise": 1},
}


@pytest.mark.parametrize("name", AGENTS)
def test_episodes_are_replayed_in_a_run(tmp_path: Path, name: str) -> None:
    settings = {"task": KEYS, "method": AGENTS[name], "data": {"prompts": 4}, "steps": 6}
    folder = launch(tmp_path / "run", **settings, warmup={"steps": 120, "batch": 32, "lr": 1e-2}).folder
    steps = records(folder, "train")
    name_of = {"arpo_replay": "successes_replayed", "spear": "replayed_fraction"}[name]
    assert sum(record[name_of] for record in steps) > 0
    assert all(np.isfinite(record["loss"]) for record in steps)
