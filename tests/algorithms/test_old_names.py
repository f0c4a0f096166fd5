"""Old names of what parts of one's own read are understood, each with a note."""

from __future__ import annotations

from typing import ClassVar

import pytest

import grouprl
from fake_context import FakeContext
from grouprl.algorithms.curriculum.papers.bandit import ThompsonSampling
from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.reward_transform.papers.turn_rewards import ProactiveRewards
from grouprl.core.renamed import RenamedWarning
from grouprl.orchestrator.asynchronous.restrictions import _async_safe


def test_a_part_of_its_own_reads_the_old_names_of_the_run() -> None:
    with pytest.warns(RenamedWarning, match="is now called 'RunFacts.async_steps'"):
        assert grouprl.RunFacts(async_steps=3).ahead == 3
    context = FakeContext(completions=2)
    rows = context.sample(context.take(2))
    with pytest.warns(RenamedWarning, match="is now called 'ScoredSamples.valid_b'"):
        assert rows.kept_b is rows.valid_b


def test_a_data_part_says_by_the_old_name_that_it_may_run_asynchronously() -> None:
    class Mine(DataPart):
        ahead: ClassVar[bool] = True

    with pytest.warns(RenamedWarning, match=r"is now called 'Mine\.async_safe'"):
        assert _async_safe(Mine())
    assert not _async_safe(DataPart())


def test_old_settings_of_parts_and_methods() -> None:
    with pytest.warns(RenamedWarning, match="question_right"):
        assert ProactiveRewards(asked_right=0.5) == ProactiveRewards(question_right=0.5)  # type: ignore[call-arg]
    with pytest.warns(RenamedWarning, match="sampled_decay"):
        assert ThompsonSampling(asked_decay=0.5) == ThompsonSampling(sampled_decay=0.5)  # type: ignore[call-arg]
    for name, old, new in (("promed", "asked_right", "question_right"), ("vade", "asked_decay", "sampled_decay")):
        with pytest.warns(RenamedWarning, match=new):
            built = grouprl.method(name, **{old: 0.25})
        assert repr(built) == repr(grouprl.method(name, **{new: 0.25}))
    with pytest.warns(RenamedWarning, match="top_entropy_bonus"):
        grouprl.compose({"base": "grpo", "add": {"regularize": [{"part": "kept_entropy_bonus"}]}})


@pytest.mark.parametrize(
    ("name", "key", "old", "new"),
    [
        ("rto", "chosen", "answers", "completions"),
        ("dvpo", "chosen", "answers", "completions"),
        ("ghpo", "place", "answer", "completion"),
        ("spa_rl", "progress_at", "answer", "observation"),
    ],
)
def test_old_values_of_settings(name: str, key: str, old: str, new: str) -> None:
    with pytest.warns(RenamedWarning, match=f"'{old}' is now called '{new}'"):
        built = grouprl.method(name, **{key: old})
    now = grouprl.method(name, **{key: new})
    assert (built.augment, built.pretrain) == (now.augment, now.pretrain)
    with pytest.raises(grouprl.InputError, match=f"{key} = 'neither'"):
        grouprl.method(name, **{key: "neither"})
