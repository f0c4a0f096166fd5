"""A task with stored rows samples nothing: methods that would sample more are refused, before the run and within it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

import grouprl
from grouprl.algorithms.advantage.advantage import Ones
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.plan.checks import own_sample_findings
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.records.requests import RolloutRequest
from grouprl.rollout.offline_rows import OfflineRows, refuse_sampling
from grouprl.rollout.row_settings import RowSettings, Seeds
from grouprl.tasks import load_task

STORED = {"task": "preferences", "model": "tiny", "batch": {"prompts": 4, "group_size": 2}}


def refused(method: object, **more: object) -> list[str]:
    return [str(found) for found in plan(parse_config({**STORED, "method": method, **more})).refusals]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ghpo", "group_hints samples 2 completions"),
        ("pppo", "continuations per rollout"),
        ("plaid", "rising_temperature chooses how completions are sampled"),
        ("remax", "remax compares with a greedy completion of each prompt"),
    ],
)
def test_a_method_that_samples_more_is_refused_on_stored_rows(method: str, words: str) -> None:
    (found,) = [each for each in refused(method) if "rows stored" in each]
    assert words in found


@pytest.mark.parametrize("method", ["dpo", {"base": "srpo_robust", "revise": ">"}, "dpa", "grpo"])
def test_a_method_that_only_adds_rows_is_not(method: object) -> None:
    assert not [each for each in refused(method) if "rows stored" in each]


def test_an_opponent_without_scores_may_sample_beside_stored_rows() -> None:
    assert not [each for each in refused("hypo") if "rows stored" in each]
    scored = {"base": "hypo", "augment": [{"part": "opponents", "scored": True}]}
    (found,) = [each for each in refused(scored) if "rows stored" in each]
    assert "completions of the opponent" in found


def test_the_source_of_stored_rows_refuses_what_it_cannot_answer() -> None:
    task = load_task("preferences", 0)
    policy = load_policy("tiny", alphabet=task.alphabet or "")
    source = OfflineRows(task, policy, task.reward, RowSettings(8, Seeds(0)))
    request = RolloutRequest(0, 0, task.example("train", 0), 2)
    assert len(source.rows([request])) == 2
    with pytest.raises(InputError, match="asks for completions of 'preferences'"):
        source.rows([request], greedy=True)


@pytest.mark.parametrize(
    "change", [{"prefix": (3,)}, {"prompt": "?"}, {"temperature": 0.5}, {"first": 2}, {"max_turns": 1}]
)
def test_a_request_for_anything_but_a_prompts_own_rows_is_an_error(change: dict[str, object]) -> None:
    request = RolloutRequest(0, 0, load_task("preferences", 0).example("train", 0), 2)
    refuse_sampling("preferences", [request], ruled=False)
    with pytest.raises(InputError, match=rf"with {next(iter(change))} of its own.*nothing is sampled"):
        refuse_sampling("preferences", [request, replace(request, **change)], ruled=False)


@pytest.mark.parametrize(("method", "tokens"), [("bradley_terry", False), ("dpo", True)])
def test_a_reward_model_needs_no_memory_for_log_probs_and_sampling(method: str, tokens: bool) -> None:
    config = {"task": "preferences", "model": "tiny", "method": method, "batch": {"prompts": 4, "group_size": 2}}
    found = plan(parse_config(config))
    names = {cost.what for cost in found.costs}
    assert {"weights", "gradients"} <= names
    assert ({"log-prob chunk", "rollout cache"} <= names) is tokens
    assert any("an evaluation of a policy samples words" in str(note) for note in found.notes)


@pytest.mark.parametrize("kept", ["tokens", "gradients"])
def test_a_reward_model_keeps_no_numbers_of_tokens(kept: str) -> None:
    (said,) = refused("bradley_terry", run={"record_updates": kept})
    assert "run.record_updates: a reward model has scores, and no log-probs of tokens. Leave it out" in said
    assert not refused("dpo", run={"record_updates": kept})


# --- formulas of own samples ----------------------------------------------------------------------------------------


def of_own_samples(method: Any, task: Any = "preferences") -> list[tuple[str, str]]:
    made = plan(parse_config({"task": task, "method": method, "warmup": {"steps": 0}, "batch": {"group_size": 2}}))
    return [(found.severity, found.key) for found in made.findings if found.code == "own_samples"]


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("grpo", [("warning", "clipped")]),
        ("reinforce", [("warning", "policy_gradient")]),
        ("nash_mp", [("warning", "preferred"), ("warning", "policy_gradient")]),
        ("gspo", [("warning", "clipped")]),
        ("p3o", [("warning", "pairwise_gradient")]),
        ("f_dpg", [("refusal", "target_divergence"), ("warning", "policy_gradient")]),
        ("online_sppo", [("warning", "preferred")]),
        ("dpo", []),
        ("kto", []),
        ("sft", []),
        ("raft", []),
        ("rebel", []),
        ({"base": "reinforce", "advantage": {"part": "raw_reward", "positive_only": True}}, []),
    ],
    ids=str,
)
def test_formulas_of_own_samples_say_so_on_stored_pairs(method: Any, found: list[tuple[str, str]]) -> None:
    assert of_own_samples(method) == found


def test_formulas_of_own_samples_say_nothing_where_the_policy_samples() -> None:
    assert of_own_samples("grpo", "addition") == of_own_samples("f_dpg", "addition") == []


def test_a_part_of_ones_own_says_so_by_its_property() -> None:
    @dataclass(frozen=True)
    class Wins(Ones):
        own_samples = "it is a share of wins"

    method = grouprl.method("sft").with_parts(advantage=Wins())
    (found,) = own_sample_findings(method, RunFacts(stored=True))
    assert "it is a share of wins for completions that the policy samples, and here they are stored" in found.text
    assert list(own_sample_findings(method, RunFacts(stored=False))) == []
