"""Episodes that branch: played again from one of their turns on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.prefix_turns import led
from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples


def turn_entropy(samples: ScoredSamples, row: int, turn: int, tokens: int) -> float:
    """Return the mean entropy of the first `tokens` tokens of a turn, in nats."""
    width = int(samples.inputs.present_bt()[row].sum())
    where_t = np.flatnonzero(samples.extras["turn_bt"][row, :width] == turn)[:tokens]
    return float(samples.rollout.entropy_bt[row].numpy()[where_t].mean())


@dataclass
class Growth:
    """State of the groups of a step while they grow."""

    room: dict[int, int]
    """Number of episodes that each group still gets."""
    born: dict[tuple[int, int], int] = field(default_factory=dict)
    """First turn that each branch sampled itself, by group and number."""

    def may_branch(self, samples: ScoredSamples, turn: int) -> list[int]:
        """Return the rows that sampled turn `turn` themselves, in groups that have room."""
        sampled_b = sampled_rows(samples) & (samples.extras["turn_bt"].max(1) >= turn)
        names = ((int(i), (int(samples.group_b[i]), int(samples.sample_b[i]))) for i in np.flatnonzero(sampled_b))
        return [row for row, name in names if self.room[name[0]] and self.born.get(name, 0) < turn]

    def branch(self, samples: ScoredSamples, row: int, turn: int, skip: int) -> RolloutRequest:
        """Return a request for an episode like that of `row` up to `turn`."""
        request = led(samples, row, turn, skip=skip, train_prefix=True)
        group = int(samples.group_b[row])
        self.room[group] -= 1
        self.born[group, request.first] = turn
        return request


@part("augment")
class EntropyBranching(Augmentation):
    """ARPO: episodes branch after observations that leave the policy unsure (arXiv:2507.19849, section 3.2).

    Turn k of an episode branches with probability clip(chance + slope·(H_k - H_0), 0, 1), H being the mean entropy of
    the first `tokens` tokens of a turn in nats: another episode begins with the same first k turns, continues by
    itself, and may branch later. A group grows to `grow` times its size; what branches do not use is filled with
    episodes from the beginning. All tokens of all episodes are trained.
    """

    needs_text = True

    grow: Annotated[float, Field(gt=1)] = 2.0
    chance: Annotated[float, Field(ge=0, le=1)] = 0.5
    slope: float = 0.2
    tokens: Annotated[int, Field(ge=1)] = 20
    says = (
        "turns that begin less surely than the first branch (chance {chance:g}, {slope:+g} per nat), until a "
        "group has {grow:g} times its size"
    )
    equation = "P(branch at turn k) = clip({chance:g} + {slope:g}·(H_k - H_0), 0, 1)"

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with their branches."""
        rng, started = context.rng(self), list(groups(samples, sampled_rows(samples)))
        first = {int(samples.group_b[rows[0]]): rows for rows in started}
        growth = Growth({group: round(self.grow * len(rows)) - len(rows) for group, rows in first.items()})
        for turn in range(1, context.task.max_turns):
            if requests := self._requests(samples, growth, turn, rng):
                samples = _with(samples, requests, context)
        context.note("branches", len(growth.born))
        rest = [again(samples, _row(samples, group), completions=more) for group, more in growth.room.items() if more]
        return _with(samples, rest, context) if rest else samples

    def probability(self, rise: float) -> float:
        """Return the probability that a turn branches if its entropy is `rise` nats above that of the first turn."""
        return min(1.0, max(0.0, self.chance + self.slope * rise))

    def _requests(
        self, samples: ScoredSamples, growth: Growth, turn: int, rng: np.random.Generator
    ) -> list[RolloutRequest]:
        """Return one request for each row that branches at `turn`."""
        requests: list[RolloutRequest] = []
        for row in growth.may_branch(samples, turn):
            group = int(samples.group_b[row])
            rise = turn_entropy(samples, row, turn, self.tokens) - turn_entropy(samples, row, 0, self.tokens)
            if rng.random() < self.probability(rise) and growth.room[group]:
                requests.append(growth.branch(samples, row, turn, skip=sum(a.ordinal == group for a in requests)))
        return requests

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        more = round(self.grow * run.group_size) - run.group_size
        return (
            f"{more} further episodes for each prompt, most of which begin with turns of another; they are trained on"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without turns, or with several agents."""
        return between_turns(self.name, run)


def between_turns(name: str, run: RunFacts) -> list[str]:
    """Return why a part that plays episodes again from one of their turns on cannot work; empty when it can."""
    if not run.environment:
        return [f"{name} continues episodes between turns, and the task has none. Use a task with an environment"]
    if run.agents > 1:
        return [
            f"{name} replays episodes of a single agent, and the task has {run.agents} agents. Use a task with one "
            "agent"
        ]
    return []


def _row(samples: ScoredSamples, group: int) -> int:
    """Return the first sampled row of a group."""
    return int(np.flatnonzero(sampled_rows(samples) & (samples.group_b == group))[0])


def _with(samples: ScoredSamples, requests: list[RolloutRequest], context: RunContext) -> ScoredSamples:
    """Return the rows with those that `requests` ask for; failed samples are handled by the run's rule for failures."""
    return splice(samples, np.zeros(len(samples), dtype=bool), [context.sample(requests)])
