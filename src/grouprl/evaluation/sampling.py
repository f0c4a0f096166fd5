"""Sampling and scoring the completions, or episodes, of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError, RunError
from grouprl.core.run_events import Sample
from grouprl.envs import Environment
from grouprl.envs.stage import Stage
from grouprl.evaluation.pass_at_k import Estimate, interval, mean_interval, pass_at_k_each
from grouprl.policy.team import TeamPolicy
from grouprl.protocols import Request, RunSampler, StoredRows
from grouprl.records.examples import Example, prompt_text
from grouprl.records.samples import join_scores
from grouprl.rewards import ErrorPolicy, Reward, Scores, score
from grouprl.rewards.contract import reward_name
from grouprl.rewards.judge import GroupPlace, placed
from grouprl.rollout.array_episodes import play_arrays
from grouprl.rollout.episode_rows import environments, score_outcomes, with_function
from grouprl.rollout.episodes import Episodes, Start, play
from grouprl.rollout.group_scores import with_group_scores
from grouprl.rollout.seeds import sample_seed
from grouprl.rollout.stored import likeliest, scores_of
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Task

Progress = Callable[[int, int], None]
"""Called with (completions sampled, completions in all)."""


@dataclass(frozen=True)
class Completions:
    """R completions, those of one prompt next to each other, and their scores."""

    texts: list[str]
    length_b: NDArray[np.float64]
    truncated_b: NDArray[np.float64]
    scores: Scores
    valid_b: NDArray[np.bool_]
    each: int
    openings: list[str] = field(default_factory=list)
    """What episodes began with, where that is known: shown for prompts that have no text."""

    def reward(self) -> Estimate:
        """Mean over prompts of the mean reward of their scored completions."""
        return self._mean(self.scores.reward_b)

    def components(self) -> dict[str, Estimate]:
        """The same for each component of the reward, over the completions that have it."""
        values = {name: np.where(self.valid_b, x_b, np.nan) for name, x_b in self.scores.components.items()}
        return {name: self._mean(x_b) for name, x_b in values.items() if np.isfinite(x_b).any()}

    def _mean(self, value_b: NDArray[np.float64]) -> Estimate:
        """Estimate the mean over prompts of [R] values; NaN: the completion has none. Shares have Wilson's interval."""
        value_qs = value_b.reshape(-1, self.each)
        known_qs = np.isfinite(value_qs) & self.valid_b.reshape(-1, self.each)
        known_q = known_qs.any(1)
        value_q = np.where(known_qs, value_qs, 0.0).sum(1)[known_q] / known_qs.sum(1)[known_q]
        shares = np.isin(value_qs[known_qs], (0.0, 1.0)).all()
        return interval(value_q, self.each) if shares else mean_interval(value_q)

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the prompts of which at least k completions could be scored."""
        n_q = self.valid_b.reshape(-1, self.each).sum(1)
        c_q = (self.scores.correct_b & self.valid_b).reshape(-1, self.each).sum(1)
        enough_q = n_q >= k
        if not enough_q.any():
            raise RunError(f"pass@{k}: the reward left no prompt with {k} scored completions")
        return interval(pass_at_k_each(n_q[enough_q], c_q[enough_q], k), self.each)

    def show(self, requested: Sequence[Example], count: int) -> tuple[Sample, ...]:
        """Return the first completion to each of the first `count` prompts, where it could be scored."""
        rows = range(0, min(count, len(requested)) * self.each, self.each)
        reward_b, correct_b, graded = self.scores.reward_b, self.scores.correct_b, self.scores.graded
        openings = self.openings or [""] * len(self.texts)
        return tuple(
            Sample(
                example_text(example) or openings[row],
                self.texts[row],
                float(reward_b[row]),
                None if graded else bool(correct_b[row]),
            )
            for example, row in zip(requested, rows, strict=False)
            if self.valid_b[row]
        )


@dataclass(frozen=True)
class Examiner:
    """The policy, the reward, and how completions are sampled."""

    policy: Any
    task: Task
    reward: Reward
    correct_at: float
    max_new_tokens: int
    temperature: float
    batch_rows: int
    history: History
    stage: Stage | None
    added: Reward | None
    stop: tuple[str, ...]
    sampler: RunSampler
    """Every completion comes from it."""

    def complete(
        self, requested: Sequence[Example], each: int, seeds: list[list[int]], greedy: bool, meter: Meter
    ) -> Completions:
        """Sample `each` completions per prompt, as many prompts at a time as `batch_rows` allows, and score them."""
        if isinstance(self.task, StoredRows):
            return self._likeliest(requested)
        at_once = max(1, self.batch_rows // each)
        make = environments(self.task)
        if make is not None:
            return self._play(make, requested, each, seeds, greedy, meter)
        if isinstance(self.policy, TeamPolicy):
            raise InputError(
                f"the task '{self.task.name}' is for a single policy",
                f"this one is a team of {', '.join(self.policy.members)}",
                "Take a task with these agents",
            )
        texts: list[str] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for start in range(0, len(requested), at_once):
            part = slice(start, start + at_once)
            prompts = [
                tuple(ids) for ids in self.policy.encode_prompts([example.prompt for example in requested[part]])
            ]
            sampled = self.sampler.sample(
                [
                    Request(prompt, self.max_new_tokens, seed, self.temperature, greedy, stop_texts=self.stop)
                    for prompt, row in zip(prompts, seeds[part], strict=True)
                    for seed in row
                ]
            )
            texts += self.policy.decode_all(sampled.actions)
            lengths += [len(ids) for ids in sampled.actions]
            truncated += sampled.truncated_b.tolist()
            meter.add(len(sampled))
        return self._score(requested, each, texts, lengths, truncated)

    def _play(
        self,
        make: Callable[[], Environment],
        requested: Sequence[Example],
        each: int,
        seeds: list[list[int]],
        greedy: bool,
        meter: Meter,
    ) -> Completions:
        """Play `each` episodes per prompt, as many at a time as `batch_rows` allows; each has a seed of its own.

        An episode of several agents counts with the reward of the first one.
        """
        sampled = [seed for row in seeds for seed in row]
        starts = [
            Start(example, sample_seed("environment", 0, q, s), sampled[q * each + s], temperature=self.temperature)
            for q, example in enumerate(requested)
            for s in range(each)
        ]
        scores: list[Scores] = []
        texts: list[str] = []
        openings: list[str] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for at in range(0, len(starts), self.batch_rows):
            part = starts[at : at + self.batch_rows]
            groups = [(at + i) // each for i in range(len(part))]
            episodes = with_group_scores(self.task, self._episodes(make, part, greedy), part, groups)
            ids = [f"{start.example.id}#{(at + i) % each}" for i, start in enumerate(part)]
            stated = score_outcomes(episodes, ids, self.correct_at)
            if self.added is not None:
                prompts = [start.example.prompt for start in part]
                places = [GroupPlace((at + i) // each, (at + i) % each, prompt) for i, prompt in enumerate(prompts)]
                columns = placed(self.added, [start.example.columns for start in part], places)
                more = score(self.added, episodes.transcripts, columns, ids=ids, correct_at=self.correct_at)
                stated = with_function(stated, more, reward_name(self.added))
            scores.append(stated)
            texts += episodes.transcripts
            openings += [prompt_text(episodes.prompts[row]) for row in episodes.first_rows]
            lengths += episodes.per_episode(episodes.mask_bt.sum(1)).tolist()
            truncated += (episodes.per_episode(episodes.rollout.truncated_b.numpy()) > 0).tolist()
            meter.add(len(part))
        return replace(self._completions(join_scores(scores), each, texts, lengths, truncated), openings=openings)

    def _likeliest(self, requested: Sequence[Example]) -> Completions:
        """Return the stored completion to each prompt that the policy finds likeliest."""
        assert isinstance(self.task, StoredRows)
        found = [likeliest(self.task, self.policy, example, self.max_new_tokens) for example in requested]
        rows = [row for row, _ in found]
        late = [row.truncated for row in rows]
        return self._completions(scores_of(rows), 1, [row.completion for row in rows], [n for _, n in found], late)

    def _episodes(self, make: Callable[[], Environment], starts: Sequence[Start], greedy: bool) -> Episodes:
        if self.task.spaces is not None:
            return play_arrays(
                self.sampler,
                make,
                starts,
                spaces=self.task.spaces,
                max_turns=self.task.max_turns,
                greedy=greedy,
                stage=self.stage,
            )
        return play(
            self.policy,
            make,
            starts,
            max_turns=self.task.max_turns,
            max_new_tokens=self.max_new_tokens,
            agents=self.task.agents,
            greedy=greedy,
            stop=self.stop,
            history=self.history,
            stage=self.stage,
            sampler=self.sampler,
        )

    def _score(
        self, requested: Sequence[Example], each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> Completions:
        rows = [example for example in requested for _ in range(each)]
        ids = [f"{example.id}#{row % each}" for row, example in enumerate(rows)]
        places = [GroupPlace(row // each, row % each, example.prompt) for row, example in enumerate(rows)]
        columns = placed(self.reward, [example.columns for example in rows], places)
        scores = score(self.reward, texts, columns, ids=ids, correct_at=self.correct_at)
        return self._completions(scores, each, texts, lengths, truncated)

    def _completions(
        self, scores: Scores, each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> Completions:
        valid_b = ErrorPolicy("drop_row").apply(scores, np.arange(len(texts)) // each)
        if not valid_b.any():
            raise RunError(f"None of the {len(texts)} completions could be scored. For instance {scores.problems[0]}")
        return Completions(texts, np.array(lengths, float), np.array(truncated, float), scores, valid_b, each)


class Meter:
    """Counts completions for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, count: int) -> None:
        """Count `count` more."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def example_text(example: Example) -> str:
    """Return the prompt as one text: chat messages as `role: content` lines."""
    return prompt_text(example.prompt)
