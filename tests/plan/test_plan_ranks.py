"""Memory in the plan of a run whose model several processes divide."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.processes import current_ranks

SAMPLED = {"task": "words", "model": "tiny", "batch": {"prompts": 2, "group_size": 2}, "steps": 1}


def costs(method: object, monkeypatch: pytest.MonkeyPatch, ranks: int) -> dict[str, int]:
    monkeypatch.setattr(current_ranks, "LEADING", [SimpleNamespace(count=ranks)] if ranks > 1 else [])
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return {cost.what: cost.bytes for cost in plan(parse_config({**SAMPLED, "method": method})).costs}


@pytest.mark.parametrize(
    ("method", "acts"),
    [
        ("nash_md", True),
        ("xpo", True),
        ({"name": "minillm", "teacher_share": 0.2}, True),
        ({"base": "grpo", "kl_coef": 0.1}, False),
        ({"name": "nash_md", "mixture": 0.0}, False),
    ],
)
def test_each_rank_holds_the_whole_reference_where_completions_are_sampled_from_it(method, acts, monkeypatch):
    one, two = (costs(method, monkeypatch, ranks) for ranks in (1, 2))
    assert two["reference copy"] == one["reference copy"]  # both halves are on this machine
    assert two.get("acting reference") == (2 * one["reference copy"] if acts else None)
    assert "acting reference" not in one
