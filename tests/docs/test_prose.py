"""Docstrings are sentences that a reader does not stop at: of functions in the imperative, and without odd words."""

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
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NOUN_CLAUSE = re.compile(r"(What|Whether|How|Whose|Who|Where|Which|Why|When)\b(?!.*\?)")
"""A docstring of a function that begins so is the object of a sentence whose verb is missing."""
ODD = {
    "is there": re.compile(
        r"\b(is|are|was|were) there\b(?! (a|an|any|no|none|one|two|more|something|nothing|still)\b)"
    ),
    "goes on": re.compile(r"\b(go|goes|went|going) on\b(?! (to|a|an|the)\b)"),
    "lies": re.compile(r"\b(lie|lies|lay)\b(?! (between|in|within|above|below|beyond|outside|inside)\b)"),
    "who, of a program": re.compile(r"\b(process|worker|server|program|sampler|policy|child|rank)e?s?,? who\b"),
    "'' where": re.compile(r"^(''|None|0|\(\)) where\b"),
}


def docstrings() -> Iterator[tuple[str, bool, str]]:
    """Yield where each docstring stands, whether it is a plain function's, and its text."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        if text := ast.get_docstring(tree):
            yield name, False, text
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
                yield f"{name}:{node.name}", _is_function(node), text


def _is_function(node: ast.AST) -> bool:
    """Return whether a docstring has to be an order: properties and fixtures are named as what they are."""
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    return isinstance(node, FUNCTIONS) and not any("property" in each for each in decorators)


@cache
def complaints() -> tuple[str, ...]:
    """Return what is wrong with the docstrings of the package, in words."""
    return tuple(f"{where}: {wrong}" for where, function, text in docstrings() for wrong in wrongs(text, function))


def wrongs(text: str, function: bool) -> list[str]:
    """Return what is wrong with a docstring."""
    first = text.split("\n\n")[0]
    found = [f"a noun clause as a sentence: {first[:60]!r}"] if function and NOUN_CLAUSE.match(first) else []
    found += [
        f"'{name}' in {match[0]!r}" for name, shape in ODD.items() if (match := shape.search(" ".join(text.split())))
    ]
    return found + (
        [] if first.rstrip().endswith((".", ":", "?", "!", "…", "`")) else [f"no full stop: {first[-40:]!r}"]
    )


def test_docstrings_are_sentences_in_plain_words() -> None:
    assert complaints() == ()


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("What a template shows.", True),
        ("Whether it is whole.", True),
        ("Read the file if it is there.", True),
        ("The run goes on.", False),
        ("A process, who dies.", False),
        ("None where it is unknown.", True),
        ("Return it", True),
    ],
)
def test_what_is_odd_is_told(text: str, function: bool) -> None:
    assert wrongs(text, function)


@pytest.mark.parametrize(
    "text", ["Return whether it is whole.", "Say what a template shows.", "Read it, if there is one."]
)
def test_what_is_plain_passes(text: str) -> None:
    assert wrongs(text, True) == []
