"""The page on teams: the order of sub-tasks, and the strategies of a team, as they are recorded."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

import grids
import hauling
import latent_spaces
import orders
import strategies
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan

PAGE = (Path(__file__).parents[2] / "docs" / "teams.md").read_text(encoding="utf-8")


def test_the_planner_of_the_page_is_that_of_the_record() -> None:
    rows = json.loads(orders.RECORD.read_text(encoding="utf-8"))
    assert orders.table(rows) in PAGE
    (shown,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "rlap" in text)
    (lr,) = {row["lr"] for row in rows if row["arm"] == "rlap"}
    ours = parse_config(orders.settings(0, lr))
    theirs = parse_config({**shown, "eval": {"every": 0}})
    for part in ("task", "model", "method", "steps", "batch"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.optim.lr == theirs.optim.lr


def test_the_strategies_of_the_page_are_those_of_the_record() -> None:
    rows = json.loads(strategies.RECORD.read_text(encoding="utf-8"))
    assert {row["arm"] for row in rows} == set(strategies.ARMS)
    assert strategies.table(rows) in PAGE
    for arm in strategies.ARMS:
        assert not plan(parse_config(strategies.settings(arm, 0, 0.01))).refusals


def test_the_latent_spaces_of_the_page_are_those_of_the_record() -> None:
    rows = json.loads(latent_spaces.RECORD.read_text(encoding="utf-8"))
    assert {row["arm"] for row in rows} == set(latent_spaces.ARMS)
    assert latent_spaces.table(rows) in PAGE
    (shown,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "_lso" in text)
    (lr,) = {row["lr"] for row in rows if row["arm"] == "mapo_lso"}
    ours, theirs = parse_config(latent_spaces.settings("mapo_lso", 0, lr)), parse_config(shown)
    for part in ("task", "model", "method", "steps", "batch"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.optim.lr == theirs.optim.lr
    assert not plan(theirs).refusals


def test_the_teams_in_the_grid_are_those_of_the_record() -> None:
    rows = json.loads(grids.RECORD.read_text(encoding="utf-8"))
    assert {row["arm"] for row in rows} == set(grids.ARMS)
    assert grids.table(rows) in PAGE
    (shown,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "dec_dpo" in text)
    (lr,) = {row["lr"] for row in rows if row["arm"] == "dec_dpo"}
    ours, theirs = parse_config(grids.settings("dec_dpo", 0, lr)), parse_config(shown)
    for part in ("task", "model", "method", "steps", "batch"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.optim.lr == theirs.optim.lr
    assert not plan(theirs).refusals


def test_the_teams_in_hauling_are_those_of_the_record() -> None:
    rows = json.loads(hauling.RECORD.read_text(encoding="utf-8"))
    assert hauling.table(rows) in PAGE
    (shown,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "gmah" in text)
    assert set(hauling.ARMS) == {row["arm"].split(",")[0] for row in rows if "lr" in row}
    (lr,) = {row["lr"] for row in rows if row["arm"].startswith("gmah")}
    ours, theirs = parse_config(hauling.settings("gmah", 2, 0, lr)), parse_config(shown)
    for part in ("model", "method", "steps", "batch"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.optim.lr == theirs.optim.lr
    for name, light in itertools.product(hauling.ARMS, hauling.LIGHT):
        assert not plan(parse_config(hauling.settings(name, light, 0, 0.01))).refusals


@pytest.mark.parametrize(
    ("rule", "light", "least", "most"), [(hauling.RULES[0], 2, 2.9, 3.6), (hauling.RULES[1], 0, 5.4, 6)]
)
def test_a_rule_in_hauling_is_paid_every_round(rule: str, light: int, least: float, most: float) -> None:
    # six rounds of 0.6 or 1, less 0.01 for each step of the walks
    assert least < hauling.ruled(rule, light, 3) < most
