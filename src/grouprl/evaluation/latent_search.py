"""The search of a latent vector for one instance: a policy of many strategies is asked for the one that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from grouprl.core.errors import InputError, MissingExtra, RunError
from grouprl.core.hashing import generator
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.records.examples import Example
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import Start
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.rollout.vectors.vector_episodes import play_task

if TYPE_CHECKING:
    from grouprl.tasks.adapters.construct import Construct

SPREAD = 0.5
"""First standard deviation of the search, where latent vectors are uniform in [-1, 1]."""


class Evolution(Protocol):
    """A search that asks for the costs of vectors, generation by generation."""

    def ask(self) -> list[np.ndarray]:
        """Return the vectors of the next generation."""
        ...

    def tell(self, vectors: list[np.ndarray], costs: list[float], /) -> None:
        """Learn the costs of a generation."""
        ...


@dataclass(frozen=True)
class LatentSearch:
    """The solutions that a search built."""

    cost_n: np.ndarray
    """[N] the cost of each, in the order in which they were built."""
    latent_nk: np.ndarray
    """[N,K] the latent vector of each."""

    @property
    def best(self) -> float:
        """The lowest cost."""
        return float(self.cost_n.min())


def search(
    task: Construct, policy: ArrayPolicy, example: Example, *, budget: int, population: int = 16, seed: int = 0
) -> LatentSearch:
    """Return `budget` solutions of an instance whose latent vectors are searched by CMA-ES (COMPASS, arXiv:2311.13569).

    A generation is a population of vectors with a sampled solution each; the better half moves the mean and the
    covariance of the next (Hansen 2016, as the package cma has it), within [-1, 1]. The first generation is around 0.
    *Differs from the paper*: one search, where the paper has several at once, and one solution of each vector.

    Raises:
        InputError: the task has no latent vectors, or the budget is less than two solutions.
        MissingExtra: the package cma is not installed.
    """
    if not task.latent:
        raise InputError(
            f"'{task.name}' has task.latent = 0", "a search needs vectors to choose among", "Set it above 0"
        )
    if min(budget, population) < 2:
        raise InputError(f"a budget of {budget}, {population} at once", "a generation has at least two solutions")
    evolution = _evolution(task.latent, population, generator(seed, "search", example.id).randrange(1, 2**31))
    costs: list[float] = []
    latents: list[np.ndarray] = []
    while len(costs) < budget:
        asked = evolution.ask()
        found = costs_of(task, policy, example, asked[: budget - len(costs)], seed=seed, first=len(costs))
        costs, latents = [*costs, *found], [*latents, *asked[: len(found)]]
        if len(found) == len(asked):  # a generation that the budget cuts short is the last one
            evolution.tell(asked, found)
    return LatentSearch(np.array(costs), np.array(latents))


def drawn(task: Construct, policy: ArrayPolicy, example: Example, *, budget: int, seed: int = 0) -> LatentSearch:
    """Return `budget` solutions of an instance whose latent vectors are uniform in [-1, 1]: no search."""
    luck = np.random.default_rng(generator(seed, "drawn", example.id).randrange(2**31))
    latent_nk = luck.uniform(-1, 1, (budget, task.latent))
    return LatentSearch(np.array(costs_of(task, policy, example, latent_nk, seed=seed)), latent_nk)


def costs_of(
    task: Construct,
    policy: ArrayPolicy,
    example: Example,
    latent_nk: Sequence[np.ndarray] | np.ndarray,
    *,
    seed: int,
    first: int = 0,
) -> list[float]:
    """Return the cost of a sampled solution of an instance for each latent vector; `first` is the number of the first
    solution, from which its chance events follow.
    """
    starts = []
    for number, latent_k in enumerate(latent_nk, start=first):
        told = Example(example.id, example.prompt, {**example.columns, "told": np.asarray(latent_k).tolist()})
        luck = generator(seed, "solution", example.id, number)
        starts.append(Start(told, luck.randrange(2**31), luck.randrange(2**31)))
    played = play_task(task, ArraySampler(policy), starts)
    return [_cost(outcome) for outcome in played.outcomes]


def _cost(outcome: dict[str, float] | Failure) -> float:
    if isinstance(outcome, Failure):
        raise RunError(f"A solution could not be built: {outcome}")
    return -outcome["turn_rewards"]


def _evolution(size: int, population: int, seed: int) -> Evolution:
    try:
        import cma
    except ImportError as error:
        raise MissingExtra("cma", "routing", "The search of latent vectors") from error
    settings = {"popsize": population, "seed": seed, "bounds": [-1, 1], "verbose": -9}
    found: Evolution = cma.CMAEvolutionStrategy([0.0] * size, SPREAD, settings)
    return found
