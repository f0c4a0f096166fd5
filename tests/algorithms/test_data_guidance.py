"""Help for zero-variance groups and demonstrations: who gets it, what is replaced, and that hints are never trained
on."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

import grouprl
from fake_context import END, FakeContext, Numbers
from grouprl import InputError, RunError
from grouprl.algorithms.augment.demonstrations import DemonstrationRow
from grouprl.algorithms.augment.papers.demonstration_switch import DemonstrationSwitch
from grouprl.algorithms.augment.papers.exemplars import SolvedExemplars, overlap
from grouprl.algorithms.augment.papers.hints import GroupHints, RowHint
from grouprl.algorithms.augment.resampling import again, further_numbers, prefixes, sampled_rows, splice, through
from grouprl.algorithms.buffer.papers.demonstrations import Demonstrations
from grouprl.algorithms.building import build_part
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.core.batch import SOURCES
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.training.loop import train
from killed_runs import evidence
from single_runs import launch as run
from single_runs import records, run_config

SOLUTION = "abcdefghij"


class Letters(Numbers):
    """Solutions of ten letters, so that shares of them are easy to count."""

    def solution(self, example: Any) -> str | None:
        return None if example.id == "n/3" else SOLUTION


class OracleContext(FakeContext):
    """Completions are right where `oracle(request, number of the completion)` says so."""

    def __init__(self, oracle: Callable[[RolloutRequest, int], bool], **settings: Any) -> None:
        super().__init__(**({"task": Letters(4), "rates": (0.0,) * 4} | settings))
        self.oracle = oracle

    def _coin(self, request: RolloutRequest, number: int) -> bool:
        return self.oracle(request, number)


def hint_of(request: RolloutRequest) -> str:
    """What a request gives away: the hint in its prompt, or the letters that its completions begin with."""
    text = str(request.shown)
    return text.split("Hint: ")[1].strip() if "Hint: " in text else "".join(map(chr, request.prefix))


def needs_half(request: RolloutRequest, number: int) -> bool:
    """Example 0 is easy for one completion; the others need half of the solution."""
    return (request.index == 0 and number == 1) or len(hint_of(request)) >= 5


def rows_of(samples: ScoredSamples, index: int) -> ScoredSamples:
    return subset(samples, samples.index_b == index)


def same_rows(a: ScoredSamples, b: ScoredSamples) -> bool:
    """Whether all columns are equal to the bit; padding behind the completions does not count."""
    width = min(a.rollout.logp_bt.shape[1], b.rollout.logp_bt.shape[1])
    fields = ("prompts", "texts")
    arrays = ("group_b", "index_b", "sample_b", "valid_b", "source_b", "foreign_b")
    return (
        all(getattr(a, name) == getattr(b, name) for name in fields)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        and a.rollout.prompt_ids == b.rollout.prompt_ids
        and a.rollout.response_ids == b.rollout.response_ids
        and torch.equal(a.rollout.logp_bt[:, :width], b.rollout.logp_bt[:, :width])
        and np.array_equal(a.scores.reward_b, b.scores.reward_b)
    )


def test_a_policy_that_needs_half_the_solution_is_sampled_twice_more():
    context = OracleContext(needs_half)
    plain = context.sample(context.take(4))
    guided = GroupHints()(plain, context)
    assert len(context.sampled) == 1 + 2
    assert context.notes["guidance_rounds"] == 2
    assert context.notes["groups_guided"] == 2  # prompt 3 has no solution
    assert [hint_of(request) for request in requests_of(context, 1)] == ["abc"] * 4 + ["abcde"] * 4
    for index in (1, 2):
        rows = rows_of(guided, index)
        assert rows.scores.correct_b.all()
        assert set(rows.source_b) == {SOURCES["guided"]}
        assert not rows.foreign_b.any()
        assert set(rows.prompts) == {f"q{index}=\nHint: abcde\n"}
    for index in (0, 3):
        assert same_rows(rows_of(guided, index), rows_of(plain, index))
    assert len(guided) == len(plain)


def requests_of(context: FakeContext, index: int) -> list[RolloutRequest]:
    """A request per row sampled for a prompt after the first sample."""
    found = []
    for sampled in context.sampled[1:]:
        rows = rows_of(sampled, index)
        found += [
            RolloutRequest(
                0, index, rows.examples[i], 1, prompt=rows.prompts[i], prefix=tuple(rows.rollout.prompt_ids[i][3:])
            )
            if "Hint" not in str(rows.prompts[i])
            else RolloutRequest(0, index, rows.examples[i], 1, prompt=rows.prompts[i])
            for i in range(len(rows))
        ]
    return found


def test_the_hint_is_never_in_the_action_mask():
    for part in (GroupHints(), GroupHints(place="completion"), RowHint()):
        context = OracleContext(needs_half)
        guided = part(context.sample(context.take(4)), context)
        batch = context.batch(guided)
        assert set(batch.token_bt[batch.mask_bt].tolist()) == {7, 8}
        assert batch.from_source("guided").any()


def test_seeds_of_further_rounds_are_new_ones():
    context = OracleContext(lambda request, number: False)
    GroupHints()(context.sample(context.take(4)), context)
    numbers = [rows_of(sampled, 1).sample_b.tolist() for sampled in context.sampled]
    assert numbers == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_hint_can_be_the_beginning_of_the_completion():
    context = OracleContext(needs_half)
    guided = GroupHints(place="completion")(context.sample(context.take(4)), context)
    rows = rows_of(guided, 1)
    assert rows.prompts[0] == "q1="
    assert "".join(map(chr, rows.rollout.prompt_ids[0])) == "q1=abcde"
    assert prefixes(rows, [0], context) == [tuple(map(ord, "abcde"))]


def test_what_never_helps_ends_with_the_longest_hint():
    context = OracleContext(lambda request, number: False)
    guided = GroupHints()(context.sample(context.take(4)), context)
    assert not guided.scores.correct_b.any()
    assert set(rows_of(guided, 1).prompts) == {"q1=\nHint: abcdefgh\n"}


def test_live_groups_sample_nothing_more():
    context = OracleContext(lambda request, number: number == 0)
    plain = context.sample(context.take(4))
    for part in (GroupHints(), RowHint(), SolvedExemplars()):
        assert part(plain, context) is plain
    assert len(context.sampled) == 1


def test_trained_under_the_own_prompt_log_probs_are_foreign():
    context = OracleContext(needs_half)
    rows = rows_of(GroupHints(train_on="original")(context.sample(context.take(4)), context), 1)
    assert set(rows.prompts) == {"q1="}
    assert rows.foreign_b.all()


def test_help_starts_at_its_step():
    context = OracleContext(needs_half)
    plain = context.sample(context.take(4))
    late = GroupHints(start=0.3)
    assert late(plain, context) is plain
    context.step = 3
    assert late(plain, context) is not plain


def test_the_tasks_own_hints():
    context = OracleContext(needs_half)
    rows = rows_of(GroupHints(levels=None)(context.sample(context.take(4)), context), 1)
    assert set(rows.prompts) == {"q1=\nHint: abcde\n"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"levels": (0.5, 0.25)}, "say more"), ({"place": "completion", "train_on": "original"}, "begins with the hint")],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(InputError, match=message):
        build_part("augment", "group_hints", settings)


def test_the_least_hint_that_helps_replaces_the_first_row_only():
    context = OracleContext(needs_half)
    plain = context.sample(context.take(4))
    guided = RowHint()(plain, context)
    assert len(context.sampled) == 2
    assert len(context.sampled[1]) == 2 * 3  # one completion per hint of the two zero-variance groups with a solution
    for index in (1, 2):
        before, after = rows_of(plain, index), rows_of(guided, index)
        least = int(np.flatnonzero(after.source_b == SOURCES["guided"])[0])
        assert after.prompts[least] == f"q{index}=\nHint: abcde\n"
        rest = subset(after, after.source_b == SOURCES["sampled"])
        assert same_rows(rest, subset(before, np.arange(1, 4)))
    advantage_b = (guided.scores.reward_b[4:8] - 0.25) / 0.5
    assert sorted(advantage_b.tolist()) == [-0.5, -0.5, -0.5, 1.5]


def test_a_hinted_row_can_be_trained_both_ways():
    context = OracleContext(needs_half)
    rows = rows_of(RowHint(train_on="both")(context.sample(context.take(4)), context), 1)
    guided = subset(rows, rows.source_b == SOURCES["guided"])
    assert guided.prompts == ("q1=\nHint: abcde\n", "q1=")
    assert guided.foreign_b.tolist() == [False, True]
    assert len(set(rows.sample_b.tolist())) == len(rows) == 4
    rows = rows_of(RowHint(train_on="original")(context.sample(context.take(4)), context), 1)
    assert [p for p, s in zip(rows.prompts, rows.source_b, strict=True) if s == SOURCES["guided"]] == ["q1="]


def test_where_no_hint_helps_the_group_stays():
    context = OracleContext(lambda request, number: False)
    plain = context.sample(context.take(4))
    assert RowHint()(plain, context) is plain
    assert len(context.sampled) == 2


def test_solved_prompts_stand_before_an_unsolved_one():
    context = OracleContext(
        lambda request, number: request.index != 2 or "Solved" in str(request.shown) or "\n\n" in str(request.shown)
    )
    part = SolvedExemplars(count=2)
    guided = part(context.sample([context.request(i) for i in (0, 1, 2)]), context)
    rows = rows_of(guided, 2)
    assert set(rows.prompts) == {"q0=\n\x07\x07\n\nq1=\n\x07\x07\n\nq2="}
    assert rows.scores.correct_b.all()
    assert list(context.state_of(part)["solved"]) == ["0", "1"]


def test_a_prompt_is_not_its_own_exemplar():
    context = OracleContext(lambda request, number: True)
    part = SolvedExemplars(count=1)
    part(context.sample([context.request(0), context.request(1)]), context)
    context.oracle = lambda request, number: False
    dead = context.sample([context.request(0)])
    assert set(part(dead, context).prompts) == {"q1=\n\x07\x07\n\nq0="}
    assert SolvedExemplars(count=2)(dead, context) is dead


def test_without_enough_solved_prompts_nothing_is_sampled():
    context = OracleContext(lambda request, number: request.index == 0)
    plain = context.sample([context.request(i) for i in (0, 1)])
    assert SolvedExemplars(count=2)(plain, context) is plain


def test_the_store_of_solved_prompts_forgets_the_oldest():
    context = OracleContext(lambda request, number: True)
    part = SolvedExemplars(keep=2)
    for index in (0, 1, 0, 2):
        part(context.sample([context.request(index)]), context)
    assert list(context.state_of(part)["solved"]) == ["0", "2"]
    torch.save(context.memory, "/dev/null")


def test_overlap_of_tokens():
    a, b = frozenset([(1,), (2,), (1, 2)]), frozenset([(1,), (3,), (1, 3)])
    assert overlap(a, a) == 1.0
    assert overlap(a, b) == pytest.approx(1 / 5)
    assert overlap(frozenset(), frozenset()) == 0.0


# --- demonstrations ------------------------------------------------------------------------------------------------


def test_the_solution_takes_the_last_completions_place():
    context = OracleContext(lambda request, number: False)
    plain = context.sample(context.take(4))
    shown = DemonstrationRow()(plain, context)
    rows = rows_of(shown, 1)
    assert rows.source_b.tolist() == [0, 0, 0, SOURCES["demonstration"]]
    assert rows.texts[-1] == SOLUTION
    assert rows.rollout.response_ids[-1] == (*map(ord, SOLUTION), END)
    assert rows.foreign_b.tolist() == [False, False, False, True]
    assert same_rows(subset(rows, np.arange(3)), subset(rows_of(plain, 1), np.arange(3)))
    assert same_rows(rows_of(shown, 3), rows_of(plain, 3))
    assert len(rows_of(DemonstrationRow(replace=False)(plain, context), 1)) == 5


@pytest.mark.parametrize(
    ("gamma", "switched"), [(-1.0, []), (0.0, [0]), (0.25, [0, 1]), (0.5, [0, 1, 2]), (1.0, [0, 1, 2])]
)
def test_the_switch_is_at_gamma(gamma, switched):
    context = OracleContext(lambda request, number: number < request.index)  # prompt i: i of 4 right; 3 has no solution
    plain = context.sample([context.request(i) for i in range(4)])
    shown = DemonstrationSwitch(gamma=gamma)(plain, context)
    for index in range(4):
        rows = rows_of(shown, index)
        if index in switched:
            assert rows.source_b.tolist() == [SOURCES["demonstration"]]
        else:
            assert same_rows(rows, rows_of(plain, index))
    assert context.notes["groups_demonstrated"] == len(switched)


def test_the_soft_strategy_of_hpt_adds_a_demonstration_to_every_group_with_a_solution():
    (part,) = grouprl.method("hpt", strategy="soft").augment
    context = OracleContext(lambda request, number: number < request.index)  # prompt i: i of 4 right; 3 has no solution
    shown = part(context.sample([context.request(i) for i in range(4)]), context)
    for index in range(4):
        assert rows_of(shown, index).source_b.tolist() == [0] * 4 + [SOURCES["demonstration"]] * (index < 3)


def test_only_demonstrations_sample_nothing():
    context = OracleContext(lambda request, number: False, prompts=3)
    part = Demonstrations()
    assert part.fresh(context) == 0
    shown = part.mix(None, context)
    assert 2 <= len(shown) <= 3
    assert set(shown.texts) == {SOLUTION}
    assert context.sampled == []
    context.task.solution = lambda example: None  # type: ignore[method-assign]
    with pytest.raises(RunError, match="none of this step's prompts"):
        part.mix(None, context)


@pytest.mark.parametrize("part", [GroupHints(), RowHint(), DemonstrationRow(), DemonstrationSwitch(), Demonstrations()])
def test_a_task_without_solutions_is_refused(part):
    assert "solution" in part.refuse(RunFacts(demonstrations=False))[0]
    assert part.refuse(RunFacts()) == []
    assert len(part.words()) > 10


def test_what_cannot_act_is_named():
    assert GroupHints(start=1.0).idle(RunFacts())
    assert DemonstrationSwitch(gamma=-1.0).idle(RunFacts())
    assert DemonstrationRow().refuse(RunFacts(group_size=1))
    assert not GroupHints().idle(RunFacts())


# --- sampling again -------------------------------------------------------------------------------------------------


def test_sampling_again_keeps_prompt_keys_and_counts_on():
    context = FakeContext()
    request = dataclasses.replace(context.request(0), prompt="other", keys={"budget": 12}, first=5)
    rows = context.sample([request])
    more = again(rows, 2, 3, completions=2)
    assert (more.shown, dict(more.keys), more.first, more.ordinal) == ("other", {"budget": 12}, 12, request.ordinal)
    assert further_numbers(rows, np.array([0, 3])).tolist() == [9, 10]


def test_splice_gives_new_rows_the_greedy_reward_of_their_group():
    context = FakeContext()
    rows = dataclasses.replace(context.sample(context.take(2)), greedy_reward_b=np.repeat([0.25, 0.75], 4))
    added = context.sample([again(rows, 7)])
    spliced = splice(rows, np.arange(8) == 0, [added])
    assert spliced.greedy_reward_b.tolist() == [0.25] * 3 + [0.75] * 5
    assert spliced.group_b.tolist() == sorted(spliced.group_b.tolist())


def test_the_given_beginning_behind_a_chat():
    context = FakeContext()
    chat = ({"role": "user", "content": "1+1?"},)
    rows = context.sample(
        [
            dataclasses.replace(context.request(0), prompt=chat, prefix=(65,)),
            dataclasses.replace(context.request(1), prefix=()),
        ]
    )
    assert prefixes(rows, range(8), context) == [(65,)] * 4 + [()] * 4


def test_rows_that_failed_are_not_counted_as_sampled():
    context = FakeContext()
    rows = context.sample(context.take(1))
    kept = dataclasses.replace(rows, valid_b=np.array([True, False, True, True]))
    assert sampled_rows(kept).tolist() == [True, False, True, True]


@pytest.mark.parametrize(("sign", "expected"), [("b", 2), ("cd", 4), ("a", 1), ("x", None)])
def test_how_many_tokens_it_takes_to_say_something(sign, expected):
    assert through(FakeContext(), tuple(map(ord, "abcdb")), sign) == expected


# --- whole runs -------------------------------------------------------------------------------------------------------

ODD = "def odd(completion, **_):\n    return float(len(completion) % 2 == 1 and completion[0] == '|')\n"


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, str]:
    """A reward that an untrained policy gets now and then, and most groups not at all."""
    (tmp_path / "odd.py").write_text(ODD)
    return {"function": f"{tmp_path / 'odd.py'}:odd"}


@pytest.mark.parametrize(
    "method",
    [
        {"name": "ghpo"},
        {"name": "ghpo", "place": "completion"},
        {"name": "scaf_grpo", "train_on": "both"},
        {"name": "xrpo"},
        {"name": "temp_samp"},
        {"name": "grpo", "augment": [{"part": "demonstration_switch"}]},
        {"name": "sft", "buffer": {"part": "demonstrations"}},
    ],
    ids=lambda method: "-".join(str(value) for value in list(method.values())[:2] if isinstance(value, str)),
)
def test_a_run_with_help(tmp_path: Path, method: dict[str, Any], odd: dict[str, str]) -> None:
    folder = run(tmp_path / "run", method=method, reward=odd).folder
    found = records(folder, "train")
    assert len(found) == 2
    assert all(np.isfinite(record["loss"]) for record in found)
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    sources = {row["source"] for row in rows if row["used"]}
    if method["name"] == "ghpo":
        guided = [row for row in rows if row["source"] == "guided"]
        assert len(guided) == 4 * found[0]["groups_guided"] > 0
        assert len(guided) == sum(not row["used"] for row in rows)  # what they replaced
        assert found[0]["pass@1"] == np.mean([row["correct"] for row in rows if row["source"] == "sampled"])
    if method["name"] == "sft":
        assert sources == {"demonstration"}
        assert "pass@1" not in found[0]
    if method["name"] in ("temp_samp", "grpo"):
        assert "demonstration" in sources


class Crash(BaseException):
    """Something that nobody catches."""


def test_a_run_that_crashed_goes_on_the_same(tmp_path: Path, odd: dict[str, str], monkeypatch: Any) -> None:
    method = {"name": "xrpo", "exemplars": 1}
    settings = run_config(method=method, reward=odd, data={"prompts": 5}, steps=5)
    settings["run"] = {"threads": 1, "checkpoint_every": 2}
    quiet = Console(file=io.StringIO())
    train(parse_config(settings), folder=tmp_path / "whole", console=quiet)
    expected = evidence(tmp_path / "whole")
    assert sum(line.get("groups_guided", 0) for line in expected["metrics"]) > 0

    def crash(self: SolvedExemplars, samples: ScoredSamples, dead: Any, context: Any) -> ScoredSamples:
        if context.step == 3:
            raise Crash
        return help_them(self, samples, dead, context)

    help_them = SolvedExemplars.help
    monkeypatch.setattr(SolvedExemplars, "help", crash)
    with pytest.raises(Crash):
        train(parse_config(settings), folder=tmp_path / "crashed", console=quiet)
    monkeypatch.undo()
    train(parse_config(settings), folder=tmp_path / "crashed", resume=True, console=quiet)
    assert evidence(tmp_path / "crashed") == expected
