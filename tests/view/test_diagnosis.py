"""`grouprl doctor`: findings in the order of causes, with numbers and the rows that show them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.finding import CODES, RunFinding
from grouprl.monitor import health_codes
from grouprl.view.diagnosis import BREAKS, OF_KEYS, OUTCOMES, SIGNS, by_likelihood, course, diagnose
from grouprl.view.runfiles import RunData, read_run
from grouprl.view.trajectory import of_step
from grouprl.view.witnesses import Witness
from single_runs import launch

ROWS = [
    Witness(
        4,
        "p",
        0,
        1.0,
        3,
        1,
        "ended",
        False,
        "abc",
        tied=True,
        repeated=True,
        entropy=0.1,
        gap=0.2,
        pushed=-3.0,
        moved=0.5,
    ),
    Witness(4, "p", 1, 1.0, 3, 1, "ended", False, "abc", tied=True, repeated=True, entropy=0.2, disputed=True),
    Witness(
        4,
        "q",
        0,
        0.0,
        9,
        4,
        "turns",
        True,
        "xxxxxxxxx",
        tied=False,
        repeated=False,
        entropy=2.0,
        looped=True,
        drift=-1.0,
        gap=0.4,
        pushed=2.0,
        agents={"boss": 9},
    ),
    Witness(
        4,
        "q",
        1,
        None,
        5,
        2,
        "won",
        False,
        "yyyyy",
        tied=False,
        repeated=False,
        entropy=1.0,
        drift=2.0,
        right=True,
        pushed=-1.0,
        agents={"boss": 2, "helper": 3},
    ),
]


def found(code: str, severity: Any = "warning", first: int = 5, *, persists: bool = True, key: str = "m") -> RunFinding:
    return RunFinding(code, severity, key, "text.", "remedy.", first, 8, persists)


def test_what_is_broken_comes_first_what_follows_from_it_last_and_notes_after_all() -> None:
    findings = [
        found("inert_clip", "note", first=1),
        found("no_gain", "warning", first=2),
        found("entropy_collapse", first=7),
        found("stands_still", first=3, persists=False),
        found("dead_groups", first=6),
        found("no_signal", "alarm", first=8),
        found("truncation", "alarm", first=9),
        found("sampler_gap", first=9),
        found("moves_too_fast", first=1),
    ]
    order = [each.code for each in by_likelihood(findings)]
    assert order == [
        "moves_too_fast", "sampler_gap",
        "no_signal", "truncation", "dead_groups", "entropy_collapse", "stands_still", "no_gain", "inert_clip",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "first"),
    [
        (("truncation", "collapse"), "large_update"),
        (("truncation",), "truncation"),  # nothing collapsed, whatever the steps were
        (("earlier", "collapse"), "earlier"),  # which may be the reason of the large steps, too
    ],
)
def test_large_updates_explain_a_collapse_that_nothing_else_preceded(others: tuple[str, ...], first: str) -> None:
    known = {
        "truncation": found("truncation", "alarm"),
        "collapse": found("collapse", "alarm", first=11),
        "earlier": found("dead_groups", "alarm", first=4),
    }
    findings = [
        *(known[name] for name in others),
        found("large_update", persists=False),
        found("inert_clip", "note", 1),
    ]
    assert by_likelihood(findings)[0].code == {"earlier": "dead_groups"}.get(first, first)


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        ("reward_errors", [3]),
        ("dead_groups", [0, 1]),
        ("truncation", [2]),
        ("length_growth", [2, 3, 0, 1]),
        ("length_shrinking", [0, 1, 3, 2]),
        ("fewer_turns", [0, 1, 3, 2]),
        ("repeated_calls", [2, 3, 0, 1]),
        ("entropy_collapse", [0, 1]),
        ("entropy_explosion", [2, 3, 1, 0]),
        ("no_gain", [2, 0, 1]),
        ("repetition_loops", [2]),
        ("far_from_reference", [3, 2, 0, 1]),
        ("success_traded", [0, 1, 2]),
        ("verifier_noise", [1]),
        ("learnt_by_heart", [3]),
        ("sampler_gap", [2, 0]),
        ("drifting_judge", [0]),
        ("unreliable_judge", [3, 0, 1, 2]),
        ("lopsided_advantage", [0, 3]),
        ("unearned_component", [0, 1, 2, 3]),
        ("reference_drift", [3, 2, 0, 1]),
    ],
)
def test_each_finding_names_the_rows_that_show_it(code: str, rows: list[int]) -> None:
    assert [ROWS.index(row) for row in SIGNS[code].rows(ROWS)] == rows


def test_an_agent_that_falls_silent_is_shown_by_the_episodes_in_which_it_wrote_least() -> None:
    sign = OF_KEYS["silent_agent"]("agent_tokens/helper")
    assert "`helper`" in sign.words
    assert [ROWS.index(row) for row in sign.rows(ROWS)] == [0, 1, 2, 3]
    assert [ROWS.index(row) for row in OF_KEYS["silent_agent"]("agent_tokens/boss").rows(ROWS[2:])] == [3, 2]


def test_findings_that_are_named_exist() -> None:
    assert health_codes.__name__.startswith("grouprl.")
    assert {name for name, code in CODES.items() if code.source == "health"} >= {*BREAKS, *OUTCOMES, *SIGNS, *OF_KEYS}


def test_the_course_has_the_values_at_the_first_record_at_the_beginning_and_at_the_end() -> None:
    run = RunData(Path(), records=[{"phase": "train", "step": step, "m": step / 10} for step in range(1, 11)])
    assert course(run, found("dead_groups")) == ((1, 0.1), (5, 0.5), (8, 0.8))
    assert course(run, found("dead_groups", key="other")) == ()
    assert course(run, found("dead_groups", first=1)) == ((1, 0.1), (8, 0.8))


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which no completion is ever right."""
    folder = tmp_path_factory.mktemp("runs") / "sick"
    return launch(folder, task="multiplication", steps=6, warmup={"steps": 0}, eval={"every": 0, "prompts": 4}).folder


def doctor(folder: Path) -> Any:
    told = CliRunner().invoke(app, ["doctor", str(folder), "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def test_a_run_without_a_signal_is_diagnosed_with_its_rows(sick: Path) -> None:
    said = doctor(sick)
    assert said["outcome"].startswith("6 steps.")
    first = said["findings"][0]
    assert first["code"] == "no_signal"
    assert first["severity"] == "alarm"
    assert [row["tied"] for row in first["rows"]] == [True] * 3
    table = pq.read_table(sick / f"rollouts/step-{first['rows'][0]['step']:06d}.parquet").to_pylist()
    for row in first["rows"]:
        (stored,) = [each for each in table if (each["prompt_id"], each["sample"]) == (row["prompt"], row["sample"])]
        assert row["tokens"] == sum(stored["mask"]), "also where the texts of single tokens are unknown"
        assert row["entropy"] == pytest.approx(np.mean(stored["entropy"]))
    text = CliRunner().invoke(app, ["doctor", str(sick)])
    assert "1. alarm  no_signal" in text.output
    assert f"--step {first['rows'][0]['step']} --prompt" in text.output
    assert "What to do: Raise the token limit" in " ".join(text.output.split()), "an untrained model ends nothing"


def test_a_step_is_read_once_for_all_findings(sick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int | None] = []

    def counted(folder: Path, step: int | None = None) -> Any:
        read.append(step)
        return of_step(folder, step)

    monkeypatch.setattr("grouprl.view.diagnosis.of_step", counted)
    run = read_run(sick, rollouts=False)
    many = [found("no_signal"), found("truncation"), found("length_growth"), found("no_gain")]
    assert [len(each.rows) for each in diagnose(run, many)] == [3, 3, 3, 3]
    assert read == [6]


def test_a_run_that_was_killed_is_examined_by_its_records(sick: Path) -> None:
    whole = doctor(sick)["findings"]
    os.rename(sick / "health.json", sick / "health.kept")
    try:
        again = doctor(sick)["findings"]
    finally:
        os.rename(sick / "health.kept", sick / "health.json")
    assert {each["code"] for each in again} == {each["code"] for each in whole}
    assert read_run(sick, rollouts=False).findings is not None


def test_a_run_that_did_not_reach_its_end_is_told_so(sick: Path, tmp_path: Path) -> None:
    """Killed or failed, it has no summary; that nothing was found does not mean that all is well."""
    folder = tmp_path / "cut"
    shutil.copytree(sick, folder, ignore=shutil.ignore_patterns("summary.json", "model", "checkpoints"))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 4))
    said = doctor(folder)["outcome"]
    assert said.startswith("4 of 6 steps. It was stopped before its end, by an error, by a signal or with its machine")
    assert said.endswith("Not finished: there is no evaluation after training yet.")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert told.exit_code == 2
    assert "a run folder holds config.yaml" in " ".join(told.output.split()).lower()


def test_a_record_without_a_step_has_no_place_in_a_course() -> None:
    run = RunData(Path("run"), records=[{"phase": "train", "x": 1.0}, {"phase": "train", "step": 2, "x": 3.0}])
    assert course(run, RunFinding("no_signal", "warning", "x", "text", "remedy", 1, 2)) == ((2, 3.0),)
