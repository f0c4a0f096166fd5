"""The page on constructive solvers: its configurations run, and its tables are those of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import allocations
import fleets
import flows
import imitation
import latent_searches
import populations
import routing
import solver_gaps
from grouprl.config.run import parse_config
from grouprl.envs.construction import PROBLEMS
from grouprl.training.loop import train

PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
TOUR, POPULATION, IMITATED, FLEET, SENT, GRID = (
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)
SHORT = {"steps": 2, "eval": {"every": 0, "prompts": 2, "final_prompts": 2}, "batch": {"prompts": 2, "group_size": 4}}


def trained(settings: dict, folder: Path, **changes: object) -> list[dict]:
    train(parse_config({**settings, **SHORT, **changes}), folder=folder, console=Console(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "train"]


def test_a_solver_is_trained_and_its_gaps_are_metrics(tmp_path: Path) -> None:
    steps = trained(TOUR, tmp_path / "run")
    assert [row["tokens"] for row in steps] == [2 * 4 * 9] * 2  # nine choices: the first city is given
    assert all(row["reward/#gap_percent"] > 0 and row["reward_mean"] < 0 for row in steps)
    assert all(row["logp_gap_max"] < 1e-5 and row["grad_norm"] > 0 for row in steps)


def test_the_population_of_the_page_is_that_of_the_record() -> None:
    recorded = populations.settings("poppy", 0, POPULATION["steps"])
    assert {**recorded["task"]} == POPULATION["task"]
    assert all(recorded[key] == POPULATION[key] for key in ("method", "steps", "batch", "optim"))
    assert all(row["steps"] == POPULATION["steps"] for row in json.loads(populations.RECORD.read_text()))
    assert populations.table(json.loads(populations.RECORD.read_text())) in PAGE


def test_the_searches_of_the_page_are_those_of_the_record() -> None:
    rows = json.loads(latent_searches.RECORD.read_text(encoding="utf-8"))
    assert latent_searches.table(rows) in PAGE
    assert {row["way"] for row in rows} == set(latent_searches.WAYS)
    assert POPULATION["steps"] == latent_searches.STEPS
    searched = [row["first"] - row["last"] for row in rows if row["way"] == "COMPASS, searched"]
    assert max(searched) < 1, "the page says that the last tours are no shorter"


def test_a_solver_imitates_and_its_table_is_that_of_the_record(tmp_path: Path) -> None:
    rows = json.loads(imitation.RECORD.read_text(encoding="utf-8"))
    assert imitation.table(rows) in PAGE
    assert all(row["steps"] == IMITATED["steps"] for row in rows)
    ours = imitation.settings("BQ-NCO: `quotient`, best tours", 0, IMITATED["steps"])
    assert {key: ours[key] for key in ("task", "method", "batch", "optim")} == {
        key: IMITATED[key] for key in ("task", "method", "batch", "optim")
    }
    steps = trained(IMITATED, tmp_path / "run", batch={"prompts": 4, "group_size": 1})
    assert [row["tokens"] for row in steps] == [4 * 7] * 2


def test_a_fleet_is_trained_and_its_table_is_that_of_the_record(tmp_path: Path) -> None:
    assert fleets.table(json.loads(fleets.RECORD.read_text(encoding="utf-8"))) in PAGE
    ours = fleets.settings("PARCO: by probability", 0)
    assert {key: ours[key] for key in ("task", "method", "steps", "batch", "optim")} == {
        key: FLEET[key] for key in ("task", "method", "steps", "batch", "optim")
    }
    steps = trained(FLEET, tmp_path / "run")
    assert all(row["reward_mean"] < 0 and 0 <= row["reward/#lost_picks"] <= 1 for row in steps)
    assert all(row["logp_gap_max"] < 1e-5 and row["grad_norm"] > 0 for row in steps)


def test_entities_are_sent_and_the_table_is_that_of_the_record(tmp_path: Path) -> None:
    assert allocations.table(json.loads(allocations.RECORD.read_text(encoding="utf-8"))) in PAGE
    ours = allocations.settings("preselect", 0, SENT["optim"]["lr"])
    assert {key: ours[key] for key in ("task", "model", "method", "steps", "batch", "optim", "eval")} == {
        key: SENT[key] for key in ("task", "model", "method", "steps", "batch", "optim", "eval")
    }
    steps = trained(SENT, tmp_path / "run")
    assert [row["tokens"] for row in steps] == [2 * 4 * 7] * 2
    assert all(row["reward/#gap_percent"] > 0 and row["reward_mean"] > 0 for row in steps)
    assert all(row["logp_gap_max"] < 1e-5 and row["grad_norm"] > 0 for row in steps)


def test_what_is_solved_exactly_costs_what_or_tools_proved() -> None:
    rows = json.loads(solver_gaps.RECORD.read_text(encoding="utf-8"))
    assert solver_gaps.table(rows) in PAGE
    known = {(row["problem"], row["count"]): row for row in rows}
    assert set(known) == {*solver_gaps.SMALL.items(), *solver_gaps.LARGE.items()}
    for problem, count in {**solver_gaps.SMALL, "knapsack": 60}.items():
        best = solver_gaps.ours(problem, count, 3)
        assert best == pytest.approx(known[problem, count]["costs"][:3], abs=2e-6)
    for problem in ("job_shop", "knapsack", "tsp"):
        assert known[problem, solver_gaps.SMALL[problem]]["proven"] == solver_gaps.INSTANCES


def test_a_flow_network_is_trained_on_the_grid(tmp_path: Path) -> None:
    steps = trained(GRID, tmp_path / "run")
    assert all(row["value_loss"] > 0 and row["policy_loss"] > 0 for row in steps)
    # before the flows move, both parts are the same imbalance
    assert steps[0]["value_loss"] == pytest.approx(steps[0]["policy_loss"], rel=1e-5)


def test_the_tables_are_those_of_the_records() -> None:
    assert routing.table(json.loads(routing.RECORD.read_text())) in PAGE
    assert routing.flow_table(json.loads(routing.FLOWS.read_text())) in PAGE
    assert all(f"`construct:{name}`" in PAGE for name in PROBLEMS)
    assert flows.settings("tb", 1e-2, 0)["task"] == GRID["task"]


def test_the_chance_of_every_cell_is_added_up_over_all_ways_there() -> None:
    policy = flows.Mlp(flows.Build(spaces=flows.HyperGrid(flows.SIDE).spaces))
    chance = flows.learnt(policy)
    assert chance.sum() == pytest.approx(1, abs=1e-6)
    assert chance[0, 0] == pytest.approx(1 / 3, abs=0.02)  # nearly uniform over three actions
    assert flows.exact().max() == pytest.approx(2.6 / 22.4)  # ΣR = 6.4 + 16·0.5 + 4·2


def test_every_rule_builds_a_whole_solution() -> None:
    for name in PROBLEMS:
        assert 0 <= routing.rule_gap(name, 3) < 200
