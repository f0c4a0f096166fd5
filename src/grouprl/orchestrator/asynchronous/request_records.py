"""Questions that are under way, as plain data for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from grouprl.core.errors import InputError
from grouprl.rollout.requests import Ask
from grouprl.tasks.task import Task


def pack_ask(ask: Ask) -> dict[str, Any]:
    """Return `ask` as plain data; its question is kept by number and id alone."""
    plain = {f.name: getattr(ask, f.name) for f in fields(ask)}
    prompt = ask.prompt if ask.prompt is None or isinstance(ask.prompt, str) else [dict(m) for m in ask.prompt]
    return plain | {"question": ask.question.id, "prompt": prompt, "keys": dict(ask.keys)}


def unpack_ask(plain: Mapping[str, Any], task: Task) -> Ask:
    """Return the ask that `pack_ask` was given; InputError where `task` no longer has its question."""
    question = task.question("train", plain["index"])
    if question.id != plain["question"]:
        raise InputError(
            f"the task '{task.name}' has no question '{plain['question']}' (number {plain['index']})",
            "questions that were under way are asked again",
            "Go on with the task that the run began with",
        )
    prompt = tuple(plain["prompt"]) if isinstance(plain["prompt"], list) else plain["prompt"]
    return Ask(**{**plain, "question": question, "prompt": prompt})
