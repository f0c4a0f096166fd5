"""Completions that go on from somewhere: continuations, plans, prefixes of solutions, cut thoughts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fake_context import END, FakeContext, Numbers
from grouprl.algorithms.augment.papers.budget_cuts import BudgetCuts
from grouprl.algorithms.augment.papers.continuations import Continuations, PlanTree
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.sampling.papers.prefix_restarts import PrefixRestarts
from grouprl.algorithms.token_weight.papers.prefix_mask import PrefixMask
from grouprl.core.batch import SOURCES
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.tasks import load_task
from single_runs import launch as run
from single_runs import records

Write = Callable[[RolloutRequest, int], str]


class WritingContext(FakeContext):
    """Completions are what `write(request, number)` says; right is what ends with '!'. Every log-prob differs."""

    def __init__(self, write: Write, **settings: Any) -> None:
        super().__init__(**({"task": Solved(), "completions": 2, "max_new_tokens": 20} | settings))
        self.write, self.requested = write, list[RolloutRequest]()

    def sample(
        self, requests: Sequence[RolloutRequest], *, greedy: bool = False, count_failures: bool = True
    ) -> ScoredSamples:
        self.requested += requests
        rows = [(a, a.first + k) for a in requests for k in range(a.completions)]
        texts = [self.write(a, n)[: a.max_new_tokens or self.max_new_tokens] for a, n in rows]
        ids = [tuple(map(ord, text.replace("$", chr(END)))) for text in texts]
        right = [text.rstrip("$").endswith("!") for text in texts]
        made = self.rows(rows, ids, right)
        present_bt = made.rollout.logp_bt != 0
        logp_bt = torch.where(present_bt, -torch.arange(present_bt.numel()).reshape(present_bt.shape).double() - 1, 0)
        self.sampled.append(replace(made, rollout=replace(made.rollout, logp_bt=logp_bt)))
        return self.sampled[-1]


class Solved(Numbers):
    def solution(self, example: Any) -> str:
        return "abcdefghij"


def lead_text(request: RolloutRequest) -> str:
    return "".join(map(chr, request.prefix))


# --- PPPO -----------------------------------------------------------------------------------------------------------


def go_on(request: RolloutRequest, number: int) -> str:
    """First completions differ in their beginning; continuations of 'ab' are right for even numbers."""
    if not request.prefix:
        return ("ab" if number == 0 else "xy") + "cdefgh" + "!" * number + "$"
    return "..!" if lead_text(request) == "ab" and number % 2 == 0 else "..."


def test_continuations_are_counted_for_the_completion_they_continue():
    context = WritingContext(go_on)
    plain = context.sample(context.take(2))
    prepared = Continuations(count=4, start=0.25, grow=0.0, limit=0.25)(plain, context)
    assert len(prepared) == len(plain) == 4  # nothing of it is trained on
    assert prepared.scores.components["continuations"].tolist() == [2.0, 0.0, 2.0, 0.0]
    assert [lead_text(request) for request in context.requested[2:]] == ["ab", "xy", "ab", "xy"]
    assert [request.first for request in context.requested[2:]] == [2, 6, 2, 6]
    assert {request.max_new_tokens for request in context.requested[2:]} == {18}
    assert context.notes["continuations"] == 16
    assert prepared.rollout is plain.rollout
    assert context.batch(prepared).rewards["continuations"].tolist() == [2.0, 0.0, 2.0, 0.0]


@pytest.mark.parametrize(("length", "expected"), [(20, 3), (7, 1), (6, 0)])
def test_the_beginning_is_that_of_the_prefix_mask(length, expected):
    context = WritingContext(lambda request, number: "a" * length)
    rows = context.sample(context.take(1))
    Continuations(count=1, start=0.15, grow=0.0, limit=0.15)(rows, context)
    assert {len(request.prefix) for request in context.requested[1:]} == {expected}
    assert PrefixMask(start=0.15, grow=0.0, limit=0.15)(context.batch(rows))[0].sum() == expected


def test_the_beginning_grows_with_the_prefix_mask():
    sizes = []
    for step in range(10):
        context = WritingContext(lambda request, number: "a" * 20, completions=1)
        context.step = step
        rows = context.sample(context.take(1))
        Continuations(count=1)(rows, context)
        sizes.append(len(context.requested[1].prefix))
        assert PrefixMask()(context.batch(rows)).sum() == sizes[-1]
    assert sizes == [3, 3, 4, 4, 5, 5, 6, 6, 7, 7]


def test_a_whole_completion_is_its_own_continuation():
    context = WritingContext(go_on)
    prepared = Continuations(count=3, start=1.0, limit=1.0)(context.sample(context.take(1)), context)
    assert prepared.scores.components["continuations"].tolist() == [0.0, 3.0]
    assert len(context.sampled) == 1


def test_a_beginning_that_was_given_is_kept():
    context = WritingContext(lambda request, number: "cdef")
    rows = context.sample([replace(context.request(0), prefix=(97, 98))])
    Continuations(count=1, start=0.5, limit=0.5)(rows, context)
    assert [lead_text(request) for request in context.requested[1:]] == ["abcd", "abcd"]


# --- PTA-GRPO ---------------------------------------------------------------------------------------------------------


def plan(request: RolloutRequest, number: int) -> str:
    if not request.prefix:
        return {0: "ab|cd!", 1: "efg|h", 2: "none"}[number]
    return "yes!" if lead_text(request).startswith("ab") and number == 3 else "no"


def planned() -> tuple[WritingContext, ScoredSamples, ScoredSamples]:
    context = WritingContext(plan, completions=3)
    rows = context.sample(context.take(1))
    return context, rows, PlanTree(sign="|", leaves=3)(rows, context)


def test_a_plan_is_carried_out_several_times():
    context, rows, tree = planned()
    texts = context.decode(tree.rollout.response_ids)
    assert texts == ["ab|cd!", "efg|h", "none", "ab|yes!", "ab|no", "efg|no", "efg|no"]
    assert tree.extras["keys.plan"].tolist() == [0, 1, 2, 0, 0, 1, 1]
    assert set(tree.source_b.tolist()) == {SOURCES["sampled"]}
    assert len(set(tree.sample_b.tolist())) == len(tree)
    assert set(tree.rollout.prompt_ids) == {rows.rollout.prompt_ids[0]}
    assert context.notes["plans"] == 2


def test_plan_tokens_are_marked_and_keep_their_log_probs():
    context, rows, tree = planned()
    batch = context.batch(tree)
    assert batch.marks["plan"].sum(1).tolist() == [3, 4, 0, 3, 3, 4, 4]
    assert not (batch.marks["plan"] & ~batch.mask_bt).any()
    leaves = context.sampled[1].rollout.logp_bt
    assert tree.rollout.logp_bt[3, :3].tolist() == rows.rollout.logp_bt[0, :3].tolist()
    assert tree.rollout.logp_bt[3, 3:7].tolist() == leaves[0, :4].tolist()
    assert tree.rollout.logp_bt[6, :4].tolist() == rows.rollout.logp_bt[1, :4].tolist()
    assert tree.rollout.logp_bt[6, 4:6].tolist() == leaves[3, :2].tolist()


def test_one_leaf_per_plan_samples_nothing():
    context = WritingContext(plan, completions=3)
    rows = context.sample(context.take(1))
    tree = PlanTree(sign="|", leaves=1)(rows, context)
    assert tree.rollout is rows.rollout
    assert tree.extras["keys.plan"].tolist() == [0, 1, 2]
    assert PlanTree(leaves=1).idle(RunFacts())


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_prefixes_shrink_to_nothing_over_the_run():
    rule = PrefixRestarts(most=0.8, until=0.5)
    assert [rule.share(step, 10) for step in range(6)] == pytest.approx([0.8, 0.64, 0.48, 0.32, 0.16, 0.0])
    assert rule.share(9, 10) == 0.0


def test_a_group_begins_with_a_beginning_of_its_solution():
    context = FakeContext((0.5,) * 64, task=Solved(64), steps=10)
    requests = PrefixRestarts(chance=1.0, most=1.0).adjust(context.take(64), context)
    begun = [request for request in requests if request.prefix]
    assert all(lead_text(request) == "abcdefghij"[: len(request.prefix)] for request in begun)
    assert all(request.max_new_tokens == 16 - len(request.prefix) for request in begun)
    counts = np.bincount([len(request.prefix) for request in requests], minlength=11)
    assert (counts > 0).sum() >= 9  # evenly from nothing to everything
    assert context.notes["restarts"] == len(begun)
    again = FakeContext((0.5,) * 64, task=Solved(64), steps=10)
    assert PrefixRestarts(chance=1.0, most=1.0).adjust(again.take(64), again) == requests


def test_only_a_share_of_prompts_restarts_and_forms_of_a_prompt_alike():
    context = FakeContext((0.5,) * 200, task=Solved(200), steps=10)
    requests = context.take(200)
    adjusted = PrefixRestarts(chance=0.25, most=1.0).adjust([*requests, *requests], context)
    assert 20 < sum(bool(request.prefix) for request in adjusted[:200]) < 75
    assert [request.prefix for request in adjusted[:200]] == [request.prefix for request in adjusted[200:]]


def test_what_is_given_is_not_trained_on():
    context = WritingContext(lambda request, number: "zz", steps=10)
    rows = context.sample(PrefixRestarts(chance=1.0, most=1.0).adjust(context.take(3), context))
    batch = context.batch(rows)
    assert set(batch.token_bt[batch.mask_bt].tolist()) == {ord("z")}
    assert PrefixRestarts().refuse(RunFacts(demonstrations=False))
    assert PrefixRestarts(chance=0.0).idle(RunFacts())


# --- BRPO -------------------------------------------------------------------------------------------------------------


def think(request: RolloutRequest, number: int) -> str:
    """A thought of 6 tokens that ends by itself, and one that goes on; completions are right from the 4th token on."""
    if not request.prefix:
        return "abcde|z!$" if number == 0 else "klmnopqrst"
    return "!" if len(lead_text(request).rstrip(".|")) >= 4 else "?"


def cut() -> tuple[WritingContext, ScoredSamples]:
    context = WritingContext(think, max_new_tokens=8)
    part = BudgetCuts(budgets=(2, 4, 8), summaries=2, summary_tokens=3, end="|", ellipsis=".")
    return context, part(context.sample(context.take(1)), context)


def test_thoughts_are_cut_at_every_budget():
    context, _ = cut()
    prefixes = [lead_text(request) for request in context.requested[1:]]
    assert prefixes == ["ab.|", "abcd.|", "abcde|", "kl.|", "klmn.|", "klmnopqr.|"]
    assert {request.completions for request in context.requested[1:]} == {2}
    assert {request.max_new_tokens for request in context.requested[1:]} == {3}
    numbers = [request.first + k for request in context.requested[1:] for k in range(2)]
    assert sorted(numbers) == list(range(2, 14))


def test_thought_rows_keep_the_thought_and_the_scores_of_its_cuts():
    context, rows = cut()
    batch = context.batch(rows)
    thoughts = batch.rows(batch.from_source("sampled"))
    assert context.decode(subset(rows, rows.source_b == 0).rollout.response_ids) == ["abcde|", "klmnopqr"]
    assert thoughts.turn_reward_bs.tolist() == [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    segments = [t[m].tolist() for t, m in zip(thoughts.turn_bt, thoughts.mask_bt, strict=True)]
    assert segments == [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 2, 2]]
    kept = subset(rows, rows.source_b == 0).rollout
    assert (kept.logp_bt != 0).sum(1).tolist() == [6, 8]


def test_completions_know_their_cut_and_train_their_own_tokens():
    context, rows = cut()
    completions = subset(rows, rows.source_b == SOURCES["extra"])
    assert completions.extras["keys.cut"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert set(context.decode(completions.rollout.response_ids)) == {"!", "?"}
    assert not completions.extras["turn_reward_bs"].any()
    assert len(set(rows.sample_b.tolist())) == len(rows) == 14


def test_single_completions_are_judged_among_the_thoughts():
    context = WritingContext(think, max_new_tokens=8)
    part = BudgetCuts(budgets=(2, 4, 8), summaries=1, summary_tokens=3, end="|", ellipsis=".")
    rows = part(context.sample(context.take(1)), context)
    completions = subset(rows, rows.source_b == SOURCES["extra"])
    assert completions.extras["keys.cut"].tolist() == [0, 1, 2, 0, 1, 2]


def test_segments_are_credited_by_the_advantage():
    from grouprl.algorithms.advantage.papers.budget_segments import BudgetSegments

    context, rows = cut()
    adv_bt = BudgetSegments()(context.batch(rows))
    assert torch.isfinite(adv_bt).all()
    assert not adv_bt[:, :1].any()  # both thoughts score alike, and alike completions at one cut are worth nothing


@pytest.mark.parametrize(("budgets", "message"), [((0.1, 0.15), "budgets of"), ((4.0, 12.0), "at most 8")])
def test_budgets_that_do_not_fit_are_refused(budgets, message):
    assert message in BudgetCuts(budgets=budgets).refuse(RunFacts(max_length=8))[0]


@pytest.mark.parametrize("part", [Continuations(), PlanTree(), PrefixRestarts(), BudgetCuts()])
def test_parts_say_what_they_do(part):
    assert len(part.words()) > 10
    assert part.supplies() or isinstance(part, PrefixRestarts)


# --- whole runs -------------------------------------------------------------------------------------------------------

ODD = "def odd(completion, **_):\n    return float(len(completion) % 2)\n"


@pytest.mark.parametrize(
    "method",
    [
        {"name": "pppo", "continuations": 3, "prefix_start": 0.35},
        {"name": "pta_grpo", "leaves": 3, "credit": "span"},
        {"name": "grpo", "sampling": {"part": "prefix_restarts", "chance": 1.0}},
        {"name": "brpo", "summary_tokens": 3, "summaries": 2},
    ],
    ids=lambda method: method["name"],
)
def test_a_run(tmp_path: Path, method: dict[str, Any]) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    reward = {"function": f"{tmp_path / 'odd.py'}:odd"}
    folder = run(tmp_path / "run", method=method, reward=reward).folder
    found = records(folder, "train")
    assert all(np.isfinite(record["loss"]) and record["grad_norm"] > 0 for record in found)
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    sources = [row["source"] for row in rows]
    if method["name"] == "pppo":
        assert len(rows) == 16
        components = [dict(row["components"])["continuations"] for row in rows]
        assert found[0]["reward/continuations"] == pytest.approx(np.mean(components))
        assert found[0]["continuations"] >= 3
    if method["name"] == "pta_grpo":
        assert len(rows) == 16 + 2 * found[0]["plans"] > 16
    if method["name"] == "grpo":
        given = [len(row["prompt_ids"]) - len(row["prompt"]) for row in rows]
        assert max(given) > min(given)
        assert found[0]["restarts"] > 0
    if method["name"] == "brpo":
        assert sources.count("sampled") == 16
        assert sources.count("extra") == found[0]["cut_completions"] == 16 * 4 * 2


# --- the task that thinks in dots -----------------------------------------------------------------------------------


def test_a_demonstration_keeps_to_its_budget_and_thinks_the_better_the_longer():
    task = load_task({"name": "ponder", "length": 4, "dots": 6, "noise": 0.8, "budgeted": 0.0})
    bare = task.example("train", 0)
    right_at = {}
    for dots in (0, 6):
        example = replace(bare, prompt=task.with_budget(bare, dots + 6))
        assert example.prompt == f"{'.' * dots}>{bare.prompt}"
        completions = [task.demonstration(example, seed) for seed in range(50)]
        assert {completion.count(".") for completion in completions} == {dots}
        right_at[dots] = np.mean([task.reward(completion, **bare.columns) for completion in completions])
        assert task.solution(example) == f"{'.' * dots}|{bare.columns['answer']}"
    assert right_at[6] == 1.0 > 0.2 > right_at[0]
    free = [task.demonstration(bare, seed).count(".") for seed in range(50)]
    assert set(free) == set(range(7))


@pytest.mark.parametrize(("tokens", "dots"), [(3, 0), (6, 0), (8, 2), (100, 6)])
def test_a_budget_in_dots(tokens, dots):
    task = load_task({"name": "ponder", "length": 4, "dots": 6, "budgeted": 0.0})
    example = task.example("train", 0)
    assert task.with_budget(example, tokens).count(".") == dots
    budgeted = load_task({"name": "ponder", "length": 4, "dots": 6, "budgeted": 1.0}).example("train", 0)
    assert str(budgeted.prompt).count(">") == 2


@pytest.mark.parametrize(
    ("text", "right"), [("..|abcd", 1.0), ("|abcd", 1.0), ("abcd", 0.0), ("..|x|abcd", 1.0), ("|", 0.0)]
)
def test_what_follows_the_last_bar_counts(text, right):
    assert load_task("ponder").reward(text, answer="abcd") == right
