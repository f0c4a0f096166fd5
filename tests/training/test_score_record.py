"""Scores of stored rows: what a reward model gave them as it was trained on them, of every kind of reward model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from grouprl import Batch
from grouprl.config.run import parse_config
from grouprl.core.finding import RunFinding
from grouprl.training.loop import train
from grouprl.training.measures.score_record import ScoreRecord
from grouprl.training.measures.step_record import ROW
from grouprl.view.app.answers import answered
from grouprl.view.app.shown_runs import RunLibrary
from grouprl.view.diagnosis import diagnose
from grouprl.view.pairs import pair_of
from grouprl.view.runfiles import read_run
from rank_rewards import write_rows

TINY = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}


def ran(folder: Path, method: Any, task: Any, name: str = "run", **changes: Any) -> Path:
    settings = {
        "task": task,
        "method": method,
        "model": {"name": "tiny", "tiny": TINY},
        "steps": 2,
        "batch": {"prompts": 4, "group_size": 2},
        "optim": {"lr": 3e-3, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1, "check_model": False, "rollouts_every": 1},
    }
    return train(parse_config(settings | changes), folder=folder / name, console=Console(quiet=True)).folder


def stored(run: Path, step: int = 2) -> list[dict[str, Any]]:
    return pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()


def record(run: Path, step: int = 2) -> dict[str, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return next(line for line in lines if line["phase"] == "train" and line["step"] == step)


def pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pairs of a step as the page has them."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: -row["reward"]):
        groups.setdefault(row["group"], []).append(row)
    found = [pair_of(group) for group in groups.values()]
    assert None not in found
    return [each for each in found if each is not None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    write_rows(folder, longest=5)
    return folder


@pytest.fixture(scope="module")
def compared(folder: Path) -> Path:
    return ran(folder, "bradley_terry", f"pairs:{folder / 'rows.jsonl'}", "compared")


def test_scores_of_pairs_are_those_of_the_step_s_metrics(compared: Path) -> None:
    for step in (1, 2):
        found, told = pairs(stored(compared, step)), record(compared, step)
        assert len(found) == 4
        assert np.mean([each["score"] for each in found]) == pytest.approx(told["pair_margin"], abs=1e-6)
        assert np.mean([each["right"] for each in found]) == told["pair_accuracy"]
        assert all(row["scores"] is None for row in stored(compared, step))


def test_to_keep_scores_changes_nothing(folder: Path, compared: Path) -> None:
    run = {"threads": 1, "check_model": False, "rollouts_every": 0}
    without = ran(folder, "bradley_terry", f"pairs:{folder / 'rows.jsonl'}", "without", run=run)
    one, other = (each / "model" / "model.safetensors" for each in (compared, without))
    assert one.read_bytes() == other.read_bytes()
    assert not list((without / "rollouts").glob("*"))


def test_of_several_minibatches_each_row_has_its_own_score(folder: Path) -> None:
    batch = {"prompts": 4, "group_size": 2, "minibatches": 2, "epochs": 2}
    run = ran(folder, "bradley_terry", f"pairs:{folder / 'rows.jsonl'}", "parts", batch=batch)
    scores = [row["score"] for row in stored(run)]
    assert None not in scores
    assert len(set(scores)) == len(scores)


def test_each_attribute_has_a_score_by_its_name(folder: Path) -> None:
    task = {"name": f"pairs:{folder / 'rows.jsonl'}", "completion": "response", "ratings": ["likes", "size"]}
    method = {"name": "attribute_regression", "attributes": ["likes", "size"]}
    rows = stored(ran(folder, method, task, "attributes", batch={"prompts": 4, "group_size": 1}))
    for row in rows:
        named = dict(row["scores"])
        assert list(named) == ["likes", "size"]
        assert row["score"] == pytest.approx(sum(named.values()) / 2)


def test_vectors_of_pairs_have_the_margin_of_the_step_s_metrics(folder: Path) -> None:
    method = {"name": "gpm", "blocks": 2, "tau": 0.5}
    run = ran(folder, method, f"pairs:{folder / 'rows.jsonl'}", "vectors")
    rows, told = stored(run), record(run)
    assert all([name for name, _ in row["scores"]] == [f"preference@{n}" for n in range(1, 5)] for row in rows)
    assert all(row["score"] is None for row in rows)
    found = pairs(rows)
    assert np.mean([each["right"] for each in found]) == told["pair_accuracy"]
    assert np.mean([each["score"] for each in found]) == pytest.approx(told["pair_margin"], abs=1e-6)
    listed = [each["margin"] for each in answered_groups(run)]
    assert listed == pytest.approx(sorted(each["score"] for each in found)), "the list of groups begins with the lowest"
    (least, *_) = answered(RunLibrary([run]), "rows", {"run": [run.name], "step": ["2"], "sort": ["margin"]})["rows"]
    assert least["margin"] == pytest.approx(listed[0])


def test_each_step_of_a_process_and_each_rating_has_a_score(folder: Path) -> None:
    steps = ran(folder, "process_reward", f"step_labels:{folder / 'steps.jsonl'}", "steps")
    rated = {"name": f"pairs:{folder / 'rows.jsonl'}", "completion": "response", "ratings": ["likes"]}
    ratings = ran(folder, "reward_regression", rated, "ratings", batch={"prompts": 4, "group_size": 1})
    for run in (steps, ratings):
        assert len({row["score"] for row in stored(run)} - {None}) > 2


def test_a_policy_has_no_scores(folder: Path) -> None:
    run = ran(folder, "dpo", f"pairs:{folder / 'rows.jsonl'}", "policy", warmup={"steps": 0})
    assert {(row["score"], row["scores"]) for row in stored(run)} == {(None, None)}


def test_the_page_is_answered_with_scores_and_margins(compared: Path) -> None:
    library = RunLibrary([compared])
    own = {(row["group"], row["sample"]): row["score"] for row in stored(compared)}
    found = answered(library, "groups", {"run": ["compared"], "step": ["2"]})["groups"]
    for each in found:
        assert each["margin"] == pytest.approx(own[each["group"], 0] - own[each["group"], 1])
    group = answered(library, "group", {"run": ["compared"], "step": ["2"], "group": [str(found[0]["group"])]})
    assert group["pair"] == {
        "log_ratio": None,
        "score": pytest.approx(found[0]["margin"]),
        "scores": {},
        "right": found[0]["margin"] > 0,
    }
    assert [row["score"] for row in group["rows"]] == [own[found[0]["group"], 0], own[found[0]["group"], 1]]
    assert not {"behavior_logp", "entropy"} & set(group["columns"])
    half = sorted(own.values())[len(own) // 2]
    above = answered(library, "rows", {"run": ["compared"], "step": ["2"], "score_min": [str(half)]})
    assert above["total"] == sum(score >= half for score in own.values())


def numbered_rows(*rows: int) -> Batch:
    mask_bt = torch.ones(len(rows), 1, dtype=torch.bool)
    return Batch(
        mask_bt=mask_bt,
        group_b=torch.zeros(len(rows), dtype=torch.int64),
        reward_b=torch.zeros(len(rows)),
        keys={ROW: torch.tensor(rows)},
    )


def test_the_first_score_of_a_row_is_kept_and_one_without_has_none() -> None:
    kept = ScoreRecord(3, ["kind"])
    kept.watch({"score": torch.tensor([1.0, 2.0]), "score@1": torch.tensor([3.0, 4.0])}, numbered_rows(2, 0))
    kept.watch({"score": torch.tensor([9.0]), "user_kl": torch.tensor([5.0])}, numbered_rows(2))
    assert kept.score().tolist()[::2] == [2.0, 1.0]
    assert kept.score()[1].isnan()
    assert {name: value.tolist()[::2] for name, value in kept.named().items()} == {"kind": [4.0, 3.0]}


def test_a_diagnosis_shows_the_pairs_that_the_model_has_wrong_and_no_stored_row_as_poorly_paid(
    compared: Path, folder: Path
) -> None:
    finding = RunFinding("no_gain", "note", "eval/pair_accuracy", "text.", "remedy.", 2, 2, True)
    (told,) = diagnose(read_run(compared), [finding])
    margins = {each["group"]: each for each in answered_groups(compared)}
    wrong = sorted(each["margin"] for each in margins.values() if each["margin"] < 0)[:3]
    assert [row.margin for row in told.rows] == pytest.approx(wrong)
    assert all(row.reward == 1.0 for row in told.rows)
    policy = ran(folder, "dpo", f"pairs:{folder / 'rows.jsonl'}", "stored", warmup={"steps": 0})
    (told,) = diagnose(read_run(policy), [finding])
    assert told.rows == ()


def answered_groups(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answered(RunLibrary([run]), "groups", {"run": [run.name], "step": ["2"]})["groups"]
    return found
