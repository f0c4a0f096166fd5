"""The race on a pretrained model: what is computed from its steps, and what the page says; nothing is timed here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import pretrained
import pretrained_job
import pretrained_report
from grouprl.config.run import parse_config
from pretrained import LEGS, Leg, chosen, summary


def step(seconds: float, **more: Any) -> dict[str, Any]:
    return {"cpu": seconds, "wall": 3 * seconds, "rss_mb": 1000 * seconds, "tokens": 100, **more}


def ours(seconds: float) -> dict[str, Any]:
    parts = {"forward": 8.0, "loss": 2.0}
    return step(seconds, profiled=2, parts=parts, products={"forward": [[2, 3, 5, 4.0]]}, attention={"forward": 120.0})


@pytest.fixture
def leg(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(pretrained, "rate", lambda shape, device, clock, kind: 60.0)  # operations per second
    measured = {"ours": [ours(2.0), ours(4.0), ours(2.0)], "theirs": [step(8.0), step(12.0), step(10.0)]}
    found = summary(LEGS["onednn"], measured, "cpu")
    return found | {"steps": 3, "trl_rows": 8, "machine": {"torch": "2"}}


def test_ratios_are_taken_pair_by_pair_and_times_are_medians(leg: dict[str, Any]) -> None:
    assert leg["ratio"] == 4.0  # of 4, 3, 5
    assert leg["ours"]["seconds"] == 2.0
    assert leg["theirs"]["seconds"] == 10.0


def test_useful_arithmetic_is_what_products_and_attention_take_alone(leg: dict[str, Any]) -> None:
    # 4 products of 2 * 2 * 3 * 5 = 60 operations take 4 s, attention of 120 takes 2 s: 3 of the 5 s of each step.
    assert leg["profile"]["products"] == {"forward": 3.0}
    assert leg["profile"]["useful"] == pytest.approx(3 / 5)


def test_the_page_says_which_goals_are_met(leg: dict[str, Any]) -> None:
    text = pretrained_report.page({"legs": {"onednn": leg}})
    assert "float32 against float32: 4.00 × of 3.5 ×, met" in text
    assert "mixed against TRL's better type: goal 6 ×; not measured here" in text
    assert "useful arithmetic, onednn: 60% of 65%, missed" in text
    assert "memory, onednn over TRL in float32: 0.20 of 0.33, met" in text
    assert "8 at a time" in text
    assert "{" not in text


def test_a_leg_without_trl_stands_alone(leg: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = summary(Leg("float32", None), {"ours": [ours(2.0)]}, "cpu") | {"steps": 1, "trl_rows": 64, "machine": {}}
    assert "ratio" not in alone
    assert "goal 3.5 ×; not measured" in pretrained_report.page({"legs": {"float32": alone}})


def test_a_gpu_races_types_that_it_has() -> None:
    assert [leg.ours for leg in chosen("", "cuda")] == ["float32", "mixed"]
    assert [leg.ours for leg in chosen("mixed", "cpu")] == ["mixed"]
    assert torch.bfloat16 == pretrained.KINDS["mixed"]


@pytest.mark.parametrize("precision", list(LEGS))
def test_the_job_is_a_valid_configuration(precision: str) -> None:
    config = parse_config(pretrained_job.config("folder", 3, precision, "cpu"))
    assert config.batch.prompts * config.batch.group_size == pretrained_job.ROWS
    assert config.updates_per_rollout == 1
    assert len(list(pretrained_job.examples(3))) == 3
