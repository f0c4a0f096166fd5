"""Drawing and scoring the answers, or episodes, of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError, RunError
from grouprl.envs import Environment
from grouprl.envs.stage import Stage
from grouprl.evaluation.pass_at_k import Estimate, interval, mean_interval, pass_at_k_each
from grouprl.orchestrator.stored import likeliest, scores_of
from grouprl.policy.team import Team
from grouprl.protocols import Request, Sampler, StoredRows
from grouprl.rewards import ErrorPolicy, Reward, Scores, score
from grouprl.rewards.contract import reward_name
from grouprl.rollout.array_episodes import play_arrays
from grouprl.rollout.episode_rows import environments, score_outcomes, with_function
from grouprl.rollout.episodes import Episodes, Start, play
from grouprl.rollout.samples import join_scores
from grouprl.rollout.seeds import answer_seed
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Message, Question, Task

Progress = Callable[[int, int], None]
"""Called with (answers written, answers in all)."""


class Sample(NamedTuple):
    """One held-out question with the policy's answer: the greedy one where it was drawn, else the first sample.

    `correct` is None where the reward is graded, so that nobody says what is right.
    """

    question: str
    answer: str
    reward: float
    correct: bool | None


@dataclass(frozen=True)
class Answers:
    """R answers, those of one question next to each other, and their verdicts."""

    texts: list[str]
    length_b: NDArray[np.float64]
    truncated_b: NDArray[np.float64]
    scores: Scores
    kept_b: NDArray[np.bool_]
    each: int

    def reward(self) -> Estimate:
        """Mean over questions of the mean reward of their scored answers."""
        return self._mean(self.scores.reward_b)

    def components(self) -> dict[str, Estimate]:
        """The same for each component of the reward, over the answers that have it."""
        values = {name: np.where(self.kept_b, x_b, np.nan) for name, x_b in self.scores.components.items()}
        return {name: self._mean(x_b) for name, x_b in values.items() if np.isfinite(x_b).any()}

    def _mean(self, value_b: NDArray[np.float64]) -> Estimate:
        """Estimate the mean over questions of [R] values; NaN: the answer has none. Shares have Wilson's interval."""
        value_qs = value_b.reshape(-1, self.each)
        known_qs = np.isfinite(value_qs) & self.kept_b.reshape(-1, self.each)
        asked_q = known_qs.any(1)
        value_q = np.where(known_qs, value_qs, 0.0).sum(1)[asked_q] / known_qs.sum(1)[asked_q]
        shares = np.isin(value_qs[known_qs], (0.0, 1.0)).all()
        return interval(value_q, self.each) if shares else mean_interval(value_q)

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the questions of which at least k answers could be scored."""
        n_q = self.kept_b.reshape(-1, self.each).sum(1)
        c_q = (self.scores.correct_b & self.kept_b).reshape(-1, self.each).sum(1)
        enough_q = n_q >= k
        if not enough_q.any():
            raise RunError(f"pass@{k}: the reward left no question with {k} scored answers")
        return interval(pass_at_k_each(n_q[enough_q], c_q[enough_q], k), self.each)

    def show(self, asked: Sequence[Question], count: int) -> tuple[Sample, ...]:
        """Return the first answer to each of the first `count` questions, where it could be scored."""
        rows = range(0, min(count, len(asked)) * self.each, self.each)
        reward_b, correct_b, graded = self.scores.reward_b, self.scores.correct_b, self.scores.graded
        return tuple(
            Sample(
                question_text(question), self.texts[row], float(reward_b[row]), None if graded else bool(correct_b[row])
            )
            for question, row in zip(asked, rows, strict=False)
            if self.kept_b[row]
        )


@dataclass(frozen=True)
class Examiner:
    """The policy, the reward and how answers are drawn."""

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
    sampler: Sampler[Any, int]
    """Every answer comes from it."""

    def answer(
        self, asked: Sequence[Question], each: int, seeds: list[list[int]], greedy: bool, meter: Meter
    ) -> Answers:
        """Draw `each` answers per question, as many questions at a time as `batch_rows` allows, and score them."""
        if isinstance(self.task, StoredRows):
            return self._likeliest(asked)
        at_once = max(1, self.batch_rows // each)
        make = environments(self.task)
        if make is not None:
            return self._play(make, asked, each, seeds, greedy, meter)
        if isinstance(self.policy, Team):
            raise InputError(
                f"the task '{self.task.name}' is answered by one policy",
                f"this one is a team of {', '.join(self.policy.members)}",
                "Take a task with these agents",
            )
        texts: list[str] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for start in range(0, len(asked), at_once):
            part = slice(start, start + at_once)
            prompts = [tuple(ids) for ids in self.policy.encode_prompts([question.prompt for question in asked[part]])]
            drawn = self.sampler.sample(
                [
                    Request(prompt, self.max_new_tokens, seed, self.temperature, greedy, stop_texts=self.stop)
                    for prompt, row in zip(prompts, seeds[part], strict=True)
                    for seed in row
                ]
            )
            texts += self.policy.decode_all(drawn.actions)
            lengths += [len(ids) for ids in drawn.actions]
            truncated += drawn.truncated_b.tolist()
            meter.add(len(drawn))
        return self._score(asked, each, texts, lengths, truncated)

    def _play(
        self,
        make: Callable[[], Environment],
        asked: Sequence[Question],
        each: int,
        seeds: list[list[int]],
        greedy: bool,
        meter: Meter,
    ) -> Answers:
        """Play `each` episodes per question, as many at a time as `batch_rows` allows; all have luck of their own.

        An episode of several agents is judged by its first one.
        """
        drawn = [seed for row in seeds for seed in row]
        starts = [
            Start(question, answer_seed("environment", 0, q, s), drawn[q * each + s], temperature=self.temperature)
            for q, question in enumerate(asked)
            for s in range(each)
        ]
        scores: list[Scores] = []
        texts: list[str] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for at in range(0, len(starts), self.batch_rows):
            episodes = self._episodes(make, starts[at : at + self.batch_rows], greedy)
            part = starts[at : at + self.batch_rows]
            ids = [f"{start.question.id}#{(at + i) % each}" for i, start in enumerate(part)]
            stated = score_outcomes(episodes, ids, self.correct_at)
            if self.added is not None:
                columns = [start.question.columns for start in part]
                more = score(self.added, episodes.transcripts, columns, ids=ids, correct_at=self.correct_at)
                stated = with_function(stated, more, reward_name(self.added))
            scores.append(stated)
            texts += episodes.transcripts
            lengths += episodes.per_episode(episodes.mask_bt.sum(1)).tolist()
            truncated += (episodes.per_episode(episodes.rollout.truncated_b.numpy()) > 0).tolist()
            meter.add(len(part))
        return self._answers(join_scores(scores), each, texts, lengths, truncated)

    def _likeliest(self, asked: Sequence[Question]) -> Answers:
        """Return the stored completion to each question that the policy finds likeliest."""
        assert isinstance(self.task, StoredRows)
        found = [likeliest(self.task, self.policy, question, self.max_new_tokens) for question in asked]
        rows = [row for row, _ in found]
        late = [row.truncated for row in rows]
        return self._answers(scores_of(rows), 1, [row.completion for row in rows], [n for _, n in found], late)

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
        self, asked: Sequence[Question], each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> Answers:
        rows = [question for question in asked for _ in range(each)]
        ids = [f"{question.id}#{row % each}" for row, question in enumerate(rows)]
        columns = [question.columns for question in rows]
        scores = score(self.reward, texts, columns, ids=ids, correct_at=self.correct_at)
        return self._answers(scores, each, texts, lengths, truncated)

    def _answers(
        self, scores: Scores, each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> Answers:
        kept_b = ErrorPolicy("drop_row").apply(scores, np.arange(len(texts)) // each)
        if not kept_b.any():
            raise RunError(f"None of the {len(texts)} answers could be scored. For instance {scores.problems[0]}")
        return Answers(texts, np.array(lengths, float), np.array(truncated, float), scores, kept_b, each)


class Meter:
    """Counts answers for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, count: int) -> None:
        """Count `count` more."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def question_text(question: Question) -> str:
    """Return the prompt as one text: chat messages as `role: content` lines."""
    return prompt_text(question.prompt)


def prompt_text(prompt: str | tuple[Message, ...]) -> str:
    """Return a prompt as one text: chat messages as `role: content` lines."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
