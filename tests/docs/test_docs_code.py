"""Pages about the code say what is so: paths exist, tables hold every name, stable names are there."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pytest

import grouprl
from grouprl.algorithms.part import OLD_PARTS, PARTS
from grouprl.config import sections
from grouprl.core.renamed import RenamedWarning
from grouprl.methods.compose import OLD_STAGES, compose
from grouprl.monitor.glossary import lookup

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


def renamed() -> list[tuple[str, str]]:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text("docs/renamed.md"), flags=re.MULTILINE)
    return [(old, new) for old, new in rows if old != "before" and not set(old) <= set("- ")]


def test_every_old_name_that_is_understood_stands_in_the_table() -> None:
    rows = renamed()
    found = {
        f"{section.__name__.lower().replace('batchplan', 'batch')}.{old}": new
        for section in vars(sections).values()
        if isinstance(section, type) and issubclass(section, sections.Section)
        for old, new in section.old_names.items()
    }
    for old, new in {**found, **OLD_STAGES, **OLD_PARTS}.items():
        assert any(f"`{old}`" in before and new in now for before, now in rows), (old, new)


def test_what_things_are_called_now_exists() -> None:
    for old, new in OLD_PARTS.items():
        assert any(new in PARTS[kind] for kind in PARTS)
        assert not any(old in PARTS[kind] for kind in PARTS)
    metrics = re.search(r"## Metrics\n(.*?)\n## ", text("docs/renamed.md"), flags=re.DOTALL)
    assert metrics is not None
    for _, new in re.findall(r"^\| (`.+?) \| (`.+?) \|$", metrics[1], flags=re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", new):
            lookup(name)


@pytest.mark.parametrize(
    ("spec", "now"),
    [
        ({"base": "hapo", "heat": 0.5}, {"base": "hapo", "temperature": 0.5}),
        ({"base": "cpmobius", "answers": 2}, {"base": "cpmobius", "completions": 2}),
        ({"base": "a_star_po", "answers": 3}, {"base": "a_star_po", "completions": 3}),
        ({"base": "thor", "step_answers": 3}, {"base": "thor", "step_completions": 3}),
        (
            {"base": "grpo", "add": {"reward_transform": ["question_advantage"]}},
            {"base": "grpo", "add": {"reward_transform": ["prompt_advantage"]}},
        ),
    ],
)
def test_old_names_of_settings_and_parts_mean_what_they_meant(spec: dict, now: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RenamedWarning)
        assert compose(spec).method.with_parts(settings={}) == compose(now).method.with_parts(settings={})


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
