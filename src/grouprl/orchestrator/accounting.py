"""An account of every prompt and completion of a step: trained on, stored, sent elsewhere, or dropped for a reason.

Two balances hold: prompts sampled = trained on + elsewhere + lost, and completions sampled + completions from a store
= used + elsewhere + lost. "Elsewhere" is a store that later steps train on, or another trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grouprl.core.batch import Batch
from grouprl.orchestrator.account_words import ELSEWHERE, NOT_COMPLETED, REASONS
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import FAILED
from grouprl.rollout.scored_rows import CUT_TOKENS

Fates = NDArray[np.str_]
"""[B] reasons why rows were dropped; '' for rows that were kept."""

NO_ROWS: Fates = np.zeros(0, dtype="<U14")

Round = tuple[ScoredSamples, ScoredSamples | None, Fates]
"""The rows of one round; the rows that augment parts removed, which are not trained on; the reason for each
of these.
"""

Key = tuple[int, int, int]
"""A row's name: see `ScoredSamples.row_keys`."""


@dataclass(frozen=True)
class StepRollout:
    """Everything that a step sampled, including rows that augment parts replaced, and the rows to train on.

    `fate_b` [B] holds the reason why each sampled row was dropped (see `REASONS`).
    """

    sampled: ScoredSamples
    wanted: ScoredSamples
    rounds: int
    fate_b: Fates


@dataclass
class SampledCounts:
    """Counts of everything the policy has sampled since the last reading, including what was dropped."""

    keys: Counter[Key] = field(default_factory=Counter)
    """By row name: how often the row was sampled."""
    unnamed: int = 0
    """The number of completions without a name: turns sampled to teach a critic, and greedy baselines from another
    process.
    """
    tokens: int = 0

    def add(self, samples: ScoredSamples) -> None:
        """Count the rows of `samples`, and the tokens that the policy wrote in them."""
        self.keys.update(samples.row_keys)
        self.tokens += int(samples.acted_bt.sum())

    def add_unnamed(self, lengths: Iterable[int]) -> None:
        """Count completions of these lengths in tokens."""
        counted = list(lengths)
        self.unnamed += len(counted)
        self.tokens += sum(counted)

    @property
    def rows(self) -> int:
        """The number of rows and completions sampled."""
        return self.keys.total() + self.unnamed


def dropped(samples: ScoredSamples, *, asynchronous: bool = False) -> Fates:
    """Return [B] the reasons why rows are dropped; `asynchronous`: they were sampled ahead."""
    status_b = samples.scores.status_b
    gone_b = ~samples.valid_b
    fate_b = np.where(gone_b, "late" if asynchronous else "augment", "").astype("<U14")
    if not gone_b.any():
        return fate_b
    failed_b = np.isin(status_b, FAILED)
    # In rising order of precedence: each line may overwrite what those above it say of a row.
    fate_b[gone_b & np.isin(samples.ordinal_b, samples.ordinal_b[failed_b])] = "group"
    if samples.greedy_reward_b is not None:
        fate_b[gone_b & ~np.isfinite(samples.greedy_reward_b)] = "baseline"
    fate_b[gone_b & ~samples.acted_bt.any(1)] = "no_action"
    own_b = gone_b & (status_b != "ok")
    fate_b[own_b] = status_b[own_b]
    return fate_b


def account(
    requested: Iterable[int],
    sampled: ScoredSamples | None,
    fate_b: Fates,
    wanted: ScoredSamples | None,
    prepared: Batch | None,
    counts: SampledCounts | None = None,
) -> dict[str, float]:
    """Return the account of a step as metrics.

    Everything sampled is used, stored, sent or lost. Rows not sampled for this step count as stored: those of a
    buffer, demonstrations, and completions shown a second time under another prompt.

    Args:
        requested: ordinals of the prompts sampled.
        sampled: every row of the step (None: none).
        fate_b: why rows of `sampled` were dropped before training, or where they went; '' for those with advantages.
        wanted: the rows with advantages, including stored ones (None: none).
        prepared: the batch of `wanted` (None: nothing was trained on).
        counts: everything sampled; None: the rows of `sampled`.
    """
    fresh: list[Key] = [] if sampled is None else sampled.row_keys
    counts = SampledCounts(Counter(fresh)) if counts is None else counts
    keys: list[Key] = [] if wanted is None else wanted.row_keys
    active_b = np.zeros(len(keys), dtype=bool) if prepared is None else prepared.active_bt.any(1).numpy()
    used = {key for key, active in zip(keys, active_b.tolist(), strict=True) if active}
    here = set(fresh)
    why = [fate or ("" if key in used else "masked") for key, fate in zip(fresh, fate_b.tolist(), strict=True)]
    stored = [key for key in keys if key not in here]
    seen = Counter(key for key in fresh if key in counts.keys)
    lost = Counter(reason for reason in why if reason) + Counter("masked" for key in stored if key not in used)
    lost += Counter(probe=counts.rows - seen.total())
    rows = {
        "rows_sampled": counts.rows,
        "rows_stored": len(stored) + len(fresh) - seen.total(),
        "rows_used": int(active_b.sum()),
        "tokens_sampled": counts.tokens,
        **_cut(sampled),
        **_where("rows", lost),
    }
    prompts = _prompts(requested, [*fresh, *stored], [*why, *("" if key in used else "masked" for key in stored)])
    return {name: float(count) for name, count in (rows | prompts).items()}


def _cut(samples: ScoredSamples | None) -> dict[str, int]:
    """Count the stored rows that were cut, and their tokens; nothing where no row was."""
    cut_b = None if samples is None else samples.extras.get(CUT_TOKENS)
    return {} if cut_b is None else {"rows_cut": int((cut_b > 0).sum()), "tokens_cut": int(cut_b.sum())}


def account_before(prompts: int, counts: SampledCounts) -> dict[str, float]:
    """Return the account of the work done once before the first step; no step trains on its samples."""
    found = {"prompts_sampled": prompts, "rows_sampled": counts.rows, "tokens_sampled": counts.tokens}
    found |= {"prompts_stored": 0, "prompts_trained": 0, "rows_stored": 0, "rows_used": 0}
    found |= _where("prompts", {"pretraining": prompts}) | _where("rows", {"pretraining": counts.rows})
    return {name: float(count) for name, count in found.items()}


def _where(what: str, fates: Mapping[str, int]) -> dict[str, int]:
    """Return metrics that count the fates of rows or prompts, without those that did not occur."""
    names = {name: f"{what}_{name}" for name in ELSEWHERE}
    names |= {name: f"{what}_lost/{name}" for name in (NOT_COMPLETED, *REASONS)}
    return {metric: fates[name] for name, metric in names.items() if fates.get(name)}


def _prompts(requested: Iterable[int], rows: Sequence[Key], why: Sequence[str]) -> dict[str, int]:
    """Return the account of the prompts, including those of stored rows; the last lost completion gives the reason."""
    order = [*REASONS, *ELSEWHERE, ""]
    last: dict[int, int] = {}
    for (ordinal, *_), reason in zip(rows, why, strict=True):
        last[ordinal] = max(last.get(ordinal, 0), order.index(reason))
    new = list(requested)
    stored = last.keys() - set(new)
    fates = Counter(order[last[ordinal]] if ordinal in last else NOT_COMPLETED for ordinal in [*new, *stored])
    counted = {"prompts_sampled": len(new), "prompts_stored": len(stored), "prompts_trained": fates.pop("", 0)}
    return {**counted, **_where("prompts", fates)}
