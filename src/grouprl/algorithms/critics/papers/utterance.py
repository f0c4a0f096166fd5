"""Advantages from a critic of whole utterances, the baseline of their tokens, a policy that waits for the critic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.advantage import Advantage
from grouprl.algorithms.critics.critic import Critic
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.updates.learn import Update, UpdateSteps
from grouprl.core.batch import Batch


def utterance_advantage(batch: Batch, reader: str) -> Tensor:
    """[B] what an action is worth more than its observation, `past.q` - `past.v`."""
    return (batch.need("past.q", reader) - batch.need("past.v", reader)).to(batch.dtype)


@part("advantage")
class UtteranceAdvantage(Advantage):
    """ArCHer: A = min Q(o,a) - min V(o), the same for all tokens of the action (arXiv:2402.19446).

    With `baseline` each token has A - b(o, a_<t) instead, b being the value head fitted to A (`token_baseline`).
    """

    baseline: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        """Return A [B,T]."""
        adv_bt = batch.broadcast(utterance_advantage(batch, self.name))
        return adv_bt - batch.need("value_bt", self.name) * batch.mask_bt if self.baseline else adv_bt

    @override
    def needs(self) -> tuple[str, ...]:
        return ("past.q", "past.v", *(["value_bt"] if self.baseline else []))

    @override
    def words(self) -> str:
        less = ", less what the tokens so far let expect" if self.baseline else ""
        return f"how much more an action is worth than its observation, by a critic of utterances{less}"

    @override
    def formula(self) -> str:
        return "A = min Q(o,a) - min V(o)" + (" - b(o, a_<t)" if self.baseline else "")


@part("critic", "token_baseline")
class TokenBaselineCritic(Critic):
    """ArCHer's baseline of tokens: coef·(A - b(o, a_<t))², A the advantage of the whole utterance."""

    coef: Annotated[float, Field(ge=0)] = 1.0
    says = "a value head fitted to the advantage of the whole utterance at each token, weight {coef:g}"
    equation = "{coef:g} · (A - b(o, a_<t))²"
    reads = ("past.q", "past.v", "value_bt")

    def targets(self, batch: Batch) -> Tensor:
        """[B,T] the advantage of the whole utterance."""
        return batch.broadcast(utterance_advantage(batch, self.name))

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return value losses [B,T], differentiable in `value_bt`."""
        return_bt = batch.need("return_bt", self.name)
        error_bt = (return_bt - value_bt).square()
        return TokenLoss(
            self.coef * error_bt, {"value_error": error_bt, "value_mean": value_bt, "return_mean": return_bt}
        )


@part("update")
class LateStart(Update):
    """The policy takes no optimiser step before step `start` of the run, from 0; then the ordinary ones."""

    start: Annotated[int, Field(ge=0)] = 20
    says = "the policy stays as it is before step {start}"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps where it is time."""
        if prepared.need("step", self.name) >= self.start:
            for step in learner.steps(prepared):
                yield learner.take(step)

    def idle(self, run: RunFacts) -> list[str]:
        """There is nothing to wait for, or no end of it."""
        if self.start == 0:
            return ["late_start has no effect: start is 0"]
        return [f"the policy never learns: late_start waits {self.start} of {run.steps} steps"] * (
            self.start >= run.steps
        )
