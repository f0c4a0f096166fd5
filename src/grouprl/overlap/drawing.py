"""Drawing while weights change: an answer in the making goes on with the new ones, each token accounted for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from grouprl.overlap.canary import Report, canary_tokens, forced_logp
from grouprl.overlap.weights import NONE, SharedWeights, checksum
from grouprl.rollout.sampler import Rollout, generate


class Follower:
    """A policy that takes the newest weights from shared memory; `report` hears of each exchange."""

    def __init__(self, policy: Any, weights: SharedWeights, report: Callable[[Report], None]) -> None:
        self.policy, self.weights, self._report = policy, weights, report
        self.version, self._canary = NONE, canary_tokens(policy)

    @property
    def outdated(self) -> bool:
        """Whether there are newer weights than those of the policy."""
        return self.weights.latest > self.version

    def refresh(self) -> None:
        """Take the newest weights, if they are newer, and let the canary sing."""
        if not self.outdated:
            return
        self.version, state = self.weights.read()
        self.policy.load_trainable_state(state)
        logp_bt = forced_logp(self.policy, self._canary)
        logp = tuple(tuple(row) for row in logp_bt.tolist())
        self._report(Report(self.version, checksum(self.policy.trainable_state()), logp))


@dataclass
class _Answer:
    """An answer in the making."""

    prompt: tuple[int, ...]
    seed: int
    heat: float
    budget: int
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def open(self) -> bool:
        """Whether tokens are still to come."""
        return not self.ended and len(self.ids) < self.budget


class InFlight:
    """`generate` for the sampler process: with `partial`, answers go on with new weights as soon as there are some.

    When weights are exchanged, the keys and values of what was written are computed anew, so that the log-prob of a
    token is exactly the one of the version that drew it, given everything before. `version_bt` [B,T] holds the
    versions of the last call, -1 beyond the end.
    """

    def __init__(self, follower: Follower, *, partial: bool) -> None:
        self.follower, self.partial = follower, partial
        self.version_bt = np.zeros((0, 0), dtype=np.int64)

    def __call__(
        self,
        policy: Any,
        prompts: Sequence[Sequence[int]],
        *,
        n: int,
        max_new_tokens: int,
        seeds: Sequence[int],
        temperature: float | Sequence[float] = 1.0,
        budgets: Sequence[int] | None = None,
        **options: Any,
    ) -> Rollout:
        """Draw as `grouprl.rollout.sampler.generate` does; `options` are passed on.

        Sequences and texts that end an answer (`stop`, `stop_texts`) may lie across an exchange; with any the weights
        stay as they are.
        """
        rows = [tuple(prompt) for prompt in prompts for _ in range(n)]
        heat = [temperature] * len(rows) if isinstance(temperature, float | int) else list(temperature)
        limits = budgets or [max_new_tokens] * len(rows)
        answers = [_Answer(*given) for given in zip(rows, seeds, heat, limits, strict=True)]
        pause = (
            (lambda: self.follower.outdated)
            if self.partial and not (options.get("stop") or options.get("stop_texts"))
            else None
        )
        whole = _draw(policy, answers, self.follower.version, pause, options)
        if not any(answer.open for answer in answers):
            self.version_bt = _laid_out([answer.versions for answer in answers], NONE)
            return whole
        while going := [answer for answer in answers if answer.open]:
            self.follower.refresh()
            _draw(policy, going, self.follower.version, pause, options)
        self.version_bt = _laid_out([answer.versions for answer in answers], NONE)
        kind = whole.logp_bt.dtype
        return Rollout(
            whole.prompt_ids,
            tuple(tuple(answer.ids) for answer in answers),
            torch.from_numpy(_laid_out([answer.logp for answer in answers], 0.0)).to(kind),
            torch.from_numpy(_laid_out([answer.entropy for answer in answers], 0.0)).to(kind),
            torch.tensor([not answer.ended for answer in answers]),
        )


def _draw(
    policy: Any, answers: list[_Answer], version: int, pause: Callable[[], bool] | None, options: dict[str, Any]
) -> Rollout:
    """Let `answers` go on until they end or are paused; returns what was written now."""
    budgets = [answer.budget - len(answer.ids) for answer in answers]
    part = generate(
        policy,
        [(*answer.prompt, *answer.ids) for answer in answers],
        n=1,
        max_new_tokens=max(budgets),
        seeds=[answer.seed for answer in answers],
        temperature=[answer.heat for answer in answers],
        budgets=budgets,
        drawn=[len(answer.ids) for answer in answers],
        pause=pause,
        **options,
    )
    logp, entropy = part.logp_bt.tolist(), part.entropy_bt.tolist()
    for i, (answer, ids) in enumerate(zip(answers, part.response_ids, strict=True)):
        answer.ids += ids
        answer.logp += logp[i][: len(ids)]
        answer.entropy += entropy[i][: len(ids)]
        answer.versions += [version] * len(ids)
        answer.ended = not bool(part.truncated_b[i])
    return part


def _laid_out(rows: Sequence[Sequence[float]], fill: float) -> np.ndarray:
    """[B,T] of ragged rows; int64 for whole numbers, else float64."""
    kind = np.int64 if isinstance(fill, int) else np.float64
    out = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
