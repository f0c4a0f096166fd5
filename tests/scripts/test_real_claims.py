"""Claims on a pretrained model: which are compared, in what arenas, and a page that says first what was not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import real
import real_claims
from claims import PASS
from effects import arm_of, design_of, ground
from effects_report import key

MADE = {
    "device": "CPU, x86",
    "precision": "float32",
    "torch": "2",
    "transformers": "5",
    "seeds": 2,
    "rates": {"plain": ["1e-05"], "stale": ["1e-05"]},
    "held_out": [128, 4],
}


def row(at: int, verdict: str, difference: float = 0.1) -> dict[str, Any]:
    claim = real_claims.chosen()[at]
    named = {
        "method": claim.name,
        "setup": claim.method,
        "rival": claim.rival,
        "arena": claim.arena,
        "words": claim.words,
    }
    numbers = {"ours": [0.6], "theirs": [0.5], "difference": difference, "low": 0.0, "high": 0.2}
    tuned = [{"rate": "1e-05", "end": False}, {"rate": "3e-05", "end": True}]
    said = {"measure": claim.measure, "claim": "higher", "words": claim.words}
    return {**named, **said, **numbers, "verdict": verdict, "tuned": tuned}


def test_every_claim_is_one_of_a_toy_s_about_pass_at_1_and_its_arms_can_be_run(tmp_path: Path) -> None:
    claims = real_claims.chosen()
    assert len({key(claim) for claim in claims}) == len(claims) >= 12
    assert {claim.measure for claim in claims} == {PASS}
    arenas = {name: real_claims.arena_of(name, "m", ["model.device=cpu"]) for name in real_claims.ARENAS}
    for claim in claims:
        arms = [arm_of(arenas[claim.arena], each) for each in (claim.method, claim.rival)]
        design = design_of(claim.arena, arenas[claim.arena], arms, 5)
        for arm in arms:
            config = ground(claim.arena, arenas[claim.arena]).config(arm.changes)
            assert (config.model.name, config.model.dtype, config.warmup.steps) == ("m", "float32", 0)
            assert design.grid(design.sources[0], arm) == [
                (f"optim.lr={rate}",) for rate in ("3.3e-06", "1e-05", "3e-05")
            ]


def test_stale_data_have_sixteen_updates_and_the_plain_arena_two() -> None:
    sizes = {
        name: real_claims.batch_of(ground(name, real_claims.arena_of(name, "m")).config())
        for name in real_claims.ARENAS
    }
    assert {name: each["epochs"] * each["minibatches"] for name, each in sizes.items()} == {"plain": 2, "stale": 16}


def test_the_page_says_first_what_was_not_shown_and_names_what_was_not_run() -> None:
    rows = [row(0, "shown"), row(1, "opposite"), row(3, "not shown")]
    text = real_claims.page({"made": MADE, "rows": rows})
    order = [
        text.index(each) for each in ("- **not shown** (1", "- **opposite** (1", "- **shown** (1", "- **not run** (10")
    ]
    assert order == sorted(order)
    assert (
        "| `grpo` | the group as a baseline beats none: `eval/pass@1` higher than `reinforce` | 1e-05 | 3e-05* |"
        in text
    )
    assert "2 seeds each on one CPU, x86, products in float32" in text
    assert text.index("## plain") < text.index("## stale")


def test_a_page_of_claims_that_were_all_shown_says_so() -> None:
    text = real_claims.page({"made": MADE, "rows": [row(0, "shown")]})
    assert "- **not shown** (0; the mean does not lie on the side claimed, the interval holds zero): none\n" in text


def test_a_page_without_runs_says_that_nothing_was_run() -> None:
    text = real_claims.page({})
    assert "**Not run yet.**" in text
    assert "`dapo` (stale)" in text
    assert "verdict" not in text


def test_the_page_is_as_the_record_has_it() -> None:
    found = json.loads((real.DOCS / real_claims.RECORD).read_text(encoding="utf-8"))
    assert (real.DOCS / real_claims.PAGE).read_text(encoding="utf-8") == real_claims.page(found)


def test_rows_stand_in_the_order_of_the_claims_and_a_claim_whose_run_is_killed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(claim: Any, *_: object) -> dict[str, Any]:
        at = real_claims.chosen().index(claim)
        if at == 1:
            raise RuntimeError("killed")
        return row(at, "shown")

    monkeypatch.setattr(real_claims, "compared", compared)
    arenas = {name: real_claims.arena_of(name, "m", ["model.device=cpu"]) for name in real_claims.ARENAS}
    real_claims.decide(real_claims.chosen()[:4], arenas, 2, 1, tmp_path, tmp_path)
    found = json.loads((tmp_path / real_claims.RESULTS).read_text())
    assert [each["method"] for each in found["rows"]] == ["grpo", "dr_grpo", "gspo"]
    assert found["made"]["rates"]["plain"] == ["3.3e-06", "1e-05", "3e-05"]
    real_claims.report(tmp_path / real_claims.RESULTS, tmp_path)
    assert "- **not run** (10)" in (tmp_path / real_claims.PAGE).read_text()
