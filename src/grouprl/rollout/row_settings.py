"""Settings for sampling and scoring rows, from a configuration or an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grouprl.config.run import Config
from grouprl.records.requests import RolloutRequest
from grouprl.rollout.seeds import sample_seed
from grouprl.rollout.turn_text import History

Rows = Sequence[tuple[RolloutRequest, int]]
"""Requests, each with the number of the row's completion."""
GREEDY = -1
"""Number of the greedy completion in training, which needs no seed."""


@dataclass(frozen=True)
class Seeds:
    """The seeds of actions and environments, functions of the prompt's ordinal and the number of the completion."""

    run: int
    use: str = "train"
    environments: int | None = None
    """Seed of environments; None: the run's."""

    def of_actions(self, ordinal: int, number: int) -> int:
        """Return the seed with which the actions of a completion are sampled."""
        return sample_seed(self.use, self.run, ordinal, number)

    def of_environment(self, ordinal: int, number: int) -> int:
        """Return the seed with which an environment begins."""
        return sample_seed("environment", self.run if self.environments is None else self.environments, ordinal, number)

    def held_out(self) -> Seeds:
        """Return the seeds of an evaluation: environments begin the same in every run."""
        return Seeds(self.run, "eval", environments=0)


@dataclass(frozen=True)
class RowSettings:
    """Settings with which a source samples and scores its rows."""

    max_new_tokens: int
    """Budget of a completion, or of one turn of an episode."""
    seeds: Seeds
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    """Texts that end a completion or a turn, in addition to those of the task."""
    history: History = "refuse"
    correct_at: float = 1.0
    adds_reward: bool = False
    """Whether the reward function scores episodes in addition to their environments."""
    yardsticks: tuple[str, ...] = ()
    """The functions by which an evaluation measures completions besides their reward."""
    reproducible: bool = True
    """Whether episodes are bitwise reproducible, however fast their environments are."""

    @classmethod
    def of(cls, config: Config, max_new_tokens: int) -> RowSettings:
        """Return the settings of a run's training."""
        sampling = config.sampling
        return cls(
            max_new_tokens,
            Seeds(config.seed),
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            tuple(sampling.stop),
            sampling.history,
            config.reward.correct_at,
            adds_reward=bool(config.reward.replaced),
            yardsticks=config.eval.metrics,
            reproducible=not config.run.samples_apart,
        )

    def held_out(self) -> RowSettings:
        """Return the settings of an evaluation: sampling from the whole distribution, with its own seeds,
        reproducible.
        """
        return replace(self, seeds=self.seeds.held_out(), top_p=1.0, top_k=0, reproducible=True)

    def foreign_b(self, rows: Rows) -> np.ndarray:
        """Return a mask [B] of rows that are sampled at another temperature than the run's."""
        return np.array([request.temperature not in (None, self.temperature) for request, _ in rows], dtype=bool)


def rows_of(requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Rows:
    """Return one row for each requested completion; if greedy, one for each request."""
    if greedy:
        return [(request, GREEDY) for request in requests]
    return [(request, request.first + i) for request in requests for i in range(request.completions)]


def sample_id(prompt_id: str, completion: int, context: int = 0) -> str:
    """Return the name by which messages and records of failures refer to a completion, or of a further row of it."""
    return f"{prompt_id}#{'greedy' if completion == GREEDY else completion}" + (f".{context}" if context else "")
