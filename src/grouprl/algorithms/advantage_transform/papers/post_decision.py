"""A second critic, of the state between a decision and the chance that follows it (PDPPO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.kept_perceptron import KeptPerceptron
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.answering import Answering
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive

if TYPE_CHECKING:
    from grouprl.records.samples import ScoredSamples

After = Callable[[np.ndarray, np.ndarray], object]
"""(observations [N,…], actions [N] or [N,A]) -> [N,F]: the state right after each decision, as numbers."""
STAT = "post_value"


@runtime_checkable
class SeenActions(Protocol, metaclass=Answering):
    """Inputs that hold an array of observations and one of actions (`grouprl.policy.ArrayInputs`)."""

    @property
    def observation_bt(self) -> Tensor:
        """[B,T,…] what was seen before each action."""

    @property
    def action_bt(self) -> Tensor:
        """[B,T] or [B,T,A] the actions."""


@part("advantage_transform")
class PostDecision(AdvantageTransform, DataPart):
    """Take the larger of two advantages: against V(s), and against Vˣ of the state between decision and chance (PDPPO).

    A^x_t = A_t + V(s_t) - Vˣ(sˣ_t), sˣ what `after` makes of observation and action: a return less what is expected
    once the decision is known. Vˣ is a perceptron of the part's own with two layers of `width`, fitted to the critic's
    returns by `steps` steps of Adam after each rollout. With exact values the mean of the larger one is the action's
    advantage where that is above 0, and 0 elsewhere, so whiten it afterwards. `combine` "mean" takes the mean of both,
    "after" A^x alone, whose mean is then 0 whatever the action, so that it teaches nothing.
    Source: a summary of arXiv:2504.05150 (the rule of the maximum, separate optimisers).
    """

    metrics: ClassVar = {
        "post_value_error": Metric(
            words="mean squared difference between the returns and the second critic, before its steps on them",
            good="falls; below the first critic's value_error where chance is less than the decision",
        ),
        "post_value_share": Metric(
            unit="fraction", words="actions whose larger advantage is that of the second critic", good="neither 0 nor 1"
        ),
    }

    after: str = ""
    combine: Literal["max", "mean", "after"] = "max"
    lr: Positive = 1e-3
    steps: Count = 40
    width: Count = 64
    reads = ("value_bt", f"stats.{STAT}")
    fills = (f"stats.{STAT}",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return the larger of A and A + V - Vˣ, or what `combine` says."""
        after_bt = adv_bt + batch.need("value_bt", self.name) - batch.need(f"stats.{STAT}", self.name)
        if self.combine == "max":
            return torch.maximum(adv_bt, after_bt)
        return (adv_bt + after_bt) / 2 if self.combine == "mean" else after_bt

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.post_value`, [B,T]: Vˣ of the state after each action."""
        known_bt, state_nf = self.states(batch)
        value_bt = torch.zeros(known_bt.shape, dtype=batch.dtype)
        with torch.no_grad():
            value_bt[known_bt] = PostCritic(self, context, state_nf.shape[1]).net(state_nf)[:, 0].to(batch.dtype)
        if batch.value_bt is not None and known_bt.any():
            lower_bt = value_bt < batch.value_bt
            context.note("post_value_share", float(lower_bt[known_bt].double().mean()), "mean")
        return batch.replace(stats={**batch.stats, STAT: value_bt})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Fit Vˣ to the returns of the rows trained on."""
        if prepared is None:
            return
        known_bt, state_nf = self.states(prepared)
        return_n = prepared.need("return_bt", self.name)[known_bt]
        if len(return_n):
            error = PostCritic(self, context, state_nf.shape[1]).fit(state_nf, return_n.float())
            context.note("post_value_error", error, "mean")

    def states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return which positions count, [B,T] bool, and the states after their actions, [N,F] float32.

        Raises:
            InputError: the rows are not arrays, or `after` returns something other than a row of numbers for each.
        """
        inputs = batch.inputs
        if not isinstance(inputs, SeenActions) or not isinstance(inputs.observation_bt, Tensor):
            raise InputError(
                f"the part '{self.name}' on {type(inputs).__name__}",
                "it hands one array of observations and one of actions to its function",
                "Take a task whose observations are one array, and model: mlp",
            )
        known_bt = batch.active_bt
        seen_n, action_n = (x[known_bt].numpy() for x in (inputs.observation_bt, inputs.action_bt))
        found = np.asarray(cast("After", import_object(self.after, "state after a decision"))(seen_n, action_n))
        if found.ndim != 2 or len(found) != len(seen_n) or not np.isfinite(found).all():
            raise InputError(
                f"'{self.after}' returned an array of the shape {found.shape} for {len(seen_n)} decisions",
                "it returns a row of finite numbers for each",
                "Stack one row per decision: np.stack([...], 1)",
            )
        return known_bt, torch.from_numpy(found.astype(np.float32))

    @override
    def words(self) -> str:
        how = {
            "max": "the larger of the advantage and of that against",
            "mean": "the mean of the advantage and of that against",
            "after": "the advantage against",
        }[self.combine]
        return f"{how} a second critic, of the state after the decision and before chance ({self.after or 'none yet'})"

    @override
    def formula(self) -> str:
        last = "A + V(s) - Vˣ(sˣ)"
        return {"max": f"A ← max(A, {last})", "mean": f"A ← ½(A + {last})", "after": f"A ← {last}"}[self.combine]

    @override
    def code(self) -> str:
        last = "adv_bt + value_bt - stats['post_value']"
        how = {"max": f"torch.maximum(adv_bt, {last})", "mean": f"(adv_bt + {last}) / 2", "after": last}[self.combine]
        return f"adv_bt = {how}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse to work without a function."""
        word = f"{self.name} works with an environment whose states after a decision are known, and after names none"
        return [] if self.after else [f"{word}. Set method.after to a function, pkg.module:name"]


class PostCritic(KeptPerceptron):
    """The perceptron Vˣ and its Adam, kept in the part's memory."""

    def __init__(self, part: PostDecision, context: RunContext, inputs: int) -> None:
        sizes, seed = (inputs, part.width, part.width, 1), int(context.rng(part).integers(2**62))
        super().__init__(context.state_of(part), sizes, part.lr, seed)
        self.part = part

    def fit(self, state_nf: Tensor, return_n: Tensor) -> float:
        """Take the steps on half the mean squared difference; return the mean squared difference before them."""
        return 2 * self.descend(lambda: (self.net(state_nf)[:, 0] - return_n).square().mean() / 2, self.part.steps)
