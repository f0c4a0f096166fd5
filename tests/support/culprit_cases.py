"""The product of ways in which a few episodes may misbehave: exactly they are lost, whatever stands around them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any

import culprit_envs
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start, play

LIMITS = {"max_turns": 2, "max_new_tokens": 2}
PROMPTS = 8
SECONDS = 3.0
"""Of a call, after which it hangs."""


@dataclass(frozen=True)
class Case:
    """So many of `PROMPTS` prompts are bad: one of their episodes each misbehaves."""

    group: int
    workers: int
    order: str
    """Where bad prompts stand: first, spread, last."""
    bad: int
    way: str
    where: str
    asynchronous: bool

    @property
    def culprits(self) -> set[int]:
        """Numbers of the episodes that misbehave: one of each bad prompt, not always the first of its group."""
        prompts = {
            "first": range(self.bad),
            "spread": range(0, PROMPTS, PROMPTS // self.bad)[: self.bad] if self.bad else (),
            "last": range(PROMPTS - self.bad, PROMPTS),
        }[self.order]
        return {prompt * self.group + prompt % self.group for prompt in prompts}

    def record(self) -> dict[str, Any]:
        return asdict(self)


def every_case() -> list[Case]:
    """The product, without what means the same."""
    parts = (
        (1, 2, 8),
        (1, 2, 4),
        ("first", "spread", "last"),
        (1, 3),
        ("hang", "exit", "raise"),
        ("reset", "step"),
        (False, True),
    )
    return [Case(*values) for values in product(*parts)]  # type: ignore[arg-type]


def sampled(seed: int, counts: dict[str, int]) -> list[Case]:
    """So many cases of each way, drawn from the product."""
    rng, cases = random.Random(seed), every_case()
    return [case for way, n in counts.items() for case in rng.sample([c for c in cases if c.way == way], n)]


@cache
def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
    return CausalPolicy(*build_tiny(culprit_envs.CulpritTask.alphabet, **sizes, seed=1))


def starts(case: Case, bad: set[int]) -> list[Start]:
    """The episodes of a case; their seeds are their numbers."""
    examples = [culprit_envs.culprit_example(n, bad, case.way, case.where) for n in range(PROMPTS)]
    return [Start(examples[i // case.group], i, action_seed=1000 + i) for i in range(PROMPTS * case.group)]


def lost(episodes: Episodes) -> set[int]:
    return {e for e, outcome in enumerate(episodes.outcomes) if isinstance(outcome, Failure)}


class Stages:
    """Workers by their number and kind, started when they are first needed; cases play on them one after another."""

    def __init__(self) -> None:
        self._each: dict[tuple[int, bool], WorkerStage] = {}

    def of(self, case: Case) -> WorkerStage:
        key = case.workers, case.asynchronous
        if key not in self._each:
            task = culprit_envs.CulpritTask(asynchronous=case.asynchronous)
            self._each[key] = WorkerStage(task, case.workers, timeout=SECONDS, memory_gb=4)
        return self._each[key]

    def close(self) -> None:
        for stage in self._each.values():
            stage.close()


def wrong(case: Case, stage: WorkerStage) -> str:
    """What is not as it must be: others than the culprits are lost, or played otherwise; '' where nothing is."""
    bad = case.culprits
    found = play(policy(), culprit_envs.Culprit, starts(case, bad), **LIMITS, stage=stage)
    if lost(found) != bad:
        return f"{sorted(lost(found))} are lost, {sorted(bad)} misbehave"
    well = play(policy(), culprit_envs.Culprit, starts(case, set()), **LIMITS)
    return "; ".join(_differences(found, well, bad))


def _differences(found: Episodes, well: Episodes, bad: Sequence[int] | set[int]) -> Iterator[str]:
    for row in range(len(well)):
        if row in bad:
            continue
        same = (
            found.rollout.response_ids[row] == well.rollout.response_ids[row]
            and found.records[row] == well.records[row]
            and found.verdicts[row] == well.verdicts[row]
        )
        if not same:
            yield f"episode {row} was played otherwise"
