"""Praise and blame for parts of a completion: where they are found, which tokens they mark, and a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl import InputError
from grouprl.algorithms.augment.papers.span_feedback import SpanFeedback, covered, most_alike, spans
from grouprl.algorithms.part import RunFacts
from single_runs import launch, records
from small import near, small


def test_parts_are_found_wherever_they_stand():
    text = "the cat sat on the mat"
    assert spans(text, ["the"]) == [(0, 3), (15, 18)]
    assert spans(text, ["cat sat", "dog", " "]) == [(4, 11)]


def test_words_that_are_alike_are_found_too():
    text = "We should  divide both sides by four"
    assert text[slice(*most_alike(text, "divide both side"))] == "divide both sides"
    assert most_alike(text, "multiply everything") is None
    assert most_alike("", "x") is None


def test_tokens_that_a_part_touches_are_covered():
    assert covered(["ab", "c", "", "de"], [(1, 3), (3, 4), (9, 12)]) == [(0, 2), (3, 4)]


def critique(completion: str, **columns: Any) -> dict[str, list[str]]:
    return {"good": ["7"], "poor": ["8"]}


def test_marks_of_rows(monkeypatch):
    context = FakeContext((1.0, 0.0), completions=1, prompts=2, lengths=lambda i, n: 3)
    rows = context.sample(context.take(2))
    context.decode = lambda many: ["".join({7: "7", 8: "8"}.get(i, ".") for i in ids) for ids in many]
    filled = SpanFeedback(function=f"{__file__}:critique").fill(context.batch(rows), rows, context)
    ids = filled.token_bt
    assert torch.equal(filled.marks["good"], (ids == 7) & filled.mask_bt)
    assert torch.equal(filled.marks["poor"], (ids == 8) & filled.mask_bt)


def wrong(completion: str, **columns: Any) -> Any:
    return {"great": ["x"]}


def test_feedback_of_another_kind_is_refused():
    context = FakeContext((1.0,) * 8, completions=1, prompts=1)
    rows = context.sample(context.take(1))
    with pytest.raises(InputError, match="It must return"):
        SpanFeedback(function=f"{__file__}:wrong").fill(context.batch(rows), rows, context)
    assert "no function to ask" in SpanFeedback().refuse(RunFacts())[0]


def test_praise_reaches_the_tokens_before_it():
    marks = {"good": torch.tensor([[False, False, True, False]]), "poor": torch.zeros(1, 4, dtype=torch.bool)}
    batch = small([0], [4], marks=marks, value_bt=[[0.0] * 4], behavior_bt=[[-1.0] * 4])
    ready = grouprl.method("text2grad", whiten=False, kl_coef=0.0, lam=1.0).compute_advantages(batch)
    near(ready.advantage_bt, [[1, 1, 1, 0]])


def digits(completion: str, *, answer: str, **columns: Any) -> dict[str, list[str]]:
    """Praise digits of the completion, blame the others."""
    return {"good": sorted(set(answer) & set(completion)), "poor": sorted(set(completion) - set(answer))}


def test_a_run_with_feedback(tmp_path: Path) -> None:
    method = {"name": "text2grad", "feedback": f"{__file__}:digits"}
    run = launch(tmp_path / "run", method=method, warmup={"steps": 5, "batch": 8}, steps=2)
    assert records(run.folder, "train")[-1]["grad_norm"] > 0
