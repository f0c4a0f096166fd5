"""Findings on losses of pairs, from records and from runs that provoke them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import grouprl
from grouprl.algorithms.objective.pair_metrics import overlap
from grouprl.algorithms.regularize.chosen import ChosenNLL
from grouprl.algorithms.score.papers.baselines import AboveMismatched, AboveRunningMean
from grouprl.algorithms.score.score import LogProb
from grouprl.config.run import parse_config
from grouprl.core.batch import SOURCES, Batch
from grouprl.methods.preference.composing import of_pairs
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.metrics import prepared_metrics
from grouprl.training.health_facts import health_facts
from grouprl.training.loop import train

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}


def found(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {each.code: each for each in examine(records, HealthFacts())}


def said(lengths: Sequence[float] = (), rewards: Sequence[float] = (), **columns: float) -> dict[str, Any]:
    """Findings of 20 steps whose metrics fall or rise evenly from 0, or are level if they are lengths or shares."""
    level = ("chosen_length", "rejected_length", "pair_overlap")
    steps: list[dict[str, Any]] = [
        {"phase": "train", "step": n, **{k: v if k in level else v * n / 20 for k, v in columns.items()}}
        for n in range(1, 21)
    ]
    for each, reward in zip(lengths, rewards or [0.0] * len(lengths), strict=True):
        steps.append({"phase": "eval", "step": 20, "eval/length_mean": each, "eval/reward": reward})
    return found(steps)


def test_likelihood_displacement_names_its_likely_cause() -> None:
    alike = said(chosen_drift=-2.0, pair_margin=3.0, pair_overlap=0.9)["likelihood_displacement"]
    assert "near-duplicates: 90 %" in alike.text
    assert "chosen_nll" in alike.remedy
    uneven = said(chosen_drift=-2.0, pair_margin=3.0, pair_overlap=0.2, chosen_length=30.0, rejected_length=10.0)
    assert "30.0 tokens, rejected ones 10.0" in uneven["likelihood_displacement"].text
    large = said(chosen_logp=-2.0, pair_margin=3.0, pair_overlap=0.2, chosen_length=10.0, rejected_length=10.0)
    assert "updates are too large" in large["likelihood_displacement"].text


@pytest.mark.parametrize(
    "columns",
    [
        {"chosen_drift": -0.8, "pair_margin": 3.0},
        {"chosen_drift": -2.0, "pair_margin": -3.0},
        {"chosen_drift": 2.0, "pair_margin": 3.0},
        {"pair_margin": 3.0},
    ],
    ids=["a small fall", "margins fall", "chosen completions gain", "nothing known"],
)
def test_no_displacement_is_named_otherwise(columns: dict[str, float]) -> None:
    assert "likelihood_displacement" not in said(**columns)


def test_length_is_named_where_the_pairs_prefer_it_and_samples_grow() -> None:
    sizes = {"chosen_length": 12.0, "rejected_length": 10.0}
    assert said([10.0, 16.0], **sizes)["length_exploitation"].severity == "warning"
    assert said([10.0, 16.0], [0.2, 0.5], **sizes)["length_exploitation"].severity == "note"
    assert "length_exploitation" not in said([10.0, 14.0], **sizes)
    assert "length_exploitation" not in said([10.0, 16.0], chosen_length=10.0, rejected_length=10.0)


def test_drift_is_named_with_the_side_that_moved_most() -> None:
    assert "rejected completions has moved by -2" in said(rejected_drift=-3.0, chosen_drift=0.5)["reference_drift"].text
    assert "reference_drift" not in said(rejected_drift=-1.1, chosen_drift=0.5)


def test_overlap_is_the_share_in_a_common_beginning_or_end() -> None:
    token_bt = torch.tensor([[1, 2, 3, 9, 0], [1, 5, 9, 0, 0], [1, 2, 3, 9, 0], [7, 7, 7, 7, 7], [1, 2, 2, 3, 9]])
    size_b = torch.tensor([4, 3, 4, 5, 5])
    mask_bt = torch.arange(5) < size_b[:, None]
    batch = grouprl.Batch(mask_bt=mask_bt, group_b=torch.zeros(5).long(), reward_b=torch.zeros(5).double())
    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [0, 3], [0, 4]])
    assert overlap(token_bt, batch, pairs).tolist() == [0.5, 0.5, 1.0, 0.0, 0.8], "an inserted token shifts the end"


def ran(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "model": SMALL,
        "method": "dpo",
        "steps": 10,
        "batch": {"prompts": 16, "group_size": 2, "minibatches": 2},
        "optim": {"lr": 1e-2, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1},
    }
    train(parse_config(settings | changes), folder=folder / "run", console=Console(quiet=True))
    return found([json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()])


def test_a_run_on_near_duplicates_displaces_likelihood_and_drifts(tmp_path: Path) -> None:
    luck, rows = np.random.default_rng(0), []
    for word in ("".join(luck.choice(list("cdefgh"), 8)) for _ in range(64)):
        rows.append(
            {"prompt": f"{word[:2]}:", "chosen": f"{word[:4]}a{word[4:]}", "rejected": f"{word[:4]}b{word[4:]}"}
        )
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    findings = ran(tmp_path, task=f"pairs:{tmp_path / 'pairs.jsonl'}", steps=16)
    assert "near-duplicates" in findings["likelihood_displacement"].text
    assert "rejected completions" in findings["reference_drift"].text


def test_a_run_on_a_judge_that_likes_length_exploits_it(tmp_path: Path) -> None:
    task = {"name": "preferences", "length_bias": 10.0, "longest": 12}
    warmup = {"steps": 40, "batch": 16, "lr": 1e-2}
    findings = ran(tmp_path, task=task, warmup=warmup, eval={"every": 0, "final_prompts": 32})
    assert findings["length_exploitation"].key == "eval/length_mean"


@pytest.mark.parametrize("mean", ["token", "sequence", "sum"])
def test_nll_loss_is_that_of_chosen_completions_before_its_coefficient(mean: str) -> None:
    size_b = torch.tensor([2, 1, 1, 3])
    mask_bt = torch.arange(3) < size_b[:, None]
    reward_b = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    batch = grouprl.Batch(mask_bt=mask_bt, group_b=torch.tensor([0, 0, 1, 1]), reward_b=reward_b)
    logp_bt = torch.where(mask_bt, torch.tensor([[-0.2], [-0.5], [-0.9], [-0.3]]).double(), 0).requires_grad_()
    term = ChosenNLL(coef=3.0, mean=mean)
    method = of_pairs(score=LogProb(), regularize=(term,))
    found = method.loss(logp_bt, method.prepare(batch)).metrics
    expected = {"token": (0.4 + 0.9) / 3, "sequence": (0.2 + 0.9) / 2, "sum": (0.4 + 0.9) / 2}[mean]
    assert float(found["nll_loss"]) == pytest.approx(expected)
    assert float(found["chosen_nll_loss"]) == pytest.approx(3 * expected)


def test_the_baseline_of_kto_is_kl_by_trls_name_and_that_of_bco_is_not() -> None:
    assert AboveMismatched.aliases == ("kl",)
    assert not AboveRunningMean.aliases
    batch = grouprl.Batch(
        mask_bt=torch.ones(3, 1, dtype=torch.bool),
        group_b=torch.tensor([0, 1, 1]),
        reward_b=torch.tensor([1.0, 0.0, 0.0]).double(),
        ref_bt=torch.full((3, 1), -1.0).double(),
        keys={"mismatched": torch.tensor([0, 0, 1])},
    )
    method = grouprl.method("kto")
    found = method.loss(torch.tensor([[-0.5], [-0.8], [-0.4]]).double(), method.prepare(batch)).metrics
    assert float(found["kl"]) == pytest.approx(0.6)


def test_a_selection_of_pairs_that_never_acts_is_no_finding() -> None:
    config = parse_config({"task": "preferences", "method": "dpo", "batch": {"prompts": 2, "group_size": 2}})
    assert health_facts(config, grouprl.method("dpo"), exact=True, max_tokens=8).filters == ()
    assert health_facts(config, grouprl.method("dapo"), exact=True, max_tokens=8).filters == ("mixed_groups",)


def test_stored_rows_have_no_divergence_from_the_reference() -> None:
    """Their mean log-ratio is no mean over the policy's own tokens: it falls below 0, where no divergence is."""
    old_bt, ref_bt = torch.full((2, 2), -2.0), torch.full((2, 2), -1.0)
    batch = Batch(
        mask_bt=torch.ones(2, 2, dtype=torch.bool),
        group_b=torch.zeros(2, dtype=torch.int64),
        reward_b=torch.tensor([1.0, 0.0]),
        old_bt=old_bt,
        ref_bt=ref_bt,
    )
    assert prepared_metrics(batch)["kl_ref"] == -1
    stored_b = torch.full((2,), SOURCES["demonstration"])
    assert "kl_ref" not in prepared_metrics(batch.replace(source_b=stored_b))
