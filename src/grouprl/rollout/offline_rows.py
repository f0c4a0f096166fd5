"""Rows whose completions are stored already: pairs with a known winner, rollouts of another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from grouprl.config.run import Config
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.core.outputs import PREFERENCE, SCORE, stem
from grouprl.protocols import EntropyScaling
from grouprl.records.offline import RowLimit, StoredEpisode, StoredRow, StoredRows, samples_evaluations
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import Rows
from grouprl.records.scores import Problem, Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rollout.completion_rows import CompletionRows
from grouprl.rollout.ranked_rows import ranked_outcomes
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.scored_rows import CUT_TOKENS
from grouprl.rollout.stored.boundary import StoredTokens, flat, group_tokens
from grouprl.rollout.stored.survey import Survey, survey
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.policy.language.text import TextModel
    from grouprl.records.examples import Example, Prompt
    from grouprl.records.token_policy import TokenPolicy


OF_SAMPLING = ("first", "prompt", "prefix", "prefix_turns", "opening", "temperature", "max_new_tokens", "max_turns")
"""Fields of a request that say how completions are sampled; false where the task's own rows are meant."""


class OfflineRows(ScoringSource):
    """Source of the stored rows of a task's prompts, with their stored rewards."""

    samples = False

    @property
    def measure(self) -> str:
        """The name by which an evaluation reports the share of right outcomes: of a reward model, its pairs."""
        return "pair_accuracy" if self.ranks else "greedy"

    @property
    def ranks(self) -> bool:
        """True if the model is a reward model, which ranks completions by scores, or one against another."""
        return any(name == SCORE or stem(name) == PREFERENCE for name in self.policy.outputs)

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say why a run on stored rows cannot work."""
        assert isinstance(task, StoredRows)
        found = stored_refusals(config, task, looked_at)
        if config.sampling.max_new_tokens is not None and not samples_evaluations(task):
            found.append(
                f"sampling.max_new_tokens limits what is sampled, and '{task.name}' has its completions stored. "
                "Leave it out, or set the task's max_length"
            )
        return found

    @classmethod
    def survey(cls, task: Task, encoder: TextModel, positions: int | None) -> Survey:
        """Return the lengths of the stored rows, where prompt and completion meet, and what is cut."""
        assert isinstance(task, StoredRows)
        return survey(task, task.stored_rows, encoder, positions)

    @classmethod
    def components_of(cls, task: Task, looked_at: Sequence[object]) -> tuple[str, ...]:
        """Return the components that are stored with the rows of a few prompts."""
        assert isinstance(task, StoredRows)
        return named_components([row for example in looked_at for row in task.stored_rows(example)])

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> TextSamples:
        """Return every stored row of the requested prompts.

        Raises:
            InputError: something is to be sampled (`refuse_sampling`).
        """
        assert isinstance(self.task, StoredRows)
        refuse_sampling(self.task.name, requests, greedy or scaling is not None)
        return stored(self.task, self.policy, requests)

    def outcomes(self, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Outcomes:
        """Return, for each prompt, the stored completion that the policy finds likeliest, or scores highest; see
        `ranked_outcomes`.
        """
        assert isinstance(self.task, StoredRows)
        if self.ranks:
            return ranked_outcomes(self.rows(requests), self.policy)
        found = [likeliest(self.task, self.policy, request.example) for request in requests]
        rows, tokens = [row for row, _ in found], [each for _, each in found]
        texts, lengths = tuple(row.completion for row in rows), tuple(float(sum(each.own)) for each in tokens)
        late = tuple(row.truncated or _ends_early(each) for row, each in found)
        scores = scores_of(rows, np.array([each.fits for each in tokens]))
        unfit = [request.example.id for request, each in zip(requests, tokens, strict=True) if not each.fits]
        problems = [Problem(name, "too_long", "it is longer than max_length", "") for name in unfit]
        return Outcomes(texts, ("",) * len(rows), lengths, late, replace(scores, problems=problems))

    def held_out(self) -> ScoringSource:  # type: ignore[override]
        """Return a source for evaluations: of sampled completions, if the model writes some and the task has a true
        reward to score them by.
        """
        if self.ranks or not samples_evaluations(self.task):
            return super().held_out()
        settings = self.settings.held_out()
        return CompletionRows(
            self.task, self.policy, self.reward, settings, errors=self.errors, sampler=self.sampler, stage=self.stage
        )

    def counted(self, samples: Rows) -> Rows:
        """Return the rows unchanged: stored rewards cannot fail."""
        return samples


def refuse_sampling(name: str, requests: Sequence[RolloutRequest], ruled: bool) -> None:
    """Refuse what stored rows cannot answer.

    Raises:
        InputError: completions are to be sampled greedily or by a rule (`ruled`), or a request is not for the task's
            own prompt as it stands.
    """
    changed = [field for field in OF_SAMPLING if any(getattr(request, field) for request in requests)]
    if ruled or changed:
        asked = f", with {' and '.join(changed)} of its own" if changed else ""
        raise InputError(
            f"a part of the method asks for completions of '{name}'{asked}",
            "the task has its rows stored, and nothing is sampled",
            "Take a method without this part, or a task whose completions are sampled",
        )


def stored_refusals(config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
    """Say why a run on stored rows of any kind cannot work."""
    assert isinstance(task, StoredRows)
    found = []
    most = max((len(task.stored_rows(example)) for example in looked_at), default=0)
    if most and config.batch.group_size != most:
        found.append(
            f"the groups of '{task.name}' have up to {most} rows, but batch.group_size is "
            f"{config.batch.group_size}. Set it to {most}"
        )
    if config.run.async_steps:
        found.append(f"run.async_steps samples ahead, and '{task.name}' has its rows stored. Set it to 0")
    if key := config.reward.replaced:
        found.append(f"reward.{key} has nothing to score: '{task.name}' has its rewards stored. Leave it out")
    return found


def stored(task: StoredRows, policy: TokenPolicy, requests: Sequence[RolloutRequest]) -> TextSamples:
    """Return the stored rows of the prompts: rewards are those stored, old log-probs have to be scored by the policy.

    Rows that were sampled keep the log-probs of their sampling as behaviour log-probs and have the source 'replay';
    others have the source 'demonstration'. Groups that the task's limit drops have the status 'too_long'.

    Raises:
        InputError: token ids that the policy's tokenizer decodes to a different text, or a row without tokens.
    """
    groups = [(request.example, task.stored_rows(request.example)) for request in requests]
    rows = [
        (request, number, row)
        for request, (_, group) in zip(requests, groups, strict=True)
        for number, row in enumerate(group)
    ]
    each = [row for _, _, row in rows]
    tokens = tokens_of(task, policy, groups)
    fits_b = np.array([row.fits for row in tokens])
    rollout, sampled_b = laid_out(policy, each, tokens), np.array([row.behavior_logp is not None for row in each])
    samples = TextSamples(
        examples=tuple(request.example for request, _, _ in rows),
        prompts=tuple(request.example.prompt for request, _, _ in rows),
        group_b=np.array([request.ordinal for request, _, _ in rows], dtype=np.int64),
        index_b=np.array([request.index for request, _, _ in rows], dtype=np.int64),
        sample_b=np.array([number for _, number, _ in rows], dtype=np.int64),
        rollout=rollout,
        texts=tuple(row.completion for row in each),
        scores=scores_of(each, fits_b),
        valid_b=fits_b,
        source_b=np.where(sampled_b, SOURCES["replay"], SOURCES["demonstration"]).astype(np.int64),
        foreign_b=np.ones(len(rows), dtype=bool),
    )
    if len(cast("Task", task).agents) > 1:
        samples = samples.with_extras(agent_b=np.array([_agent_of(task, request.example) for request, _, _ in rows]))
    if any(row.cut for row in tokens):
        samples = samples.with_extras(**{CUT_TOKENS: np.array([row.cut for row in tokens], dtype=np.int64)})
    if all(all(row.own) for row in tokens):
        return samples
    return samples.with_extras(mask_bt=np.array(flat([row.own for row in tokens], rollout.inputs.width)))


def tokens_of(
    task: StoredRows, policy: TokenPolicy, groups: Sequence[tuple[Example, Sequence[StoredRow]]]
) -> list[StoredTokens]:
    """Return the rows of some prompts as tokens, within the task's limit.

    Raises:
        InputError: token ids that the policy's tokenizer decodes to a different text, or a row without tokens.
    """
    _check_tokenizer(policy, [row for _, rows in groups for row in rows])
    return group_tokens(policy, groups, getattr(task, "limit", RowLimit()), policy.max_positions)


def laid_out(policy: TokenPolicy, rows: Sequence[StoredRow], tokens: Sequence[StoredTokens]) -> Rollout:
    """Return stored rows as a rollout; entropies are 0, and so are unknown log-probs."""
    logp_bt = torch.zeros(len(rows), max(len(row.ids) for row in tokens), dtype=policy.score_dtype)
    for place, row in enumerate(rows):
        if row.behavior_logp is not None:
            logp_bt[place, : len(row.behavior_logp)] = torch.tensor(row.behavior_logp, dtype=logp_bt.dtype)
    late_b = torch.tensor([row.truncated or _ends_early(each) for row, each in zip(rows, tokens, strict=True)])
    held = Tokens(tuple(row.prompt_ids for row in tokens), tuple(row.ids for row in tokens))
    return Rollout(held, logp_bt, torch.zeros_like(logp_bt), late_b)


def scores_of(rows: Sequence[StoredRow], fits_b: np.ndarray) -> Scores:
    """Return the rewards that are stored with the rows; those that do not fit have none."""
    names = named_components(rows)
    return Scores(
        reward_b=np.where(fits_b, np.array([row.reward for row in rows], dtype=np.float64), np.nan),
        components={name: np.array([row.components.get(name, np.nan) for row in rows]) for name in names},
        correct_b=np.array([row.correct for row in rows], dtype=bool),
        status_b=np.where(fits_b, "ok", "too_long").astype("<U14"),
        problems=[],
    )


def named_components(rows: Sequence[StoredRow | StoredEpisode]) -> tuple[str, ...]:
    """Return the names of the components that some of the rows have, in order."""
    return tuple(dict.fromkeys(name for row in rows for name in row.components))


def likeliest(task: StoredRows, policy: TokenPolicy, example: Example) -> tuple[StoredRow, StoredTokens]:
    """Return the stored row of a prompt with the largest sum of log-probs under the policy, and its tokens."""
    rows = list(task.stored_rows(example))
    tokens = tokens_of(task, policy, [(example, rows)])
    held = laid_out(policy, rows, tokens).tokens.of_agents([_agent_of(task, example)] * len(rows))
    own_bt = torch.tensor(flat([row.own for row in tokens], held.width), device=policy.device)
    best = int((policy.logp(held).double() * own_bt).sum(1).argmax())
    return rows[best], tokens[best]


def _agent_of(task: StoredRows, example: Example) -> int:
    """Return the number of the agent that completes a prompt."""
    return cast("Task", task).agent_of(example)


def _ends_early(row: StoredTokens) -> bool:
    """Return whether the end of a completion was cut."""
    return row.cut > 0 and row.ends_cut


def _check_tokenizer(policy: TokenPolicy, rows: Sequence[StoredRow]) -> None:
    """Raise InputError for token ids of another tokenizer, which the policy's tokenizer decodes to a different text."""
    known = [(row, row.ids) for row in rows if row.ids is not None]
    for (row, _), text in zip(known, policy.decode_all([ids for _, ids in known]), strict=True):
        if text != row.completion:
            raise InputError(
                f"stored token ids of {row.completion[:60]!r} read {text[:60]!r} here",
                "rollouts are stored as tokens, which another tokenizer decodes to a different text",
                "Train the model that they were sampled from, or one of its family",
            )


def stored_texts(task: Task, examples: Sequence[Example]) -> list[tuple[Prompt, str]]:
    """Return the prompts of `examples` with their stored completions, of a task that has some."""
    assert isinstance(task, StoredRows), "a plan refuses other tasks"
    return [(example.prompt, row.completion) for example in examples for row in task.stored_rows(example)]
