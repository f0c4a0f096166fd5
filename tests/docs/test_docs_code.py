"""Pages about the code say what is so: paths exist, tables hold every name, stable names are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import grouprl

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"(?:src|docs|tests|scripts|bench|\.ci)/[\w./*-]+")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "docs/stability.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_every_path_that_a_page_mentions_exists(page: str) -> None:
    mentioned = {path.rstrip(".") for path in PATH.findall(text(page))}
    assert mentioned or page in ("docs/stability.md", "CHANGELOG.md")
    assert [path for path in sorted(mentioned) if not (ROOT / path).exists()] == []


def test_the_table_of_rooms_holds_every_room() -> None:
    package = ROOT / "src" / "grouprl"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`src/grouprl/(\w+)`", text("docs/architecture.md")))


def test_the_walk_names_functions_that_exist() -> None:
    from grouprl.algorithms.method import Method
    from grouprl.orchestrator import step
    from grouprl.training import loop

    assert all(hasattr(Method, name) for name in ("prepare", "compute_advantages", "compute_loss_weights", "loss"))
    assert callable(step.collect_rollout)
    assert callable(loop.reinforce_step)


def test_stable_names_are_there() -> None:
    page = text("docs/stability.md")
    for name in ("Batch", "Method", "Loss", "method", "methods", "compose", "entry", "part", "Metric"):
        assert name in grouprl.__all__
        assert f"`{name}`" in page
    for module in ("grouprl.testing", "grouprl.protocols", "grouprl.envs", "grouprl.policy"):
        assert module in page
        importlib.import_module(module)


def test_the_glossary_is_in_order_and_says_something_of_each_word_once() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", text("docs/glossary.md"), flags=re.MULTILINE)[2:]
    words = [word for word, _ in rows]
    assert len(words) > 50
    assert len(set(words)) == len(words)
    assert all(len(meaning) > 15 for _, meaning in rows)
    assert words == sorted(words, key=str.casefold)
