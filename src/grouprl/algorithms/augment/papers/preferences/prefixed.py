"""Completions after a prefix that asks for good ones, by which a policy estimates their quality (Sr-DPO)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.resampling import further_numbers, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.json_types import JsonMapping
from grouprl.records.examples import Chat, Prompt
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

TWIN = "keys.twin"
"""Batch field that is k for a completion, -k for the same one after a prefixed prompt, and 0 for one without."""
ASKING = "Rated 100 of 100: "


@part("augment")
class Prefixed(Augmentation):
    """Also show each completion after its prompt with `prefix` in front: rows that are scored but not trained on.

    In a conversation the prefix begins the first message of the user. Both rows of a completion have `keys.twin`, of
    opposite sign; the new rows are of source 'extra' (Sr-DPO, arXiv:2405.21040).
    """

    prefix: Annotated[str, Field(min_length=1)] = ASKING
    needs_text = True
    says = "each completion stands after its prompt with '{prefix}' in front, too"
    fills = (TWIN,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows, and as many prefixed ones."""
        samples, number_b = as_text(samples), np.arange(1, len(samples) + 1, dtype=np.int64)
        valid = np.flatnonzero(samples.valid_b)
        own = samples.with_extras(**{TWIN: np.where(samples.valid_b, number_b, 0)})
        if not len(valid):
            return own
        return splice(own, np.zeros(len(own), dtype=bool), [self._after(own, valid, context)])

    def _after(self, own: TextSamples, rows: np.ndarray, context: RunContext) -> TextSamples:
        """Return the rows numbered `rows` ([N] int) after their prefixed prompts."""
        shown = subset(own, rows)
        made = context.text.with_prompts(shown, [with_prefix(prompt, self.prefix) for prompt in shown.prompts])
        extras = {**made.extras, TWIN: -shown.extras[TWIN]}
        return replace(made, sample_b=further_numbers(own, rows), extras=extras).with_source("extra")

    def letters(self) -> str:
        """Return the characters of the prefix."""
        return self.prefix

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many rows there are besides the completions."""
        return f"no completions, but {run.prompts * run.group_size} rows per rollout that are scored and not trained on"


def with_prefix(prompt: Prompt, prefix: str) -> Prompt:
    """Return a prompt with a text in front: in a conversation, in front of the user's first message."""
    if isinstance(prompt, str):
        return prefix + prompt
    tools, variables = getattr(prompt, "tools", ()), getattr(prompt, "variables", {})
    first = next((place for place, message in enumerate(prompt) if message["role"] == "user"), None)
    if first is None:
        messages: list[JsonMapping] = [{"role": "user", "content": prefix.strip()}, *prompt]
    else:
        asked = {**prompt[first], "content": f"{prefix}{prompt[first]['content']}"}
        messages = [*prompt[:first], asked, *prompt[first + 1 :]]
    return cast(Prompt, Chat(messages, tools, variables))
