"""The record of finer credit: what is compared, and what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

import credit
import credit_report
import effects
from claims import OF_TURNS
from credit_arenas import ARENAS, CONTESTS
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.storage.run_folder import write_json

EXPECTED = ("warmup.", "dynamic_sampling has no effect: max_rounds is 1")
"""What plans may call idle: runs begin with a warmed-up model, and one samples as many episodes as its rival."""
SEEDS = 3


@pytest.mark.parametrize("arena", ARENAS)
def test_every_comparison_can_run_and_no_part_is_idle(arena):
    for run in credit.runs_of((each for each in CONTESTS if each.arena == arena), 1):
        prospect = plan(parse_config(effects.config_of(run, Path("nowhere")) | {"model": "tiny"}))
        assert not prospect.refusals
        assert all(line.startswith(EXPECTED) for line in prospect.idle)


def test_every_method_over_turns_is_compared():
    assert {*OF_TURNS, "text2grad", "st_ppo", "intellect2", "funrl", "llds"} == {each.name for each in CONTESTS}


def test_runs_are_named_apart_and_shared_by_contests():
    runs = credit.runs_of(CONTESTS, 2)
    assert len({run.name for run in runs}) == len(runs)
    assert [run.seed for run in runs if (run.arena, run.method) == ("keys", "grpo")] == [0, 1]
    assert all(set(run.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-@") for run in runs)


def found(difference):
    """What every run would measure: methods are `difference` above their rivals, all gain 0.3 but for noise."""
    noise = (0.0, 0.01, -0.01)
    measured = {}
    rivals = [name for each in CONTESTS for name in each.rivals]
    for run in credit.runs_of(CONTESTS, SEEDS):
        rival = run.method in rivals
        after = 0.5 + (0.0 if rival else difference) + noise[(run.seed + rival * (difference == 0)) % SEEDS]
        measures = {name for each in CONTESTS for name in each.measures}
        measured[run.name] = dict.fromkeys(measures, after) | {"before/pass@1": 0.2, "train/turns_mean": 5.0}
    return measured


def prepared(measured):
    rows = [row for each in CONTESTS for row in credit.compared(each, measured, SEEDS)]
    return rows, credit.learnt(credit.runs_of(CONTESTS, SEEDS), measured)


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.1, "none learnt less"), (-0.1, "none learnt more"), (0.0, "differ by less than seeds do")],
)
def test_the_summary_says_what_was_seen(difference, words):
    text = credit_report.summary(*prepared(found(difference)))
    assert words in text
    assert "all are shown to learn but none" in text
    assert ("`gigpo` (keys)" in text) == (difference != 0)


def test_what_did_not_learn_and_what_broke_is_named():
    measured = found(0.1)
    for seed in range(SEEDS):
        measured[effects.Run("keys", "gigpo", seed).name] = {"before/pass@1": 0.6, "eval/pass@1": 0.6 - 0.1 * seed}
        measured[effects.Run("keys", "salt", seed).name] = "it broke\nhere"
    rows, gains = prepared(measured)
    text = credit_report.page(rows, gains, dict.fromkeys(ARENAS, 7.5))
    assert "all are shown to learn but `gigpo` (keys), `salt` (keys)." in text
    assert "`salt` (keys) could not run" in text
    assert "failed: it broke |" in text


def test_a_method_meets_each_of_its_rivals_by_each_measure():
    (contest,) = [each for each in CONTESTS if each.name == "otc"]
    rows = list(credit.compared(contest, found(0.1), SEEDS))
    assert [(row["measure"], row["claim"]) for row in rows] == [
        ("eval/pass@1", "higher"),
        ("whole/pass@1", "higher"),
        ("train/turns_mean", "lower"),
    ]
    (contest,) = [each for each in CONTESTS if each.name == "st_ppo"]
    assert {row["rival"] for row in credit.compared(contest, found(0.1), SEEDS)} == {"ppo", "grpo"}


def test_the_page_has_two_tables_for_each_arena(tmp_path):
    rows, gains = prepared(found(0.1))
    turns = credit_report.turns_taken(credit.runs_of(CONTESTS, SEEDS), found(0.1))
    credit_report.write(rows, gains, turns, tmp_path)
    text = (tmp_path / "credit.md").read_text(encoding="utf-8")
    assert text.count("| method | what its paper claims") == len(ARENAS)
    assert text.count("| method | seeds | before | after") == len(ARENAS)
    assert text.count("| 0.600 | 0.500 |") == sum(row["measure"] != "train/turns_mean" for row in rows)
    assert text.count("| 3 | 0.200 | 0.600 |") == len(CONTESTS)
    assert "take 5.0 turns" in text


def test_turns_leave_broken_runs_and_single_turns_out():
    runs = credit.runs_of(CONTESTS, 2)
    measured = {run.name: {"train/turns_mean": 4.0 + run.seed} for run in runs}
    measured[effects.Run("keys", "grpo", 0).name] = "it broke"
    measured |= {run.name: {"eval/pass@1": 0.5} for run in runs if run.arena == "call"}
    turns = credit_report.turns_taken(runs, measured)
    assert (turns["keys"], turns["guess"], turns["call"]) == (5.0, 4.5, 1.0)


def test_a_record_of_what_is_there_takes_the_seeds_that_all_have(tmp_path):
    measured = found(0.1)
    gone = [effects.Run("keys", "grpo", 2).name, effects.Run("followed keys", "grpo", 1).name]
    for name, measures in measured.items():
        if name not in gone:
            (tmp_path / name).mkdir()
            write_json(tmp_path / name / "outcome.json", measures)
    there = credit.finished(credit.runs_of(CONTESTS, SEEDS), tmp_path)
    assert there == {name: measures for name, measures in measured.items() if name not in gone}
    rows, gains = prepared(there)
    counts = {row["arena"]: len(row["ours"]) for row in rows if row["rival"] == "grpo"}
    assert (counts["keys"], counts["far keys"]) == (2, 3)
    assert "followed keys" not in counts
    assert [len(row["ours"]) for row in gains if (row["arena"], row["method"]) == ("keys", "grpo")] == [2]
    assert "2 to 3 seeds each" in credit_report.page(rows, gains, dict.fromkeys(ARENAS, 5.0))
