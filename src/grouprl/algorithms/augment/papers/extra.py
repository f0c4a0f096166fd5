"""Rows besides the groups: completions sampled at another temperature, and prompts that ask whether completions are
right.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.resampling import again, further_numbers, groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.core.numbers import Positive
from grouprl.records.examples import Example, Prompt
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import as_text
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.tasks.task import Task


@part("augment")
class TemperedExtras(Augmentation):
    """AEPO: good completions sampled hotter or cooler, to steer the entropy towards `target` (arXiv:2510.08141).

    With H the last step's entropy, the temperature is `hot` times the run's where H ≤ target, else `cool` times. A
    `share` of the prompts is sampled once more with it; of the completions whose standardised advantage among these is
    above `margin` the first `most` are kept, half as many above the target. They are rows of source 'extra' outside
    group statistics. `place="replace"`: as many of the first ordinary rows leave the loss (but not the statistics).
    Nothing happens in the first step, because no entropy is known yet.
    """

    target: Positive = 0.5
    hot: Positive = 1.2
    cool: Positive = 0.8
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    most: Annotated[int, Field(ge=1)] = 60
    margin: Annotated[float, Field(ge=0)] = 0.05
    place: Literal["replace", "append"] = "replace"
    fills = ("stat_b", "loss_mask_bt")

    def __post_init__(self) -> None:
        """Raise InputError unless `hot` is above `cool`."""
        if self.hot <= self.cool:
            raise InputError(
                f"tempered_extras has hot {self.hot:g} and cool {self.cool:g}", "hot must be the higher temperature"
            )

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with extras."""
        extras = None if context.last_entropy is None else self._sampled(samples, context.last_entropy, context)
        count = 0 if extras is None else len(extras)
        context.note("extra_rows", count)
        left_b = np.zeros(len(samples), dtype=bool)
        if self.place == "replace":
            left_b[np.flatnonzero(sampled_rows(samples))[:count]] = True
        samples = _in_loss(samples, ~left_b, counted=True)
        if extras is None or not count:
            return samples
        return splice(samples, np.zeros(len(samples), dtype=bool), [_in_loss(extras, None, counted=False)])

    def _sampled(self, samples: ScoredSamples, entropy: float, context: RunContext) -> ScoredSamples | None:
        """Return the good completions at the other temperature; None if there is no prompt."""
        requested = list(groups(samples, sampled_rows(samples)))
        if not requested:
            return None
        chosen = context.rng(self).permutation(len(requested))[: math.ceil(self.share * len(requested))]
        temperature = context.temperature * (self.hot if entropy <= self.target else self.cool)
        extra = SOURCES["extra"]
        requests = [
            again(samples, requested[i][0], completions=len(requested[i]), temperature=temperature, source=extra)
            for i in chosen
        ]
        sampled = context.sample(requests, count_failures=False)
        good = np.flatnonzero(self._good(sampled))[: self.most]
        return subset(sampled, good if entropy <= self.target else good[: len(good) // 2])

    def _good(self, sampled: ScoredSamples) -> np.ndarray:
        """Return [B] bool: completions whose advantage in their group is above the margin."""
        reward_b = torch.from_numpy(np.where(sampled.valid_b, sampled.scores.reward_b, 0))
        valid_b = torch.from_numpy(sampled.valid_b).to(reward_b.dtype)
        adv_b = levels.relative(reward_b, torch.from_numpy(sampled.group_b), weight_n=valid_b)
        return (adv_b > self.margin).numpy()

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        count = math.ceil(self.share * run.prompts)
        return (
            f"up to {count} × {run.group_size} = {count * run.group_size} completions per rollout; the good ones join"
        )

    @override
    def words(self) -> str:
        where = "in place of ordinary ones" if self.place == "replace" else "besides the ordinary ones"
        return (
            f"good completions sampled at {self.hot:g} times the temperature while the entropy is at most "
            f"{self.target:g} "
            f"nats, else at {self.cool:g} times, join {where}"
        )


def _in_loss(samples: ScoredSamples, rows_b: np.ndarray | None, *, counted: bool) -> ScoredSamples:
    """Return the rows with columns that say which are in the loss (None: all) and in group statistics (all or none)."""
    rows_b = np.ones(len(samples), dtype=bool) if rows_b is None else rows_b
    mask_bt = samples.rollout.inputs.present_bt().numpy() & rows_b[:, None]
    return samples.with_extras(stat_b=np.full(len(samples), counted), loss_mask_bt=mask_bt)


@part("augment")
class VerificationRows(Augmentation):
    """RL^V: for completions of this step a row asks whether they are right; the verdict is one token
    (arXiv:2505.04842).

    `balance`: as many right as wrong completions of each group, chosen at random; else all of them. The rows have
    source 'verification' and the reward of the completion they are about.
    """

    needs_text = True

    balance: bool = True

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows and the prompts about them."""
        chosen = self._chosen(samples, context)
        context.note("verification_rows", len(chosen))
        if not len(chosen):
            return samples
        about = as_text(subset(samples, chosen))
        pairs = zip(about.examples, about.texts, strict=True)
        prompts = [context.task.with_verdict(example, text) for example, text in pairs]
        requested = context.text.with_prompts(about, prompts).with_source("verification")
        verdicts = _verdicts(context)
        kinds = [0 if right else 1 for right in about.scores.correct_b]
        nothing_bt = torch.zeros(len(chosen), 1, dtype=samples.rollout.logp_bt.dtype)
        rollout = Rollout(
            Tokens(requested.prompt_ids, tuple((verdicts[kind],) for kind in kinds)),
            logp_bt=nothing_bt,
            entropy_bt=nothing_bt.clone(),
            truncated_b=torch.zeros(len(chosen), dtype=torch.bool),
        )
        texts = tuple(context.task.verdicts[kind] for kind in kinds)
        numbers_b = further_numbers(samples, chosen)
        rows = replace(requested, rollout=rollout, texts=texts, sample_b=numbers_b)
        return splice(samples, np.zeros(len(samples), dtype=bool), [rows])

    def _chosen(self, samples: ScoredSamples, context: RunContext) -> np.ndarray:
        """Return the rows to ask about, ascending."""
        if not self.balance:
            return np.flatnonzero(sampled_rows(samples))
        rng, chosen = context.rng(self), [np.zeros(0, dtype=np.int64)]
        for rows in groups(samples, sampled_rows(samples)):
            right_b = samples.scores.correct_b[rows]
            count = min(right_b.sum(), (~right_b).sum())
            chosen += [rng.permutation(kind)[:count] for kind in (rows[right_b], rows[~right_b])]
        return np.sort(np.concatenate(chosen))

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many rows are added besides the completions."""
        return f"no completions, but up to {run.prompts * run.group_size} rows of one token per rollout to train on"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the prompt that asks about a correct completion."""
        right = task.solution(example)
        return [task.with_verdict(example, right)] if right else []

    @override
    def words(self) -> str:
        which = "as many right as wrong completions of each group" if self.balance else "every completion"
        return f"about {which} the policy is asked whether it is right"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that balancing leaves nothing if groups hold one completion."""
        if self.balance and run.group_size == 1:
            return [
                "verification_rows has no effect: a group of one never holds a right and a wrong completion. Set "
                "balance: false"
            ]
        return []


def _verdicts(context: RunContext) -> tuple[int, int]:
    """Return the tokens that begin the verdicts right and wrong. Raises InputError if they are the same."""
    yes, no = (context.text.encode(text)[0] for text in context.task.verdicts)
    if yes == no:
        raise InputError(
            f"the verdicts {context.task.verdicts} begin with the same token", "their first tokens must differ"
        )
    return yes, no
