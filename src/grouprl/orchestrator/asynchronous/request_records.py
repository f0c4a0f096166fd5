"""Prompts in flight, as plain data for a checkpoint."""

from __future__ import annotations

from dataclasses import fields

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.records.requests import RolloutRequest
from grouprl.tasks.task import Task


def pack_request(request: RolloutRequest) -> dict[str, object]:
    """Return `request` as plain data; its prompt is stored by number and id only."""
    plain = {f.name: getattr(request, f.name) for f in fields(request)}
    prompt = (
        request.prompt
        if request.prompt is None or isinstance(request.prompt, str)
        else [dict(m) for m in request.prompt]
    )
    return plain | {"example": request.example.id, "prompt": prompt, "keys": dict(request.keys)}


def unpack_request(plain: JsonMapping, task: Task) -> RolloutRequest:
    """Return the request that `pack_request` stored; InputError if `task` no longer has its prompt."""
    example = task.example("train", plain["index"])
    if example.id != plain["example"]:
        raise InputError(
            f"the task '{task.name}' has no prompt '{plain['example']}' (number {plain['index']})",
            "prompts that were in flight at the checkpoint are requested again",
            "Continue with the task that the run began with",
        )
    prompt = tuple(plain["prompt"]) if isinstance(plain["prompt"], list) else plain["prompt"]
    return RolloutRequest(**{**plain, "example": example, "prompt": prompt})
