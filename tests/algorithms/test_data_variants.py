"""Prompts in several wordings, with budgets; rows besides the groups: extras and verification."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import grouprl
from fake_context import FakeContext, Numbers
from grouprl import InputError
from grouprl.algorithms.advantage.papers.shared_variants import SharedVariants
from grouprl.algorithms.allocation.papers.budget_prompts import BudgetPrompts, in_tokens
from grouprl.algorithms.allocation.variants import Variants, shares
from grouprl.algorithms.augment.papers.cross_pairs import CrossPairs
from grouprl.algorithms.augment.papers.extra import TemperedExtras, VerificationRows
from grouprl.algorithms.building import build_part
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import SOURCES
from grouprl.evaluation.verification import verdict_scores, weighted_vote
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.rewards import score
from grouprl.tasks import Example, load_task
from grouprl.training.opening import resume
from single_runs import launch as run
from single_runs import records
from small import gradient


class Turned(Numbers):
    """Every prompt can also be worded 'Q3=' and 'r3='."""

    def variants(self, example: Example) -> tuple[Example, ...]:
        names = (str(example.prompt).replace("q", letter) for letter in "qQr")
        return tuple(replace(example, id=f"{example.id}/{i}", prompt=name) for i, name in enumerate(names))


class FirstContext(FakeContext):
    """A judge who always says 'first': right in the prompt's own order, wrong in the other."""

    def _coin(self, request: RolloutRequest, number: int) -> bool:
        return str(request.shown).startswith("q")


@pytest.mark.parametrize(("completions", "parts", "expected"), [(8, 2, [4, 4]), (7, 3, [3, 2, 2]), (1, 3, [1, 0, 0])])
def test_shares_are_even(completions, parts, expected):
    assert shares(completions, parts) == expected


def varied(limit: int = 2, completions: int = 4) -> tuple[FirstContext, ScoredSamples]:
    context = FirstContext(task=Turned(8), completions=completions)
    requests = Variants(limit=limit).allot(context.take(2), context)
    return context, context.sample([request for request in requests if request.completions])


def test_completions_are_spread_over_the_forms_of_a_prompt():
    _context, rows = varied(limit=3, completions=7)
    first = subset(rows, rows.group_b == rows.group_b[0])
    assert first.extras["keys.variant"].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert first.extras["keys.own"].tolist() == [1] * 7
    assert first.sample_b.tolist() == list(range(7))
    assert [p[0] for p in first.prompts] == list("qqqQQrr")
    assert len(set(first.index_b.tolist())) == 1


def test_one_form_leaves_the_requests_alone():
    context = FakeContext()
    (request,) = context.take(1)
    (same,) = Variants(limit=4).allot([request], context)
    assert replace(same, keys={}) == request


def test_bias_shows_in_the_union_group():
    _, rows = varied(completions=8)
    union = SharedVariants(local_weight=0.0)(FakeContext().batch(rows))
    assert union[:, 0].abs().tolist() == pytest.approx([0.935412597] * 16, abs=1e-6)  # ±.5/(.53452 + 1e-6)


def test_every_completion_is_shown_under_every_form():
    context, rows = varied(limit=3, completions=6)
    paired = CrossPairs()(rows, context)
    assert len(paired) == 3 * len(rows)
    own_b = paired.extras["keys.own"] == 1
    assert np.array_equal(own_b, paired.source_b == SOURCES["sampled"])
    assert np.array_equal(own_b, ~paired.foreign_b)
    group = subset(paired, (paired.group_b == rows.group_b[0]) & ~own_b)
    for prompt, variant in zip(group.prompts, group.extras["keys.variant"], strict=True):
        assert prompt[0] == "qQr"[variant]
    counts = {v: int((group.extras["keys.variant"] == v).sum()) for v in range(3)}
    assert counts == {0: 4, 1: 4, 2: 4}
    assert len(set(zip(paired.group_b.tolist(), paired.sample_b.tolist(), strict=True))) == len(paired)
    assert group.scores.reward_b.sum() == 2 * subset(rows, rows.group_b == rows.group_b[0]).scores.reward_b.sum()


def test_a_pair_keeps_what_its_completion_was_made_to_begin_with():
    context = FirstContext(task=Turned(8), completions=2)
    requests = [replace(request, prefix=(65, 66)) for request in Variants().allot(context.take(1), context)]
    paired = CrossPairs()(context.sample(requests), context)
    shown = ["".join(map(chr, ids)) for ids in paired.rollout.prompt_ids]
    assert [text[1:] for text in shown] == [f"{str(paired.prompts[0])[1:]}AB"] * 4
    assert sorted(text[0] for text in shown) == ["Q", "Q", "q", "q"]


def test_pairs_do_not_move_the_shared_statistics():
    context, rows = varied(limit=2, completions=4)
    judge = SharedVariants()
    alone, paired = context.batch(rows), context.batch(CrossPairs()(rows, context))
    own_b = paired.keys["own"] == 1
    assert judge(paired)[own_b].tolist() == judge(alone).tolist()


def test_without_forms_nothing_is_paired():
    context, rows = varied(limit=1)
    assert CrossPairs()(rows, context) is rows


# --- budgets --------------------------------------------------------------------------------------------------------


def test_budgets_of_the_paper():
    assert [in_tokens(b, 4096) for b in BudgetPrompts().budgets] == [512, 1024, 2048, 2560]


def test_every_budget_is_sampled_with_its_own_prompt_and_numbers():
    context = FakeContext(completions=8, max_new_tokens=40)
    rows = context.sample(BudgetPrompts().allot(context.take(1), context))
    assert rows.extras["keys.budget"].tolist() == [5, 5, 10, 10, 20, 20, 25, 25]
    assert rows.sample_b.tolist() == list(range(8))
    assert "within 5 tokens" in str(rows.prompts[0])
    assert "within 25 tokens" in str(rows.prompts[7])
    assert set(rows.group_b.tolist()) == {0}


@pytest.mark.parametrize("budgets", [(4, 4), (8, 2), (0.5, 8)])
def test_budgets_rise_in_one_unit(budgets):
    with pytest.raises(InputError, match="Budgets must rise"):
        build_part("allocation", "budget_prompts", {"budgets": budgets})


@pytest.mark.parametrize(
    ("budgets", "run", "message"),
    [
        ((0.5, 0.6), RunFacts(max_length=3), "budgets of"),
        ((4, 9), RunFacts(max_length=8), "at most 8"),
        ((2, 3, 4), RunFacts(group_size=2, max_length=8), "over 3 budgets"),
    ],
)
def test_budgets_that_do_not_fit_are_refused(budgets, run, message):
    assert message in " ".join(BudgetPrompts(budgets=budgets).refuse(run))


@pytest.mark.parametrize("name", ["addition", "sorting", "reverse", "countdown", "chain", "multiplication"])
def test_generated_tasks_say_everything_in_their_own_alphabet(name):
    task = load_task(name)
    example = task.example("train", 0)
    right = task.solution(example)
    prompts = [
        task.with_hint(example, task.hints(example)[0]),
        task.with_budget(example, 12),
        task.with_verdict(example, right),
        task.with_examples(example, [(example.prompt, right)] * 2),
    ]
    for prompt in prompts:
        assert set(prompt) <= set(task.alphabet)
        assert prompt != example.prompt
    assert set(task.thought_end + task.ellipsis + task.plan_end) <= set(task.alphabet)
    assert len({verdict[0] for verdict in task.verdicts}) == 2
    forms = task.variants(example)
    completions, columns = [task.solution(form) for form in forms], [form.columns for form in forms]
    found = score(task.reward, completions, columns, ids=[form.id for form in forms])
    assert found.correct_b.all()
    assert len({variant.id for variant in task.variants(example)}) == len(task.variants(example))


def test_prompts_of_chats():
    chat: Any = ({"role": "user", "content": "1+1?"},)
    example, task = Example("c", chat), Numbers()
    assert task.with_budget(example, 30)[0]["content"] == "1+1?\n\nAnswer the question within 30 tokens."
    assert "Solution: 2\n\nIs this solution correct?" in task.with_verdict(example, "2")[0]["content"]
    shown = task.with_examples(example, [("2+2?", "4")])[0]["content"]
    assert shown == "Solved examples:\n\n2+2?\n4\n\n1+1?"


# --- extras ---------------------------------------------------------------------------------------------------------


def tempered(entropy: float | None, rates: tuple[float, ...] = (0.5,) * 8, **settings: Any) -> tuple[Any, Any, Any]:
    context = FakeContext(rates, completions=8)
    context.last_entropy = entropy
    plain = context.sample(context.take(8))
    return context, plain, TemperedExtras(**settings)(plain, context)


@pytest.mark.parametrize(("entropy", "temperature"), [(0.2, 1.2), (0.5, 1.2), (0.8, 0.8)])
def test_the_temperature_steers_towards_the_target(entropy, temperature):
    context = FakeContext(completions=8)
    context.last_entropy = entropy
    requested: list[RolloutRequest] = []
    sample = context.sample
    context.sample = lambda requests, **more: requested.extend(requests) or sample(requests, **more)  # type: ignore[method-assign]
    plain = sample(context.take(8))
    extended = TemperedExtras(target=0.5)(plain, context)
    assert len(requested) == 2  # a quarter of eight prompts
    assert {request.temperature for request in requested} == {temperature}
    assert {request.first for request in requested} == {8}
    extras = subset(extended, extended.source_b == SOURCES["extra"])
    good = int((context.sampled[-1].scores.correct_b).sum())
    assert len(extras) == (good if entropy <= 0.5 else good // 2) > 0
    assert extras.scores.correct_b.all()
    assert extras.foreign_b.all()
    assert not extras.extras["stat_b"].any()
    assert extras.extras["loss_mask_bt"][:, :2].all()


def test_extras_take_the_place_of_the_first_completions_in_the_loss_alone():
    context, _, extended = tempered(0.2)
    count = int(context.notes["extra_rows"])
    batch = context.batch(extended)
    sampled_b = batch.from_source("sampled")
    left_b = ~batch.active_bt.any(1)
    assert int(left_b.sum()) == count > 0
    assert batch.stats_b.tolist() == sampled_b.tolist()
    where = np.flatnonzero(sampled_b.numpy())
    assert np.flatnonzero(left_b.numpy()).tolist() == where[:count].tolist()
    context, _plain, extended = tempered(0.2, place="append")
    assert context.batch(extended).active_bt.any(1).all()


def test_good_is_what_has_an_advantage_however_close_the_mean():
    rates = (0.97,) * 8
    context = FakeContext(rates, completions=64)
    context.last_entropy = 0.2
    extended = TemperedExtras(target=0.5, share=1.0, most=10_000)(context.sample(context.take(8)), context)
    sampled = context.sampled[-1]
    mixed = [g for g in range(8) if 0 < sampled.scores.correct_b[sampled.group_b == sampled.group_b[64 * g]].mean() < 1]
    assert mixed
    extras = subset(extended, extended.source_b == SOURCES["extra"])
    assert len(extras) == sum(int(sampled.scores.correct_b[64 * g : 64 * g + 64].sum()) for g in mixed)
    assert extras.scores.correct_b.all()


def test_at_most_so_many_extras():
    context, _, _ = tempered(0.2, most=3)
    assert context.notes["extra_rows"] == 3
    context, _, _ = tempered(0.9, most=3)
    assert context.notes["extra_rows"] == 1


def test_without_an_entropy_or_good_completions_there_are_no_extras():
    for entropy, rates in ((None, (0.5,) * 8), (0.2, (0.0,) * 8), (0.2, (1.0,) * 8)):
        context, plain, extended = tempered(entropy, rates)
        assert len(extended) == len(plain)
        assert extended.extras["stat_b"].all()
        assert context.batch(extended).active_bt.equal(context.batch(extended).mask_bt)
        assert join([extended, extended]).extras["stat_b"].all()


def test_which_prompts_are_sampled_again_depends_on_the_seed_alone():
    first, second = tempered(0.2)[2], tempered(0.2)[2]
    assert first.group_b.tolist() == second.group_b.tolist()


def test_hot_is_hotter_than_cool():
    with pytest.raises(InputError, match="Hot must be the higher"):
        build_part("augment", "tempered_extras", {"hot": 0.7})


# --- verification -----------------------------------------------------------------------------------------------------


def verified(rates: tuple[float, ...], **settings: Any) -> tuple[FakeContext, ScoredSamples, ScoredSamples]:
    context = FakeContext(rates, completions=8)
    plain = context.sample(context.take(len(rates)))
    return context, plain, VerificationRows(**settings)(plain, context)


def test_verdicts_are_balanced_in_every_group():
    _context, plain, requested = verified((0.3,) * 8)
    rows = subset(requested, requested.source_b == SOURCES["verification"])
    for group in set(plain.group_b.tolist()):
        right = int(plain.scores.correct_b[plain.group_b == group].sum())
        texts = [t for t, g in zip(rows.texts, rows.group_b, strict=True) if g == group]
        assert texts.count("Yes") == texts.count("No") == min(right, 8 - right)
    assert len(set(zip(requested.group_b.tolist(), requested.sample_b.tolist(), strict=True))) == len(requested)


def test_a_verdict_is_one_token_behind_prompt_and_completion():
    context, plain, requested = verified((0.5,) * 8, balance=False)
    rows = subset(requested, requested.source_b == SOURCES["verification"])
    assert len(rows) == len(plain) == context.notes["verification_rows"]
    assert rows.foreign_b.all()
    for i in range(len(rows)):
        assert rows.rollout.response_ids[i] == ((ord("Y"),) if rows.scores.correct_b[i] else (ord("N"),))
        verdict = "right" if rows.scores.correct_b[i] else "wrong"
        assert f"Solution: {verdict}\n\nIs this solution correct?" in str(rows.prompts[i])
    batch = context.batch(requested)
    assert batch.mask_bt.sum(1)[batch.from_source("verification")].tolist() == [1] * len(rows)


def test_dead_groups_have_no_balanced_verdicts():
    _, plain, requested = verified((0.0, 1.0))
    assert requested is plain
    assert VerificationRows().idle(RunFacts(group_size=1))


def test_verdicts_must_differ_in_their_first_token():
    context = FakeContext()
    context.task.__class__ = type("Same", (Numbers,), {"verdicts": ("Yes", "Yep")})
    with pytest.raises(InputError, match="same token"):
        VerificationRows(balance=False)(context.sample(context.take(1)), context)


@pytest.mark.parametrize(
    "part",
    [Variants(), CrossPairs(), BudgetPrompts(), TemperedExtras(), TemperedExtras(place="append"), VerificationRows()],
)
def test_parts_say_what_they_do(part):
    assert len(part.words()) > 10
    assert not part.idle(RunFacts(max_length=64))


# --- whole runs -------------------------------------------------------------------------------------------------------

ODD = "def odd(completion, **_):\n    return float(len(completion) % 2)\n"


@pytest.mark.parametrize(
    ("method", "steps"),
    [("eis_grpo", 2), ("share_grpo", 2), ("hbpo", 2), ("aepo", 3), ("rl_v", 2)],
)
def test_a_run(tmp_path: Path, method: str, steps: int) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    reward = {"function": f"{tmp_path / 'odd.py'}:odd"}
    settings = {"prompts": 4, "group_size": 4}
    folder = run(tmp_path / "run", method=method, reward=reward, steps=steps, batch=settings).folder
    found = records(folder, "train")
    assert all(np.isfinite(record["loss"]) and record["grad_norm"] > 0 for record in found)
    rows = pq.read_table(folder / "rollouts" / f"step-{steps:06d}.parquet").to_pylist()
    sources = [row["source"] for row in rows]
    prompts = {row["prompt"] for row in rows if row["group"] == rows[0]["group"]}
    assert sources.count("sampled") == 16
    if method == "share_grpo":
        assert sources.count("extra") == 16
    if method in ("eis_grpo", "share_grpo"):
        assert len(prompts) == 2
    if method == "hbpo":
        assert len(prompts) == 4
    if method == "aepo":
        extras = [row for row in rows if row["source"] == "extra"]
        assert len(extras) == found[-1]["extra_rows"]
        assert all(row["advantage"] == [1.0] * len(row["advantage"]) for row in extras)
    if method == "rl_v":
        verdicts = [row["completion"] for row in rows if row["source"] == "verification"]
        assert len(verdicts) == found[-1]["verification_rows"] > 0
        assert verdicts.count("1") == verdicts.count("0")


def verifier_auc(folder: Path) -> float:
    """Chance that a correct completion gets a higher P(Yes) than a wrong one, over completions to new prompts."""
    session = resume(folder)
    rows = session.context.sample(session.context.take(32), count_failures=False)
    score_b = verdict_scores(session.policy, session.task, rows.examples, rows.texts).numpy()
    right_b = rows.scores.correct_b
    return float((score_b[right_b][:, None] > score_b[~right_b]).mean())


def test_the_policy_learns_to_tell_right_from_wrong(tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text("def bar(completion, **_):\n    return float('|' in completion)\n")
    settings = {
        "reward": {"function": f"{tmp_path / 'bar.py'}:bar"},
        "batch": {"prompts": 8, "group_size": 8},
        "warmup": {"steps": 0},
        "optim": {"lr": 3e-3},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "steps": 30,
    }
    blind = run(tmp_path / "blind", method={"name": "rl_v", "verify_coef": 0.0}, **settings).folder
    taught = run(tmp_path / "taught", method="rl_v", **settings).folder
    assert verifier_auc(taught) > 0.8 > verifier_auc(blind)


def test_verdicts_leave_the_gradient_of_completions_alone():
    context, plain, requested = verified((0.4,) * 8)
    both, alone = (grouprl.method(name) for name in ("rl_v", "grpo"))
    batch, sampled = context.batch(requested), context.batch(plain)
    of_completions = gradient(both, batch, batch.old_bt)[batch.from_source("sampled")]
    of_grpo = gradient(alone, sampled, sampled.old_bt)
    assert torch.allclose(of_completions, of_grpo)
    assert of_grpo.any()
    of_verdicts = gradient(both, batch, batch.old_bt)[batch.from_source("verification")]
    count = len(of_verdicts)
    assert torch.allclose(of_verdicts[:, 0], torch.full((count,), -1 / count, dtype=of_verdicts.dtype))


@pytest.mark.parametrize(
    ("completions", "weights", "expected"),
    [
        (["a", "b", "b"], None, "b"),
        (["a", "b", "b"], [1.0, 1.0, 1.0], "b"),
        (["a", "b", "b"], [0.9, 0.3, 0.4], "a"),
        (["a", "b"], [0.5, 0.5], "a"),
        ([None, "b", None], [0.9, 0.1, 0.9], "b"),
        ([None], None, None),
        ([], None, None),
    ],
)
def test_votes_count_their_weight(completions, weights, expected):
    assert weighted_vote(completions, weights) == expected


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0]])
def test_votes_need_their_weights(weights):
    with pytest.raises(InputError, match="at least 0"):
        weighted_vote(["a", "b"], weights)
