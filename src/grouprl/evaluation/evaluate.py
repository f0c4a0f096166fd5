"""The evaluator: pass@1 and unbiased pass@k on held-out questions, greedy and sampled, with confidence intervals.

Training and `grouprl eval` use this one function, so their numbers are the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from grouprl.core.errors import InputError
from grouprl.envs.stage import Stage
from grouprl.evaluation.pass_at_k import INTERVAL, Estimate
from grouprl.evaluation.sampling import Answers, Examiner, Meter, Progress, Sample
from grouprl.protocols import Policy, Sampler, StoredRows
from grouprl.rewards import Reward
from grouprl.rollout.engines import local_engine
from grouprl.rollout.seeds import answer_seed
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Question, Task


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; `greedy` or `pass_at` is empty when that kind of answer was not drawn.

    `reward` is the mean reward and `components` those of its parts. These, `length_mean` (tokens) and `truncated`
    (share) are those of the sampled answers, or of the greedy ones without samples. `failed` counts the answers that
    the reward or environment failed on; they are left out.
    """

    questions: int
    samples_per_question: int
    temperature: float
    greedy: Estimate | None
    pass_at: dict[int, Estimate]
    reward: Estimate
    components: dict[str, Estimate]
    length_mean: float
    truncated: float
    failed: int
    samples: tuple[Sample, ...]
    interval: str = INTERVAL
    notes: tuple[str, ...] = field(default=())
    greedy_reward: Estimate | None = None
    graded: bool = False
    """Whether rewards are a matter of degree: pass@k counts rewards of 1 and more then, and no answer is wrong."""

    @property
    def reward_mean(self) -> float:
        """The mean reward without its interval."""
        return self.reward.value

    def record(self) -> dict[str, float]:
        """Return the flat metrics of the run's record, each explained by `grouprl metrics`."""
        named = {f"pass@{k}": estimate for k, estimate in self.pass_at.items()}
        if self.greedy is not None:
            named = {"greedy": self.greedy, **named}
        if self.greedy_reward is not None:
            named["greedy_reward"] = self.greedy_reward
        named |= {"reward": self.reward, **{f"reward/{name}": each for name, each in self.components.items()}}
        flat: dict[str, float] = {}
        for name, estimate in named.items():
            flat[f"eval/{name}"] = estimate.value
            if isfinite(estimate.high):
                flat |= {f"eval/{name}_low": estimate.low, f"eval/{name}_high": estimate.high}
        return flat | {
            "eval/length_mean": self.length_mean,
            "eval/truncated": self.truncated,
            "eval/graded": float(self.graded),
            "eval/questions": self.questions,
            "eval/samples": self.samples_per_question,
        }


def evaluate(
    policy: Policy,
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
    sampler: Sampler[Any, int] | None = None,
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
        sampler: what every answer is drawn with; None: one of this process.

    Raises:
        InputError: a task without held-out questions, nothing to draw, k beyond `samples`.
        RunError: the reward or the environment fails on too many answers.
    """
    if isinstance(task, StoredRows):  # nothing is sampled: the likeliest of the stored completions is looked for
        samples, greedy = 0, True
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
    judge = Examiner(
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
        sampler or local_engine(policy),
    )
    meter = Meter(progress, count * (samples + greedy))
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
        reward=drawn[0].reward(),
        components=drawn[0].components(),
        greedy_reward=greedy_answers.reward() if greedy_answers else None,
        graded=any(answers.scores.graded for answers in drawn),
        length_mean=float(drawn[0].length_b.mean()),
        truncated=float(drawn[0].truncated_b.mean()),
        failed=sum(int(answers.scores.failed_b.sum()) for answers in drawn),
        samples=_shown(drawn, asked, shown),
        notes=(f"'{task.name}' has {count} held-out questions, {questions} were asked for: all are used",) * few,
    )


def _shown(drawn: Sequence[Answers], asked: Sequence[Question], count: int) -> tuple[Sample, ...]:
    """Return the answers shown, none of them right or wrong where any reward of the evaluation is graded."""
    samples = drawn[-1].show(asked, count)
    graded = any(answers.scores.graded for answers in drawn)
    return tuple(sample._replace(correct=None) for sample in samples) if graded else samples


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
