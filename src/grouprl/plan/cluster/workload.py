"""What a step of a run has to compute, apart from any machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from grouprl.core.errors import InputError
from grouprl.plan.memory import FOLLOWERS
from grouprl.plan.plan import Plan

SPREAD = 0.6
"""Standard deviation of the logarithm of completions' lengths, an assumption."""


@dataclass(frozen=True)
class Workload:
    """One step: what is sampled, scored and trained. Tokens are means; `longest` is the bound of a completion."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    kv_width: int
    vocabulary: int
    prompts: int
    group_size: int
    prompt_tokens: float
    completion_tokens: float
    longest: int
    updates: int
    """Optimiser steps on a rollout."""
    passes: int
    """How often each row is trained on."""
    scorings: int
    """Forward passes without a backward one over all rows: old log-probs of an inexact sampler, a reference."""
    steps: int
    tied: bool = True
    """Whether the output layer is the embedding."""
    weight_bytes: float = 2
    """Of a weight as products read it."""
    reference: bool = False
    recomputed: bool = True
    """Whether activations are computed anew for the backward pass."""

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group_size

    @property
    def row_tokens(self) -> float:
        """Mean tokens of a row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def tokens(self) -> float:
        """Tokens of all rows of a step."""
        return self.rows * self.row_tokens

    @property
    def sampled_tokens(self) -> float:
        """Tokens that are sampled in a step."""
        return self.rows * self.completion_tokens

    @property
    def cached_bytes(self) -> float:
        """Bytes that a token keeps in the cache."""
        return 2 * self.layers * self.kv_width * self.weight_bytes

    @property
    def body(self) -> int:
        """Weights of the layers, which every token is multiplied with."""
        return self.parameters - self.head * (1 if self.tied else 2)

    @property
    def head(self) -> int:
        """Weights of the output layer, for tokens that are predicted."""
        return self.vocabulary * self.hidden

    def lengths(self, count: int) -> np.ndarray:
        """Return [count] lengths of completions: quantiles of a log-normal with the mean, cut at the bound, mixed."""
        places = (
            np.arange(count) * 0.6180339887498949 + 0.5
        ) % 1.0  # neighbours are far apart, so that no part is long
        normal = NormalDist()
        scale = np.exp(SPREAD * np.array([normal.inv_cdf(min(max(p, 1e-6), 1 - 1e-6)) for p in places]) - SPREAD**2 / 2)
        return np.clip(np.rint(self.completion_tokens * scale), 1, self.longest)


def workload(plan: Plan, completion_tokens: float | None = None) -> Workload:
    """Return what a step of a planned run has to compute; completions have half of their bound where nothing is said.

    Raises:
        InputError: the model is not known here, the policy is no language model, or the mean exceeds the bound.
    """
    model, batch = plan.model, plan.batch
    if model is None or plan.actions:
        raise InputError(
            f"The size of {plan.config.model.name} is not known here",
            "--on counts a language model's products from its configuration and tokenizer",
            "Give a folder that holds them, without weights if need be",
        )
    mean = batch.max_new_tokens / 2 if completion_tokens is None else completion_tokens
    if not 1 <= mean <= batch.max_new_tokens:
        raise InputError(
            f"--completion-tokens is {mean:g}", f"a completion has 1 to {batch.max_new_tokens} tokens in this run"
        )
    reference = any(cost.what == "reference copy" for cost in plan.costs)
    followers = round(
        sum(cost.bytes for cost in plan.costs if cost.what == FOLLOWERS) / (model.parameters * model.bytes_each)
    )
    return Workload(
        parameters=model.parameters,
        trainable=model.trainable,
        layers=model.layers,
        hidden=model.hidden,
        kv_width=model.kv_width,
        vocabulary=model.vocabulary,
        prompts=batch.prompts,
        group_size=batch.group_size,
        prompt_tokens=max(batch.prompt_tokens, 1),
        completion_tokens=mean,
        longest=batch.max_new_tokens,
        tied=model.tied,
        updates=batch.updates_per_rollout,
        passes=batch.epochs * batch.phases,
        scorings=1 + reference + followers,
        steps=batch.steps,
        reference=reference,
    )


def grown(work: Workload, times: float) -> Workload:
    """Return the workload with so many times as many prompts a step."""
    return replace(work, prompts=max(1, math.ceil(work.prompts * times)))
