"""The race on a pretrained model: what is computed from its steps, and what the page says; nothing is timed here."""

from __future__ import annotations

import math
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
from grouprl.policy.products import has_onednn
from onednn_linear import onednn_linear
from pretrained import LEGS, Leg, chosen, summary


def step(seconds: float, tokens: int = 100, **more: Any) -> dict[str, Any]:
    return {"cpu": seconds, "wall": 3 * seconds, "rss_mb": 1000 * seconds, "tokens": tokens, **more}


def ours(seconds: float) -> dict[str, Any]:
    parts = {"forward": 8.0, "loss": 2.0}
    return step(seconds, profiled=2, parts=parts, products={"forward": [[2, 3, 5, 4.0]]}, attention={"forward": 120.0})


@pytest.fixture
def leg(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(pretrained, "rate", lambda shape, device, clock, kind: 60.0)  # operations per second
    measured = {"ours": [ours(2.0), ours(4.0), ours(2.0)], "theirs": [step(8.0), step(16.0, 200), step(10.0)]}
    return summary(LEGS["onednn"], measured, "cpu") | {"steps": 3, "trl_rows": 64, "machine": {"date": "2026-01-02"}}


def told(*legs: dict[str, Any], **more: Any) -> str:
    """Return the page of legs on one processor."""
    return pretrained_report.page(
        {"avx2": {"legs": {leg["precision"]: leg for leg in legs}, "bfloat16": 0.125, **more}}
    )


def test_ratios_are_taken_pair_by_pair_per_step_and_per_token(leg: dict[str, Any]) -> None:
    logs = [math.log(x) for x in (4.0, 4.0, 5.0)]
    mean = sum(logs) / 3
    half = 4.302653 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 / 3)  # Student's quantile of two degrees
    assert leg["ratio"]["step"] == pytest.approx([math.exp(x) for x in (mean, mean - half, mean + half)], rel=1e-5)
    assert leg["ratio"]["token"][0] == pytest.approx((4.0 * 2.0 * 5.0) ** (1 / 3))  # the second wrote twice as much
    assert leg["theirs"]["seconds"] == [8.0, 16.0, 10.0]


def test_useful_arithmetic_is_what_products_and_attention_take_alone(leg: dict[str, Any]) -> None:
    # 4 products of 2 * 2 * 3 * 5 = 60 operations take 4 s, attention of 120 takes 2 s: 3 of the 5 s of each step.
    assert leg["profile"]["products"] == {"forward": 3.0}
    assert leg["profile"]["useful"] == pytest.approx(3 / 5)


def test_the_page_says_which_goals_are_met(leg: dict[str, Any]) -> None:
    text = told(leg)
    assert "onednn, per step: 4.31 [3.13, 5.93] of 3.5 ×, open: the interval holds the goal" in text
    assert "useful arithmetic, onednn: 60% of 65%, missed" in text
    assert "memory, onednn: 0.20 of TRL's, goal 0.33, met" in text
    assert "TRL in float32, by oneDNN" in text
    assert "products in bfloat16 take 8.0 times as long here" in text
    assert "{" not in text


def test_memory_is_not_compared_where_trl_took_its_rows_in_pieces(leg: dict[str, Any]) -> None:
    text = told(leg | {"trl_rows": 32})
    assert "memory, onednn: not compared, as TRL's 64 rows went through its model 32 at a time" in text
    assert "goal 0.33" not in text


@pytest.mark.parametrize(
    ("low", "high", "said"), [(3.5, 4.0, "met"), (3.0, 3.49, "missed"), (3.4, 3.6, "open: the interval holds the goal")]
)
def test_a_goal_is_met_only_by_the_whole_interval(low: float, high: float, said: str) -> None:
    assert pretrained_report.verdict([3.5, low, high], 3.5) == said


def test_a_leg_without_trl_stands_alone(leg: dict[str, Any]) -> None:
    alone = summary(Leg("float32", None), {"ours": [ours(2.0)]}, "cpu") | {"machine": {"date": "2026-01-01"}}
    assert "ratio" not in alone
    text = told(leg, alone)
    assert "float32: goal 3.5 ×; not raced here" in text
    assert "date 2026-01-02" in text  # the later leg's


def test_only_what_pays_on_the_device_is_raced() -> None:
    assert [leg.ours for leg in chosen("", "cuda", 8.0)] == ["float32", "mixed"]
    assert [leg.ours for leg in chosen("", "cpu", 0.5)] == ["float32", *(["onednn"] if has_onednn() else [])]
    assert [leg.ours for leg in chosen("mixed", "cpu", 0.5)] == ["mixed"]
    assert torch.bfloat16 == pretrained.KINDS["mixed"]


def test_both_multiply_by_the_same_library() -> None:
    assert [(leg.ours, leg.theirs) for leg in LEGS.values()] == [
        ("float32", "float32"),
        ("onednn", "onednn"),
        ("mixed", "bfloat16"),
    ]


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN product")
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_linear_layers_by_onednn_are_those_of_torch(shape: tuple[int, ...]) -> None:
    inputs = [torch.randn(size, requires_grad=True) for size in (shape, (5, 6), (5,))]
    outputs = [linear(*inputs) for linear in (onednn_linear, torch.nn.functional.linear)]
    cotangent = torch.randn_like(outputs[0])
    torch.testing.assert_close(*outputs)
    for own, other in zip(*(torch.autograd.grad(out, inputs, cotangent) for out in outputs), strict=True):
        torch.testing.assert_close(own, other)


def test_what_was_measured_on_another_processor_stays(leg: dict[str, Any]) -> None:
    text = pretrained_report.page({kind: {"legs": {"onednn": leg}, "bfloat16": 1.0} for kind in ("avx2", "amx_bf16")})
    assert text.index("## On a processor with avx2") < text.index("## On a processor with amx_bf16")


@pytest.mark.parametrize("precision", list(LEGS))
def test_the_job_is_a_valid_configuration(precision: str) -> None:
    config = parse_config(pretrained_job.config("folder", 3, precision, "cpu"))
    assert config.batch.prompts * config.batch.group_size == pretrained_job.ROWS
    assert config.updates_per_rollout == 1
    assert len(list(pretrained_job.examples(3))) == 3
