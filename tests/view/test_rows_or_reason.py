"""A finding leads to the rows that caused it, or says why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_provoked_rows import paid, ran, stored
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.finding import CODES, RunFinding
from grouprl.view.diagnosis import NEEDS, NONE_OF_THEM, NOT_STORED, SIGNS, WHOLE_STEPS, diagnose, stored_findings
from grouprl.view.runfiles import read_run


def test_a_weak_start_is_shown_by_wrong_rows_that_are_pushed_up_and_is_not_without_signal(tmp_path: Path) -> None:
    evaluated = {"every": 0, "final_prompts": 8, "samples": 2, "k": [1, 2]}
    found, run = ran(tmp_path, task="addition", method="intuitor", warmup={"steps": 3}, eval=evaluated)
    shown = found["weak_start"]
    assert shown.sign == "wrong ones that are pushed up most"
    assert len(shown.rows) == 3
    pushes = sorted((sum(row["advantage"]) for row in stored(run, shown.rows[0].step)), reverse=True)
    assert [row.pushed for row in shown.rows] == pytest.approx(pushes[:3])
    assert shown.absent == ""
    assert {"no_signal", "dead_groups"}.isdisjoint(found)  # all rewards are 0, and certainty differs


@pytest.mark.parametrize("recorded", ["tokens", "none"])
def test_a_large_update_is_shown_by_the_rows_that_it_moved_where_ratios_are_recorded(
    recorded: str, tmp_path: Path
) -> None:
    found, run = ran(
        tmp_path,
        reward=paid(tmp_path, "evenly"),
        method="grpo",
        optim={"lr": 0.1, "schedule": "constant"},
        run={"threads": 1, "check_model": False, "record_updates": recorded},
    )
    shown = found["large_update"]
    if recorded == "none":
        assert (shown.rows, shown.sign) == ((), "")
        assert shown.absent == f"{NONE_OF_THEM} {NEEDS['large_update']}"
        return
    strides = [_stride(row) for row in stored(run, shown.rows[0].step)]
    assert [row.stride for row in shown.rows] == pytest.approx(sorted(strides, reverse=True)[:3])
    assert shown.rows[0].stride > 0.1


def _stride(row: dict) -> float:
    known = [abs(x - 1) for x in row["ratio"] or [] if x is not None]
    return sum(known) / len(known) if known else 0.0


@pytest.fixture(scope="module")
def displaced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pairs at a rate that is far too high."""
    _, run = ran(
        tmp_path_factory.mktemp("pairs"),
        task={"name": "preferences", "length_bias": 10.0},
        method="dpo",
        batch={"prompts": 16, "group_size": 2, "minibatches": 2},
        warmup={"steps": 40, "batch": 16, "lr": 1e-2},
        optim={"lr": 1e-2, "schedule": "constant"},
        sampling={},
        steps=30,
    )
    return run


def test_displacement_is_shown_by_chosen_rows_that_have_lost_most(displaced: Path) -> None:
    run = read_run(displaced, rollouts=False)
    found = {each.finding.code: each for each in diagnose(run, stored_findings(run) or [])}
    shown = found["likelihood_displacement"]
    rows = [row for row in stored(displaced, shown.rows[0].step) if row["reward"] == 1]
    lost = sorted(sum(row["log_ratio"]) / len(row["log_ratio"]) for row in rows)
    assert [row.drift for row in shown.rows] == pytest.approx(lost[: len(shown.rows)])
    assert all(row.reward == 1 and row.drift < 0 for row in shown.rows)


def test_what_has_no_rows_says_why(displaced: Path) -> None:
    run = read_run(displaced, rollouts=False)
    absent = {each.finding.code: each.absent for each in diagnose(run, _of("grad_spike", "template_variables"))}
    assert absent == {"grad_spike": WHOLE_STEPS, "template_variables": NEEDS["template_variables"]}
    said = CliRunner().invoke(app, ["doctor", str(displaced)]).output
    assert "No row is shown. It is a finding on whole steps" in " ".join(said.split())


def test_nothing_stored_is_said(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    run = read_run(tmp_path, rollouts=False)
    assert {each.absent for each in diagnose(run, _of("truncation", "dead_groups"))} == {NOT_STORED}


def _of(*codes: str) -> list[RunFinding]:
    assert set(codes) <= set(CODES)
    return [RunFinding(code, "warning", "x", "text", "remedy", 1, 2) for code in codes]


def test_every_reason_is_of_a_code() -> None:
    assert set(NEEDS) <= set(CODES)
    assert "template_variables" not in SIGNS
