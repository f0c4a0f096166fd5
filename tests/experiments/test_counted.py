"""What a budget counts: it is shown, and refused where it cannot be spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_compare import PretendedStore, design

from grouprl.core.errors import InputError
from grouprl.experiments.arms import arms_of, methods_of
from grouprl.experiments.budget import Budget, Unit
from grouprl.experiments.compare import run_comparison, source_of
from grouprl.experiments.design import Comparison
from grouprl.experiments.preview import preview
from grouprl.experiments.schedule import Store
from grouprl.experiments.tables import listings

SMALL = ("warmup.steps=0", "batch.prompts=2", "steps=2", "eval.prompts=2", "eval.final_prompts=2")


def test_sampled_tokens_are_no_budget_where_rows_are_stored(tmp_path: Path) -> None:
    sources, arms = (source_of("preferences", SMALL),), tuple(arms_of(methods_of("dpo,ipo"), {}))
    with pytest.raises(InputError, match=r"--budget tokens on preferences. its rows are stored.*--budget trained"):
        preview(Comparison(sources, arms, tune={}), Store(tmp_path, 1))
    assert preview(Comparison(sources, arms, budget=Budget("trained"), tune={}), Store(tmp_path, 1)).runs == 11


@pytest.mark.parametrize(("unit", "shown"), [("tokens", "40"), ("trained", "30")])
def test_the_tokens_of_the_budget_are_shown(unit: Unit, shown: str, tmp_path: Path) -> None:
    class Trained(PretendedStore):
        def pretend(self, each):
            found = super().pretend(each)
            return replace(found, costs={**found.costs, "trained": 30.0})

    store = Trained(tmp_path, 1)
    object.__setattr__(store, "made", [])
    what = replace(design(tune={}), budget=Budget(unit, 10.0))
    tables = {table.title: table for table in listings(run_comparison(what, store, lambda *_: None, lambda _: None))}
    arms, runs = tables["Reached and spent"], tables["Every run"]
    words = {"tokens": "tokens sampled", "trained": "tokens trained on"}[unit]
    assert ("tokens trained on" in arms.head) == (unit == "trained")
    assert {row[arms.head.index(words)] for row in arms.rows} == {shown}
    assert {row[runs.head.index(words)] for row in runs.rows} == {shown}


def test_a_fraction_of_a_second_is_shown() -> None:
    amounts = (0.2, 12.5, 300.0, 1_234_567.0)
    assert [str(Budget("seconds", each)).split()[0] for each in amounts] == ["0.2", "12.5", "300", "1,234,567"]
