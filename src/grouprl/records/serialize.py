"""Rows as plain data, for the memory of data parts: exact, and without anything that the task can supply again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from grouprl.core.edges import Edges
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.protocols import PolicyInputs
from grouprl.records.episode_records import Record, Turn
from grouprl.records.examples import Example, Prompt, Split
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Problem, Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens

Packed = JsonObject
"""Data that a checkpoint can hold: numbers, strings, lists, dicts and tensors."""
Kept = TypeVar("Kept")
KEPT: dict[str, type] = {}
"""Kinds of inputs, besides tokens, that rows can be stored with."""
_ARRAYS = ("group_b", "index_b", "sample_b", "valid_b", "source_b", "foreign_b")


class VariedTask(Protocol):
    """A task whose prompts, and their variants, can be found again by number."""

    @property
    def name(self) -> str:
        """The name in messages."""

    def example(self, split: Split, index: int, /) -> Example:
        """Return prompt number `index` of a split."""

    def variants(self, example: Example, /) -> Sequence[Example]:
        """Return other forms of a prompt."""


def pack(samples: ScoredSamples) -> Packed:
    """Return rows as plain data; examples are stored only by number and id, prompts only if they differ from the
    example's.

    `unpack` returns the same rows if it is given the same task.
    """
    rollout, scores = samples.rollout, samples.scores
    greedy = samples.greedy_reward_b
    return {
        **{name: torch.from_numpy(getattr(samples, name).copy()) for name in _ARRAYS},
        "example_ids": [example.id for example in samples.examples],
        "inputs": packed_inputs(rollout.inputs),
        "logp_bt": rollout.logp_bt.clone(),
        "entropy_bt": rollout.entropy_bt.clone(),
        "truncated_b": rollout.truncated_b.clone(),
        "reward_b": torch.from_numpy(scores.reward_b.copy()),
        "components": {name: torch.from_numpy(x.copy()) for name, x in scores.components.items()},
        "correct_b": torch.from_numpy(scores.correct_b.copy()),
        "status_b": scores.status_b.tolist(),
        "problems": [astuple(problem) for problem in scores.problems],
        "greedy_reward_b": None if greedy is None else torch.from_numpy(greedy.copy()),
        "extras": {name: torch.from_numpy(x.copy()) for name, x in samples.extras.items()},
        "records": None if samples.records is None else [None if r is None else asdict(r) for r in samples.records],
        "edges": {name: [e.index_e2.clone(), e.value_e.clone()] for name, e in samples.edges.items()},
        **(_packed_texts(samples) if isinstance(samples, TextSamples) else {}),
    }


def unpack(packed: JsonMapping, task: VariedTask) -> ScoredSamples:
    """Return the rows that `pack` was given. Raises InputError if `task` no longer has one of their prompts."""
    examples = tuple(
        _example(task, index, name)
        for index, name in zip(packed["index_b"].tolist(), packed["example_ids"], strict=True)
    )
    greedy = packed["greedy_reward_b"]
    inputs = unpacked_inputs(packed["inputs"])
    columns = dict(
        examples=examples,
        **{name: packed[name].numpy().copy() for name in _ARRAYS},
        rollout=Rollout(
            inputs=inputs,
            logp_bt=packed["logp_bt"].clone(),
            entropy_bt=packed["entropy_bt"].clone(),
            truncated_b=packed["truncated_b"].clone(),
        ),
        scores=Scores(
            reward_b=packed["reward_b"].numpy().copy(),
            components={name: x.numpy().copy() for name, x in packed["components"].items()},
            correct_b=packed["correct_b"].numpy().copy(),
            status_b=np.array(packed["status_b"]),
            problems=[Problem(*values) for values in packed["problems"]],
        ),
        greedy_reward_b=None if greedy is None else greedy.numpy().copy(),
        extras={name: x.numpy().copy() for name, x in packed["extras"].items()},
        records=None if packed.get("records") is None else tuple(map(_record, packed["records"])),
        edges={name: Edges(index.clone(), value.clone()) for name, (index, value) in packed.get("edges", {}).items()},
    )
    if not isinstance(inputs, Tokens):
        return ScoredSamples(**columns)
    return TextSamples(**columns, **_texts(packed, examples))


def _packed_texts(samples: TextSamples) -> Packed:
    pairs = zip(samples.prompts, samples.examples, strict=True)
    prompts = [None if prompt == example.prompt else _plain(prompt) for prompt, example in pairs]
    return {"prompts": prompts, "texts": list(samples.texts)}


def _texts(packed: JsonMapping, examples: Sequence[Example]) -> dict[str, Any]:
    pairs = zip(packed["prompts"], examples, strict=True)
    prompts = tuple(example.prompt if prompt is None else _prompt(prompt) for prompt, example in pairs)
    return {"prompts": prompts, "texts": tuple(packed["texts"])}


def keepable(kind: type[Kept]) -> type[Kept]:
    """Allow rows with inputs of this kind to be stored (a decorator for a dataclass of tensors, or of mappings of
    them).
    """
    KEPT[kind.__name__] = kind
    return kind


def packed_inputs(inputs: PolicyInputs) -> Packed:
    """Return inputs as plain data. Raises InputError for a kind that is not registered."""
    if isinstance(inputs, Tokens):
        return {"prompt_ids": _flat(inputs.prompt_ids), "response_ids": _flat(inputs.response_ids)}
    name = type(inputs).__name__
    if KEPT.get(name) is not type(inputs):
        raise InputError(
            f"rows of {name} cannot be stored",
            "a checkpoint holds only inputs of registered kinds",
            f"Decorate {name} with grouprl.records.serialize.keepable, or remove the part that stores rows",
        )
    return {"kind": name, "fields": {each.name: _cloned(getattr(inputs, each.name)) for each in fields(inputs)}}  # type: ignore[arg-type]


def unpacked_inputs(packed: JsonMapping) -> PolicyInputs:
    """Return the inputs that `packed_inputs` was given."""
    if "kind" not in packed:
        return Tokens(_rows(packed["prompt_ids"]), _rows(packed["response_ids"]))
    made: PolicyInputs = KEPT[packed["kind"]](**{name: _cloned(value) for name, value in packed["fields"].items()})
    return made


def _cloned(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _cloned(each) for name, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _record(plain: JsonMapping | None) -> Record | None:
    if plain is None:
        return None
    turns = tuple(Turn(**turn) for turn in plain["turns"])
    return Record(plain["agent"], plain["ended"], turns, plain.get("judged", True))  # older checkpoints lack it


def _flat(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return ragged token ids as one tensor with the lengths of the rows."""
    return {
        "ids": torch.tensor([token for ids in rows for token in ids], dtype=torch.int32),
        "lengths": torch.tensor([len(ids) for ids in rows], dtype=torch.int64),
    }


def _rows(flat: Mapping[str, Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ids.tolist()) for ids in flat["ids"].split(flat["lengths"].tolist()))


def _plain(prompt: Prompt) -> object:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _prompt(plain: Any) -> Prompt:
    return plain if isinstance(plain, str) else tuple(plain)


def _example(task: VariedTask, index: int, name: str) -> Example:
    """Return example `index` of the training split, or its variant called `name`."""
    example = task.example("train", index)
    if example.id == name:
        return example
    for variant in task.variants(example):
        if variant.id == name:
            return variant
    raise InputError(
        f"the task '{task.name}' has no prompt '{name}' (number {index})",
        "stored rows belong to the prompts that they were sampled for",
        "Continue with the task that the run began with",
    )
