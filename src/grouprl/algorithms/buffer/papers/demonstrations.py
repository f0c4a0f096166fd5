"""Training on demonstrations alone: nothing is sampled (OTR)."""

from __future__ import annotations

from grouprl.algorithms.augment.demonstrations import demonstrated
from grouprl.algorithms.augment.guidance import writes_solutions
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.records.samples import ScoredSamples


@part("buffer")
class Demonstrations(Buffer):
    """Train on the task's right solutions alone: nothing is sampled (supervised variants: SFT, OTR,
    arXiv:2509.26313)."""

    needs_text = True

    says = "train on the right solution of each prompt; nothing is sampled"

    def fresh(self, context: RunContext) -> int:
        """Return 0: no new prompts are sampled."""
        return 0

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples:
        """Return one demonstration per prompt. Raises RunError if none of the step's prompts has one."""
        shown = demonstrated(context.take(context.prompts), context)
        if shown is None:
            raise RunError("none of this step's prompts has a right solution, and the method trains on nothing else")
        return shown

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without right solutions, or of episodes."""
        return writes_solutions(self.name, run)
