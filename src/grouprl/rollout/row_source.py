"""The base of sources of rows: the policy, its sampler and the reward, and the assembly of scored rows.

A source takes requests and returns scored rows (`grouprl.protocols.RowSource`). Which one a task needs is decided once,
in `grouprl.rollout.kinds.row_kinds`; callers never need to know which source they have. Every completion has a seed
made from (run, ordinal of the prompt, number of the completion), so it does not depend on which other prompts are
sampled with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import State
from grouprl.core.spans import spanned
from grouprl.core.stopwatch import Stopwatch
from grouprl.envs.environment_pool import Stage
from grouprl.protocols import EntropyScaling, Request, RunSampler, Samples, Spaces
from grouprl.records.examples import Prompt
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import Rows as SampleRows
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.judging.judge import GroupPlace, placed
from grouprl.rewards.scoring import score
from grouprl.rollout.canary_tokens import canary_tokens
from grouprl.rollout.engines import local_engine
from grouprl.rollout.row_settings import Rows, RowSettings
from grouprl.rollout.scored_rows import GREEDY_TOKENS, reward_of_groups
from grouprl.rollout.text_sampling import TextSampling
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from grouprl.config.run import Config
    from grouprl.policy.language.text import TextModel
    from grouprl.rewards.contract import Reward
    from grouprl.rollout.in_flight import InFlightEpisodes
    from grouprl.rollout.stored.survey import Survey


class ScoringSource(ABC):
    """Base of the sources of rows; `watch` adds up the seconds spent on sampling and scoring.

    Args:
        task: task whose prompts are requested.
        policy: policy that is sampled from.
        reward: reward that scores the samples.
        settings: settings for sampling and scoring.
        errors: policy for rows that could not be scored.
        sampler: sampler of every sample; None: one in this process.
        stage: pool in which environments run; None: they run in this process.
    """

    acts: ClassVar[bool] = False
    """Whether rows are episodes in environments."""
    samples: ClassVar[bool] = True
    """Whether rows are sampled and scored by the reward, not stored."""
    text: ClassVar[bool] = True
    """Whether prompts and completions are text."""
    whole: ClassVar[str] = ""
    """For rows that cannot continue with new weights (`run.partial`): how they are sampled, as a sentence of plans."""
    pauses: ClassVar[bool] = False
    """Whether rows can be left unfinished and continued in a later step (`run.samplers: 0`)."""

    def __init__(
        self,
        task: Task,
        policy: Any,
        reward: Reward,
        settings: RowSettings,
        *,
        errors: ErrorPolicy | None = None,
        sampler: RunSampler | None = None,
        stage: Stage | None = None,
    ) -> None:
        self.task, self.policy, self.reward, self.settings = task, policy, reward, settings
        self.errors = errors or ErrorPolicy()
        self.sampler: RunSampler = sampler or local_engine(policy)
        self.stage = stage
        self.notes: tuple[str, ...] = ()
        """Notes for the user on how environments are run."""
        self.watch = Stopwatch()

    @property
    def measure(self) -> str:
        """The name by which an evaluation reports the share of right outcomes."""
        return "greedy"

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say why a run on such rows cannot work; `looked_at` are a few of the task's prompts."""
        return []

    @classmethod
    def survey(cls, task: Task, encoder: TextModel, positions: int | None) -> Survey | None:
        """Return lengths of rows that exist before the run, and notes on them; None if rows are sampled."""
        return None

    @classmethod
    def components_of(cls, task: Task, looked_at: Sequence[object]) -> tuple[str, ...] | None:
        """Return the components of rewards that exist before the run; None if rows are scored as they are sampled."""
        return None

    @classmethod
    def spaces_of(cls, task: Task) -> Spaces | None:
        """Return the observation and action spaces of environments over arrays; None if the task has none."""
        return None

    @classmethod
    def canary(cls, policy: Any) -> Tokens | None:
        """Return fixed rows whose log-probs a trainer and its samplers compare after every exchange of weights.

        None: only the weights are compared, because the policy samples with the function by which it scores.
        """
        return canary_tokens(policy)

    @abstractmethod
    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Return the scored rows that `requests` ask for, to train on.

        `count_failures` is off for probes that are not trained on.
        """

    @abstractmethod
    def outcomes(self, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Outcomes:
        """Return the results of the requested completions or episodes, each as a whole, for an evaluation."""

    def ahead(self, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Return the scored rows to train on, sampled in another process than the one that counts failures."""
        return self.rows(requests, count_failures=False)

    def counted(self, samples: SampleRows) -> SampleRows:
        """Apply the error policy to rows that were sampled with `count_failures` off; return those that are kept."""
        return replace(samples, valid_b=self.errors.apply(samples.scores, samples.group_b))

    def in_flight(self, fresh: Callable[[bool], bool], may_begin: Callable[[bool], bool]) -> InFlightEpisodes | None:
        """Return a player of several units of requests at the same time; None if a unit is sampled in one call."""
        return None

    def token_requests(self, requests: Sequence[RolloutRequest]) -> list[Request[tuple[int, ...]]]:
        """Return the requests for tokens of the completions that `requests` ask for.

        Raises:
            InputError: rows are more than single completions.
        """
        raise self._unpaused()

    def scored_rows(self, requests: Sequence[RolloutRequest], samples: Samples[int]) -> ScoredSamples:
        """Return scored rows of `samples`, which complete `token_requests(requests)`; failures are not counted.

        Raises:
            InputError: rows are more than single completions.
        """
        raise self._unpaused()

    def _unpaused(self) -> InputError:
        return InputError(
            f"rows of the task '{self.task.name}' cannot be left unfinished and continued in a later step",
            "only single completions can",
            "Set run.samplers to 1, or run.async_steps to 0",
        )

    def texts(self) -> TextSampling:
        """Return an object that encodes, decodes and samples texts outside of rows.

        Raises:
            InputError: prompts and completions are not made of text.
        """
        if not self.text:
            raise InputError(
                f"the task '{self.task.name}' is not made of text",
                "its policy reads no prompts and writes no completions",
                "Remove the part that works on texts, or choose a task of text",
            )
        return TextSampling(self.task, self.policy, self.sampler, self.settings, self.watch)

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> TextSamples:
        """Return one scored row per request with a text that the policy did not write as its completion.

        Raises:
            InputError: rows are more than single completions.
        """
        raise InputError(
            "texts written by the task cannot be added to these rows",
            "an episode is played in its environment, so it has no text of its own",
            "Remove the part that writes completions, or choose a task of a single turn",
        )

    def judged_together(self, samples: TextSamples) -> TextSamples:
        """Return rows with the scores of a reward that judges groups, each group as it is now.

        Raises:
            InputError: rows are more than single completions.
        """
        raise InputError(
            "the completions of an opponent cannot be judged together with these rows",
            "an episode is scored by its environment, too, when it ends",
            "Choose a task of a single turn, or a reward that scores each completion alone",
        )

    def held_out(self) -> Self:
        """Return a source for evaluations: the same policy and environments with the settings of an evaluation."""
        source = copy(self)
        source.settings, source.watch = self.settings.held_out(), Stopwatch()
        return source

    @contextmanager
    def acting(self, policy: object) -> Iterator[None]:
        """Let another policy of this process sample within this context."""
        before, self.policy, self.sampler = (self.policy, self.sampler), policy, local_engine(policy)
        try:
            yield
        finally:
            self.policy, self.sampler = before

    def state(self) -> State:
        """Return what the source carries from step to step, as plain data for a checkpoint; by default nothing."""
        return {}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned.

        Raises:
            RunError: the state is that of another kind of source.
        """
        if state:
            raise RunError(f"the checkpoint holds {', '.join(state)}, which {type(self).__name__} does not carry")

    def close(self) -> None:
        """Stop the processes that run environments."""
        if self.stage is not None:
            self.stage.close()

    def with_greedy(self, requests: Sequence[RolloutRequest], samples: SampleRows) -> SampleRows:
        """Return `samples` with the reward and the length in tokens of the greedy completion of each row's prompt.

        The reward is NaN if it could not be scored.
        """
        greedy = self.rows(requests, greedy=True, count_failures=False)
        tokens = Counter[int]()
        for group, count in zip(greedy.group_b.tolist(), greedy.length_b.tolist(), strict=True):
            tokens[group] += count
        tokens_b = np.array([tokens[group] for group in samples.group_b.tolist()], dtype=np.int64)
        reward_b = reward_of_groups(greedy, samples.group_b)
        return replace(samples, greedy_reward_b=reward_b).with_extras(**{GREEDY_TOKENS: tokens_b})

    @spanned("score")
    def _score(self, texts: Sequence[str], rows: Rows, ids: Sequence[str], prompts: Sequence[Prompt]) -> Scores:
        shown = zip(rows, prompts, strict=True)
        places = [GroupPlace(request.ordinal, number, prompt) for (request, number), prompt in shown]
        columns = placed(self.reward, [request.example.columns for request, _ in rows], places)
        with self.watch("score"):
            return score(self.reward, texts, columns, ids=ids, correct_at=self.settings.correct_at)
