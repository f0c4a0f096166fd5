"""The gold answers of a whole data set, tried before a run: each must be scored as correct."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grouprl.core.errors import GrouprlError, shortened
from grouprl.records.examples import Split
from grouprl.records.offline import samples_evaluations
from grouprl.rewards import Columns
from grouprl.rewards.catalogue.builtin import math_equal
from grouprl.rewards.catalogue.golds import gold_completion, refused_golds
from grouprl.rewards.math.math_answers import is_formula
from grouprl.rewards.math.math_text import tidy, whole_gold
from grouprl.rewards.validation import plain_rewards
from grouprl.tasks import Example, Task
from grouprl.tasks.rows import RowTask

if TYPE_CHECKING:
    from grouprl.rewards.contract import Reward

SAMPLED = 32
"""Number of prompts tried from an endless split; of a data set, all are tried."""
SHOWN = 5


def gold_refusals(reward: Reward, task: Task) -> list[str]:
    """Return a sentence for each of the first rows whose gold the reward cannot grade, and a count of the others."""
    if task.max_turns > 1 or task.environment() is not None:
        return []
    examples: list[Columns] = []
    labels: list[str] = []
    for example, label in _requested(task):
        if not examples and not _graded(reward, example):
            return []
        examples.append(example.columns)
        labels.append(label)
    found = refused_golds(reward, examples, labels)
    more = [f"{len(found) - SHOWN} more rows have golds that cannot be graded"] if len(found) > SHOWN else []
    return found[:SHOWN] + more


def formula_notes(reward: Reward, task: Task) -> list[str]:
    """Say how many golds of `math_equal` are formulas if no form is demanded: any equal formula is right for them."""
    free = [plain for plain in plain_rewards(reward) if _any_form(plain)]
    if not free or task.max_turns > 1 or task.environment() is not None:
        return []
    found = [example.columns.get("answer") for example, _ in _requested(task)]
    formulas = [str(answer) for answer in found if answer is not None and _holds_unknowns(str(answer))]
    if not formulas:
        return []
    return [
        f"{len(formulas)} of {len(found)} golds of 'math_equal' are formulas, such as {shortened(formulas[0])}: any "
        "formula equal to them is right, a copy of one in the prompt included. 'form: simplified' of the reward (or "
        "expanded, factored) demands more"
    ]


def _any_form(plain: object) -> bool:
    options = plain.keywords if isinstance(plain, partial) else {}
    return (plain.func if isinstance(plain, partial) else plain) is math_equal and options.get("form", "any") == "any"


def _holds_unknowns(answer: str) -> bool:
    text = tidy(whole_gold(answer))
    return bool(text) and text is not None and is_formula(text)


def _graded(reward: object, example: Example) -> bool:
    """Return whether some part of a reward has gold answers."""
    for plain in plain_rewards(reward):  # type: ignore[arg-type]
        try:
            if gold_completion(plain, example.columns) is not None:
                return True
        except Exception:  # a gold answer of the wrong type still counts as one
            return True
    return False


def _requested(task: Task) -> list[tuple[Example, str]]:
    splits: tuple[Split, ...] = ("eval",) if samples_evaluations(task) else ("train", "eval")
    found = []
    for split in splits:
        size = task.size(split)
        for index in range(SAMPLED if size is None else size):
            try:
                example = task.example(split, index)
            except GrouprlError:  # a stream may have no prompt here; that is reported elsewhere
                break
            label = task.label(split, index) if isinstance(task, RowTask) else f"prompt {example.id}"
            found.append((example, label))
    return found
