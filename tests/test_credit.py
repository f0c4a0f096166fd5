"""The record of finer credit: what is compared, and what its page says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import credit
import effects
from effects_report import judge

from grouprl.train.config import parse_config
from grouprl.train.plan import plan


@pytest.mark.parametrize("arena", credit.ARENAS)
def test_every_comparison_can_run(arena):
    for claim in credit.claims():
        if claim.arena == arena:
            for run in (run for side in effects.sides(claim, 1) for run in side):
                config = effects.config_of(run, Path("nowhere")) | {"model": "tiny"}
                assert not plan(parse_config(config)).refusals


def rows(difference):
    """Every comparison, `difference` apart but for noise."""
    noise = (0.0, 0.01, -0.01)
    ours, theirs = ([dict.fromkeys(credit.MEASURES, x + y) for y in noise] for x in (0.5 + difference, 0.5))
    mixed = [theirs[1], theirs[2], theirs[0]]
    return [judge(claim, ours, mixed if difference == 0 else theirs) for claim in credit.claims()]


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.1, "none learnt less"), (-0.1, "none learnt more"), (0.0, "differ by less than seeds do")],
)
def test_the_summary_says_what_was_seen(difference, words):
    found = rows(difference)
    text = credit.summary(found)
    assert words in text
    assert ("`gigpo` (keys)" in text) == (difference != 0)


def test_the_page_has_a_table_for_each_arena_and_measure(tmp_path):
    found = rows(0.1)
    credit.write(found, dict.fromkeys(credit.ARENAS, (0.25, 7.5)), tmp_path)
    text = (tmp_path / "credit.md").read_text(encoding="utf-8")
    assert text.count("| method | what its paper claims") == len(credit.ARENAS) * len(credit.MEASURES)
    assert text.count("| 0.600 | 0.500 |") == len(found)
    assert "0.250 of the episodes" in text


def test_starting_points_leave_broken_runs_out():
    found = {
        effects.Run(arena, "grpo", seed).name: {"before/pass@1": 0.2 * seed, "train/turns_mean": 5.0}
        for arena in credit.ARENAS
        for seed in range(2)
    }
    found[effects.Run("keys", "grpo", 0).name] = "it broke"
    points = credit.starting_points(found, 2)
    assert points["keys"] == (0.2, 5.0)
    assert points["guess"] == (0.1, 5.0)
