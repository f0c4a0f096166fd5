"""Docstrings are sentences or names of things, without odd words; none is a noun clause that stands alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import grouprl

ROOT = Path(grouprl.__file__).parent
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NOUN_CLAUSE = re.compile(r"(What|Whether|How|Whose|Who|Where|Which|Why|When)\b(?!.*\?)")
"""A docstring that begins so is the object of a sentence whose verb is missing."""
ODD = {
    "is there": re.compile(
        r"\b(is|are|was|were) there\b(?! (a|an|any|no|none|one|two|more|something|nothing|still)\b)"
    ),
    "goes on": re.compile(r"\b(go|goes|went|going) on\b(?! (to|a|an|the)\b)"),
    "lies": re.compile(r"\b(lie|lies|lay)\b(?! (between|in|within|above|below|beyond|outside|inside)\b)"),
    "who, of a program": re.compile(r"\b(process|worker|server|program|sampler|policy|child|rank)e?s?,? who\b"),
    "'' where": re.compile(r"^(''|None|0|\(\)) where\b"),
}


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield where each docstring stands, and its text."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        if text := ast.get_docstring(tree):
            yield name, text
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
                yield f"{name}:{node.name}", text


@cache
def complaints() -> tuple[str, ...]:
    """Return what is wrong with the docstrings of the package, in words."""
    return tuple(f"{where}: {wrong}" for where, text in docstrings() for wrong in wrongs(text))


def wrongs(text: str) -> list[str]:
    """Return what is wrong with a docstring."""
    first = text.split("\n\n")[0]
    found = [f"a noun clause as a sentence: {first[:60]!r}"] if NOUN_CLAUSE.match(first) else []
    found += [
        f"'{name}' in {match[0]!r}" for name, shape in ODD.items() if (match := shape.search(" ".join(text.split())))
    ]
    return found + (
        [] if first.rstrip().endswith((".", ":", "?", "!", "…", "`")) else [f"no full stop: {first[-40:]!r}"]
    )


def test_docstrings_are_sentences_in_plain_words() -> None:
    assert complaints() == ()


@pytest.mark.parametrize(
    "text",
    [
        "What a template shows.",
        "Whether it is whole.",
        "Read the file if it is there.",
        "The run goes on.",
        "A process, who dies.",
        "None where it is unknown.",
        "Return it",
    ],
)
def test_what_is_odd_is_told(text: str) -> None:
    assert wrongs(text)


@pytest.mark.parametrize(
    "text", ["Return whether it is whole.", "Say what a template shows.", "Read it, if there is one."]
)
def test_what_is_plain_passes(text: str) -> None:
    assert wrongs(text) == []
