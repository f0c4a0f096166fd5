"""Findings from synthetic histories: each appears when it should and not when it should not."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest

import grouprl
from batches import random_case
from grouprl.config.run import parse_config
from grouprl.core.finding import CODES, RunFinding
from grouprl.monitor.health import Health, HealthWatch, examine
from grouprl.monitor.history import WINDOW, HealthFacts, History, percent
from grouprl.protocols.run_events import EvaluationEnded, FindingChanged, StepEnded
from grouprl.training.health_facts import health_facts

FACTS = HealthFacts(
    completions=128,
    updates_per_rollout=2,
    clips=True,
    refill=True,
    refill_max_rounds=4,
    filters=("mixed_groups",),
    kl_weight=0.04,
    max_tokens=16,
)


def healthy(step: int) -> dict:
    """A record of a run that learns as it should."""
    p = min(0.85, 0.3 + 0.01 * step)
    return {
        "phase": "train",
        "step": step,
        "reward_mean": p,
        "reward_std": math.sqrt(p * (1 - p)),
        "pass@1": p,
        "length_mean": 8.0 + 0.02 * step,
        "truncated_fraction": 0.02,
        "entropy": 0.6 - 0.004 * step,
        "kl_old": 0.004,
        "kl_ref": 0.001 * step,
        "logp_gap_mean": 2e-7,
        "logp_gap_max": 1e-6,
        "kl_behavior": 0.0,
        "clip_fraction": 0.02,
        "loss": -0.001,
        "grad_norm": 0.9 + 0.1 * (step % 3),
        "lr": 1e-3 * (1 - step / 101),
        "groups_zero_variance": 0.2,
        "groups_all_right": 0.15,
        "groups_all_wrong": 0.05,
        "rows_trained": 0.8,
        "rows_dropped": 0.0,
        "refill_rounds": 2.0,
        "reward_errors": 0.0,
        "explained_variance": 0.4,
    }


def history(steps: int = 40, since: int = 1, **changes) -> list[dict]:
    """A healthy run in which, from step `since` on, metrics are as given (numbers, or functions of the step)."""
    records = []
    for step in range(1, steps + 1):
        record = healthy(step)
        if step >= since:
            record |= {name: value(step) if callable(value) else value for name, value in changes.items()}
        records.append(record)
    return records


def found(records: list[dict], facts: HealthFacts = FACTS) -> dict[str, RunFinding]:
    return {finding.code: finding for finding in examine(records, facts)}


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 10, 40, 100])
def test_a_healthy_run_has_no_findings(steps):
    assert examine(history(steps), FACTS) == []


def test_dead_groups_are_told_in_words_with_the_effective_batch():
    records = history(groups_zero_variance=0.38, groups_all_right=0.31, groups_all_wrong=0.07)
    finding = found(records)["dead_groups"]
    assert (
        finding.text
        == "38 % of the groups are dead (31 % all right, 7.0 % all wrong): effective batch 79 of 128 completions."
    )
    assert finding.severity == "note"
    assert "harder prompts" in finding.remedy
    assert finding.first_step == 5  # the first step at which a mean can be taken
    assert finding.last_step == 40
    assert finding.persists


def test_mostly_wrong_dead_groups_call_for_easier_prompts():
    finding = found(history(groups_zero_variance=0.7, groups_all_right=0.0, groups_all_wrong=0.7))["dead_groups"]
    assert finding.severity == "warning"
    assert "easier prompts" in finding.remedy


def test_dead_groups_of_graded_rewards_are_neither_right_nor_wrong():
    evaluated = {"phase": "eval", "step": 0, "eval/graded": 1.0, "eval/reward": 0.2}
    records = [evaluated, *history(groups_zero_variance=0.38, groups_all_right=0.0, groups_all_wrong=0.38)]
    finding = found(records)["dead_groups"]
    said = "38 % of the groups are dead (all rewards of a group equal): effective batch 79 of 128 completions."
    assert finding.text == said
    assert finding.severity == "note"


def test_dead_groups_of_a_solved_task_are_only_noted():
    finding = found(history(groups_zero_variance=0.8, groups_all_right=0.8, groups_all_wrong=0.0, **{"pass@1": 0.97}))[
        "dead_groups"
    ]
    assert finding.severity == "note"
    assert "nearly solved" in finding.remedy


def test_no_signal_needs_five_dead_steps_in_a_row():
    dead = {"groups_zero_variance": 1.0, "groups_all_right": 0.0, "groups_all_wrong": 1.0}
    assert "no_signal" not in found(history(steps=39, since=36, **dead))
    finding = found(history(steps=40, since=36, **dead))["no_signal"]
    assert finding.severity == "alarm"
    assert (finding.first_step, finding.last_step) == (40, 40)


def test_a_solved_task_is_no_alarm():
    records = history(since=20, groups_zero_variance=1.0, groups_all_right=1.0, groups_all_wrong=0.0, **{"pass@1": 1.0})
    assert found(records)["no_signal"].severity == "note"
    assert {f.severity for f in found(records).values()} == {"note"}


def test_a_selection_that_removes_everything_is_an_alarm():
    finding = found(history(since=30, rows_trained=0.0))["no_signal"]
    assert finding.severity == "alarm"
    assert "rows_dropped" in finding.remedy


def test_a_clip_that_cannot_act_is_told_with_the_reason():
    records = history(clip_fraction=0.0)
    assert "moves too little" in found(records)["inert_clip"].text
    assert found(records)["inert_clip"].severity == "note"
    assert found(records)["inert_clip"].first_step == 20
    assert "inert_clip" not in found(records, HealthFacts(clips=True, updates_per_rollout=1))  # the plan says so
    assert "inert_clip" in found(records, HealthFacts(clips=True, updates_per_rollout=1, exact_sampler=False))
    assert "inert_clip" not in found(records, HealthFacts(clips=False))
    assert "inert_clip" not in found(history(since=2, clip_fraction=0.0))  # it acted once
    assert "inert_clip" not in found(history(steps=19, clip_fraction=0.0))


def test_a_cap_counts_as_a_clip():
    records = [{k: v for k, v in r.items() if k != "clip_fraction"} | {"capped_fraction": 0.0} for r in history()]
    assert "cap has not acted" in found(records)["inert_clip"].text


@pytest.mark.parametrize(
    ("name", "kind"),
    [("opmd", None), ("r3l", None), ("mdpo", None), ("rec", "clip"), ("cispo", "cap"), ("cpgd", "clip")],
)
def test_only_methods_that_clip_report_it(name, kind):
    """The finding rests on the metric: where nothing bounds the ratio there is none, however far the policy is."""
    case = random_case(3, rewards="mixed", drift=2.0)
    method = grouprl.method(name)
    metrics = method.loss(case.logp_bt, method.prepare(case.batch)).metrics
    assert {"clip": "clip_fraction", "cap": "capped_fraction"}.get(kind) == next(
        (n for n in ("clip_fraction", "capped_fraction") if n in metrics), None
    )
    assert kind is None or max(float(metrics.get(n, 0)) for n in ("clip_fraction", "capped_fraction")) > 0


def test_a_kl_term_without_weight_or_effect():
    assert "weight of the KL term is 0" in found(history(), HealthFacts(kl_weight=0.0))["inert_kl"].text
    assert "inert_kl" not in found(history(), HealthFacts(kl_weight=None))
    still = found(history(kl_ref=0.0))["inert_kl"]
    assert still.severity == "warning"
    assert "same model" in still.text


def test_a_negative_estimate_of_kl_counts_as_movement():
    assert "inert_kl" not in found(history(kl_ref=-0.01))


def test_large_updates():
    assert found(history(kl_old=0.5))["large_update"].severity == "warning"
    assert "large_update" not in found(history(since=40, kl_old=0.5))  # one step of ten does not make a mean of 0.2


def test_entropy_collapse_is_relative_and_absolute():
    finding = found(history(since=20, entropy=0.02))["entropy_collapse"]
    assert finding.severity == "warning"
    assert "0.020 nats per token" in finding.text
    assert "entropy_collapse" not in found(history(since=20, entropy=0.07))  # low, but above the absolute level
    assert "entropy_collapse" not in found(history(entropy=0.02))  # was so from the start
    solved = found(history(since=20, entropy=0.02, **{"pass@1": 0.97}))["entropy_collapse"]
    assert solved.severity == "note"


def test_the_entropy_of_a_density_collapses_by_nats():
    """Shares of a number that may be negative mean nothing."""
    finding = found(history(entropy=lambda step: 1.4 - 0.15 * step))["entropy_collapse"]
    assert "may be negative" in finding.text
    assert "%" not in finding.text
    assert "entropy_collapse" not in found(history(entropy=lambda step: -3.0 - 0.01 * step))


def test_entropy_explosion():
    assert found(history(since=20, entropy=2.0))["entropy_explosion"].severity == "warning"


@pytest.mark.parametrize(("share", "severity"), [(0.09, None), (0.12, "warning"), (0.4, "alarm")])
def test_truncation(share, severity):
    finding = found(history(truncated_fraction=share)).get("truncation")
    assert (finding and finding.severity) == severity
    assert finding is None or "at 16 tokens" in finding.text


def test_episodes_that_run_out_of_turns_are_no_alarm():
    finding = found(history(truncated_fraction=0.7, turns_mean=3.5))["truncation"]
    assert finding.severity == "note"
    assert finding.text.startswith("70 % of the episodes are cut off by a limit, of turns")


def test_segments_that_the_end_of_a_step_cuts_are_no_finding():
    facts = HealthFacts(segments=True)
    assert examine(history(truncated_fraction=0.7, turns_mean=3.5), HealthFacts())
    assert not examine(history(truncated_fraction=0.7, turns_mean=3.5), facts)
    settings = {"model": {"name": "mlp"}, "method": "ppo_control"}
    for horizon, segments in ((8, True), (None, False)):
        config = parse_config({"task": {"name": "control:CartPole-v1", "horizon": horizon}, **settings})
        read = health_facts(config, grouprl.method("ppo_control"), 1, exact=True)
        assert (read.actions, read.segments) == (True, segments)


def test_length_growth_with_and_without_progress():
    flat = {"pass@1": 0.3, "reward_mean": 0.3}
    assert found(history(length_mean=lambda s: 8.0 * (1 + s / 10)))["length_growth"].severity == "note"
    assert found(history(length_mean=lambda s: 8.0 * (1 + s / 10), **flat))["length_growth"].severity == "warning"
    assert "length_growth" not in found(history(length_mean=lambda s: 8.0 * (1 + s / 40), **flat))


def test_length_that_shrinks_to_nothing():
    flat = {"pass@1": 0.3, "reward_mean": 0.3}
    assert found(history(since=20, length_mean=1.0, **flat))["length_shrinking"].severity == "warning"
    assert "length_shrinking" not in found(history(since=20, length_mean=1.0))  # brevity that helps is fine


def test_turns_that_are_lost_without_a_gain():
    """A game whose warm-up shows 2.4 turns, and whose episodes go from 2.4 to 1.07."""
    flat = {"pass@1": 0.3, "reward_mean": 0.3}
    finding = found(history(turns_mean=lambda s: max(1.07, 2.4 - 0.1 * s), **flat))["fewer_turns"]
    assert (finding.severity, finding.key) == ("warning", "turns_mean")
    assert finding.text == "Episodes have gone from 2.1 to 1.1 turns without getting better."
    assert "fewer_turns" not in found(history(turns_mean=lambda s: max(1.07, 2.4 - 0.1 * s))), "fewer is better here"
    assert "fewer_turns" not in found(history(turns_mean=lambda s: 8.0 - 0.05 * s, **flat))
    assert "fewer_turns" not in found(history(turns_mean=1.0, **flat))


def test_episodes_far_shorter_than_the_demonstrations():
    flat = {"pass@1": 0.3, "reward_mean": 0.3}
    shown = {"phase": "warmup", "step": 1, "loss": 1.0, "demonstrated_turns": 2.4}
    finding = found([shown, *history(turns_mean=1.07, **flat)])["below_demonstrations"]
    assert finding.text == "Episodes began with 1.1 turns, the demonstrations of the warm-up have 2.4."
    assert finding.first_step == 5
    assert "below_demonstrations" not in found([shown, *history(turns_mean=2.0, **flat)])
    assert not found([shown, *history(turns_mean=1.07)])["below_demonstrations"].persists, "the policy gets better"
    assert "below_demonstrations" not in found([shown, *history(turns_mean=1.07, **{**flat, "pass@1": 0.95})])
    assert "below_demonstrations" not in found(history(turns_mean=1.07, **flat))


def test_tools_that_are_not_used_and_calls_that_are_repeated():
    finding = found(history(calls_mean=0.02, repeated_calls=0.0))["tools_unused"]
    assert finding.text == "Tools are announced, and an episode calls 0.02 of them on average."
    assert "tools_unused" not in found(history(calls_mean=0.02, **{"pass@1": 0.95})), "they are not needed"
    assert "tools_unused" not in found(history(calls_mean=1.4, repeated_calls=0.05))
    finding = found(history(calls_mean=3.0, repeated_calls=0.5))["repeated_calls"]
    assert finding.text.startswith("50 % of the calls of tools repeat an earlier call of the same episode")


def test_sampler_gap_depends_on_whether_the_sampler_is_exact():
    engine = HealthFacts(exact_sampler=False)
    assert "sampler_gap" not in found(history(logp_gap_mean=0.01), engine)
    assert found(history(logp_gap_mean=0.01))["sampler_gap"].severity == "warning"
    assert found(history(logp_gap_mean=0.03), engine)["sampler_gap"].severity == "warning"
    assert found(history(logp_gap_mean=0.2), engine)["sampler_gap"].severity == "alarm"
    assert found(history(kl_behavior=0.05))["sampler_gap"].severity == "warning"


def test_reward_errors_are_counted_over_the_window():
    finding = found(history(since=40, reward_errors=2.0))["reward_errors"]
    assert finding.severity == "warning"
    assert "2 completions (0.2 %) of the last 10 steps" in finding.text
    assert found(history(since=31, reward_errors=12.0))["reward_errors"].severity == "alarm"
    assert "environment" not in finding.text


def test_who_failed_is_said():
    fell = found(history(since=40, reward_errors=2.0, environment_errors=1.0, reward_timeouts=1.0))["reward_errors"]
    assert "could not be scored and were left out. The environment failed on 1 of them." in fell.text
    assert "took longer than environment.timeout" in fell.text
    late = found(history(since=40, reward_errors=2.0, environment_errors=0.0, reward_timeouts=1.0))["reward_errors"]
    assert "took longer than reward.timeout" in late.text


def test_collapse_of_pass_rate():
    finding = found(history(since=30, **{"pass@1": 0.05}))["collapse"]
    assert finding.severity == "alarm"
    assert "from 0.5" in finding.text
    assert "collapse" not in found(history(since=30, **{"pass@1": 0.4}))
    low = history(**{"pass@1": lambda s: 0.1 if s < 10 else 0.01})
    assert "collapse" not in found(low)  # too low to be told from noise


def test_collapse_of_a_reward_without_correctness():
    records = [{k: v for k, v in r.items() if k != "pass@1"} for r in history(reward_std=0.2)]
    assert "collapse" not in found(records)
    for record in records[29:]:
        record["reward_mean"] = -1.0
    assert "fallen to -1" in found(records)["collapse"].text


def test_a_gradient_spike_passes_and_is_remembered():
    records = history()
    records[24]["grad_norm"] = 40.0
    finding = found(records)["grad_spike"]
    assert (finding.first_step, finding.last_step, finding.persists) == (25, 25, False)
    assert "jumped to 40" in finding.text
    assert finding.when() == "step 25"


def test_numbers_that_are_not_finite():
    records = history()
    records[-1]["grad_norm"] = float("nan")
    assert "grad_norm = nan" in found(records)["non_finite"].text


def test_a_refill_that_never_fires_or_runs_out():
    assert "not fired" in found(history(refill_rounds=1.0))["refill"].text
    assert found(history(refill_rounds=4.0))["refill"].severity == "warning"
    assert "refill" not in found(history(refill_rounds=4.0), HealthFacts(refill=False))


def test_a_selection_that_never_drops():
    assert "mixed_groups" in found(history(rows_trained=1.0))["inert_filter"].text
    assert "inert_filter" not in found(history(rows_trained=0.9))


def test_a_learning_rate_of_zero():
    assert found(history(lr=0.0))["zero_learning_rate"].severity == "alarm"
    assert "zero_learning_rate" not in found(history(since=39, lr=0.0))


def test_a_critic_worse_than_a_constant():
    assert found(history(explained_variance=-0.5))["poor_critic"].severity == "warning"


def test_a_finding_keeps_its_first_step_and_says_when_it_is_over():
    records = history(steps=60)
    for record in records[9:25]:
        record["truncated_fraction"] = 0.4
    finding = found(records)["truncation"]
    assert finding.first_step == 12  # the window mean passes 10 % with the third such step of ten
    assert not finding.persists
    assert finding.when() == f"steps {finding.first_step} to {finding.last_step}"


def test_findings_are_the_same_step_by_step_and_after_a_resume():
    records = history(60, since=20, groups_zero_variance=0.5, groups_all_right=0.5, entropy=0.01, **{"pass@1": 0.1})
    records.insert(30, {"phase": "eval", "step": 30, "eval/greedy": 0.1, "truncated_fraction": 1.0})
    health = Health(FACTS)
    for record in records:
        last = health.observe(record)
    assert last == examine(records, FACTS)
    assert len({f.code for f in last}) == len(last)
    for cut in (1, 7, 33, 60):
        resumed = Health(FACTS, records[:cut])
        for record in records[cut:]:
            resumed.observe(record)
        assert resumed.findings() == last


def test_a_listener_hears_of_a_finding_as_it_begins_changes_and_ends():
    heard: list[FindingChanged] = []
    watch = HealthWatch(Health(FACTS), heard.append)
    for step, record in enumerate(history(60, since=20, groups_zero_variance=lambda step: 0.9 * (step < 40))):
        watch.step(StepEnded("train", step, record))
    changes = [(each.finding.code, each.change) for each in heard]
    assert changes[0] == ("dead_groups", "new")
    assert changes[-1] == ("dead_groups", "over")
    assert {change for _, change in changes[1:-1]} == {"changed"}
    texts = [each.finding.text for each in heard]
    assert all(one != other for one, other in pairwise(texts[:-1]))
    told = len(heard)
    watch.evaluation(EvaluationEnded(60, "after", {"phase": "eval", "step": 60}, ()))
    assert len(heard) == told  # nothing changed


def test_a_finding_that_holds_after_a_resume_is_told_again():
    records = history(30, groups_zero_variance=0.7, groups_all_wrong=0.7)
    heard: list[FindingChanged] = []
    watch = HealthWatch(Health(FACTS, records[:20]), heard.append)
    for step, record in enumerate(records[20:], start=21):
        watch.step(StepEnded("train", step, record))
    assert [(each.finding.code, each.change, each.finding.first_step) for each in heard] == [("dead_groups", "new", 5)]


def test_every_code_of_the_report_has_a_key_that_is_a_metric_or_a_setting():
    codes = [code for code in CODES.values() if code.source == "health"]
    assert len(codes) == 46
    assert all(code.key and code.meaning.endswith(".") and code.remedy.endswith(".") for code in codes)


def test_persisting_and_severe_findings_come_first():
    records = history(60, since=30, groups_zero_variance=0.5, groups_all_right=0.5, **{"pass@1": 0.02})
    records[20]["grad_norm"] = 100.0
    order = [(f.persists, f.severity) for f in examine(records, FACTS)]
    assert order[0] == (True, "alarm")
    assert order[-1] == (False, "warning")


def test_metrics_that_are_missing_or_none_are_passed_over():
    assert examine([{"phase": "train", "step": s} for s in range(30)], FACTS) == []
    assert examine(history(kl_ref=None, entropy=None), FACTS) == []


@pytest.mark.parametrize(
    ("rows", "remedy"),
    [
        ({"rows_stored": 0.0, "rows_sampled": 32.0}, "sample more completions per prompt"),
        ({"rows_stored": 32.0, "rows_sampled": 0.0}, "train on more rows"),
    ],
)
def test_without_a_gain_the_remedy_is_one_that_the_run_has(rows, remedy):
    def evaluated(step: int) -> dict:
        ends = {"eval/reward": 0.6, "eval/reward_low": 0.5, "eval/reward_high": 0.7}
        return {"phase": "eval", "step": step, "eval/prompts": 128, "eval/graded": 1.0, **ends}

    records = history(60, **rows)
    records = [evaluated(0), *records[:30], evaluated(30), *records[30:], evaluated(60)]
    assert remedy in found(records)["no_gain"].remedy


def test_a_finding_is_json_ready():
    row = examine(history(lr=0.0), FACTS)[0].as_row()
    assert row["code"] == "zero_learning_rate"
    assert row["persists"] is True
    assert RunFinding(**row) == examine(history(lr=0.0), FACTS)[0]


def test_history_keeps_window_start_best_and_extremes():
    past = History()
    for step in range(1, 31):
        past.add({"x": float(step)})
    assert past.values("x") == [float(v) for v in range(31 - WINDOW, 31)]
    assert past.mean("x") == 25.5
    assert past.start("x") == 3.0
    assert past.best("x") == 25.5
    assert (past.low("x"), past.peak("x"), past.seen("x")) == (1.0, 30.0, 30)
    assert past.mean("y") is None


def test_a_window_of_records_leaves_out_what_is_older_however_rare_the_metric_is():
    past = History()
    for step in range(1, 31):
        past.add({"x": 1.0} | ({"rare": step} if step % 7 == 0 or step == 25 else {}))
    assert past.values("rare") == [21, 25, 28]
    past.add({"x": float("nan")})
    assert past.values("rare") == [25, 28]
    assert past.values("x") == [1.0] * (WINDOW - 1)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 %"), (0.004, "0.4 %"), (0.38, "38 %"), (0.0997, "10 %"), (1, "100 %")]
)
def test_percent(value, text):
    assert percent(value) == text


def test_dead_groups_mean_nothing_where_completions_are_not_compared():
    alone = dataclasses.replace(FACTS, grouped=False)
    for share, code in ((1.0, "no_signal"), (0.9, "dead_groups")):
        dead = {"groups_zero_variance": share, "groups_all_right": 0.2, "groups_all_wrong": share - 0.2}
        assert code in found(history(**dead))
        assert not {"dead_groups", "no_signal"} & found(history(**dead), alone).keys()


def test_a_batch_without_any_mixed_group_is_told_once():
    dead = {"groups_zero_variance": 1.0, "groups_all_right": 0.0, "groups_all_wrong": 1.0}
    assert found(history(**dead)).keys() & {"dead_groups", "no_signal"} == {"no_signal"}
    before = found(history(groups_zero_variance=lambda step: 0.7 if step < 30 else 1.0))
    assert (before["dead_groups"].persists, before["dead_groups"].last_step) == (False, 33)
    assert (before["no_signal"].persists, before["no_signal"].first_step) == (True, 34)
    waiting = dataclasses.replace(FACTS, waits=60)
    assert found(history(**dead), waiting).keys() & {"dead_groups", "no_signal"} == {"dead_groups"}


def test_a_policy_that_waits_for_its_critic_is_not_missed():
    idle = {"rows_trained": 0.0}
    assert "no_signal" in found(history(steps=20, **idle))
    waiting = dataclasses.replace(FACTS, waits=20)
    assert "no_signal" not in found(history(steps=24, **idle), waiting)
    assert "no_signal" in found(history(steps=25, **idle), waiting)
