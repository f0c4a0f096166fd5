"""The record of finer credit: what is compared, and what its page says."""

from __future__ import annotations

import pytest

import credit
import credit_report
import effects
from claims import OF_TURNS
from credit_arenas import ARENAS, CONTESTS
from grouprl.plan.plan import plan

DEFAULTS = ("run.", "warmup.", "eval.", "sampling.", "cluster.")
EXPECTED = (*DEFAULTS, "dynamic_sampling has no effect: max_rounds is 1")
"""What plans may call idle: settings that are written out though they are the defaults, and one method's rounds, as it
samples as many episodes as its rival."""
SEEDS = 3


@pytest.mark.parametrize("arena", ARENAS)
def test_every_comparison_can_run_and_no_part_is_idle(arena):
    source = effects.ground(arena, ARENAS[arena])
    arms = {arm.changes: arm for each in CONTESTS if each.arena == arena for arm in credit.arms_of(each)}
    for arm in arms.values():
        prospect = plan(source.config((*arm.changes, "warmup.steps=0")))
        assert not prospect.refusals
        assert all(line.startswith(EXPECTED) for line in prospect.idle)


def test_every_method_over_turns_is_compared():
    assert {*OF_TURNS, "text2grad", "st_ppo", "intellect2", "funrl", "llds"} == {each.name for each in CONTESTS}


def test_a_contest_is_compared_at_one_rate_with_its_changes():
    (contest,) = [each for each in CONTESTS if each.name == "arpo_branch"]
    design = credit.contest_design(contest, SEEDS)
    assert [design.grid(arm) for arm in design.arms] == [[], []]
    groups = [design.sources[0].config(arm.changes).batch.group_size for arm in design.arms]
    assert groups == [4, 8]


def found(difference):
    """What each contest's runs would measure: methods are `difference` above their rivals, all gain 0.3 but for
    noise."""
    noise = (0.0, 0.01, -0.01)

    def measured(contest, rival):
        seeds = [
            0.5 + (0.0 if rival else difference) + noise[(n + rival * (difference == 0)) % 3] for n in range(SEEDS)
        ]
        return [dict.fromkeys(contest.measures, x) | {"before/pass@1": 0.2, "train/turns_mean": 5.0} for x in seeds]

    return [[measured(each, False), *(measured(each, True) for _ in each.rivals)] for each in CONTESTS]


def prepared(measured):
    pairs = list(zip(CONTESTS, measured, strict=True))
    rows = [row for pair in pairs for row in credit.compared(*pair)]
    return rows, credit.once([row for pair in pairs for row in credit.learnt(*pair)])


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.1, "none learnt less"), (-0.1, "none learnt more"), (0.0, "differ by less than seeds do")],
)
def test_the_summary_says_what_was_seen(difference, words):
    text = credit_report.summary(*prepared(found(difference)))
    assert words in text
    assert "all are shown to learn but none" in text
    assert ("`gigpo` (keys)" in text) == (difference != 0)


def place(arena, name):
    return next(n for n, each in enumerate(CONTESTS) if (each.arena, each.name) == (arena, name))


def test_what_did_not_learn_and_what_broke_is_named():
    measured = found(0.1)
    for seed, each in enumerate(measured[place("keys", "gigpo")][0]):
        each |= {"before/pass@1": 0.6, "eval/pass@1": 0.6 - 0.1 * seed}
    measured[place("keys", "salt")] = ["it broke\nhere"] * 2
    rows, gains = prepared(measured)
    text = credit_report.page(rows, gains, dict.fromkeys(ARENAS, 7.5))
    assert "all are shown to learn but `gigpo` (keys), `salt` (keys)." in text
    assert "`salt` (keys) could not run" in text
    assert "failed: it broke |" in text


def test_a_method_meets_each_of_its_rivals_by_each_measure():
    measured = found(0.1)
    at = place("far keys", "otc")
    rows = list(credit.compared(CONTESTS[at], measured[at]))
    assert [(row["measure"], row["claim"]) for row in rows] == [
        ("eval/pass@1", "higher"),
        ("whole/pass@1", "higher"),
        ("train/turns_mean", "lower"),
    ]
    at = place("keys", "st_ppo")
    assert {row["rival"] for row in credit.compared(CONTESTS[at], measured[at])} == {"ppo", "grpo"}


def test_an_arm_of_several_contests_has_one_row_of_its_own():
    measured = found(0.1)
    measured[place("keys", "gigpo")] = ["it broke"] * 2
    _, gains = prepared(measured)
    rows = [row for row in gains if (row["arena"], row["method"]) == ("keys", "grpo")]
    assert [row["verdict"] for row in rows] == ["shown"]


def test_the_page_has_two_tables_for_each_arena(tmp_path):
    rows, gains = prepared(found(0.1))
    credit_report.write(rows, gains, credit.turns_of(CONTESTS, found(0.1)), tmp_path)
    text = (tmp_path / "credit.md").read_text(encoding="utf-8")
    assert text.count("| method | what its paper claims") == len(ARENAS)
    assert text.count("| method | seeds | before | after") == len(ARENAS)
    assert text.count("| 0.600 | 0.500 |") == sum(row["measure"] != "train/turns_mean" for row in rows)
    assert text.count("| 3 | 0.200 | 0.600 |") == len(CONTESTS)
    assert "take 5.0 turns" in text


def test_turns_leave_broken_runs_and_single_turns_out():
    measured = found(0.1)
    measured[place("keys", "gigpo")] = ["it broke"] * 2
    measured[place("call", "funrl")] = [[{"eval/pass@1": 0.5}] * SEEDS] * 2
    turns = credit.turns_of(CONTESTS, measured)
    assert (turns["keys"], turns["call"]) == (5.0, 1.0)
