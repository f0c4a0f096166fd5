"""The record of finer credit: what is compared, and what its page says."""

from __future__ import annotations

import pytest

import credit
import credit_report
import effects
from claims import OF_TURNS
from credit_arenas import ARENAS, CONTESTS
from grouprl.experiments.tuning import Tuned
from grouprl.plan.plan import plan

DEFAULTS = ("run.", "warmup.", "eval.", "sampling.", "cluster.")
EXPECTED = (*DEFAULTS, "dynamic_sampling has no effect: max_rounds is 1")
"""What plans may call idle: settings that are written out though they are the defaults, and one method's rounds, as it
samples as many episodes as its rival."""
SEEDS = 3
RATES = tuple((f"optim.lr={rate}",) for rate in ("2.3e-4", "7e-4", "2.1e-3"))


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


def test_a_contest_is_compared_at_own_rates_with_its_changes():
    (contest,) = [each for each in CONTESTS if each.name == "arpo_branch"]
    design = credit.contest_design(contest, SEEDS)
    rates = [(f"optim.lr={rate}",) for rate in ("0.00023", "0.0007", "0.0021")]
    assert [design.grid(design.sources[0], arm) for arm in design.arms] == [rates, rates]
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


def prepared(measured, known=()):
    """The record with what the contests' runs measured joined to what was known."""
    rows = list(known)
    for contest, each in zip(CONTESTS, measured, strict=True):
        arms = credit.arms_of(contest)
        sides = [
            credit.Side(it, (Tuned("", arm.label, RATES, ((0.5,), (0.6,), (0.4,)), RATES[1]),))
            for arm, it in zip(arms, each, strict=True)
        ]
        rows = credit_report.joined(rows, [*credit.learnt(contest, sides), *credit.compared(contest, sides)])
    return rows


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.1, "none learnt less"), (-0.1, "none learnt more"), (0.0, "differ by less than seeds do")],
)
def test_the_summary_says_what_was_seen(difference, words):
    text = credit_report.summary(prepared(found(difference)))
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
    text = credit_report.page(prepared(measured))
    assert "all are shown to learn but `gigpo` (keys), `salt` (keys)." in text
    assert "`salt` (keys) could not run" in text
    assert "failed: it broke |" in text


def test_a_method_meets_each_of_its_rivals_by_each_measure():
    rows = [row for row in prepared(found(0.1)) if row["rival"]]
    assert [(row["measure"], row["claim"]) for row in rows if row["method"] == "otc"] == [
        ("eval/pass@1", "higher"),
        ("whole/pass@1", "higher"),
        ("train/turns_mean", "lower"),
    ]
    assert {row["rival"] for row in rows if row["method"] == "st_ppo"} == {"ppo", "grpo"}


def test_an_arm_of_several_contests_has_one_row_of_its_own():
    measured = found(0.1)
    measured[place("keys", "gigpo")] = ["it broke"] * 2
    rows = [row for row in prepared(measured) if (row["arena"], row["method"]) == ("keys", "grpo")]
    assert [row["verdict"] for row in rows] == ["shown"]


def test_the_page_has_two_tables_for_each_arena(tmp_path):
    rows = prepared(found(0.1))
    credit_report.write(rows, tmp_path)
    read = credit_report.read(tmp_path)
    assert credit_report.at_own_rates(read) == {credit_report.contest_key(each) for each in CONTESTS}
    assert credit_report.joined(read, rows) == rows
    text = (tmp_path / "credit.md").read_text(encoding="utf-8")
    assert text.count("| method | what its paper claims") == len(ARENAS) == text.count("Each at its own rate:")
    assert text.count("| method | rate | seeds | before | after") == len(ARENAS)
    assert text.count("| 7e-4 | 7e-4 | 0.600 | 0.500 |") == sum(
        row["measure"] != "train/turns_mean" for row in rows if row["rival"]
    )
    assert text.count("| 7e-4 | 3 | 0.200 | 0.600 |") == len(CONTESTS)
    assert "take 5.0 turns" in text
    assert f"{len(CONTESTS)} of {len(CONTESTS)} contests" in text


def test_turns_leave_broken_runs_and_single_turns_out():
    assert credit.Side("it broke").turns == credit.Side([{"eval/pass@1": 0.5}] * SEEDS).turns == 1.0
    measured = found(0.1)
    measured[place("keys", "gigpo")] = ["it broke"] * 2
    turns = {row["turns"] for row in prepared(measured) if (row["arena"], row["method"]) == ("keys", "grpo")}
    assert turns == {5.0}


def test_what_was_seen_at_one_rate_stays_beside_what_is_seen_at_own_rates():
    old = [{name: x for name, x in row.items() if name != "tuned"} for row in prepared(found(0.1))]
    assert credit_report.at_own_rates(old) == set()
    assert "One rate for all:" in credit_report.page(old)
    rows = prepared(found(-0.1), known=old)
    assert len(rows) == len(old)
    assert credit_report.at_own_rates(rows) == {credit_report.contest_key(each) for each in CONTESTS}
    assert {row["one_rate"]["verdict"] for row in rows if row["measure"] == "eval/pass@1"} == {"shown"}
    again = prepared(found(-0.1), known=rows)
    assert again == rows
    text = credit_report.page(rows)
    assert "One rate for all:" not in text
    assert "| opposite | +0.100 shown |" in text


def test_a_failure_replaces_nothing_that_was_seen():
    rows = prepared(found(0.1))
    assert prepared([["it broke"] * (1 + len(each.rivals)) for each in CONTESTS], known=rows) == rows
