"""Parts that choose how many completions each prompt gets: by pass rate, by the greedy completion, or by the variance
of the gradient.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.probe import probe, rows_of
from grouprl.algorithms.data_part import Allocation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import Count, NonNegative
from grouprl.records.requests import RolloutRequest
from grouprl.records.text_samples import as_text


@part("allocation")
class Knapsack(Allocation):
    """Split the step's completions so that the expected value of all groups is largest (Knapsack RL, arXiv:2509.25849).

    N completions of a prompt of pass rate p are worth (1 - p^N - (1-p)^N)·p(1-p)², N between `low` and `high`. p is
    (right + `smoothing`)/(completions + 2·`smoothing`) at the last visit, ½ before the first. Completions that would
    add no value to any prompt go to the prompts that were never solved, then to the others, as evenly as possible.
    """

    async_safe: ClassVar[bool] = True

    low: Count = 2
    high: Count = 128
    smoothing: NonNegative = 1.0
    says = "the step's completions go where they are most likely to teach, {low} to {high} for each prompt"
    equation = "max Σ_q (1 - p^N - (1-p)^N)·p(1-p)²,  Σ_q N_q = prompts·group,  {low} ≤ N_q ≤ {high}"

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with their shares of all completions."""
        total = sum(request.completions for request in requests)
        counts = knapsack([self.rate(request.index, context) for request in requests], total, self.low, self.high)
        context.note("completions_least", min(counts, default=0), "least")
        context.note("completions_most", max(counts, default=0), "most")
        return [replace(request, completions=count) for request, count in zip(requests, counts, strict=True)]

    def rate(self, index: int, context: RunContext) -> float:
        """Return the smoothed pass rate of a prompt at its last visit."""
        last = context.prompt_history.last(index)
        if last is None:
            return 0.5
        return (last.right + self.smoothing) / (last.completions + 2 * self.smoothing)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a mean number of completions outside the bounds, and prompts that never come again."""
        found = []
        if not self.low <= run.group_size <= self.high:
            found.append(f"knapsack splits {run.group_size} completions per prompt into {self.low} to {self.high} each")
        if run.examples is None:
            found.append(
                "knapsack samples prompts more than once, but this task's prompts never end. Set data.prompts, e.g. 512"
            )
        return found


def knapsack(rates: Sequence[float], total: int, low: int, high: int) -> list[int]:
    """Split `total` completions among prompts of these pass rates; exact, because each next completion is worth less.

    If there are fewer than `low` for each, they are split evenly; what is left beyond `high` each is not sampled.
    """
    if total < low * len(rates):
        return [total // len(rates) + (k < total % len(rates)) for k in range(len(rates))]
    counts = [low] * len(rates)
    heap = [(-gain(p, low), p == 1, low, k) for k, p in enumerate(rates)]
    heapq.heapify(heap)
    for _ in range(min(total, high * len(rates)) - low * len(rates)):
        *_, k = heapq.heappop(heap)
        counts[k] += 1
        if counts[k] < high:
            heapq.heappush(heap, (-gain(rates[k], counts[k]), rates[k] == 1, counts[k], k))
    return counts


def value(rate: float, completions: int) -> float:
    """Return the worth of a group: the chance of both right and wrong completions, times p(1-p)²."""
    return (1 - rate**completions - (1 - rate) ** completions) * rate * (1 - rate) ** 2


def gain(rate: float, completions: int) -> float:
    """Return what one more completion than `completions` would add."""
    return (rate**completions * (1 - rate) + (1 - rate) ** completions * rate) * rate * (1 - rate) ** 2


@part("allocation")
class GreedyFilter(Allocation):
    """Leave out prompts whose greedy completion already earns `solved` or more (SELF, arXiv:2510.02230).

    Costs one greedy completion per prompt. If no prompt is left, the step has no update.
    """

    solved: float = 1.0
    says = "prompts whose greedy completion earns {solved:g} or more are left out"

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests, with 0 completions for prompts whose greedy completion is good enough."""
        greedy = probe(context, requests, greedy=True)
        solved = set(greedy.group_b[greedy.scores.reward_b >= self.solved].tolist())
        context.note("prompts_skipped", len(solved) / len(requests), "mean")
        return [replace(request, completions=0) if request.ordinal in solved else request for request in requests]

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        return f"{run.prompts} greedy completions per rollout, to choose prompts"


@part("allocation")
class GradientVariance(Allocation):
    """Split the step's completions so that the variance of the gradient is smallest (GVM, arXiv:2505.02391).

    `probe` completions per prompt, not trained on, give its share of right ones p and the mean norm G of the gradient
    of log π(completion) over the right ones, on a `block` of the parameters. n ∝ G/√(p + alpha/p^(beta-1)), rounded to
    the exact sum; 0 where p or G is 0, where p exceeds `skip_above`, or where n·p falls below `skip_below`. Where
    nothing is right anywhere the completions are split evenly.
    """

    one_policy: ClassVar[bool] = True

    probe: Count = 8
    alpha: NonNegative = 1e-3
    beta: NonNegative = 2.0
    block: Literal["embedding", "head", "trainable"] = "embedding"
    skip_above: Annotated[float, Field(ge=0, le=1)] = 1.0
    skip_below: NonNegative = 0.0
    says = "the step's completions by gradient norm and pass rate of {probe} probes per prompt"

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with their shares of all completions, numbered after the probe's."""
        rate_q, norm_q = self._measure(requests, context)
        counts = self.split(rate_q, norm_q, sum(request.completions for request in requests))
        context.note("completions_least", min(counts), "least")
        context.note("completions_most", max(counts), "most")
        first = [request.first + self.probe for request in requests]
        return [replace(a, completions=n, first=f) for a, n, f in zip(requests, counts, first, strict=True)]

    def split(self, rate_q: np.ndarray, norm_q: np.ndarray, total: int) -> list[int]:
        """Return the number of completions of each prompt, from its pass rate and gradient norm [Q]."""
        weight_q = gradient_weight(rate_q, norm_q, self.alpha, self.beta)
        weight_q[rate_q > self.skip_above] = 0
        if weight_q.sum() > 0:
            weight_q[weight_q / weight_q.sum() * total * rate_q < self.skip_below] = 0
        return rounded(weight_q if weight_q.sum() > 0 else np.ones(len(rate_q)), total)

    def _measure(self, requests: Sequence[RolloutRequest], context: RunContext) -> tuple[np.ndarray, np.ndarray]:
        """Return the share of right probes and their mean gradient norm for each request, [Q] each."""
        rows = probe(context, [replace(request, completions=self.probe) for request in requests])
        found = rows_of(rows.group_b)
        right_b = rows.scores.correct_b
        norm_b = np.zeros(len(rows))
        if right_b.any():
            right = np.flatnonzero(right_b)
            norm_b[right] = (
                context.text.policy.gradient_norms(as_text(rows).tokens.rows(right), self.block).double().numpy()
            )
        of_request = [found.get(request.ordinal, np.zeros(0, dtype=int)) for request in requests]
        rate_q = np.array([right_b[r].mean() if len(r) else 0.0 for r in of_request])
        norm_q = np.array([norm_b[r][right_b[r]].mean() if right_b[r].any() else 0.0 for r in of_request])
        return rate_q, norm_q

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        total = run.prompts * self.probe
        return f"{run.prompts} × {self.probe} = {total} completions per rollout, to measure"

    @override
    def formula(self) -> str:
        power = "" if self.beta == 2 else f"^{self.beta - 1:g}"
        return f"n_q ∝ G_q/√(p_q + {self.alpha:g}/p_q{power})"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that `beta` has no effect if `alpha` is 0."""
        off = self.alpha == 0 and self.beta != 2.0
        return ["gradient_variance.beta has no effect: alpha is 0"] if off else []


def gradient_weight(rate_q: np.ndarray, norm_q: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Return [Q] G/√(p + alpha/p^(beta-1)), 0 where p is 0."""
    safe_q = np.where(rate_q > 0, rate_q, 1.0)
    return np.where(rate_q > 0, norm_q / np.sqrt(safe_q + alpha / safe_q ** (beta - 1)), 0.0)


def rounded(weight_q: np.ndarray, total: int) -> list[int]:
    """Return whole numbers in proportion to `weight_q` that add up to `total`; the largest remainders
    are rounded up.
    """
    exact_q = weight_q / weight_q.sum() * total
    count_q = np.floor(exact_q).astype(int)
    up = np.argsort(-(exact_q - count_q), kind="stable")[: total - int(count_q.sum())]
    count_q[up] += 1
    return [int(n) for n in count_q]
