"""Scored rows of text: what a language model was shown and wrote, besides what rows of every policy have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grouprl.core.errors import InputError
from grouprl.records.examples import Prompt, prompt_text
from grouprl.records.samples import ScoredSamples
from grouprl.records.tokens import Ids, Tokens


@dataclass(frozen=True, kw_only=True)
class TextSamples(ScoredSamples):
    """B scored rows of text."""

    prompts: tuple[Prompt, ...]
    """[B] the prompt that the policy was shown."""
    texts: tuple[str, ...]
    """[B] the completion, or the transcript of an episode."""

    @property
    def tokens(self) -> Tokens:
        """The rows as tokens, each with the agent that wrote it."""
        agent_b = self.extras.get("agent_b")
        return self.rollout.tokens if agent_b is None else self.rollout.tokens.of_agents(agent_b)

    @property
    def inputs(self) -> Tokens:
        """Inputs from which the policy scores the rows: their tokens."""
        return self.tokens

    @property
    def prompt_ids(self) -> tuple[Ids, ...]:
        """[B] the token ids before each completion."""
        return self.rollout.prompt_ids

    @property
    def response_ids(self) -> tuple[Ids, ...]:
        """[B] the token ids of each completion, with the end token where one was sampled."""
        return self.rollout.response_ids

    def openings(self) -> tuple[str, ...]:
        """Return [B] the prompts as plain texts."""
        return tuple(map(prompt_text, self.prompts))

    def transcript(self, row: int) -> str:
        """Return the text of a row."""
        return self.texts[row]

    def own_rows(self, index: np.ndarray) -> dict[str, object]:
        """Return the prompts and texts of the rows `index` [N]."""
        return {"prompts": tuple(self.prompts[i] for i in index), "texts": tuple(self.texts[i] for i in index)}

    def own_joined(self, others: Sequence[ScoredSamples]) -> dict[str, object]:
        """Return the prompts and texts, followed by those of `others`."""
        parts = [self, *map(as_text, others)]
        return {
            "prompts": tuple(prompt for part in parts for prompt in part.prompts),
            "texts": tuple(text for part in parts for text in part.texts),
        }


def as_text(samples: ScoredSamples) -> TextSamples:
    """Return rows as rows of text.

    Raises:
        InputError: they are not made of text.
    """
    if isinstance(samples, TextSamples):
        return samples
    raise InputError(
        f"the rows of {type(samples.rollout.inputs).__name__} have no texts",
        "only a language model reads prompts and writes texts",
        "Remove the part that works on texts, or train a language model",
    )
