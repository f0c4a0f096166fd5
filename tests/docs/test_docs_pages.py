"""The pages as a whole: an index that leads everywhere, links and commands that exist, claims that are counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from counts import with_counts
from grouprl.cli.app import app
from grouprl.methods import CATALOGUE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")


def test_the_index_leads_to_every_page() -> None:
    named = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    assert named == {page.name for page in PAGES[1:] if page.name != "README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\((?!https?://)([^)#\s]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert [link for link in found if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    known = {info.name for info in app.registered_commands} | {group.name for group in app.registered_groups}
    shown = re.findall(r"(?:^|`)grouprl ([a-z][\w-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(shown) - known == set()


def test_the_losses_in_your_own_loop_teach(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "own_loop.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["rewards"][0] < 0.2
    assert sum(names["rewards"][-10:]) / 10 > 0.8
    assert "mean reward 0." in capsys.readouterr().out


def test_the_numbers_of_the_readme_are_counted() -> None:
    made = with_counts(README)
    shape = re.compile(r"\d+")
    assert shape.sub("N", made) == shape.sub("N", README)  # the numbers are brought up to date by `make docs`
    assert f"**Over {sum(not entry.dialect_of for entry in CATALOGUE.values()) // 10 * 10} methods" in made


def test_the_first_screen_says_what_a_stranger_wants_to_know() -> None:
    first = README.split("## What `make train` does")[0]
    for words in ("methods diff grpo@trl grpo@verl", "For whom", "Why not TRL or verl first?", "What it cannot do yet"):
        assert words in first
    assert "Scale shown" in first
    assert len(README.splitlines()) <= 200


def test_nobody_claims_that_everything_is_verified_or_learns() -> None:
    places = [*PAGES, ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    told = re.compile(r"every method (is )?(verified|\[?learns)", re.IGNORECASE)
    assert [place.name for place in places if told.search(place.read_text(encoding="utf-8"))] == []
