"""Relative preferences: contrasts across prompts by hand, their limits, how alike prompts are, and a run."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl import Batch, InputError
from grouprl.algorithms.augment.papers.preferences.similar_prompts import SimilarPrompts, cosines, token_counts
from grouprl.algorithms.objective.papers.across_prompts import AcrossPrompts
from grouprl.core.edges import Edges
from short_runs import trained_steps
from small import f64, near, small

SCORES = [0.4, -0.2, 0.1, 0.3]


def batch_of(scores: list[float], rewards: list[float], groups: list[int], cosine: float | None = 0.0) -> Batch:
    """Completions of one token with these log-ratios; every two prompts have the same cosine."""
    batch = small(rewards, groups=groups, old_bt=[[x - 1] for x in scores], ref_bt=[[-1.0]] * len(scores))
    apart_bb = batch.group_b[:, None] != batch.group_b
    edges = Edges.where(apart_bb, torch.full(apart_bb.shape, cosine or 0.0, dtype=torch.float64))
    return batch.replace(edges={} if cosine is None else {"similar": edges})


def outcome(batch: Batch, method: str = "relative_po", **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = grouprl.method(method, **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


def nll(gap: float) -> float:
    return math.log1p(math.exp(-0.1 * gap))


def test_the_weight_of_a_contrast_stands_inside_the_link():
    """cos 0.5 at temperature 0.5: ω is σ(1) for the own prompt and σ(-1) for the other."""
    near_one = 1 / (1 + math.exp(-1))
    value, _ = outcome(batch_of(SCORES, [1, 0, 1, 0], [0, 0, 1, 1], cosine=0.5))
    own, other = near_one, 1 - near_one
    gaps = [own * 0.6, other * 0.1, other * 0.3, own * -0.2]
    near(value, sum(map(nll, gaps)) / 4)


def test_cold_similarity_is_dpo_beside_a_constant():
    """At temperature → 0 other prompts have ω = 0, -log σ(0) = log 2 and no gradient; own pairs count 1/M."""
    batch = batch_of(SCORES, [1, 0, 1, 0], [0, 0, 1, 1], cosine=0.9)
    value, grad_bt = outcome(batch, temperature=1e-4)
    dpo, dpo_grad_bt = outcome(batch, "dpo")
    near(value, dpo / 2 + math.log(2) / 2)
    near(grad_bt, dpo_grad_bt / 2)


def test_a_full_diagonal_is_dpo():
    batch = batch_of(SCORES, [1, 0, 1, 0], [0, 0, 1, 1], cosine=None)
    for one, other in zip(outcome(batch, weighing="diagonal", diagonal=1.0), outcome(batch, "dpo"), strict=True):
        near(one, other)


def test_single_labelled_completions_are_all_contrasted():
    """Chosen 0 and 2, rejected 1: ω = 1 for each, as there is one rejected row."""
    value, grad_bt = outcome(batch_of([0.4, -0.2, 0.1], [1, 0, 1], [0, 1, 2]))
    near(value, (nll(0.6) + nll(0.3)) / 2)
    near(grad_bt.sum(), 0.0)
    assert (grad_bt[[0, 2]] < 0).all()
    assert (grad_bt[1] > 0).all()
    near(outcome(batch_of([0.4, -0.2, 0.1], [1, 0, 1], [0, 1, 2]), weighing="diagonal")[0], value)


@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("groups", [[0, 1, 2, 3], [0, 0, 1, 1]])
@pytest.mark.parametrize("weighing", ["similarity", "diagonal"])
def test_an_empty_side_has_no_loss(rewards, groups, weighing):
    value, grad_bt = outcome(batch_of(SCORES, rewards, groups), weighing=weighing)
    assert value == 0
    assert not grad_bt.any()


def test_the_worse_of_a_list_never_meets_the_better_as_chosen():
    batch = batch_of([0.0] * 4, [3, 2, 1, 0], [0, 0, 0, 1])
    made = grouprl.method("relative_po")
    meets_bb, own_bb = made.objective.contrasts(made.prepare(batch))
    assert meets_bb.tolist() == [[False, True, True, True], [False, False, True, True], *[[False] * 4] * 2]
    assert own_bb.sum() == 3


def test_far_scores_stay_finite():
    for gap in (-500.0, 500.0):
        value, grad_bt = outcome(batch_of([gap, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]))
        assert value.isfinite()
        assert grad_bt.isfinite().all()


def test_scores_of_pairs_are_refused():
    with pytest.raises(ValueError, match="single completions"):
        AcrossPrompts(score=grouprl.method("aot").objective.score)


def test_prompts_are_as_alike_as_their_tokens():
    """(1 2 2) and (2 3): 2/(√5·√2); an empty prompt is like none."""
    cosine_bb = cosines(token_counts(((1, 2, 2), (2, 3), ())))
    near(cosine_bb[0, 1], 2 / math.sqrt(10))
    near(cosine_bb.diag(), f64([1, 1, 0]))
    near(cosine_bb[2], f64([0, 0, 0]))


def test_rows_of_different_prompts_have_their_cosine_as_an_edge_and_no_others_have_one():
    """q0= and q1= share two of three characters; two completions of each."""
    context = FakeContext([0.5, 0.5], completions=2)
    samples = SimilarPrompts()(context.sample([context.request(0), context.request(1)]), context)
    edges = samples.edges["similar"]
    assert sorted(map(tuple, edges.index_e2.tolist())) == sorted(
        pair for i in (0, 1) for j in (2, 3) for pair in ((i, j), (j, i))
    )
    near(edges.value_e, torch.full((8,), 2 / 3, dtype=torch.float64))
    assert context.notes["prompt_similarity"] == pytest.approx(2 / 3)


def columns(*values: object) -> Any:
    return SimpleNamespace(examples=[SimpleNamespace(id=f"row {i}", columns={"e": x}) for i, x in enumerate(values)])


def test_embeddings_of_the_data_are_read_or_refused_by_name():
    near(cosines(SimilarPrompts(by="e")._columns(columns([1, 0], [1, 1])))[0, 1], math.sqrt(0.5))
    for wrong in (columns([1, 2], [1]), columns("a", "b"), columns([1.0], [float("nan")]), columns(1, 2)):
        with pytest.raises(InputError, match="as many finite numbers"):
            SimilarPrompts(by="e")._columns(wrong)
    with pytest.raises(InputError, match="prompt row 0 has no such column"):
        SimilarPrompts(by="f")._columns(columns([1]))
    assert not cosines(np.zeros((2, 0))).any()


@pytest.mark.parametrize("form", ["pairs", "labels"])
def test_a_run_begins_at_log_2_and_notes_how_alike_prompts_are(form: str, tmp_path: Path):
    config = {
        "task": {"name": "preferences", "form": form},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "relative_po",
        "steps": 1,
        "batch": {"prompts": 8, "group_size": 2 if form == "pairs" else 1},
        "eval": {"every": 0, "final_prompts": 1},
    }
    (step,) = trained_steps(config, tmp_path / "run")
    assert step["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert 0 < step["prompt_similarity"] < 1
    assert step["grad_norm"] > 0
