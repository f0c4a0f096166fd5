"""A store that orders against uncertain demand: the standard check whose best rule is known, the base stock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

Rule = Callable[[int, tuple[int, ...]], int]
"""Function from the stock and the orders on their way to the number of units that are ordered."""


class Inventory:
    """Order units for one store, period by period, against a demand whose distribution is known and outcome is not.

    In a period the order is placed, the one of `lead` periods before arrives, demand comes, and what is left or
    missing costs: -reward = `penalty`·max(D - I, 0) + `holding`·max(I - D, 0), with I in stock and D demanded. With
    `backlog` what is missing is delivered later, else it is lost. Source: the single store of Alvo et al. 2023
    (HDPO, arXiv:2306.11246). Demand follows from the seed alone, so that a group faces the same demand.

    Args:
        demand: the chance that 0, 1, 2 … units are demanded in a period.
        holding: the cost of a unit that is left over, per period.
        penalty: the cost of a unit that is missing, per period.
        lead: periods after which an order arrives; 0: before the demand of its own period.
        periods: length of an episode.
        largest: the most units in an order.
        backlog: whether a demand that is not met waits.
    """

    def __init__(
        self,
        demand: Sequence[float] = (0.2, 0.2, 0.2, 0.2, 0.2),
        holding: float = 1.0,
        penalty: float = 4.0,
        lead: int = 0,
        periods: int = 10,
        largest: int = 8,
        backlog: bool = True,
    ) -> None:
        if len(demand) < 2 or min(demand) < 0 or not math.isclose(sum(demand), 1.0, abs_tol=1e-6):
            raise InputError(
                f"demand {tuple(demand)}", "it must hold the chances of 0, 1, 2 … units, which add up to 1"
            )
        if min(holding, penalty) < 0 or lead < 0 or min(periods, largest) < 1:
            raise InputError(
                f"holding {holding}, penalty {penalty}, lead {lead}, periods {periods}, largest {largest}",
                "costs and lead are at least 0, periods and the largest order at least 1",
            )
        self.demand, self.holding, self.penalty = tuple(demand), holding, penalty
        self.lead, self.periods, self.largest, self.backlog = lead, periods, largest, backlog
        self.spaces = Spaces(Box((lead + 2,)), Discrete(largest + 1))
        self.stock, self.coming, self.period = 0, (0,) * lead, 0
        self._demands: list[int] = []

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin with an empty store and draw the demand of all periods."""
        self.stock, self.coming, self.period = 0, (0,) * self.lead, 0
        luck = np.random.default_rng(seed)
        self._demands = luck.choice(len(self.demand), self.periods, p=np.array(self.demand)).tolist()
        return self._shown()

    def step(self, action: object) -> Step:
        """Place an order. Raises InputError for one that is too large, and when no episode is under way."""
        order = int(np.asarray(action))
        if self.period >= len(self._demands) or not 0 <= order <= self.largest:
            raise InputError(
                f"an order of {order} in period {self.period}", f"orders are 0 to {self.largest}, within an episode"
            )
        demanded = self._demands[self.period]
        self.stock, self.coming, cost = self.after(self.stock, self.coming, order, demanded)
        self.period += 1
        return Step(self._shown(), -cost, terminated=self.period >= self.periods)  # type: ignore[arg-type]

    def after(
        self, stock: int, coming: tuple[int, ...], order: int, demanded: int
    ) -> tuple[int, tuple[int, ...], float]:
        """Return stock, orders on their way and cost after a period."""
        arrives, *later = (*coming, order)
        rest = stock + arrives - demanded
        cost = self.penalty * max(-rest, 0) + self.holding * max(rest, 0)
        return (rest if self.backlog else max(rest, 0)), tuple(later), cost

    def score(self) -> dict[str, float]:
        """Return no components."""
        return {}

    def close(self) -> None:
        """End the episode."""
        self._demands = []

    def _shown(self) -> ArrayObservation:
        """Show stock and orders on their way, in units of the largest demand, and the share of periods left."""
        units = np.array([self.stock, *self.coming]) / (len(self.demand) - 1)
        return ArrayObservation(np.append(units, 1 - self.period / self.periods).astype(np.float32))


def after_order(seen_nf: np.ndarray, order_n: np.ndarray) -> np.ndarray:
    """Return [N,F] the state after each order and what arrives, before demand, in the units of observations.

    For stores whose largest demand is 4 units, as by default: stock with what arrives, orders still on their way, and
    the share of periods left. It is the state after a decision of PDPPO (`method.after`).
    """
    coming_nl = np.concatenate([seen_nf[:, 1:-1], order_n[:, None] / 4], 1)
    return np.concatenate([seen_nf[:, :1] + coming_nl[:, :1], coming_nl[:, 1:], seen_nf[:, -1:]], 1)


def base_stock(world: Inventory) -> int:
    """Return the level S = min{s: P(demand of lead + 1 periods ≤ s) ≥ penalty/(penalty + holding)}.

    To order up to S is optimal with a backlog, and without one where orders arrive at once, as long as orders are not
    too small for it.
    """
    chance = np.ones(1)
    for _ in range(world.lead + 1):
        chance = np.convolve(chance, world.demand)
    # Chances that add up to the ratio itself are enough, and sums round: eight times 0.1 is less than 0.8.
    enough = chance.cumsum() >= world.penalty / (world.penalty + world.holding) - 1e-12
    return int(enough.argmax())


def ordering_up_to(level: int, largest: int) -> Rule:
    """Return the rule that orders as much as stock and orders on their way fall short of `level`."""
    return lambda stock, coming: min(max(level - stock - sum(coming), 0), largest)


def expected_return(world: Inventory, rule: Rule | None = None) -> float:
    """Return the expected reward of an episode under a rule, or under the best rule, by going through all states."""

    @cache
    def value(period: int, stock: int, coming: tuple[int, ...]) -> float:
        if period == world.periods:
            return 0.0
        orders = range(world.largest + 1) if rule is None else (rule(stock, coming),)
        return max(math.fsum(outcomes(period, stock, coming, order)) for order in orders)

    def outcomes(period: int, stock: int, coming: tuple[int, ...], order: int) -> Iterator[float]:
        for demanded, chance in enumerate(world.demand):
            if chance > 0:
                rest, later, cost = world.after(stock, coming, order, demanded)
                yield chance * (value(period + 1, rest, later) - cost)

    return value(0, 0, (0,) * world.lead)
