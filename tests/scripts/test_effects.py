"""The machinery that records effects: verdicts by hand, every method has a claim, a claim is compared at own rates."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import effects
import effects_report
from claims import CLAIMS, NOT_RUN, Claim
from grouprl import methods
from grouprl.experiments.design import TUNING_SEED
from grouprl.experiments.tuning import Tuned

SMALL = effects_report.Size.SMALL

DOCS = Path(__file__).parents[2] / "docs"


def test_interval_by_hand():
    low, middle, high = effects_report.interval([0.1, 0.2, 0.3])
    assert middle == pytest.approx(0.2)
    assert high - middle == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert middle - low == pytest.approx(high - middle)
    assert effects_report.interval([0.5]) == (-math.inf, 0.5, math.inf)


@pytest.mark.parametrize(
    ("sign", "low", "middle", "high", "verdict"),
    [
        (1, 0.1, 0.2, 0.3, "shown"),
        (1, -0.1, 0.2, 0.5, "leaning"),
        (1, -0.3, -0.1, 0.1, "not shown"),
        (1, -0.3, -0.2, -0.1, "opposite"),
        (-1, -0.3, -0.2, -0.1, "shown"),
        (-1, 0.1, 0.2, 0.3, "opposite"),
        (0, -0.04, 0.0, 0.04, "shown"),
        (0, -0.06, 0.0, 0.06, "leaning"),
        (0, -0.3, -0.2, -0.1, "opposite"),
    ],
)
def test_verdicts(sign, low, middle, high, verdict):
    assert effects_report.verdict(sign, low, middle, high) == verdict


def test_a_claim_without_a_rival_compares_with_before():
    claim = Claim("reinforce", "plain", "eval/pass@1", 1, "learns", rival="")
    measured = [{"eval/pass@1": 0.9, "before/pass@1": 0.4}, {"eval/pass@1": 0.8, "before/pass@1": 0.4}]
    row = effects_report.outcome_of(claim, measured, measured)
    assert row["difference"] == pytest.approx(0.45)
    assert effects_report.outcome_of(claim, "refused", measured)["why"] == "refused"


def test_what_was_not_measured_is_no_zero():
    claim = Claim("conciser", "verbose", "length_right", -1, "shorter")
    row = effects_report.outcome_of(claim, [{"eval/pass@1": 0.0}], [{"length_right": 9.0}])
    assert (row["verdict"], row["why"]) == ("failed", "`length_right` could not be measured in every run")


def test_every_claim_is_of_a_method_and_can_be_compared():
    entries = {name for name, entry in methods().items() if not entry.dialect_of}
    assert {claim.name for claim in CLAIMS} | set(NOT_RUN) <= entries
    assert len({effects_report.key(claim) for claim in CLAIMS}) == len(CLAIMS)
    sources = {name: effects.ground(name, arena) for name, arena in effects.ARENAS.items()}
    for claim in CLAIMS:
        for setup in (claim.method, claim.rival or effects.STANDARD):
            arm = effects.arm_of(effects.ARENAS[claim.arena], setup)
            assert sources[claim.arena].config(arm.changes).data.prompts == 400


@pytest.mark.parametrize(
    ("arena", "name", "taught", "asked"), [("budgets", "budgeted", 0.5, 0.0), ("beyond reach", "hinted", 0.994, 0.0)]
)
def test_prompts_of_runs_differ_from_those_of_the_warm_up(arena, name, taught, asked):
    source = effects.ground(arena, effects.ARENAS[arena])
    arm = effects.arm_of(effects.ARENAS[arena], "grpo")
    assert source.config().task[name] == taught
    assert source.config(arm.changes).task[name] == asked
    assert source.config().data.prompts is None


def test_an_arm_that_is_right_only_on_policy_makes_one_update():
    source, arena = effects.ground("stale", effects.ARENAS["stale"]), effects.ARENAS["stale"]
    batches = {name: source.config(effects.arm_of(arena, name).changes).batch for name in ("grpo", "reinforce")}
    assert (batches["grpo"].minibatches, batches["grpo"].epochs) == (4, 4)
    assert (batches["reinforce"].minibatches, batches["reinforce"].epochs) == (1, 1)


@pytest.mark.parametrize(
    ("arena", "rates"), [("plain", ("0.00033", "0.001", "0.003")), ("stale", ("0.0001", "0.00033", "0.001"))]
)
def test_each_arm_tries_the_rates_of_its_arena_by_pass_at_1(arena, rates):
    arms = [effects.arm_of(effects.ARENAS[arena], name) for name in ("grpo", "reinforce")]
    design = effects.design_of(arena, effects.ARENAS[arena], arms, 3)
    assert [design.grid(design.sources[0], arm) for arm in arms] == [[(f"optim.lr={rate}",) for rate in rates]] * 2
    assert (design.measure, design.budget.unit) == ("eval/pass@1", "steps")


def tuned(chosen, *scores):
    tried = tuple((f"optim.lr={rate}",) for rate in ("0.1", "0.2", "0.4"))
    return Tuned("plain", "a", tried, tuple((score,) for score in scores), tried[chosen])


def test_rates_say_where_a_sweep_ends_and_where_a_run_failed():
    assert effects_report.rates([tuned(1, 0.5, 0.75, None), tuned(2, 0.1, 0.2, 0.3)]) == [
        {"rate": "0.2", "end": False, "tried": {"0.1": 0.5, "0.2": 0.75, "0.4": None}},
        {"rate": "0.4", "end": True, "tried": {"0.1": 0.1, "0.2": 0.2, "0.4": 0.3}},
    ]


NAMED = {
    "method": "rloo",
    "setup": "rloo",
    "rival": "grpo",
    "arena": "plain",
    "measure": "eval/pass@1",
    "claim": "higher",
    "words": "it helps",
}
BEFORE = {
    "ours": [0.2, 0.2],
    "theirs": [0.3, 0.3],
    "difference": -0.1,
    "low": -0.1,
    "high": -0.1,
    "verdict": "opposite",
}
AFTER = {
    "ours": [0.6, 0.6],
    "theirs": [0.5, 0.5],
    "difference": 0.1,
    "low": 0.1,
    "high": 0.1,
    "verdict": "shown",
    "tuned": effects_report.rates([tuned(1, 0.5, 0.75, 0.1), tuned(2, 0.1, 0.2, 0.3)]),
}


def test_what_is_seen_at_own_rates_stands_beside_what_was_seen_at_one():
    old = [{**NAMED, "one_rate": BEFORE}, {**NAMED, "setup": "opo", "method": "opo", "one_rate": BEFORE}]
    rows = effects_report.joined(old, {**NAMED, "words": "newer words", **AFTER}, SMALL)
    assert rows == [{**NAMED, "words": "newer words", "one_rate": BEFORE, "own_rates": AFTER}, old[1]]
    assert effects_report.joined([], {**NAMED, **AFTER}, SMALL) == [{**NAMED, "own_rates": AFTER}]


def test_what_is_seen_with_a_larger_model_stands_beside_what_was_seen_with_a_small_one():
    old = [{**NAMED, "one_rate": BEFORE, "own_rates": BEFORE}]
    rows = effects_report.joined(old, {**NAMED, **AFTER}, effects_report.Size.LARGER)
    assert rows == [{**old[0], "larger": AFTER}]
    text = effects_report.page(rows, {"plain": "a task"})
    assert "**Sizes.** 1 claims" in text
    assert "| 0.07 million | shown with 0.8 million |\n| --- | --- |\n| opposite | 1 |" in text
    assert "0.8 million parameters:" in text
    assert text.rstrip().endswith("| -0.100 opposite |")


def test_the_larger_arena_has_a_larger_model_and_lower_rates():
    arena = effects.ARENAS["plain"]
    larger = effects.larger(arena)
    assert larger.whole()["model"]["tiny"] == {"layers": 4, "hidden": 128, "intermediate": 352}
    assert larger.factors == tuple(factor / 3 for factor in arena.factors)
    assert larger.settings == arena.settings


def test_the_page_says_which_rows_are_at_own_rates_and_what_became_of_verdicts():
    rows = [
        {**NAMED, "one_rate": BEFORE, "own_rates": AFTER},
        {**NAMED, "setup": "opo", "method": "opo", "one_rate": BEFORE},
    ]
    text = effects_report.page(rows, {"plain": "a task", "stale": "another"})
    seen = "it helps: `eval/pass@1` higher than `grpo`"
    own = f"| `rloo` | {seen} | 0.2 | 0.4* | 0.600 | 0.500 | +0.100 [+0.100, +0.100] | shown | -0.100 opposite |"
    assert own in text
    assert f"| `opo` | {seen} | 0.200 | 0.300 | -0.100 [-0.100, -0.100] | opposite |" in text
    assert "1 claims are compared as" in text
    assert "**shown** (1)" in text
    assert "**opposite** (1)" in text
    assert "| at one rate for all | shown at own rates |\n| --- | --- |\n| opposite | 1 |" in text
    assert "## stale" not in text


def test_the_record_is_of_the_claims_and_the_page_of_the_record():
    rows = effects_report.read(DOCS)
    assert {effects_report.key_of(row) for row in rows} <= {effects_report.key(claim) for claim in CLAIMS}
    arenas = {name: arena.words for name, arena in effects.ARENAS.items()}
    assert (DOCS / "effects.md").read_text(encoding="utf-8") == effects_report.page(rows, arenas)


def test_a_claim_is_compared_at_own_rates_and_its_runs_are_kept(tmp_path, monkeypatch):
    few = {"batch": {"prompts": 2, "group_size": 4}, "eval": {"final_prompts": 4, "samples": 1, "k": [1]}, "steps": 2}
    arena = effects.ARENAS["plain"]
    small = replace(arena, settings=effects.merged(arena.settings, few, {"warmup": {"steps": 2, "batch": 4}}))
    monkeypatch.setitem(effects.ARENAS, "plain", replace(small, factors=(1, 3)))
    claim, store, told = Claim("rloo", "plain", "train/entropy", 1, "helps"), effects.PooledStore(tmp_path, 1), []
    row = effects.compared(claim, effects.ARENAS["plain"], 2, store, lambda trial, *_: told.append(trial.seed))
    assert len(told) == 1 + 2 * (2 + 2), "a start, then each arm at two rates on one seed and at one on two"
    assert [seed for seed in told if seed >= TUNING_SEED] == [TUNING_SEED] * 4
    assert [list(each["tried"]) for each in row["tuned"]] == [["0.001", "0.003"]] * 2
    assert len(row["ours"]) == len(row["theirs"]) == 2
    (folder,) = tmp_path.glob("plain-rloo-*-s1-*")
    assert {"eval/pass@1", "before/pass@1", "train/entropy"} <= effects.measures(folder / "run").keys()
    assert effects.compared(claim, effects.ARENAS["plain"], 2, store, lambda trial, *_: told.append(trial.seed)) == row
    assert len(told) == 9, "finished runs are read, not repeated"
    refused = Claim({"name": "grpo", "kl_coef": -1}, "plain", "eval/pass@1", 1, "refused")
    assert effects.compared(refused, effects.ARENAS["plain"], 2, store, lambda *_: None)["verdict"] == "failed"
