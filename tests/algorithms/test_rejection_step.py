"""UnifiedReward-Think: what was judged rightly is imitated, the rest is left to reinforcement."""

from __future__ import annotations

import pytest

import grouprl
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.papers.rejection_step import RejectionStep
from grouprl.methods.compose import compose
from pretraining_runs import cut_at, records, run

FIRST = {"part": "initial_completions", "completions": 1, "prompts_per_piece": 20}
PART = {"part": "rejection_step", "epochs": 4, "lr": 3e-3, "batch": 8}
METHOD = {
    "base": "grpo",
    "kl_coef": 0.04,
    "pretrain": [FIRST, PART],
    "curriculum": {"part": "initial_rate", "below": 1},
}


def test_right_verdicts_are_imitated_the_rest_is_sampled_and_runs_resume_to_the_bit(tmp_path):
    whole = run(tmp_path / "run", METHOD)
    before, steps = records(whole, "pretraining"), records(whole, "train")
    solved = sum(record["initial_solved"] * 20 for record in before[:2])
    assert before[2]["rejection_rows"] == pytest.approx(solved)
    assert 0 < solved < 40
    losses = [record["rejection_loss"] for record in before[3:]]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert steps[0]["kl_ref"] == pytest.approx(0, abs=1e-6), "the reference is the policy that has imitated"
    assert steps[-1]["kl_ref"] > 1e-6
    for at in ("pretraining-000004", "step-000001"):
        cut = cut_at(whole, tmp_path / at, at)
        assert records(cut, "pretraining") == before
        assert records(run(cut, METHOD, resume=True), "train") == steps


def test_a_policy_without_a_right_completion_imitates_nothing(tmp_path):
    method = {**METHOD, "curriculum": None}
    wrong = {"name": "addition", "digits": 4}
    found = records(run(tmp_path / "run", method, task=wrong, warmup={"steps": 0}, steps=1), "pretraining")
    assert found[2]["rejection_rows"] == 0
    assert "rejection_loss" not in found[3]


def test_endless_prompts_turns_and_a_missing_prelude_are_refused():
    assert "data.prompts" in RejectionStep().refuse(RunFacts())[0]
    assert "observations" in RejectionStep().refuse(RunFacts(examples=9, environment=True))[0]
    assert not RejectionStep().refuse(RunFacts(examples=9))
    for names in (["rejection_step"], ["rejection_step", "initial_completions"]):
        with pytest.raises(grouprl.InputError, match="'rejection_step' without 'initial_completions' before it"):
            compose({"base": "grpo", "pretrain": names})
