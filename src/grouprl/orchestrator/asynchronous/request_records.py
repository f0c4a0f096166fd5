"""Prompts that are under way, as plain data for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from grouprl.core.errors import InputError
from grouprl.records.requests import RolloutRequest
from grouprl.tasks.task import Task


def pack_request(request: RolloutRequest) -> dict[str, object]:
    """Return `request` as plain data; its prompt is kept by number and id alone."""
    plain = {f.name: getattr(request, f.name) for f in fields(request)}
    prompt = (
        request.prompt
        if request.prompt is None or isinstance(request.prompt, str)
        else [dict(m) for m in request.prompt]
    )
    return plain | {"example": request.example.id, "prompt": prompt, "keys": dict(request.keys)}


def unpack_request(plain: Mapping[str, Any], task: Task) -> RolloutRequest:
    """Return the request that `pack_request` was given; InputError where `task` no longer has its prompt."""
    example = task.example("train", plain["index"])
    if example.id != plain["example"]:
        raise InputError(
            f"the task '{task.name}' has no prompt '{plain['example']}' (number {plain['index']})",
            "prompts that were under way are requested again",
            "Continue with the task that the run began with",
        )
    prompt = tuple(plain["prompt"]) if isinstance(plain["prompt"], list) else plain["prompt"]
    return RolloutRequest(**{**plain, "example": example, "prompt": prompt})
