"""Rows besides the groups: answers drawn at another temperature, questions about the rightness of answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.exploration.resampling import again, drawn_rows, further_numbers, groups, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.rollout.requests import Prompt
from grouprl.rollout.sampler import Rollout
from grouprl.rollout.samples import Collected, subset
from grouprl.tasks.task import Question, Task

Positive = Annotated[float, Field(gt=0)]


@part("explore")
class TemperedExtras(Exploration):
    """AEPO: good answers drawn hotter or cooler, to steer the entropy towards `target` (arXiv:2510.08141).

    With H the last step's entropy, the temperature is `hot` times the run's where H ≤ target, else `cool` times. A
    `share` of the questions is answered once more with it; of the answers whose standardised advantage among these is
    above `margin` the first `most` are kept, half as many above the target. They are rows of source 'extra' outside
    group statistics. `place="replace"`: as many of the first ordinary rows leave the loss (but not the statistics).
    Nothing happens in the first step, which has no last entropy.
    """

    target: Positive = 0.5
    hot: Positive = 1.2
    cool: Positive = 0.8
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    most: Annotated[int, Field(ge=1)] = 60
    margin: Annotated[float, Field(ge=0)] = 0.05
    place: Literal["replace", "append"] = "replace"

    def __post_init__(self) -> None:
        """Refuse a hot temperature that is not hotter."""
        if self.hot <= self.cool:
            raise InputError(f"tempered_extras: hot {self.hot:g}, cool {self.cool:g}", "hot is the higher temperature")

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with extras."""
        extras = None if desk.last_entropy is None else self._drawn(collected, desk.last_entropy, desk)
        count = 0 if extras is None else len(extras)
        desk.note("extra_rows", count)
        left_b = np.zeros(len(collected), dtype=bool)
        if self.place == "replace":
            left_b[np.flatnonzero(drawn_rows(collected))[:count]] = True
        collected = _in_loss(collected, ~left_b, counted=True)
        if extras is None or not count:
            return collected
        return splice(collected, np.zeros(len(collected), dtype=bool), [_in_loss(extras, None, counted=False)])

    def _drawn(self, collected: Collected, entropy: float, desk: Desk) -> Collected | None:
        """Return the good answers at the other temperature; None if there is no question."""
        asked = list(groups(collected, drawn_rows(collected)))
        if not asked:
            return None
        chosen = desk.rng(self).permutation(len(asked))[: math.ceil(self.share * len(asked))]
        heat = desk.temperature * (self.hot if entropy <= self.target else self.cool)
        extra = SOURCES["extra"]
        asks = [again(collected, asked[i][0], answers=len(asked[i]), temperature=heat, source=extra) for i in chosen]
        drawn = desk.draw(asks, count_failures=False)
        good = np.flatnonzero(self._good(drawn))[: self.most]
        return subset(drawn, good if entropy <= self.target else good[: len(good) // 2])

    def _good(self, drawn: Collected) -> np.ndarray:
        """[B] bool: answers whose advantage in their group is above the margin."""
        reward_b = torch.from_numpy(np.where(drawn.kept_b, drawn.scores.reward_b, 0))
        kept_b = torch.from_numpy(drawn.kept_b).to(reward_b.dtype)
        adv_b = levels.relative(reward_b, torch.from_numpy(drawn.group_b), weight_n=kept_b)
        return (adv_b > self.margin).numpy()

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("stat_b", "loss_mask_bt")

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        count = math.ceil(self.share * run.prompts)
        return f"up to {count} × {run.group_size} = {count * run.group_size} answers per rollout; the good ones join"

    def words(self) -> str:
        """Describe."""
        where = "in the place of ordinary ones" if self.place == "replace" else "besides the ordinary ones"
        return (
            f"good answers drawn at {self.hot:g} times the temperature while the entropy is at most {self.target:g} "
            f"nats, else at {self.cool:g} times, join {where}"
        )


def _in_loss(collected: Collected, rows_b: np.ndarray | None, *, counted: bool) -> Collected:
    """Return the rows with columns that say which are in the loss (None: all) and in group statistics (all or none)."""
    width = max(map(len, collected.rollout.response_ids))
    rows_b = np.ones(len(collected), dtype=bool) if rows_b is None else rows_b
    size_b = np.array([len(ids) for ids in collected.rollout.response_ids])
    mask_bt = (np.arange(width) < size_b[:, None]) & rows_b[:, None]
    return collected.with_extras(stat_b=np.full(len(collected), counted), loss_mask_bt=mask_bt)


@part("explore")
class VerificationRows(Exploration):
    """RL^V: for answers of this step a row asks whether they are right; the verdict is one token (arXiv:2505.04842).

    `balance`: as many right as wrong answers of each group, chosen at random; else all of them. The rows have source
    'verification' and the reward of the answer they are about.
    """

    balance: bool = True

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows and the questions about them."""
        chosen = self._chosen(collected, desk)
        desk.note("verification_rows", len(chosen))
        if not len(chosen):
            return collected
        about = subset(collected, chosen)
        pairs = zip(about.questions, about.texts, strict=True)
        prompts = [desk.task.with_verdict(question, text) for question, text in pairs]
        asked = desk.under(about, prompts).with_source("verification")
        verdicts = _verdicts(desk)
        kinds = [0 if right else 1 for right in about.scores.correct_b]
        nothing_bt = torch.zeros(len(chosen), 1, dtype=collected.rollout.logp_bt.dtype)
        rollout = Rollout(
            prompt_ids=asked.rollout.prompt_ids,
            response_ids=tuple((verdicts[kind],) for kind in kinds),
            logp_bt=nothing_bt,
            entropy_bt=nothing_bt.clone(),
            truncated_b=torch.zeros(len(chosen), dtype=torch.bool),
        )
        texts = tuple(desk.task.verdicts[kind] for kind in kinds)
        numbers_b = further_numbers(collected, chosen)
        rows = replace(asked, rollout=rollout, texts=texts, answer_b=numbers_b)
        return splice(collected, np.zeros(len(collected), dtype=bool), [rows])

    def _chosen(self, collected: Collected, desk: Desk) -> np.ndarray:
        """Return the rows that are asked about, ascending."""
        if not self.balance:
            return np.flatnonzero(drawn_rows(collected))
        rng, chosen = desk.rng(self), [np.zeros(0, dtype=np.int64)]
        for rows in groups(collected, drawn_rows(collected)):
            right_b = collected.scores.correct_b[rows]
            count = min(right_b.sum(), (~right_b).sum())
            chosen += [rng.permutation(kind)[:count] for kind in (rows[right_b], rows[~right_b])]
        return np.sort(np.concatenate(chosen))

    def further(self, run: RunFacts) -> str:
        """Rows besides the answers."""
        return f"no answers, but up to {run.prompts * run.group_size} rows of one token per rollout to train on"

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """The question about a right answer."""
        right = task.solution(question)
        return [task.with_verdict(question, right)] if right else []

    def words(self) -> str:
        """Describe."""
        which = "as many right as wrong answers of each group" if self.balance else "every answer"
        return f"about {which} the policy is asked whether it is right"

    def idle(self, run: RunFacts) -> list[str]:
        """A group of one is never balanced."""
        if self.balance and run.group_size == 1:
            return ["verification_rows has no effect: a group of one has no right and wrong answer. Set balance: false"]
        return []


def _verdicts(desk: Desk) -> tuple[int, int]:
    """Return the tokens that begin the verdicts right and wrong. Raises InputError if they are the same."""
    yes, no = (desk.encode(text)[0] for text in desk.task.verdicts)
    if yes == no:
        raise InputError(f"the verdicts {desk.task.verdicts} begin with the same token", "one token tells them apart")
    return yes, no
