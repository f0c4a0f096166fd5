"""What the records show of methods and recipes: said first where a reader looks, and never more than is recorded."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from rich.console import Console
from typer.testing import CliRunner

import learn_report
import shown as records
import tried
from generate_docs import page as page_of
from grouprl.cli.app import app
from grouprl.cli.listing import listed
from grouprl.config.recipe_list import Recipe, note_on, recipe
from grouprl.config.run import parse_config, recipe_names
from grouprl.methods import CATALOGUE
from grouprl.methods.describe import describe
from grouprl.methods.recorded_evidence import shown
from grouprl.methods.render import card
from grouprl.plan.plan import plan

LEARNING = json.loads((tried.DOCS / "learning.json").read_text(encoding="utf-8"))["runs"]
LOST = sorted({run["method"] for run in LEARNING if not learn_report.learned(run)} - {learn_report.CONTROL})


def in_terminal(block: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(block)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_shipped_is_what_the_records_say() -> None:
    made = records.of_methods()
    assert {name: asdict(shown(name)) for name in CATALOGUE} == made, "run: python scripts/generate_docs.py"
    assert {each.name: each.recorded for each in listed()} == {name: found["verdict"] for name, found in made.items()}
    known = {name: {"gained": recipe(name).gained, "seeds": recipe(name).seeds} for name in recipe_names()}
    assert known == records.of_recipes(), "run: python scripts/generate_docs.py"


@pytest.mark.parametrize("name", LOST)
def test_a_card_of_a_method_that_lost_says_so_before_what_it_is(name: str) -> None:
    text = in_terminal(card(CATALOGUE[name]))
    assert shown(name).verdict in ("not shown", "mixed")
    assert 0 < text.index("NOT shown to learn") < text.index("Formula")
    page = page_of(describe(CATALOGUE[name]))
    assert page.index("**NOT shown to learn") < page.index("```")


def test_a_plan_says_it_of_its_method() -> None:
    config = {"task": "addition", "model": "tiny", "method": "intuitor", "steps": 1}
    assert any("NOT shown to learn" in note for note in plan(parse_config(config)).notes)
    assert not any("shown to learn" in note for note in plan(parse_config({**config, "method": "dapo"})).notes)


def test_verdicts_count_every_run() -> None:
    def tried(gained: int, runs: int) -> dict[str, str]:
        each = records.Tried("m", "reverse", gained, runs, f"{gained} of {runs} seeds")
        return records._sentence("m", False, {"m": [each]})

    assert tried(3, 3) == {"verdict": "learned", "words": "Learned in all recorded runs: reverse (3 of 3 seeds)."}
    assert tried(2, 3) == {"verdict": "mixed", "words": "NOT shown to learn in reverse (2 of 3 seeds)."}
    assert tried(0, 3)["verdict"] == "not shown"
    assert records._sentence("m", False, {})["verdict"] == "no record"


def test_places_are_counted_and_with_one_place_its_runs() -> None:
    three, two = (records.Tried("m", place, n, 3, "") for place, n in (("reverse", 3), ("guess", 2)))
    assert [records.count(each) for each in ([], [two], [three, two])] == ["", "2 of 3", "1 of 2"]
    counted = records.of_methods()["grpo"]["learned"]
    assert {each.name: each.learned for each in listed()}["grpo"] == shown("grpo").learned == counted
    assert int(counted.partition(" of ")[2]) > 10


def test_dialects_point_to_their_method() -> None:
    assert "see m," in records._sentence("m@trl", True, {})["words"]


def test_a_recipe_that_is_not_shown_to_learn_says_so_in_its_first_words() -> None:
    doubtful = [each for each in map(recipe, recipe_names()) if not each.sure]
    silent = [each.name for each in doubtful if "shown" not in each.words and "sure" not in each.words]
    assert silent == [], "say it in the comment at the top of the recipe, from the record"
    for each in doubtful:
        assert each.note() in CliRunner().invoke(app, ["plan", each.name, "--json"]).output, each.name


def test_notes_follow_from_the_seeds() -> None:
    assert Recipe("a", "", 3, 3).note() == ""
    assert "not always shown to learn: 2 of 3" in Recipe("a", "", 2, 3).note()
    assert "is not shown to learn: 0 of 3" in Recipe("a", "", 0, 3).note()
    assert "nothing shows that it learns" in Recipe("a", "", 0, 0).note()
    assert note_on("addition") == "" == note_on("my.yaml")
