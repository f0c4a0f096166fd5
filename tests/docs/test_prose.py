"""Docstrings, descriptions of fields and messages are in plain words; none of the first is a lone noun clause."""

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
FIELD_CLAUSE = re.compile(r"(What|How(?! (many|much)\b)|Whose|Who|Where|Why|When)\b(?!.*[?,])")
"""The same for a field, where "Whether", "Which" and "How many" are the usual words; "If …, …" is a sentence."""
ODD = {
    "is there": re.compile(
        r"\b(is|are|was|were) there\b(?! (a|an|any|no|none|one|two|more|something|nothing|still)\b)"
    ),
    "goes on": re.compile(r"\b(go|goes|went|going) on\b(?! (to|a|an|the)\b)"),
    "lies": re.compile(r"\b(lie|lies|lay)\b(?! (between|in|within|above|below|beyond|outside|inside)\b)"),
    "who, of a program": re.compile(r"\b(process|worker|server|program|sampler|policy|child|rank)e?s?,? who\b"),
    "'' where": re.compile(r"^(''|None|0|\(\)) where\b"),
    "mend": re.compile(r"\bMend\b"),
    "in the place of": re.compile(r"\bin the place of\b"),
    "such": re.compile(r"\bthere (is|are) such\b(?! an?\b)"),
    "as of": re.compile(r"\bas of `"),
    "behind, of text": re.compile(
        r"\bbehind (the|a|its|their|each) (prompt|completion|token|thought|call|turn|answer)s?\b"
    ),
    "small letters": re.compile(r"\bin small letters\b"),
    "for sure": re.compile(r"\bfor sure\b"),
    "dossier": re.compile(r"\bdossier"),
    "is no": re.compile(
        r"(?<!there )(?<!There )\b(is|are|was|were) no (?!(longer|more|less|one|better|worse|larger|smaller|higher|"
        r"lower|shorter|nearer|further|such|different|other|sign|reason|\d)\b)"
    ),
    "at least, after the number": re.compile(r"\b(one|two|three|\d+)( (?!and|has)[a-z]+)? at least(?! [`\d-])\b"),
    "at the most": re.compile(r"\bat the (most|least)\b"),
    "none such": re.compile(r"\bnone such\b"),
    "there are not": re.compile(r"\b(that|which) there (is|are) not\b"),
    "the rows stay": re.compile(r"\b[Tt]he rows stay\."),
    "a former": re.compile(r"\ba former\b"),
    "of nothing": re.compile(r"\bof nothing\b"),
    "legal are": re.compile(r"^[Ll]egal are\b"),
    "who, of agents": re.compile(r"\b(those|all) who (name|act|arrive)"),
}
MOST = re.compile(r"[Mm]ost (?!of\b)\w+s\b(?! \w+ (are|have|do)\b)")
"""The beginning of a description: "most tokens" are the majority of them, and not the largest number."""
ABOUT = re.compile(r"(^|\. )Of (?!course\b)[^,.;:`]{3,60}, ")
"""A sentence of a docstring that begins with what it is about: "Of a pair, the first wins"."""
ARGUMENT = re.compile(r"\s+[a-z_]+: " + MOST.pattern)
"""The same for an argument."""
TALK = "tasks/"
"""Where texts are those of games and of data, which may have any words."""
LEAST_WORDS = 4
"""Words of a text in code that is taken for a message."""


def texts() -> Iterator[tuple[str, str, str]]:
    """Yield where each text of the package stands, its kind (docstring, field or code), and the text."""
    for path in sorted(ROOT.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        name = path.relative_to(ROOT).as_posix()
        holders = [node for node in nodes if isinstance(node, (*DEFINITIONS, ast.Module))]
        kinds = {id(each): "field" for node in nodes for each in documented(getattr(node, "body", None))}
        for node in holders:
            if text := ast.get_docstring(node):
                yield f"{name}:{getattr(node, 'name', '')}", "docstring", text
                kinds[id(node.body[0].value)] = "docstring"  # type: ignore[attr-defined]
        for node in nodes:
            kind = kinds.get(id(node), "code")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and kind != "docstring":
                yield f"{name}:{node.lineno}", kind, " ".join(node.value.split())


def documented(body: object) -> Iterator[ast.Constant]:
    """Yield the texts that stand alone among statements: docstrings and descriptions of fields."""
    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield statement.value


@cache
def complaints() -> tuple[str, ...]:
    """Return what is wrong with the texts of the package, in words."""
    told = []
    for where, kind, text in texts():
        if kind == "docstring":
            told += [f"{where}: {wrong}" for wrong in wrongs(text)]
            continue
        if kind == "field" and FIELD_CLAUSE.match(text):
            told.append(f"{where}: a noun clause as a description: {text[:60]!r}")
        if kind == "field" and MOST.match(text):
            told.append(f"{where}: 'most' for the largest number: {text[:60]!r}")
        if text.count(" ") >= LEAST_WORDS - 1 and not where.startswith(TALK):
            told += [f"{where}: {wrong}" for wrong in odd(text)]
    return tuple(told)


def wrongs(text: str) -> list[str]:
    """Return what is wrong with a docstring."""
    first = text.split("\n\n")[0]
    found = [f"a noun clause as a sentence: {first[:60]!r}"] if NOUN_CLAUSE.match(first) else []
    return [
        *found,
        *odd(" ".join(text.split())),
        *(f"a sentence that begins with {match[0]!r}" for match in ABOUT.finditer(" ".join(text.split()))),
        *(f"'most' for the largest number: {line.strip()!r}" for line in text.splitlines() if ARGUMENT.match(line)),
        *([] if first.rstrip().endswith((".", ":", "?", "!", "…", "`")) else [f"no full stop: {first[-40:]!r}"]),
    ]


def odd(text: str) -> list[str]:
    """Return which odd words a text on one line has."""
    return [f"'{name}' in {match[0]!r}" for name, shape in ODD.items() if (match := shape.search(text))]


def test_docstrings_fields_and_messages_are_in_plain_words() -> None:
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
        "Mend it.",
        "Return one in the place of another.",
        "Return the tokens behind the prompt.",
        "Raise it if a row is no pair.",
        "Return three rows at least.",
        "Refuse actions that there are not.",
        "Compare two. Of a pair, the first one wins.",
        "Sample.\n\nArgs:\n    budget: most tokens of a completion.",
    ],
)
def test_what_is_odd_is_told(text: str) -> None:
    assert wrongs(text)


@pytest.mark.parametrize(
    "text",
    ["Return whether it is whole.", "Say what a template shows.", "Read it, if there is one.", "It is no longer read."],
)
def test_what_is_plain_passes(text: str) -> None:
    assert wrongs(text) == []
