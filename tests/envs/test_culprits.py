"""One bad prompt costs one prompt: exactly the episodes that hang or end their process are lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import culprit_cases
import culprit_envs
from grouprl import RunError
from grouprl.envs import Observation
from grouprl.envs.environment_pool_losses import ENOUGH
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start, play

LIMITS = {"max_turns": 2, "max_new_tokens": 2}


@pytest.fixture(scope="module")
def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
    return CausalPolicy(*build_tiny(culprit_envs.CulpritTask.alphabet, **sizes, seed=1))


def starts(episodes: int, group: int, bad: set[int], way: str, where: str) -> list[Start]:
    """`episodes` episodes in groups of `group`; their seeds are their numbers, and those of `bad` misbehave."""
    pause = 0.1 if way == "later" else 0.0  # so that it ends the process while somebody else is at work
    examples = [culprit_envs.culprit_example(n, bad, way, where, pause) for n in range(-(-episodes // group))]
    return [Start(examples[i // group], i, action_seed=1000 + i) for i in range(episodes)]


def lost(episodes: Episodes) -> set[int]:
    return {e for e, outcome in enumerate(episodes.outcomes) if isinstance(outcome, Failure)}


def same_but(found: Episodes, well: Episodes, bad: set[int]) -> None:
    """Every episode that is not in `bad` is the one that was played where none misbehaves."""
    for row in range(len(well)):
        if row not in bad:
            assert found.rollout.response_ids[row] == well.rollout.response_ids[row]
            assert found.records[row] == well.records[row]
            assert found.verdicts[row] == well.verdicts[row]


@pytest.mark.parametrize(
    ("episodes", "culprits", "group", "workers", "way", "where"),
    [
        (16, 1, 8, 1, "exit", "step"),
        (16, 1, 8, 2, "exit", "reset"),
        (32, 8, 8, 1, "exit", "step"),  # a whole group
        (32, 8, 2, 2, "exit", "reset"),
        (64, 8, 16, 4, "exit", "step"),
        (24, 3, 8, 2, "segfault", "step"),
        (24, 3, 2, 1, "segfault", "reset"),
        (16, 2, 2, 1, "hang", "reset"),
        (32, 4, 16, 2, "hang", "step"),
        (12, 1, 4, 1, "busy", "step"),
        (6, 1, 3, 1, "later", "step"),
        (256, 16, 16, 4, "exit", "step"),
    ],
)
def test_exactly_the_culprits_are_lost(
    policy: CausalPolicy, episodes: int, culprits: int, group: int, workers: int, way: str, where: str
) -> None:
    bad = set(range(8, 16)) if culprits == group == 8 else set(random.Random(7).sample(range(episodes), culprits))
    task = culprit_envs.CulpritTask()
    with closing(WorkerStage(task, workers, timeout=3, memory_gb=4)) as stage:
        found = play(policy, task.environment, starts(episodes, group, bad, way, where), **LIMITS, stage=stage)
    assert lost(found) == bad
    well = play(policy, task.environment, starts(episodes, group, set(), way, where), **LIMITS)
    same_but(found, well, bad)
    assert all(outcome.lost for outcome in found.outcomes if isinstance(outcome, Failure))


@pytest.mark.parametrize("way", ["exit", "busy"])
def test_coroutines_lose_exactly_the_culprits(policy: CausalPolicy, way: str) -> None:
    bad, task = {3, 9}, culprit_envs.CulpritTask(asynchronous=True)
    with closing(WorkerStage(task, 1, timeout=2, memory_gb=4)) as stage:
        found = play(policy, task.environment, starts(16, 4, bad, way, "step"), **LIMITS, stage=stage)
    assert lost(found) == bad
    well = play(policy, culprit_envs.Culprit, starts(16, 4, set(), way, "step"), **LIMITS)
    same_but(found, well, bad)


@pytest.fixture(scope="module")
def stages() -> Iterator[culprit_cases.Stages]:
    made = culprit_cases.Stages()
    yield made
    made.close()


CASES = culprit_cases.sampled(17, {"hang": 3, "exit": 11, "raise": 11})


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.record().values()))
def test_a_sample_of_the_product_loses_exactly_the_culprits(
    case: culprit_cases.Case, stages: culprit_cases.Stages
) -> None:
    assert not culprit_cases.wrong(case, stages.of(case))


class Unshown(culprit_envs.Culprit):
    """Shows what the policy cannot read in the first place, where it misbehaves."""

    def reset(self, example: Any, seed: int) -> Observation:
        shown = super().reset(example, seed)
        return Observation("é" * 3) if seed in example.columns["bad"] else shown


@pytest.mark.parametrize("bad", [{0}, {5, 6}, set(range(8, 12))])
def test_a_first_observation_that_cannot_be_shown_costs_its_episode(policy: CausalPolicy, bad: set[int]) -> None:
    found = play(policy, Unshown, starts(16, 4, bad, "", "step"), **LIMITS)
    assert lost(found) == bad
    same_but(found, play(policy, Unshown, starts(16, 4, set(), "", "step"), **LIMITS), bad)
    for outcome in found.outcomes:
        if isinstance(outcome, Failure):
            assert outcome.lost, "its prompt is set aside"
            assert outcome.what.startswith("the first observation cannot be shown (prompt 'culprit/")


def test_where_most_prompts_are_bad_the_run_ends_in_words(policy: CausalPolicy) -> None:
    task, count = culprit_envs.CulpritTask(), ENOUGH + 8
    stage = WorkerStage(task, 2, timeout=5, memory_gb=4)
    bad = set(range(count))
    with (
        closing(stage),
        pytest.raises(RunError, match=rf"hung or ended their process on {ENOUGH + 1} of {ENOUGH + 1} prompts"),
    ):
        play(policy, task.environment, starts(count, 1, bad, "exit", "reset"), **LIMITS, stage=stage)
    assert not stage._slots


def test_a_worker_can_be_used_after_a_loss(policy: CausalPolicy) -> None:
    task = culprit_envs.CulpritTask()
    with closing(WorkerStage(task, 2, timeout=5, memory_gb=4)) as stage:
        for bad in ({1}, set(), {0, 5}):
            found = play(policy, task.environment, starts(8, 4, bad, "exit", "step"), **LIMITS, stage=stage)
            assert lost(found) == bad
            assert not stage._journal
            assert not stage._home
