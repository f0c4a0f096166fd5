"""The evaluator: pass@1 and unbiased pass@k on held-out prompts, greedy and sampled, with confidence intervals.

Training and `grouprl eval` use the same function, so that their numbers agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from grouprl.core.errors import InputError
from grouprl.envs.environment_pool import Stage
from grouprl.evaluation.gain import PromptValues, gains
from grouprl.evaluation.pass_at_k import INTERVAL, Estimate
from grouprl.evaluation.sample_and_score import Completions, Meter, Progress, Sample, complete
from grouprl.evaluation.yardsticks import load_yardsticks, measure
from grouprl.protocols import RunSampler, Trainable
from grouprl.records.examples import Example
from grouprl.records.template_shares import template_shares
from grouprl.rewards import Reward
from grouprl.rollout.kinds.row_kinds import evaluation_kind
from grouprl.rollout.pair_gaps import OF_DATA
from grouprl.rollout.row_settings import RowSettings, Seeds
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Task

YARDSTICK = "metric/"
"""Beginning of the measures of `eval.metrics`."""
RANKING = "pair_accuracy"
"""The measure of a reward model, which takes the place of all others but those of the gaps between its scores."""


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation; `greedy` or `pass_at` is empty if that kind of completion was not sampled.

    `reward` is the mean reward and `components` the means of its parts. These, `length_mean` (tokens) and `truncated`
    (share) describe the sampled completions, or the greedy ones if none were sampled. `failed` counts the completions
    on which the reward or the environment failed; they are left out.
    """

    prompts: int
    samples_per_prompt: int
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
    pair_accuracy: Estimate | None = None
    """Share of the pairs of stored completions that a reward model ranks right; None for a policy."""
    graded: bool = False
    """Whether rewards are graded: then pass@k counts rewards of at least 1, and no completion is marked wrong."""
    returns: bool = False
    """Whether rewards are the returns of episodes over arrays, other than 0 and 1: their mean is the first number."""
    compared: bool = False
    """Whether a reward says how often a completion is preferred in its own group: its mean then shows no gain."""
    proportional: bool = False
    """Whether the method samples in proportion to rewards: a lower mean is then no loss, and a higher one no gain."""
    by_prompt: Mapping[str, PromptValues] = field(default_factory=dict)
    """The values of each prompt behind "greedy", "pass@k", "reward", "greedy_reward" and "reward/<component>", or of a
    reward model behind "pair_accuracy" and what the gaps between its scores say.
    """
    template: Mapping[str, float] = field(default_factory=dict)
    """The share of the prompts that set a variable of the chat template themselves, as "template/NAME/VALUE"."""
    gains: Mapping[str, Estimate] = field(default_factory=dict)
    """The change of these measures since an earlier evaluation of the same prompts, if one is known."""

    @property
    def yardsticks(self) -> dict[str, Estimate]:
        """The estimates by the yardsticks of `eval.metrics` that apply to some completion, as "metric/NAME"."""
        return {name: x.estimate() for name, x in self.by_prompt.items() if name.startswith(YARDSTICK) and x.known}

    def knowing(self, graded: bool) -> Evaluation:
        """Return the evaluation with `graded` set if it is known; then no completion is marked right or wrong."""
        samples = tuple(sample.without_mark() for sample in self.samples)
        return replace(self, graded=True, samples=samples) if graded else self

    def since(self, before: Mapping[str, PromptValues]) -> Evaluation:
        """Return the evaluation with its gains since one whose values by prompt are `before`."""
        measured = {name: values for name, values in self.by_prompt.items() if name not in OF_DATA}
        return replace(self, gains=gains(before, measured))

    def record(self) -> dict[str, float]:
        """Return the flat metrics of the run's record, each explained by `grouprl metrics`."""
        named = {name: values.estimate() for name, values in self.by_prompt.items() if values.known}
        named |= {f"{name}_gain": gain for name, gain in self.gains.items()}
        flat: dict[str, float] = {}
        for name, estimate in named.items():
            flat[f"eval/{name}"] = estimate.value
            if isfinite(estimate.high):
                flat |= {f"eval/{name}_low": estimate.low, f"eval/{name}_high": estimate.high}
        return flat | {
            "eval/length_mean": self.length_mean,
            "eval/truncated": self.truncated,
            "eval/graded": float(self.graded),
            "eval/returns": float(self.returns),
            "eval/prompts": self.prompts,
            "eval/samples": self.samples_per_prompt,
            **{f"eval/{name}": share for name, share in self.template.items()},
            **({"eval/compared": 1.0} if self.compared else {}),
            **({"eval/proportional": 1.0} if self.proportional else {}),
        }


def evaluate(
    policy: Trainable,
    task: Task,
    *,
    prompts: int,
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
    sampler: RunSampler | None = None,
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Sample completions of held-out prompts of `task`, or act in its environments, and score them.

    Args:
        policy: samples the completions; its own temperature is not used here.
        task: prompts come from its split "eval".
        prompts: number of prompts; the whole split if it is smaller (which `notes` says).
        samples: sampled completions per prompt; 0 for greedy completions only.
        k: pass@k for these k, each at most `samples`.
        temperature: sampling temperature of the completions that are not greedy.
        max_new_tokens: token budget of a completion, or of one turn.
        seed: a completion's seed depends only on (seed, prompt, sample), not on what else is sampled.
        greedy: whether to make a greedy completion of each prompt, too.
        reward: scores the completions; None: the task's own reward. For episodes it scores the transcripts in addition.
        correct_at: total reward from which a completion counts as correct, unless the reward says so itself.
        batch_rows: number of completions sampled at the same time; changes memory, not results.
        shown: number of prompts kept in `Evaluation.samples`.
        stop: texts that end a completion or a turn, in addition to the task's.
        history: what to do if a chat template rewrites earlier turns (`sampling.history`).
        stage: runs the environments; None: in this process.
        progress: called as completions are sampled.
        sampler: samples every completion; None: a sampler in this process.
        metrics: names of yardsticks besides the reward (`eval.metrics`).

    Raises:
        InputError: the task has no held-out prompts, there is nothing to sample, or k exceeds `samples`.
        RunError: the reward or the environment fails on too many completions.
    """
    settings = RowSettings(
        max_new_tokens,
        Seeds(seed),
        temperature,
        stop=tuple(stop),
        history=history,
        correct_at=correct_at,
        adds_reward=reward is not None,
        yardsticks=tuple(metrics),
    )
    open_source = evaluation_kind(task)
    source = open_source(task, policy, reward or task.reward, settings.held_out(), sampler=sampler, stage=stage)
    return evaluate_rows(
        source,
        prompts=prompts,
        samples=samples,
        k=k,
        greedy=greedy,
        batch_rows=batch_rows,
        shown=shown,
        progress=progress,
    )


def evaluate_rows(
    source: ScoringSource,
    *,
    prompts: int,
    samples: int = 1,
    k: Sequence[int] = (1,),
    greedy: bool = True,
    batch_rows: int = 512,
    shown: int = 16,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate the rows of a source on held-out prompts; all other arguments are those of `evaluate`."""
    task = source.task
    if not source.samples:  # nothing is random: each prompt has one outcome
        samples, greedy = 0, True
    _check_request(prompts, samples, k, greedy)
    requested = _requested(task, prompts)
    count, few = len(requested), len(requested) < prompts
    yardsticks = load_yardsticks(source.settings.yardsticks)
    meter = Meter(progress, count * (samples + greedy))
    together = count if source.measure == RANKING else batch_rows  # lone completions are ranked among all of them
    greedy_completions = complete(source, requested, 1, together, meter, greedy=True) if greedy else None
    sampled = complete(source, requested, samples, batch_rows, meter) if samples else None
    found = [completions for completions in (sampled, greedy_completions) if completions is not None]
    if source.measure == RANKING and greedy_completions is not None:
        values = {RANKING: greedy_completions.reward(), **greedy_completions.components()}
    else:
        values = _by_prompt(sampled, greedy_completions, k) | _measured(yardsticks, requested, found[0])
    named = {name: each.estimate() for name, each in values.items() if each.known}
    return Evaluation(
        prompts=count,
        samples_per_prompt=samples,
        temperature=source.settings.temperature,
        greedy=named.get("greedy"),
        pair_accuracy=named.get(RANKING),
        pass_at={each: named[f"pass@{each}"] for each in sorted(set(k))} if sampled else {},
        reward=found[0].reward().estimate(),
        components={name[len("reward/") :]: each for name, each in named.items() if name.startswith("reward/")},
        greedy_reward=named.get("greedy_reward"),
        by_prompt=values,
        graded=any(completions.scores.graded for completions in found),
        returns=not source.text and not all(completions.binary for completions in found),
        length_mean=float(found[0].length_b.mean()),
        truncated=float(found[0].truncated_b.mean()),
        failed=sum(int(completions.scores.failed_b.sum()) for completions in found),
        samples=_shown(found, requested, shown),
        template=template_shares([example.prompt for example in requested]),
        notes=(
            *(f"'{task.name}' has {count} held-out prompts, fewer than the {prompts} requested: all are used",) * few,
            *(f"{name} applies to none of the completions, and has no value" for name in values if name not in named),
        ),
    )


def _by_prompt(sampled: Completions | None, greedy: Completions | None, k: Sequence[int]) -> dict[str, PromptValues]:
    """Return the values of each prompt for every measure, in the order of the record."""
    named = {} if greedy is None else {"greedy": greedy.pass_at(1)}
    named |= {} if sampled is None else {f"pass@{each}": sampled.pass_at(each) for each in sorted(set(k))}
    named |= {} if greedy is None else {"greedy_reward": greedy.reward()}
    first = sampled or greedy
    assert first is not None
    return named | {"reward": first.reward(), **{f"reward/{name}": x for name, x in first.components().items()}}


def _measured(
    yardsticks: Mapping[str, Reward], requested: Sequence[Example], completions: Completions
) -> dict[str, PromptValues]:
    """Return the values of each prompt by each yardstick, over the completions that could be scored."""
    examples = [example for example in requested for _ in range(completions.each)]
    found = measure(yardsticks, examples, completions.texts)
    return {f"{YARDSTICK}{name}": completions.means(value_b, some=False) for name, value_b in found.items()}


def _requested(task: Task, prompts: int) -> list[Example]:
    """Return `prompts` held-out examples, or all if there are fewer; raises InputError if there are none."""
    available = task.size("eval")
    count = prompts if available is None else min(prompts, available)
    if count == 0:
        raise InputError(
            f"The task '{task.name}' has no held-out prompts",
            "an evaluation completes prompts of the split 'eval'",
            "Give the task more prompts, or a split of their own for evaluation",
        )
    return [task.example("eval", index) for index in range(count)]


def _shown(sampled: Sequence[Completions], requested: Sequence[Example], count: int) -> tuple[Sample, ...]:
    """Return the completions to show; none is marked right or wrong if any reward of the evaluation is graded."""
    samples = sampled[-1].show(requested, count)
    graded = any(completions.scores.graded for completions in sampled)
    return tuple(sample.without_mark() for sample in samples) if graded else samples


def _check_request(prompts: int, samples: int, k: Sequence[int], greedy: bool) -> None:
    if prompts < 1 or samples < 0:
        raise InputError(f"prompts={prompts}, samples={samples}", "prompts must be at least 1, and samples at least 0")
    if not samples and not greedy:
        raise InputError("samples=0 without greedy completions", "there is nothing to evaluate", "Request one of them")
    bad = [each for each in k if not 1 <= each <= samples]
    if samples and bad:
        raise InputError(
            f"pass@{bad[0]} with {samples} samples per prompt",
            "pass@k needs at least k samples of each prompt",
            f"Sample {max(bad)} samples or more, or ask for a smaller k",
        )
