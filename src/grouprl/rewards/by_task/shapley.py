"""Shapley values of facts, for rewards of information (ProMed)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeVar

from grouprl.core.errors import InputError

Fact = TypeVar("Fact", bound=Hashable)


def shapley(
    value: Callable[[frozenset[Fact]], float], facts: Sequence[Fact], orders: int | None = None, seed: int = 0
) -> dict[Fact, float]:
    """Return the Shapley value of each fact: its mean marginal change of `value` over orders of the facts.

    `value` returns the worth of a set of facts, such as the probability of the right diagnosis; it is called once per
    set. `orders` is the number of random orders to average; None takes the exact mean over all 2^n subsets. The Shapley
    values sum to value(all) - value(none).

    Raises:
        InputError: on repeated facts, fewer than 1 order, or more than 16 facts without `orders`.
    """
    whole = tuple(facts)
    if len(set(whole)) < len(whole):
        raise InputError("A fact appears twice", "facts must be distinct", "Pass each fact once")
    if orders is None and len(whole) > 16:
        raise InputError(
            f"{len(whole)} facts have 2^{len(whole)} subsets", "exact values allow at most 16 facts", "Set orders=100"
        )
    if orders is not None and orders < 1:
        raise InputError(f"orders={orders}", "it must be at least 1", "Set orders=100")
    known: dict[frozenset[Fact], float] = {}

    def worth(some: frozenset[Fact]) -> float:
        if some not in known:
            known[some] = float(value(some))
        return known[some]

    return _exactly(worth, whole) if orders is None else _by_orders(worth, whole, orders, random.Random(seed))


def _exactly(worth: Callable[[frozenset[Fact]], float], facts: tuple[Fact, ...]) -> dict[Fact, float]:
    n = len(facts)
    found = dict.fromkeys(facts, 0.0)
    for code in range(2**n):
        some = frozenset(f for i, f in enumerate(facts) if code >> i & 1)
        for fact in set(facts) - some:
            weight = math.factorial(len(some)) * math.factorial(n - len(some) - 1) / math.factorial(n)
            found[fact] += weight * (worth(some | {fact}) - worth(some))
    return found


def _by_orders(
    worth: Callable[[frozenset[Fact]], float], facts: tuple[Fact, ...], orders: int, rng: random.Random
) -> dict[Fact, float]:
    found = dict.fromkeys(facts, 0.0)
    for _ in range(orders):
        some: frozenset[Fact] = frozenset()
        for fact in rng.sample(facts, len(facts)):
            found[fact] += (worth(some | {fact}) - worth(some)) / orders
            some = some | {fact}
    return found


def importance(values: Mapping[Fact, float], temperature: float = 2.0) -> dict[Fact, float]:
    """Return softmax(values/temperature): weights of facts that sum to 1 (ProMed, arXiv:2508.13514, has 2).

    Raises:
        InputError: on a temperature of 0 or below.
    """
    if temperature <= 0:
        raise InputError(f"temperature={temperature}", "it must be above 0", "Set temperature=2")
    top = max(values.values(), default=0.0)
    raised = {fact: math.exp((x - top) / temperature) for fact, x in values.items()}
    total = sum(raised.values())
    return {fact: x / total for fact, x in raised.items()}


def information_gain(weights: Mapping[Fact, float], known: Collection[Fact], revealed: Collection[Fact]) -> float:
    """Return the weight of the `revealed` facts that were not `known` before: the reward of a question.

    Asking again earns 0, and so do facts without a weight.
    """
    return sum(weights.get(fact, 0.0) for fact in set(revealed) - set(known))
