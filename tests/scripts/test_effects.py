"""The machinery that records effects: verdicts by hand, every method has a claim, a claim runs."""

import math
from pathlib import Path

import pytest

import effects
import effects_report
from claims import CLAIMS, NOT_RUN, Claim
from grouprl import methods
from grouprl.config.run import parse_config


def test_interval_by_hand():
    low, middle, high = effects_report.interval([0.1, 0.2, 0.3])
    assert middle == pytest.approx(0.2)
    assert high - middle == pytest.approx(4.303 * 0.1 / math.sqrt(3))
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
    assert effects_report.outcome_of(claim, ["refused"], measured)["verdict"] == "failed"


def test_every_claim_is_of_a_method_and_can_be_run():
    entries = {name for name, entry in methods().items() if not entry.dialect_of}
    assert {claim.name for claim in CLAIMS} | set(NOT_RUN) <= entries
    for claim in CLAIMS:
        assert claim.arena in effects.ARENAS
        for run in (*effects.sides(claim, 1)[0], *effects.sides(claim, 1)[1]):
            config = parse_config(effects.config_of(run, Path("tiny")))
            assert config.warmup.steps == 0


def test_a_run_is_measured(tmp_path, monkeypatch):
    few = {"batch": {"prompts": 2, "group_size": 4}, "eval": {"final_prompts": 4, "samples": 1, "k": [1]}, "steps": 2}
    arena = effects.ARENAS["plain"]
    small = effects.Arena(arena.words, effects.merged(arena.settings, few, {"warmup": {"steps": 2, "batch": 4}}))
    monkeypatch.setitem(effects.ARENAS, "plain", small)
    effects.warm_start("plain", tmp_path)
    run = effects.Run("plain", "grpo", 0)
    found = effects.measure(run, tmp_path)
    assert isinstance(found, dict), found
    assert {"eval/pass@1", "before/pass@1", "train/entropy", "distinct_right", "seconds"} <= found.keys()
    assert effects.measure(run, tmp_path) == found, "a finished run is read, not repeated"
    refused = effects.measure(effects.Run("plain", {"name": "grpo", "kl_coef": -1}, 0), tmp_path)
    assert isinstance(refused, str)
