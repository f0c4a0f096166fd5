"""Completions shown after other prompts, by which KTO estimates how far the policy is from its reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from grouprl.algorithms.augment.resampling import further_numbers, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.papers.baselines import MISMATCHED
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.records.tokens import Tokens


@part("augment")
class Mismatched(Augmentation):
    """Also show each prompt with the completion of another one: rows that are scored but not trained on (KTO).

    From arXiv:2402.01306. Partners are drawn over the whole rollout by the run's seed, each once, and never of the same
    prompt; with `order` "rotation" the row before gives its completion, the last one to the first (TRL). A step in
    which one prompt has more than half of the rows has none. The new rows are of source 'extra', with
    `keys.mismatched` 1.
    """

    order: Literal["random", "rotation"] = "random"
    needs_text = True
    says = "the completion of another prompt stands after each prompt, too, {order} over the rollout"
    fills = (MISMATCHED,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows, and as many mismatched ones."""
        samples = as_text(samples)
        own = samples.with_extras(keys__mismatched=np.zeros(len(samples), dtype=np.int64))
        valid = np.flatnonzero(samples.valid_b)
        seed = None if self.order == "rotation" else int(context.rng(self).integers(2**63))
        partner_n = partners(samples.group_b[valid], seed)
        if partner_n is None:
            return own
        return splice(own, np.zeros(len(own), dtype=bool), [behind(own, valid, valid[partner_n])])

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many rows there are besides the completions."""
        return f"no completions, but {run.prompts * run.group_size} rows per rollout that are scored and not trained on"


def partners(group_n: np.ndarray, seed: int | None) -> np.ndarray | None:
    """Return the place of each row's partner, of another group and each once; None if there can be none.

    `seed` orders the groups and the rows within them at random; None keeps them, and each row has the one before it.
    """
    size = np.bincount(np.unique(group_n, return_inverse=True)[1]).max(initial=0)
    if not len(group_n) or 2 * size > len(group_n):
        return None
    if seed is None:
        order_n, shift = np.argsort(group_n, kind="stable"), size
    else:
        rng = np.random.default_rng(seed)
        number_n = np.unique(group_n, return_inverse=True)[1]
        place_g, within_n = rng.permutation(number_n.max() + 1), rng.random(len(group_n))
        order_n = np.lexsort((within_n, place_g[number_n]))
        shift = int(rng.integers(size, len(group_n) - size + 1))
    partner_n = np.empty(len(group_n), dtype=np.int64)
    partner_n[order_n] = np.roll(order_n, shift)
    return partner_n


def behind(samples: TextSamples, prompt_rows: np.ndarray, completion_rows: np.ndarray) -> TextSamples:
    """Return rows with the prompts of `prompt_rows` and the completions of `completion_rows`, [N] int each."""
    shown, said = subset(samples, prompt_rows), subset(samples, completion_rows)
    tokens = Tokens(shown.prompt_ids, said.response_ids)
    blank_bt = torch.zeros_like(said.rollout.logp_bt)
    extras = {**shown.extras, MISMATCHED: np.ones(len(shown), dtype=np.int64)}
    if "mask_bt" in said.extras:
        extras["mask_bt"] = said.extras["mask_bt"]
    made = replace(
        shown,
        rollout=replace(said.rollout, inputs=tokens, logp_bt=blank_bt, entropy_bt=blank_bt),
        texts=said.texts,
        sample_b=further_numbers(samples, prompt_rows),
        extras=extras,
        foreign_b=np.ones(len(shown), dtype=bool),
    )
    return made.with_source("extra")
