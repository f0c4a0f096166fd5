"""Sampling from a mixture of the policy and its teacher (MiniLLM)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import RunContext, SamplingRule
from grouprl.algorithms.part import RunFacts, part


@part("sampling")
class TeacherMixed(SamplingRule):
    """Sample each token from (1-α)·π + α·p, p the reference as teacher (MiniLLM, arXiv:2306.08543; there α = 0.2).

    The sampler's log-probs are those of the mixture, so that a weight π_old/π_behavior makes up for it. The process
    that trains samples by itself, whatever the run's engine is.
    """

    needs_text = True
    one_policy = True
    in_parts = True
    mixes = True

    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    says = "tokens are sampled from {share:g} parts of the teacher and the rest of the policy"
    equation = "y_t ~ (1-{share:g})·π + {share:g}·π_ref"

    def actor(self, context: RunContext) -> object:
        """Return the mixture."""
        return context.opponent(self.share, "arithmetic")

    @override
    def reference_acts(self) -> bool:
        return True

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run that samples ahead, or nothing, or has no reference."""
        if run.stored:
            return ["teacher_mixed samples completions, but this task has them stored. Leave it out"]
        if run.async_steps:
            return ["teacher_mixed samples in the process that trains, one step at a time. Set run.async_steps: 0"]
        if not run.has_reference:
            return ["teacher_mixed samples from the reference, too. Set model.reference to the folder of a model"]
        return []
