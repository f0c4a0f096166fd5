"""Steps that only rankings of perturbed policies decide, without a gradient (ZO-RankSGD)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.objective.importance import flat, kept, write
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive

if TYPE_CHECKING:
    from grouprl.core.json_types import State

Oracle = Callable[[Sequence[Tensor]], Tensor]
"""Points [P] -> [N] what each earns, of which only the order is read."""


@part("update")
class RankedDirections(DataPart, Update):
    """ZO-RankSGD: move the weights along perturbations that rank higher, by the best of several step lengths.

    Of `directions` policies θ + μ·ξ_i, ξ_i normal, the `best` best are ranked. Each comparison of one of them with a
    worse one is an edge, and the direction is the mean of ξ_better - ξ_worse over all edges: without ties, weights
    m - 1 - 2r at rank r and -k for those not ranked, over k(k-1)/2 + k(m-k). Then θ + lr·½ʲ·g, j below `lengths`, are
    ranked with θ itself. If θ wins, nothing moves, and the next step's direction is averaged with this one's.

    All are compared by the mean reward of `completions` completions to the same `prompts` prompts with the same seeds.
    The rollout of the step is sampled by θ and not learnt from. Source: Tang, Rybin, Chang (arXiv:2303.03751). *Differs
    from the authors' code*: their weights m - 2r do not sum to 0, so that their direction also follows the mean of the
    noise; ties have no edge here; directions are in units of ξ, not of μ·ξ.
    """

    reads_gradients = True  # weights are exchanged, which a policy in parts does in ways of its own

    metrics: ClassVar = {
        "ranked_length": Metric(
            words="length of the step that ranked best, in units of optim.lr; 0 where the weights as they were did",
            good="mostly above 0; always 0: lr or radius is too large, or too few completions are compared",
        ),
        "ranked_averaged": Metric(
            unit="directions",
            words="directions that were averaged for the step: 1, and one more for each step before without progress",
            good="near 1",
        ),
    }

    directions: Count = 8
    best: Count = 8
    radius: Positive = 0.1
    lengths: Count = 4
    prompts: Count = 8
    completions: Count = 1
    says = (
        "without a gradient: rank the best {best} of {directions} policies with noise of {radius:g} on their weights, "
        "move along what ranks higher, by the best of {lengths} step lengths"
    )
    equation = "θ ← best of θ, θ + lr·½ʲ·g,  g = mean of ξ_better - ξ_worse,  ranked by θ + {radius:g}·ξ"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the step of the rollout; yield its metrics."""
        context, own = learner.context, [parameter for _, parameter in learner.policy.named_parameters()]
        requests = [replace(each, completions=self.completions) for each in context.take(self.prompts)]

        def earned(points: Sequence[Tensor]) -> Tensor:
            found = []
            for point_p in points:
                write(own, point_p)
                with context.acting(learner.policy):
                    rows = context.sample(requests, count_failures=False)
                found.append(float(rows.scores.reward_b[rows.valid_b].mean()) if rows.valid_b.any() else -np.inf)
            return torch.tensor(found, dtype=torch.float64)

        at_p = flat(own)
        seed = int(context.rng(self).integers(2**62))
        lr = float(learner.optimizer.param_groups[0]["lr"])
        next_p, metrics = self.move(at_p, lr, seed, earned, context.state_of(self))
        write(own, next_p)
        yield {"loss": 0.0, "rows_trained": 0.0, **metrics}

    def move(self, at_p: Tensor, lr: float, seed: int, earned: Oracle, store: State) -> tuple[Tensor, dict[str, float]]:
        """Return the weights after one step from `at_p`, and its metrics; `store` keeps directions without progress."""
        luck = torch.Generator().manual_seed(seed)
        noise_mp = torch.randn(self.directions, len(at_p), generator=luck, dtype=torch.float64).to(at_p)
        weight_m = edge_weights(earned([at_p + self.radius * noise_p for noise_p in noise_mp]), self.best)
        total_p = kept(store, "total", torch.zeros_like(at_p)) + weight_m.to(at_p) @ noise_mp
        count = int(store.get("count", 0)) + 1
        lengths = [0.0, *(0.5**j for j in range(self.lengths))]
        points = [at_p + lr * length * total_p / count for length in lengths]
        chosen = int(earned(points).argmax())  # the first of equal ones: without progress, nothing moves
        store.clear()
        if chosen == 0:
            store.update(total=total_p, count=count)
        return points[chosen], {"ranked_length": lengths[chosen], "ranked_averaged": float(count)}

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions the rankings take."""
        policies = self.directions + self.lengths + 1
        each = self.prompts * self.completions
        return f"{policies} policies are ranked in every step, by {each} completions each: {policies * each:,}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse more ranked policies than there are, stored completions, and sampling ahead."""
        many = f"{self.name} ranks the best {self.best} of {self.directions} policies. Set best to at most directions"
        stored = f"{self.name} compares policies by what they write, and the task's completions are stored"
        late = f"{self.name} needs completions of the weights as they are. Set run.async_steps to 0"
        few = f"{self.name} compares policies, and directions is 1. Set it to 2 or more"
        return [
            *[many] * (self.best > self.directions),
            *[few] * (self.directions == 1),
            *[stored] * run.stored,
            *[late] * (run.async_steps > 0),
        ]

    def idle(self, run: RunFacts) -> list[str]:
        """Say which of the optimiser's settings have no effect."""
        return ["optim.betas, weight_decay and grad_clip have no effect: ranked_directions sets its step by optim.lr"]


def edge_weights(score_m: Tensor, best: int) -> Tensor:
    """Return [M] the weight of each of M points by their scores: wins less losses per edge, 0 where all are equal.

    An edge leads from each of the `best` best, the first of equal ones, to every point with a lower score.
    """
    if len(score_m) < best:
        raise InputError(f"the best {best} of {len(score_m)} points", "so many cannot be ranked", "Rank fewer")
    ranked_m = torch.zeros_like(score_m, dtype=torch.bool)
    ranked_m[score_m.argsort(descending=True, stable=True)[:best]] = True
    beats_mm = ranked_m[:, None] & (score_m[:, None] > score_m)
    return (beats_mm.sum(1) - beats_mm.sum(0)).double() / beats_mm.sum().clamp(min=1)
