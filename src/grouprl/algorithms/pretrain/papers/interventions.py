"""Corrected first wrong steps, learnt before reinforcement (InT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.guidance import needs_solutions
from grouprl.algorithms.augment.resampling import again, groups
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.imitating import LOSS, Imitating
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive
from grouprl.records.text_samples import TextSamples, as_text


@dataclass(frozen=True)
class Proposal:
    """A row of a rollout, and the token ids of its right steps followed by the corrected one."""

    row: int
    ids: tuple[int, ...]


@part("pretrain")
class Interventions(Imitating):
    """InT: find the first wrong step of a failed completion, correct it, and imitate the completion up to there.

    One failed completion of each prompt of `rollouts` rollouts is compared with the right solution, step by step
    (steps end with `sign`): the right steps before the first different one stay as they were sampled, the reference's
    step takes its place. It is kept if at least one of `continuations` completions that the policy continues from there
    is right. Then `epochs` passes minimise the mean of -log π over the tokens of steps and correction; what follows is
    not imitated.

    Differs: the paper's model, shown the solution, names the first wrong step and writes the correction itself. Rate,
    batch, passes and the 32 continuations are the paper's as a second source has them.
    """

    loss_name: ClassVar[str] = "intervention_loss"
    metrics: ClassVar = {
        "interventions": Metric(words="first wrong steps that were corrected", group="completions"),
        "interventions_kept": Metric(
            unit="share",
            words="corrected steps after which a continuation was right",
            good="well above 0, else nothing is imitated",
            group="completions",
        ),
        "intervention_loss": LOSS,
    }

    rollouts: Count = 10
    continuations: Count = 32
    epochs: Count = 4
    lr: Positive = 1e-6
    batch: Count = 64
    sign: Annotated[str, Field(min_length=1)] = "\n"
    says = (
        "before the first step, correct the first wrong step of failed completions of {rollouts} rollouts, and imitate "
        "those that one of {continuations} continuations solves, {epochs} times"
    )
    equation = "-1/N Σ_t log π(y_t),  y = right steps and the corrected one"

    def collections(self, context: RunContext) -> int:
        """Return the number of rollouts."""
        return self.rollouts

    def collect(self, number: int, context: RunContext) -> dict[str, float]:
        """Correct one failed completion per prompt, and keep what a continuation solves."""
        samples = as_text(context.sample(context.take(context.prompts)))
        found = self.proposals(samples, context)
        kept_n = self.solved(samples, found, context)
        store = context.state_of(self)
        kept = [each for each, keep in zip(found, kept_n.tolist(), strict=True) if keep]
        rows = [[list(samples.prompt_ids[each.row]), list(each.ids)] for each in kept]
        store["kept"] = [*store.get("kept", []), *rows]
        return {"interventions": len(found), "interventions_kept": float(kept_n.mean()) if found else 0.0}

    def proposals(self, samples: TextSamples, context: RunContext) -> list[Proposal]:
        """Return the correction of the first failed completion of each prompt that has one."""
        found = []
        for rows in groups(samples, samples.valid_b & ~samples.scores.correct_b):
            row = int(rows[0])
            solution = context.task.solution(samples.examples[row])
            step = first_wrong(samples.texts[row], solution, self.sign) if solution else None
            if step is not None:
                found.append(Proposal(row, self._ids(samples.response_ids[row], *step, context)))
        return [each for each in found if len(each.ids) < context.max_new_tokens]

    def _ids(self, ids: Sequence[int], before: str, step: str, context: RunContext) -> tuple[int, ...]:
        """Return the sampled tokens of the text `before`, then those of `step`; a token across the end is replaced."""
        whole = context.text.decode([ids[:n] for n in range(len(ids) + 1)])
        kept = max(n for n, text in enumerate(whole) if before.startswith(text))
        return (*ids[:kept], *context.text.encode(before[len(whole[kept]) :] + step))

    def solved(self, samples: TextSamples, found: Sequence[Proposal], context: RunContext) -> np.ndarray:
        """Return [N] bool: proposals that at least one continuation solves."""
        if not found:
            return np.zeros(0, dtype=bool)
        requests = [
            again(
                samples,
                each.row,
                completions=self.continuations,
                prefix=each.ids,
                max_new_tokens=context.max_new_tokens - len(each.ids),
            )
            for each in found
        ]
        right_b = context.sample(requests, count_failures=False).scores.correct_b
        return np.asarray(right_b.reshape(len(found), self.continuations).any(1))

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled before the first step."""
        total, most = self.rollouts * run.prompts * run.group_size, self.rollouts * run.prompts * self.continuations
        return f"{total:,} completions before the first step, and up to {most:,} continuations of corrected ones"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without right solutions."""
        return needs_solutions(self.name, run)


def first_wrong(text: str, solution: str, sign: str) -> tuple[str, str] | None:
    """Return the text before the first step that differs from the solution's, and the solution's step with its end.

    None if the text has all steps of the solution, in order. Only the last step of a solution has no sign at its end.
    """
    said, right = text.split(sign), solution.split(sign)
    for place, step in enumerate(right):
        if place >= len(said) or said[place] != step:
            before = "".join(f"{each}{sign}" for each in said[:place])
            return before, step + (sign if place + 1 < len(right) else "")
    return None
