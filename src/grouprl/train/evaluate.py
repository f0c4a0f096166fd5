"""The evaluator: pass@1 and unbiased pass@k on held-out questions, greedy and sampled, with confidence intervals.

Training and `grouprl eval` use this one function, so their numbers are the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grouprl.data.collected import join_scores
from grouprl.envs import Environment
from grouprl.envs.stage import Stage
from grouprl.errors import InputError, RunError
from grouprl.policy.causal_lm import CausalPolicy
from grouprl.policy.team import Team
from grouprl.rewards import ErrorPolicy, Reward, Scores, score
from grouprl.rewards.contract import reward_name
from grouprl.rollout import generate
from grouprl.rollout.between import History
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.seeds import answer_seed
from grouprl.tasks.task import Message, Question, Task
from grouprl.train.episodes import environments, score_outcomes, with_function

Z95 = 1.959963984540054
"""The normal distribution's 97.5 % point: intervals cover 95 %."""
INTERVAL = "95 % Wilson interval, with the effective number of questions where several answers share one"
Progress = Callable[[int, int], None]
"""Called with (answers written, answers in all)."""


class Estimate(NamedTuple):
    """A mean over questions and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Sample(NamedTuple):
    """One held-out question with the policy's answer: the greedy one where it was drawn, else the first sample."""

    question: str
    answer: str
    reward: float
    correct: bool


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; `greedy` or `pass_at` is empty when that kind of answer was not drawn.

    `length_mean` (tokens) and `truncated` (share) are those of the sampled answers, or of the greedy ones without
    samples. `failed` counts the answers that the reward or environment failed on; they are left out.
    """

    questions: int
    samples_per_question: int
    temperature: float
    greedy: Estimate | None
    pass_at: dict[int, Estimate]
    reward_mean: float
    length_mean: float
    truncated: float
    failed: int
    samples: tuple[Sample, ...]
    interval: str = INTERVAL
    notes: tuple[str, ...] = field(default=())

    def record(self) -> dict[str, float]:
        """Return the flat metrics of the run's record, each explained by `grouprl metrics`."""
        named = {f"pass@{k}": estimate for k, estimate in self.pass_at.items()}
        if self.greedy is not None:
            named = {"greedy": self.greedy, **named}
        flat: dict[str, float] = {}
        for name, estimate in named.items():
            ends = {f"eval/{name}_low": estimate.low, f"eval/{name}_high": estimate.high}
            flat |= {f"eval/{name}": estimate.value, **ends}
        return flat | {
            "eval/length_mean": self.length_mean,
            "eval/truncated": self.truncated,
            "eval/questions": self.questions,
            "eval/samples": self.samples_per_question,
        }


def evaluate(
    policy: CausalPolicy | Team,
    task: Task,
    *,
    questions: int,
    samples: int = 1,
    k: Sequence[int] = (1,),
    temperature: float = 1.0,
    max_new_tokens: int,
    seed: int = 0,
    greedy: bool = True,
    reward: Reward | None = None,
    correct_at: float = 1.0,
    batch_rows: int = 512,
    shown: int = 16,
    stop: Sequence[str] = (),
    history: History = "refuse",
    stage: Stage | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Answer the first `questions` held-out questions of `task`, or act in its environments, and score the answers.

    Args:
        policy: answers; its temperature plays no part here.
        task: questions come from its split "eval".
        questions: how many; all there are if the split is smaller (said in `notes`).
        samples: sampled answers per question; 0 for greedy answers only.
        k: pass@k for these k, each at most `samples`.
        temperature: of the sampled answers.
        max_new_tokens: budget of an answer, or of one turn.
        seed: the seed of an answer is a function of (seed, question, sample), whatever is drawn beside it.
        greedy: whether to answer each question greedily too.
        reward: scores the answers; None: the task's own. Of episodes it scores the transcripts, in addition.
        correct_at: total reward from which an answer counts as correct, unless the reward says so itself.
        batch_rows: answers written at the same time; changes memory, not results.
        shown: questions kept in `Evaluation.samples`.
        stop: texts that end an answer or a turn, beside those of the task.
        history: what happens where a chat template rewrites earlier turns (`sampling.history`).
        stage: where environments act; None: in this process.
        progress: called as answers are written.

    Raises:
        InputError: a task without held-out questions, nothing to draw, k beyond `samples`.
        RunError: the reward or the environment fails on too many answers.
    """
    _check_request(questions, samples, k, greedy)
    available = task.size("eval")
    count = questions if available is None else min(questions, available)
    if count == 0:
        raise InputError(
            f"The task '{task.name}' has no held-out questions",
            "an evaluation answers questions of the split 'eval'",
            "Give the task more questions, or a split of their own for evaluation",
        )
    asked = [task.question("eval", index) for index in range(count)]
    judge = _Judge(
        policy,
        task,
        reward or task.reward,
        correct_at,
        max_new_tokens,
        temperature,
        batch_rows,
        history,
        stage,
        reward,
        (*task.stop, *stop),
    )
    meter = _Meter(progress, count * (samples + greedy))
    greedy_answers = judge.answer(asked, 1, [[0]] * count, True, meter) if greedy else None
    seeds = [[answer_seed("eval", seed, q, s) for s in range(samples)] for q in range(count)]
    sampled = judge.answer(asked, samples, seeds, False, meter) if samples else None
    drawn = [answers for answers in (sampled, greedy_answers) if answers is not None]
    few = count < questions
    return Evaluation(
        questions=count,
        samples_per_question=samples,
        temperature=temperature,
        greedy=greedy_answers.pass_at(1) if greedy_answers else None,
        pass_at={each: sampled.pass_at(each) for each in sorted(set(k))} if sampled else {},
        reward_mean=drawn[0].reward_mean,
        length_mean=float(drawn[0].length_b.mean()),
        truncated=float(drawn[0].truncated_b.mean()),
        failed=sum(int(answers.scores.failed_b.sum()) for answers in drawn),
        samples=drawn[-1].show(asked, shown),
        notes=(f"'{task.name}' has {count} held-out questions, {questions} were asked for: all are used",) * few,
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k answers, drawn without replacement from n of which c are correct, hold a correct one.

    1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374, section 2.1).

    Raises:
        InputError: k outside 1..n or c outside 0..n.
    """
    return float(pass_at_k_each([n], [c], k)[0])


def pass_at_k_each(n_q: ArrayLike, c_q: ArrayLike, k: int) -> NDArray[np.float64]:
    """`pass_at_k` of every question: n_q answers, c_q of them correct, both [Q]."""
    answers_q, correct_q = np.asarray(n_q, dtype=np.int64), np.asarray(c_q, dtype=np.int64)
    if k < 1 or bool((answers_q < k).any()):
        raise InputError(f"pass@{k} of {answers_q.min()} answers", "k lies in 1..n", "Draw at least k answers")
    if bool(((correct_q < 0) | (correct_q > answers_q)).any()):
        raise InputError(f"{correct_q.tolist()} correct of {answers_q.tolist()} answers", "0 <= c <= n for each")
    wrong_q = answers_q - correct_q
    fail_q = np.ones(len(answers_q))
    for i in range(k):
        fail_q *= np.maximum(wrong_q - i, 0) / (answers_q - i)
    return 1.0 - fail_q


def wilson(p: float, n: float) -> Estimate:
    """Wilson's 95 % score interval (JASA 22, 1927) of a share p of n independent trials."""
    denominator = 1 + Z95**2 / n
    middle = (p + Z95**2 / (2 * n)) / denominator
    half = Z95 / denominator * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return Estimate(p, min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half)))


def interval(value_q: NDArray[np.float64], answers: int) -> Estimate:
    """Mean and 95 % interval of per-question values in [0, 1], [Q], with `answers` drawn per question.

    Questions are the independent units. Wilson's interval with the effective sample size p(1-p) / Var(mean)
    (Dean and Pagano 2015, Survey Methodology), at least Q and at most all answers; with one answer per question this
    is Wilson's interval itself. It neither leaves [0, 1] nor shrinks to a point when all answers are right or wrong.
    """
    count, p = len(value_q), float(value_q.mean())
    spread = float(value_q.var())
    effective = count * p * (1 - p) / spread if spread > 0 else count * (answers if 0 < p < 1 else 1)
    return wilson(p, min(max(effective, count), count * answers))


@dataclass(frozen=True)
class _Answers:
    """R answers, those of one question next to each other, and their verdicts."""

    texts: list[str]
    length_b: NDArray[np.float64]
    truncated_b: NDArray[np.float64]
    scores: Scores
    kept_b: NDArray[np.bool_]
    each: int

    @property
    def reward_mean(self) -> float:
        return float(self.scores.reward_b[self.kept_b].mean())

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
        reward_b, correct_b = self.scores.reward_b, self.scores.correct_b
        return tuple(
            Sample(question_text(question), self.texts[row], float(reward_b[row]), bool(correct_b[row]))
            for question, row in zip(asked, rows, strict=False)
            if self.kept_b[row]
        )


@dataclass(frozen=True)
class _Judge:
    """The policy, the reward and how answers are drawn."""

    policy: CausalPolicy | Team
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

    def answer(
        self, asked: Sequence[Question], each: int, seeds: list[list[int]], greedy: bool, meter: _Meter
    ) -> _Answers:
        """Draw `each` answers per question, as many questions at a time as `batch_rows` allows, and score them."""
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
            rollout = generate(
                self.policy,
                self.policy.encode_prompts([question.prompt for question in asked[part]]),
                n=each,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                seeds=[seed for row in seeds[part] for seed in row],
                greedy=greedy,
                stop_texts=self.stop,
            )
            texts += self.policy.decode_all(rollout.response_ids)
            lengths += [len(ids) for ids in rollout.response_ids]
            truncated += rollout.truncated_b.tolist()
            meter.add(len(rollout.response_ids))
        return self._score(asked, each, texts, lengths, truncated)

    def _play(
        self,
        make: Callable[[], Environment],
        asked: Sequence[Question],
        each: int,
        seeds: list[list[int]],
        greedy: bool,
        meter: _Meter,
    ) -> _Answers:
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
            episodes = play(
                self.policy,
                make,
                starts[at : at + self.batch_rows],
                max_turns=self.task.max_turns,
                max_new_tokens=self.max_new_tokens,
                agents=self.task.agents,
                greedy=greedy,
                stop=self.stop,
                history=self.history,
                stage=self.stage,
            )
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

    def _score(
        self, asked: Sequence[Question], each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> _Answers:
        rows = [question for question in asked for _ in range(each)]
        ids = [f"{question.id}#{row % each}" for row, question in enumerate(rows)]
        columns = [question.columns for question in rows]
        scores = score(self.reward, texts, columns, ids=ids, correct_at=self.correct_at)
        return self._answers(scores, each, texts, lengths, truncated)

    def _answers(
        self, scores: Scores, each: int, texts: list[str], lengths: list[int], truncated: list[bool]
    ) -> _Answers:
        kept_b = ErrorPolicy("drop_row").apply(scores, np.arange(len(texts)) // each)
        if not kept_b.any():
            raise RunError(f"The reward scored none of the {len(texts)} answers, for instance {scores.problems[0]}")
        return _Answers(texts, np.array(lengths, float), np.array(truncated, float), scores, kept_b, each)


class _Meter:
    """Counts answers for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, count: int) -> None:
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


def _check_request(questions: int, samples: int, k: Sequence[int], greedy: bool) -> None:
    if questions < 1 or samples < 0:
        raise InputError(f"questions={questions}, samples={samples}", "questions >= 1 and samples >= 0")
    if not samples and not greedy:
        raise InputError("samples=0 without greedy answers", "there is nothing to evaluate", "Ask for one of them")
    bad = [each for each in k if not 1 <= each <= samples]
    if samples and bad:
        raise InputError(
            f"pass@{bad[0]} with {samples} samples per question",
            "pass@k needs at least k samples of each question",
            f"Draw {max(bad)} samples or more, or ask for a smaller k",
        )
