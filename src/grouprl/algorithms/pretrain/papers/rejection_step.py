"""Correct first completions, imitated before reinforcement takes the prompts that are left (UnifiedReward-Think)."""

from __future__ import annotations

from typing import ClassVar

from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.imitating import LOSS, Imitating
from grouprl.algorithms.pretrain.initial_completions import ENDLESS, InitialCompletions
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive
from grouprl.records.serialize import unpack
from grouprl.records.text_samples import as_text


@part("pretrain")
class RejectionStep(Imitating):
    """Imitate one correct completion of each prompt that the initial policy solved (UnifiedReward-Think).

    The completions are those that `initial_completions`, which must stand before it among the preludes, kept. `epochs`
    passes minimise the mean of -log π over their tokens; the result is the reference of KL terms. With the curriculum
    `initial_rate`, below 1, what the policy judged rightly is imitated and the rest is left to reinforcement
    (arXiv:2505.03318).

    Differs: a prompt with both right and wrong completions is in both parts here, while the paper asks each once. Rate,
    batch and passes are ours.
    """

    loss_name: ClassVar[str] = "rejection_loss"
    metrics: ClassVar = {
        "rejection_rows": Metric(
            words="correct completions of the initial policy that are imitated, one per solved prompt",
            good="well above 0, else nothing is imitated",
            group="completions",
        ),
        "rejection_loss": LOSS,
    }

    epochs: Count = 1
    lr: Positive = 1e-5
    batch: Count = 32
    says = (
        "before the first step, imitate the correct completion that was kept of each solved prompt, {epochs} times; "
        "the result is the reference of KL terms"
    )
    equation = "-1/N Σ_t log π(y_t),  y = correct completions of the initial policy"

    def collections(self, context: RunContext) -> int:
        """Return 1: the completions were sampled before."""
        return 1

    def collect(self, number: int, context: RunContext) -> dict[str, float]:
        """Take the tokens of the completions kept."""
        right = context.state_of(InitialCompletions()).get("right", [])
        rows = [as_text(unpack(row, context.task)) for row in right]
        kept = [[list(row.prompt_ids[0]), list(row.response_ids[0])] for row in rows]
        context.state_of(self)["kept"] = kept
        return {"rejection_rows": float(len(kept))}

    def finish(self, context: RunContext) -> None:
        """Make the policy the reference."""
        context.renew_reference()

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end, and episodes in which the policy did not write every token."""
        endless = [f"{self.name} {ENDLESS}"] if run.examples is None else []
        turns = (
            f"{self.name} imitates whole completions, and episodes hold observations, too. Take a task without turns"
        )
        return [*endless, *[turns] * run.environment]
