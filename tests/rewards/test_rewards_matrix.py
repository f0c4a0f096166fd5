"""The second matrix of attacks: no attack is right, every honest completion is; and the same inside of sentences."""

from __future__ import annotations

from typing import Any

import pytest

from grader_matrix import FORMS, FORMULAS, NUMBERS, TEXTS, Table
from grouprl.rewards import load_reward, math_equal, score
from grouprl.rewards.math import math_answers

LIKE_COUNTS = ("relaxed_accuracy", "mean_relative_accuracy", "tolerance_ramp")
FRAMES = ("{}", "The answer is {}.", "so x = {}", "**{}**", "first 7, then {}\n")
"""What honest completions stand in; an attack may read otherwise in another frame."""


def judged(name: Any, columns: list[dict[str, Any]], completions: list[str]) -> list[bool]:
    scores = score(load_reward(name), completions, columns, ids=[str(i) for i in range(len(completions))])
    assert set(scores.status_b.tolist()) == {"ok"}, scores.problems
    return list(scores.correct_b.tolist())


def misjudged(name: Any, table: Table) -> list[tuple[Any, str, bool]]:
    """Return (columns, completion, what it was called) of all that were called the wrong thing."""
    cases = [
        (columns, completion, honest)
        for columns, right, wrong in table
        for honest, completions in ((True, right), (False, wrong))
        for completion in completions
    ]
    found = judged(name, [columns for columns, _, _ in cases], [completion for _, completion, _ in cases])
    return [(columns, said, got) for (columns, said, honest), got in zip(cases, found, strict=True) if got != honest]


def golds(table: Table, frame: str = "{}") -> Table:
    put = frame.replace("{}", "\0").replace
    return [
        ({"answer": gold}, [put("\0", each) for each in right], [put("\0", each) for each in wrong])
        for gold, right, wrong in table
    ]


def test_numbers() -> None:
    assert misjudged("numeric_match", golds(NUMBERS)) == []
    for frame in FRAMES:
        honest = [(gold, right, []) for gold, right, _ in NUMBERS]
        assert misjudged("numeric_match", golds(honest, frame)) == [], frame


def test_formulas() -> None:
    pytest.importorskip("math_verify")
    assert misjudged("math_equal", golds(FORMULAS, r"\boxed{{}}")) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_demanded(form: str) -> None:
    pytest.importorskip("math_verify")
    assert misjudged({"name": "math_equal", "form": form}, golds(FORMS[form], r"\boxed{{}}")) == []


def test_the_formulas_of_a_list_share_one_clock(monkeypatch) -> None:
    pytest.importorskip("math_verify")
    calls, compared = [], math_answers._compared
    monkeypatch.setattr(math_answers, "_compared", lambda *given: calls.append(given) or compared(*given))
    golds, said = [f"x^{n}+x" for n in range(3, 8)], [f"x(x^{{{n - 1}}}+1)" for n in range(7, 2, -1)]
    assert math_equal(rf"\boxed{{{', '.join(said)}}}", ", ".join(golds)) == 1
    assert len(calls) == 1
    assert math_equal(r"\boxed{1, 2, 3}", "3, 2, 1") == 1
    assert len(calls) == 1  # numbers need no process


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    assert misjudged(name, TEXTS[name]) == []


@pytest.mark.parametrize("name", LIKE_COUNTS)
def test_counts(name: str) -> None:
    assert misjudged(name, TEXTS["fuzzy_count"]) == []


def test_the_matrix_is_large_and_half_of_it_is_no_refusal() -> None:
    tables = [NUMBERS, FORMULAS, *TEXTS.values()]
    assert sum(len(wrong) for table in tables for _, _, wrong in table) >= 500
    assert sum(len(right) for table in tables for _, right, _ in table) >= 240
