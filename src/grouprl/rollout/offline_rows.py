"""Rows whose completions are stored already: pairs with a known winner, rollouts of another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.config.run import Config
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.protocols import EntropyScaling
from grouprl.records.offline import StoredRow, StoredRows
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Scores
from grouprl.records.tokens import Tokens
from grouprl.rollout.row_source import ScoringSource
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.records.examples import Example, Prompt
    from grouprl.records.token_policy import TokenPolicy


class OfflineRows(ScoringSource):
    """Source of the stored rows of a task's prompts, with their stored rewards."""

    samples = False

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say why a run on stored rows cannot work."""
        assert isinstance(task, StoredRows)
        found = []
        most = max((len(task.stored_rows(example)) for example in looked_at), default=0)
        if most and config.batch.group_size != most:
            found.append(
                f"the groups of '{task.name}' have up to {most} rows, but batch.group_size is "
                f"{config.batch.group_size}. Set it"
            )
        if config.run.async_steps:
            found.append(f"run.async_steps samples ahead, and '{task.name}' has its completions stored. Set it to 0")
        if key := config.reward.replaced:
            found.append(f"reward.{key} has nothing to score: '{task.name}' has its rewards stored. Leave it out")
        return found

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Return every stored row of the requested prompts."""
        assert isinstance(self.task, StoredRows)
        return stored(self.task, self.policy, requests, self.settings.max_new_tokens)

    def outcomes(self, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Outcomes:
        """Return, for each prompt, the stored completion that the policy finds likeliest."""
        assert isinstance(self.task, StoredRows)
        longest = self.settings.max_new_tokens
        found = [likeliest(self.task, self.policy, request.example, longest) for request in requests]
        rows, lengths = [row for row, _ in found], tuple(float(length) for _, length in found)
        texts, late = tuple(row.completion for row in rows), tuple(row.truncated for row in rows)
        return Outcomes(texts, ("",) * len(rows), lengths, late, scores_of(rows))

    def counted(self, samples: ScoredSamples) -> ScoredSamples:
        """Return the rows unchanged: stored rewards cannot fail."""
        return samples


def stored(
    task: StoredRows, policy: TokenPolicy, requests: Sequence[RolloutRequest], max_new_tokens: int
) -> ScoredSamples:
    """Return the stored rows of the prompts: rewards are those stored, old log-probs have to be scored by the policy.

    Rows that were sampled keep the log-probs of their sampling as behaviour log-probs and have the source 'replay';
    others have the source 'demonstration'.

    Raises:
        InputError: token ids that the policy's tokenizer decodes to a different text.
    """
    rows = [
        (request, number, row) for request in requests for number, row in enumerate(task.stored_rows(request.example))
    ]
    each = [row for _, _, row in rows]
    rollout = laid_out(policy, [(request.example.prompt, row) for request, _, row in rows], max_new_tokens)
    sampled_b = np.array([row.behavior_logp is not None for row in each])
    return ScoredSamples(
        examples=tuple(request.example for request, _, _ in rows),
        prompts=tuple(request.example.prompt for request, _, _ in rows),
        group_b=np.array([request.ordinal for request, _, _ in rows], dtype=np.int64),
        index_b=np.array([request.index for request, _, _ in rows], dtype=np.int64),
        sample_b=np.array([number for _, number, _ in rows], dtype=np.int64),
        rollout=rollout,
        texts=tuple(row.completion for row in each),
        scores=scores_of(each),
        valid_b=np.ones(len(rows), dtype=bool),
        source_b=np.where(sampled_b, SOURCES["replay"], SOURCES["demonstration"]).astype(np.int64),
        foreign_b=np.ones(len(rows), dtype=bool),
    )


def laid_out(policy: TokenPolicy, rows: Sequence[tuple[Prompt, StoredRow]], max_new_tokens: int) -> Rollout:
    """Return stored rows and their prompts as token ids; entropies are 0, and so are unknown log-probs.

    Raises:
        InputError: token ids that the policy's tokenizer decodes to a different text.
    """
    end = tuple(policy.eos_ids[:1])
    prompts = [prompt for prompt, row in rows if row.prompt_ids is None]
    encoded = iter(policy.encode_prompts(prompts)) if prompts else iter(())
    texts = [row.completion for _, row in rows if row.ids is None]
    written = iter(policy.encode_all(texts)) if texts else iter(())
    prompt_ids = tuple(tuple(next(encoded)) if row.prompt_ids is None else row.prompt_ids for _, row in rows)
    ids = tuple((*next(written)[: max_new_tokens - 1], *end) if row.ids is None else row.ids for _, row in rows)
    _check_tokenizer(policy, [row for _, row in rows])
    logp_bt = torch.zeros(len(rows), max(map(len, ids)), dtype=policy.score_dtype)
    for place, (_, row) in enumerate(rows):
        if row.behavior_logp is not None:
            logp_bt[place, : len(row.behavior_logp)] = torch.tensor(row.behavior_logp, dtype=logp_bt.dtype)
    late_b = torch.tensor([row.truncated for _, row in rows])
    return Rollout(Tokens(prompt_ids, ids), logp_bt, torch.zeros_like(logp_bt), late_b)


def scores_of(rows: Sequence[StoredRow]) -> Scores:
    """Return the rewards that are stored with the rows."""
    names = dict.fromkeys(name for row in rows for name in row.components)
    return Scores(
        reward_b=np.array([row.reward for row in rows], dtype=np.float64),
        components={name: np.array([row.components.get(name, np.nan) for row in rows]) for name in names},
        correct_b=np.array([row.correct for row in rows], dtype=bool),
        status_b=np.full(len(rows), "ok"),
        problems=[],
    )


def likeliest(task: StoredRows, policy: TokenPolicy, example: Example, max_new_tokens: int) -> tuple[StoredRow, int]:
    """Return the stored row of a prompt with the largest sum of log-probs under the policy, and its number of
    tokens.
    """
    rows = list(task.stored_rows(example))
    rollout = laid_out(policy, [(example.prompt, row) for row in rows], max_new_tokens)
    best = int(policy.logp(rollout.tokens).double().sum(1).argmax())
    return rows[best], len(rollout.response_ids[best])


def _check_tokenizer(policy: TokenPolicy, rows: Sequence[StoredRow]) -> None:
    """Raise InputError for token ids of another tokenizer, which the policy's tokenizer decodes to a different text."""
    known = [(row, row.ids) for row in rows if row.ids is not None]
    for (row, _), text in zip(known, policy.decode_all([ids for _, ids in known]), strict=True):
        if text != row.completion:
            raise InputError(
                f"stored token ids read {text[:60]!r}, and were {row.completion[:60]!r}",
                "rollouts are stored as tokens, which another tokenizer decodes to a different text",
                "Train the model that they were sampled from, or one of its family",
            )
