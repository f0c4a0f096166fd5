"""The catalogue in the terminal and in docs/methods."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console
from typer.testing import CliRunner

from grouprl.cli.listing import catalogue, listed
from grouprl.core.errors import InputError
from grouprl.methods import CATALOGUE, Paper, find
from grouprl.methods.card import Condition
from grouprl.methods.describe import _WHEN, AMBIGUOUS, describe, other_claims, settings_of, type_words
from grouprl.methods.diff import EXAMPLES, contrast, numbers
from grouprl.methods.render import card, difference, value_words

ROOT = Path(__file__).parents[2]
every_entry = pytest.mark.parametrize("name", sorted(CATALOGUE))


def printed(block, width: int = 80) -> str:
    console = Console(width=width, file=None, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(block)
    return capture.get()


def run(*arguments: str):
    from grouprl.cli.app import app

    return CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": "80"})


@every_entry
@pytest.mark.parametrize("width", [80, 120])
def test_a_card_says_everything_and_fits(name, width):
    entry = find(name)
    text = printed(card(entry), width)
    flat = "".join(text.split())
    assert max(map(len, text.splitlines())) <= width
    wanted = [name, entry.card.title, entry.card.summary, *entry.card.differs, entry.card.source, *entry.settings]
    wanted += [p.title for p in entry.card.papers if isinstance(p, Paper)]
    for words in wanted:
        assert "".join(words.split()) in flat, words
    assert "…" not in text, "something was cut off"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_names_every_entry_whole(width):
    text = printed(catalogue(listed()), width)
    assert all(name in text for name in CATALOGUE)
    assert max(map(len, text.splitlines())) <= width


@every_entry
def test_plain_data_is_json(name):
    data = json.loads(json.dumps(describe(find(name))))
    assert data["name"] == name
    assert [p["stage"] for p in data["parts"]].count("objective") == 1


def test_difference_of_grpo_and_dr_grpo():
    text = printed(difference(find("grpo"), find("dr_grpo")))
    assert "1.5000" in text
    assert "0.7500" in text
    assert "clipped" in text.split("The same in both")[1]
    data = contrast(find("grpo"), find("dr_grpo"))
    assert {row["stage"] for row in data["parts"] if not row["same"]} == {"advantage", "aggregate"}
    assert data["examples"][0]["a"][0]["gradient"] == pytest.approx([-1.499997 / 16] * 4)
    assert data["examples"][0]["b"][0]["gradient"] == pytest.approx([-0.75 / 16] * 4)


def test_a_method_does_not_differ_from_itself():
    data = contrast(find("grpo"), find("grpo"))
    assert all(row["same"] for row in data["parts"])
    assert not data["settings"]
    assert "Parts that differ" not in printed(difference(find("grpo"), find("grpo")))


@every_entry
def test_every_method_can_be_compared_on_every_example(name):
    for example in EXAMPLES:
        rows = numbers(find(name).build(), example)
        assert [len(row["gradient"]) for row in rows] == list(example.lengths)
    text = printed(difference(find(name), find("grpo")))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_types_in_words():
    words = {row["name"]: row["type"] for row in settings_of(find("grpo"))}
    assert words["clip_low"] == "number ≥ 0 and ≤ 1"
    assert words["scale"].startswith("none | sample_std")
    assert type_words(float | None) == "number, or none"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "none"),
        (True, "true"),
        (3e-4, "0.0003"),
        ([1, 0.5], "[1, 0.5]"),
        ("a", "a"),
        (0, "0"),
        ({"b": [1]}, "b = [1]"),
    ],
)
def test_values_in_words(value, words):
    assert value_words(value) == words


def test_claimed_names_never_point_to_a_wrong_entry():
    for name, claims in AMBIGUOUS.items():
        assert len(claims) > 1
        assert len({c.entry for c in claims}) == len(claims)
        if name in CATALOGUE:
            assert [c.entry for c in claims].count(name) == 1
        for claim in claims:
            assert claim.data()["entry"] in ("", claim.entry)
            if claim.known:
                papers = [p.arxiv for p in find(claim.entry).card.papers]
                assert claim.reference.removeprefix("arXiv:") in papers
    assert other_claims("grpo") == []


def test_a_claim_that_the_catalogue_has_is_known_by_its_name_there():
    of_paper = {entry.card.papers[0].arxiv: name for name, entry in CATALOGUE.items() if entry.card.papers}
    for claim in (each for claims in AMBIGUOUS.values() for each in claims if not each.known):
        assert of_paper.get(claim.reference.removeprefix("arXiv:")) is None, claim


# --- the commands ---------------------------------------------------------------------------------------------------


def test_listing_and_its_filters():
    assert "dr_grpo" in run().output
    found = run("--search", "leave-one-out").output
    assert "rloo" in found
    assert "dapo" not in found
    names = [d["name"] for d in json.loads(run("--family", "dialects", "--json").output)]
    assert names
    assert all("@" in name for name in names)


def test_show_and_diff():
    assert "Group Relative Policy Optimization" in run("show", "grpo").output
    assert json.loads(run("show", "GRPO", "--json").output)["name"] == "grpo"
    assert json.loads(run("diff", "grpo", "Dr-GRPO", "--json").output)["b"] == "dr_grpo"
    assert "against" in run("diff", "grpo", "dr_grpo").output


def test_a_claimed_name_lists_its_papers():
    text = run("show", "dcpo").output
    assert "Dynamic Clipping" in text
    assert "Distribution-Centric" in text
    assert len(json.loads(run("show", "dcpo", "--json").output)) == 2
    assert "The same name elsewhere" in run("show", "dapo").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "grop"], "Did you mean 'grpo'"),
        (["diff", "grpo", "dr_gpro"], "Did you mean 'dr_grpo'"),
        (["--family", "group_relativ"], "Did you mean 'group_relative'"),
        (["--search", "zzzz"], "no method matches"),
    ],
)
def test_wrong_names(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_unknown_names_in_the_library():
    with pytest.raises(InputError, match="Did you mean 'grpo'"):
        find("grop")


# --- docs/methods ---------------------------------------------------------------------------------------------------


def generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_names_what_is_old_and_missing(tmp_path):
    made = {tmp_path / "same.md": "a", tmp_path / "old.md": "b", tmp_path / "missing.md": "c"}
    for name, text in (("same.md", "a"), ("old.md", "B")):
        (tmp_path / name).write_text(text)
    found = generator().differing(made)
    assert [path.name for path in found] == ["missing.md", "old.md"]


def test_pages_hold_what_cards_hold():
    made = generator().pages()
    for name, entry in CATALOGUE.items():
        page = made[f"{name.replace('@', '_at_')}.md"]
        for text in (entry.card.formula, *entry.card.differs, *(f"`{s}`" for s in entry.settings)):
            assert text in page
        assert f"[`{name}`]" in made["README.md"]


def test_every_condition_of_a_reduction_has_its_words():
    assert set(_WHEN) == set(get_args(Condition))
