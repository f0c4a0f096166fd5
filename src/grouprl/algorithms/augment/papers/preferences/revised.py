"""Completions as revisions of each other, from which a policy learns to improve an answer (SRPO)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.papers.preferences.prefixed import TWIN
from grouprl.algorithms.augment.resampling import further_numbers, groups, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.examples import Chat, Prompt
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

SHOWN = "keys.shown"
"""Batch field that is k for a completion that stands after completion k, and 0 for one after its prompt alone."""
REVISE = "\nA better answer: "


@part("augment")
class Revised(Augmentation):
    """Show each completion of a prompt after each completion of it, itself included: as a revision of that answer.

    In a conversation, the shown answer is a message of the assistant, and `revise` the next one of the user; after a
    plain prompt both follow. Completion k has `keys.twin` k and its revisions -k, with the shown completion's number
    in `keys.shown`; the new rows are of source 'extra' (SRPO, arXiv:2406.01660).
    """

    revise: Annotated[str, Field(min_length=1)] = REVISE
    needs_text = True
    says = "each completion of a prompt also stands after each completion of it, as its revision"
    fills = (TWIN, SHOWN)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows, and K² revisions of each K valid ones of a prompt."""
        samples, number_b = as_text(samples), np.arange(1, len(samples) + 1, dtype=np.int64)
        twin_b = np.where(samples.valid_b, number_b, 0)
        own = samples.with_extras(**{TWIN: twin_b, SHOWN: np.zeros_like(twin_b)})
        if not samples.valid_b.any():
            return own
        each = [np.stack(np.meshgrid(rows, rows), -1).reshape(-1, 2) for rows in groups(own, own.valid_b)]
        said, seen = np.concatenate(each).T
        return splice(own, np.zeros(len(own), dtype=bool), [self._revisions(own, said, seen, context)])

    def _revisions(self, own: TextSamples, said: np.ndarray, seen: np.ndarray, context: RunContext) -> TextSamples:
        """Return the completions `said` ([N] rows) after the answers `seen` ([N] rows)."""
        rows = subset(own, said)
        prompts = [after_answer(own.prompts[row], own.texts[row], self.revise) for row in seen]
        made = context.text.with_prompts(rows, prompts)
        extras = {**made.extras, TWIN: -rows.extras[TWIN], SHOWN: own.extras[TWIN][seen]}
        return replace(made, sample_b=further_numbers(own, said), extras=extras).with_source("extra")

    def letters(self) -> str:
        """Return the characters that ask for a revision."""
        return self.revise

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many rows there are besides the completions."""
        return f"no completions, but {run.prompts * run.group_size**2} revisions per rollout, each trained on"


def after_answer(prompt: Prompt, answer: str, revise: str) -> Prompt:
    """Return a prompt followed by an answer to it and by `revise`, which asks for a better one."""
    if isinstance(prompt, str):
        return f"{prompt}{answer}{revise}"
    tools, variables = getattr(prompt, "tools", ()), getattr(prompt, "variables", {})
    asked = [{"role": "assistant", "content": answer}, {"role": "user", "content": revise.strip()}]
    return cast(Prompt, Chat([*prompt, *asked], tools, variables))
