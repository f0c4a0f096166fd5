"""Completions of the initial policy that join each step (DPH-RL)."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.curriculum.initial_rate import next_of
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.initial_completions import ENDLESS, InitialCompletions
from grouprl.core.numbers import NonNegative, Share
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples
from grouprl.records.serialize import Packed, unpack


@part("buffer")
class ReferenceRows(Buffer):
    """Completions of the initial policy to prompts it solved join each step (D_pef of DPH-RL, arXiv:2509.07430).

    Each step takes `share` such completions for each new prompt (rounded), in shuffled passes, from prompts whose
    initial share of correct completions is at least `solved`. Their log-probs are the initial policy's. Needs
    `initial_completions` among the preludes.
    """

    share: NonNegative = 1.0
    solved: Share = 1.0

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows and the initial policy's."""
        rows = self.among(context)
        taken = next_of(len(rows), min(round(self.share * context.prompts), len(rows)), self, context)
        old = [unpack(rows[i], context.task).with_source("reference") for i in taken]
        mixed = [*([] if samples is None else [samples]), *old]
        context.note("reference_rows", len(old))
        return join(mixed) if mixed else None

    def among(self, context: RunContext) -> list[Packed]:
        """Return the stored completions to prompts that were solved well enough."""
        store = context.state_of(InitialCompletions())
        return [row for row in store["right"] if float(store["rate"][int(row["index_b"][0])]) >= self.solved]

    @override
    def words(self) -> str:
        solved = "always" if self.solved == 1 else f"at least {self.solved:.0%} of the time"
        return (
            f"{self.share:g} correct completions of the initial policy join for each new prompt, from prompts that it "
            f"solved {solved}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that no row joins if `share` is 0."""
        return ["reference_rows has no effect: its share is 0"] if round(self.share * run.prompts) == 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end."""
        return [f"{self.name} {ENDLESS}"] if run.examples is None else []
