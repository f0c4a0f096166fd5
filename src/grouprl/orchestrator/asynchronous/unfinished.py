"""Samples in the making: what was sampled so far, and the request for the rest.

Tokens written so far join the prompt of the rest, so that their keys and values are computed with the weights that
continue: each token's log-prob is exactly that of the version that sampled it, given everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from grouprl.core.json_types import State
from grouprl.protocols import NO_VERSION, Request, Samples

Prompt = tuple[int, ...]


@dataclass
class OpenSample:
    """A sample that may be unfinished; the lists have one entry for each token sampled so far."""

    request: Request[Prompt]
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ended: bool = False
    """True once an end token was sampled."""

    @property
    def open(self) -> bool:
        """True if more tokens are to be sampled."""
        return not self.ended and len(self.ids) < self.request.budget

    @property
    def rest(self) -> Request[Prompt]:
        """A request for the tokens that remain to be sampled."""
        count = len(self.ids)
        prompt, budget = (*self.request.prompt, *self.ids), self.request.budget - count
        grammar = self.request.grammar
        # The grammar and the random numbers count tokens from the completion's own beginning, not the prompt's end.
        grammar = None if grammar is None else replace(grammar, behind=grammar.behind + count)
        sampled = self.request.sampled + count
        return replace(self.request, prompt=prompt, budget=budget, sampled=sampled, grammar=grammar)

    def state(self) -> State:
        """Return what was sampled so far as plain data; the request is not part of it."""
        return {
            "ids": list(self.ids),
            "logp": list(self.logp),
            "entropy": list(self.entropy),
            "versions": list(self.versions),
            "ended": self.ended,
        }

    @classmethod
    def continued(cls, request: Request[Prompt], state: State) -> OpenSample:
        """Return the sample of `request` as `state` has it."""
        return cls(request, **state)


def extend(samples: Sequence[OpenSample], part: Samples[int], version: int) -> None:
    """Add to each of `samples` its row of `part`, which `version` sampled unless the row itself says which did."""
    logp, length = part.logp_bt.tolist(), part.logp_bt.shape[1]
    zeros_bt = np.zeros((len(samples), length))
    entropy = (zeros_bt if part.entropy_bt is None else part.entropy_bt).tolist()
    versions = (np.full((len(samples), length), version) if part.version_bt is None else part.version_bt).tolist()
    for i, (sample, ids) in enumerate(zip(samples, part.actions, strict=True)):
        sample.ids += ids
        sample.logp += logp[i][: len(ids)]
        sample.entropy += entropy[i][: len(ids)]
        sample.versions += versions[i][: len(ids)]
        sample.ended = not bool(part.truncated_b[i])


def gathered(samples: Sequence[OpenSample], kind: np.dtype, *, exact: bool) -> Samples[int]:
    """Return `samples`, with log-probs and entropies of the type `kind`."""
    return Samples(
        actions=tuple(tuple(sample.ids) for sample in samples),
        logp_bt=_laid_out([sample.logp for sample in samples], 0.0).astype(kind),
        truncated_b=np.array([not sample.ended for sample in samples]),
        exact=exact,
        entropy_bt=_laid_out([sample.entropy for sample in samples], 0.0).astype(kind),
        version_bt=_laid_out([sample.versions for sample in samples], NO_VERSION),
    )


def _laid_out(rows: Sequence[Sequence[float]], fill: float) -> np.ndarray:
    """Return ragged rows as an array [B,T], padded with `fill`; int64 for whole numbers, otherwise float64."""
    kind = np.int64 if isinstance(fill, int) else np.float64
    out = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
