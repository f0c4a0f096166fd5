"""Cosines of the prompts of a rollout, by their tokens or by a column of the data."""

from __future__ import annotations

import numpy as np
import torch

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import part
from grouprl.core.edges import Edges
from grouprl.core.errors import InputError, suggest
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import as_text

SIMILAR = "similar"
"""Name of the edges between rows of different prompts, whose value is the cosine of the prompts."""
TOKENS = "tokens"
"""The value of `by` for counts of tokens."""


@part("augment")
class SimilarPrompts(Augmentation):
    """Give the rows of different prompts the edges 'similar': the cosine of what stands for their prompts.

    That is how often each token occurs in a prompt (`by` "tokens"), or the numbers in the column `by` of the data,
    such as the embedding of a sentence encoder (arXiv:2402.10958 takes all-MiniLM-L6-v2's). The rows are unchanged.

    Raises:
        InputError: a prompt without the column, or whose column is not a list of numbers as long as the others'.
    """

    by: str = TOKENS
    needs_text = True
    says = "measure how alike prompts are, by their {by}"
    equation = "cos(x_i, x_j)"
    fills = (f"edges.{SIMILAR}",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with the edges 'similar'."""
        samples = as_text(samples)
        of_row = token_counts(samples.prompt_ids) if self.by == TOKENS else self._columns(samples)
        cosine_bb, group_b = cosines(of_row), torch.from_numpy(samples.group_b)
        apart_bb = group_b[:, None] != group_b
        if bool(apart_bb.any()):
            context.note("prompt_similarity", float(cosine_bb[apart_bb].mean()), "mean")
        return samples.with_edges(**{SIMILAR: Edges.where(apart_bb, cosine_bb)})

    def _columns(self, samples: ScoredSamples) -> np.ndarray:
        """Return [B,D] the numbers in the column of each row's prompt."""
        rows = []
        for example in samples.examples:
            if self.by not in example.columns:
                raise InputError(
                    f"{self.name}.by = '{self.by}', but prompt {example.id} has no such column",
                    f"by is '{TOKENS}' or a column with a list of numbers",
                    suggest(self.by, [TOKENS, *example.columns]),
                )
            rows.append(example.columns[self.by])
        try:
            found = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError):
            found = np.empty(0)
        if found.ndim != 2 or not np.isfinite(found).all():
            what = f"column '{self.by}' of the data is not a list of as many finite numbers for every prompt"
            raise InputError(what, f"{self.name} takes the cosine of two such lists", f"Use by: {TOKENS}")
        return found


def token_counts(rows: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Return [B,V] how often each of the V tokens that occur anywhere appears in each row."""
    known = {token: place for place, token in enumerate(sorted({token for row in rows for token in row}))}
    count_bv = np.zeros((len(rows), len(known)))
    for number, row in enumerate(rows):
        np.add.at(count_bv[number], [known[token] for token in row], 1)
    return count_bv


def cosines(row_bd: np.ndarray) -> torch.Tensor:
    """Return [B,B] the cosine of every two of [B,D] rows; 0 with a row of zeros."""
    length_b = np.linalg.norm(row_bd, axis=1, keepdims=True)
    unit_bd = np.divide(row_bd, length_b, out=np.zeros_like(row_bd), where=length_b > 0)
    return torch.from_numpy(unit_bd @ unit_bd.T)
