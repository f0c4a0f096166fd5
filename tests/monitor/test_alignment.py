"""A reward without a verifier on a model that does not know the task yet (Model-Task Alignment)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grouprl.config.run import load_config
from grouprl.methods.compose import compose
from grouprl.monitor.alignment import most_tries
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.training.health_facts import health_facts

BLIND = HealthFacts(blind=("the policy's certainty",))
STEP = {"phase": "train", "step": 1, "reward_mean": 0.1}


def evaluated(step=0, **rates):
    return {"phase": "eval", "step": step, **{name.replace("_at_", "@"): value for name, value in rates.items()}}


def said(record, facts=BLIND):
    named = {key if key in ("phase", "step") else f"eval/{key}": value for key, value in record.items()}
    return {each.code: each for each in examine([named, STEP], facts)}


def test_a_weak_model_with_a_reward_that_nobody_verifies_is_named_with_its_pass_rate():
    finding = said(evaluated(pass_at_1=0.1, pass_at_8=0.31))["weak_start"]
    assert (finding.key, finding.severity, finding.first_step) == ("eval/pass@8", "warning", 1)
    assert "the policy's certainty" in finding.text
    assert "0.31 of the prompts before training (pass@8)" in finding.text


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        (evaluated(pass_at_1=0.1, pass_at_8=0.5), BLIND),
        (evaluated(pass_at_1=0.1), replace(BLIND, blind=())),
        (evaluated(step=20, pass_at_1=0.1), BLIND),
        (evaluated(reward=0.1), BLIND),
    ],
    ids=["strong enough", "verified", "after training", "no pass rate"],
)
def test_nothing_is_said_otherwise(record, facts):
    assert "weak_start" not in said(record, facts)


def test_the_largest_k_counts_and_bounds_are_no_rates():
    assert most_tries({"eval/pass@1": 0, "eval/pass@16": 0, "eval/pass@2_high": 0, "eval/pass@4": 0}) == "eval/pass@16"
    assert most_tries({"eval/reward": 0}) == ""


@pytest.mark.parametrize(("method", "blind"), [("intuitor", 1), ("cpmobius", 1), ("grpo", 0)])
def test_methods_say_whether_their_reward_is_a_verdict(method, blind):
    config = load_config("addition", [f"method={method}"])
    assert len(health_facts(config, compose(config.method).method, 8, exact=True).blind) == blind
