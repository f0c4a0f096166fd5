"""Token ids of a batch of sequences, from which a text policy scores them."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.records.shared_prefixes import Histories, Ids, histories


@dataclass(frozen=True)
class Tokens:
    """Prompts and responses of B rows as token ids; T is the length of the longest response.

    `response_ids` holds everything after the first prompt: the policy's own tokens and those inserted between them
    (tool output). The batch's `mask_bt`, which is not stored here, marks those that the policy wrote.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    response_ids: tuple[tuple[int, ...], ...]
    agents: tuple[int, ...] | None = None
    """[B] number of the agent that each row belongs to; None if there is only one."""

    def __post_init__(self) -> None:
        if len(self.prompt_ids) != len(self.response_ids):
            raise InputError(
                f"{len(self.prompt_ids)} prompts and {len(self.response_ids)} responses",
                "Tokens needs one response per prompt row",
                "Repeat the prompt for each of its responses",
            )
        if self.agents is not None and len(self.agents) != len(self.prompt_ids):
            raise InputError(
                f"{len(self.agents)} agents for {len(self.prompt_ids)} rows", "Every row needs exactly one agent"
            )
        for row, prompt in enumerate(self.prompt_ids):
            if not prompt:
                raise InputError(
                    f"The prompt of row {row} has no tokens",
                    "The first response token is predicted from the last prompt token, so a prompt needs at least one",
                    "Begin the prompt with the tokenizer's bos token",
                )

    @classmethod
    def of(cls, prompts: Iterable[Sequence[int]], responses: Iterable[Sequence[int]]) -> Tokens:
        """Build from any sequences of integers (lists, arrays, tensors)."""
        return cls(tuple(_ints(ids) for ids in prompts), tuple(_ints(ids) for ids in responses))

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def rows(self, index: Iterable[int]) -> Tokens:
        """Return the rows with the numbers `index`, in that order."""
        chosen = index.tolist() if isinstance(index, torch.Tensor) else [int(i) for i in index]
        if chosen == list(range(len(self))):
            return self
        agents = None if self.agents is None else tuple(self.agents[i] for i in chosen)
        return Tokens(tuple(self.prompt_ids[i] for i in chosen), tuple(self.response_ids[i] for i in chosen), agents)

    def of_agents(self, agents: Iterable[int]) -> Tokens:
        """Return the same rows with the number of the agent that each belongs to."""
        return replace(self, agents=_ints(tuple(agents)))

    @cached_property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Tokens per prompt, [B]."""
        return tuple(map(len, self.prompt_ids))

    @cached_property
    def response_lengths(self) -> tuple[int, ...]:
        """Tokens per response, [B]."""
        return tuple(map(len, self.response_ids))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens per whole sequence, [B]."""
        return tuple(map(operator.add, self.prompt_lengths, self.response_lengths))

    @cached_property
    def tree(self) -> Histories:
        """The rows laid out as a tree of shared beginnings."""
        return histories(read_rows(self))

    @property
    def max_response(self) -> int:
        """T, the length of the longest response (0 for an empty batch)."""
        return max(self.response_lengths, default=0)

    @property
    def action_ids(self) -> tuple[Ids, ...]:
        """The tokens of each response, under the name that all kinds of inputs use for numbers of actions."""
        return self.response_ids

    @property
    def width(self) -> int:
        """T, the length of the longest response, under the name that all `PolicyInputs` use."""
        return self.max_response

    def fingerprints(self) -> list[bytes]:
        """Return a digest of each row: its prompt, its response, and its agent if there are several."""
        agents = self.agents or (-1,) * len(self)
        rows = zip(agents, self.prompt_ids, self.response_ids, strict=True)
        numbers = (
            np.array([agent, len(prompt), *prompt, *response], dtype=np.int64) for agent, prompt, response in rows
        )
        return [hashlib.sha256(row.tobytes()).digest() for row in numbers]

    def joined(self, others: Sequence[Tokens]) -> Tokens:
        """Return these rows and those of `others`, concatenated.

        Raises:
            InputError: only some rows name their agents.
        """
        parts = (self, *others)
        if len({part.agents is None for part in parts}) > 1:
            raise InputError(
                "rows with agents cannot be joined with rows without", "all rows must name their agents, or none"
            )
        agents = None if self.agents is None else tuple(i for part in parts for i in part.agents or ())
        prompts = tuple(ids for part in parts for ids in part.prompt_ids)
        return Tokens(prompts, tuple(ids for part in parts for ids in part.response_ids), agents)

    def present_bt(self) -> torch.Tensor:
        """Return a mask [B,T] that is True where a row has a response token."""
        lengths_b = torch.tensor(self.response_lengths, dtype=torch.long)
        return torch.arange(self.max_response) < lengths_b[:, None]

    def targets(self) -> torch.Tensor:
        """Return all response tokens, row after row, [M] with M the sum of `response_lengths`."""
        flat = np.fromiter(chain.from_iterable(self.response_ids), dtype=np.int64)
        return torch.from_numpy(flat)


def read_rows(tokens: Tokens) -> list[Ids]:
    """Return the tokens of each row that a model reads: the prompt, and the response without its last token."""
    return [p + r[:-1] for p, r in zip(tokens.prompt_ids, tokens.response_ids, strict=True)]


def _ints(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids.tolist() if hasattr(ids, "tolist") else map(int, ids))
