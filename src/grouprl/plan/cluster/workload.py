"""The work of a step of a run, independent of any machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from grouprl.core.errors import InputError
from grouprl.core.outputs import TEACHER_KL
from grouprl.plan.chosen_experts import DENSE, Experts
from grouprl.plan.kept_numbers import KeptNumbers, keys_of_layers
from grouprl.plan.memory import FOLLOWERS, REFERENCE, gathered_numbers
from grouprl.plan.plan import Plan

SPREAD = 0.6
"""Standard deviation of the logarithm of completions' lengths, an assumption."""


@dataclass(frozen=True)
class Workload:
    """The sampling, scoring and training of one step. Tokens are means; `longest` is the limit of a completion."""

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
    """Number of times that each row is trained on."""
    scorings: float
    """Forward passes over all rows without a backward pass: for old log-probs of an inexact sampler, a reference. One
    of a larger model, such as a teacher, counts as many times as it has parameters of the policy.
    """
    steps: int
    tied: bool = True
    """Whether the output layer is the embedding."""
    weight_bytes: float = 2
    """Bytes of a weight as products read it."""
    reference: int = 0
    """Number of parameters of a frozen reference with weights of its own."""
    recomputed: bool = True
    """Whether activations are recomputed in the backward pass."""
    offloads: bool = False
    """Whether the inputs of layers wait in main memory for the backward pass."""
    context: int = 1
    """How many learners share each row."""
    gathered: int = 0
    """Numbers of layers that a learner gathers at a time, of a teacher's too; 0: of the model alone."""

    experts: Experts = DENSE
    """The experts of the model."""
    cache: KeptNumbers | None = None
    """Numbers that sampling keeps of a row; None: keys and values of every layer."""

    @property
    def layers_at_once(self) -> int:
        """The numbers of layers that a learner gathers at a time."""
        own = gathered_numbers(self.parameters, self.layers, self.head, tied=self.tied)
        return self.gathered or own

    @property
    def rows(self) -> int:
        """The number of completions in a step."""
        return self.prompts * self.group_size

    @property
    def row_tokens(self) -> float:
        """The mean number of tokens in a row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def tokens(self) -> float:
        """The number of tokens in all rows of a step."""
        return self.rows * self.row_tokens

    @property
    def sampled_tokens(self) -> float:
        """The number of tokens sampled in a step."""
        return self.rows * self.completion_tokens

    def cached_bytes(self, tokens: float) -> float:
        """Return the bytes that a row of so many tokens occupies in the cache."""
        kept = self.cache or keys_of_layers(self.layers, self.kv_width)
        return kept.numbers(tokens) * self.weight_bytes

    @property
    def body(self) -> int:
        """The number of weights in the layers that a token passes through."""
        return self.layer_weights - self.experts.idle

    @property
    def layer_weights(self) -> int:
        """The number of weights in the layers, experts that a token does not pass through included."""
        return self.parameters - self.head * (1 if self.tied else 2)

    def read_by(self, tokens: float) -> float:
        """Return how many weights are read for so many tokens that choose their experts independently."""
        return self.layer_weights + self.head - self.experts.idle * (1 - self.experts.share) ** max(tokens - 1, 0)

    @property
    def head(self) -> int:
        """The number of weights in the output layer, used for every predicted token."""
        return self.vocabulary * self.hidden

    def lengths(self, count: int) -> np.ndarray:
        """Return [count] completion lengths: shuffled quantiles of a log-normal with the mean, cut at the limit."""
        places = (
            np.arange(count) * 0.6180339887498949 + 0.5
        ) % 1.0  # neighbours differ, so that no share gets only long completions
        normal = NormalDist()
        scale = np.exp(SPREAD * np.array([normal.inv_cdf(min(max(p, 1e-6), 1 - 1e-6)) for p in places]) - SPREAD**2 / 2)
        return np.clip(np.rint(self.completion_tokens * scale), 1, self.longest)


def workload(plan: Plan, completion_tokens: float | None = None) -> Workload:
    """Return the work of a step of a planned run; by default, completions have half the largest allowed length.

    Raises:
        InputError: the model is unknown, the policy is not a language model, or the mean length exceeds the limit.
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
    references = [cost.bytes for cost in plan.costs if cost.what == REFERENCE]
    reference = round(sum(references) / model.bytes_each)
    of_reference = (reference or model.parameters) / model.parameters if references else 0
    taught = of_reference * batch.epochs * batch.phases if TEACHER_KL in plan.method.outputs else 0
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
        scorings=1 + of_reference + taught + followers,
        steps=batch.steps,
        reference=reference,
        context=batch.context,
        gathered=plan.gathered,
        experts=model.experts,
        cache=model.cache,
        offloads=plan.config.model.checkpointing == "offload",
    )


def grown(work: Workload, times: float) -> Workload:
    """Return the workload with the number of prompts per step multiplied by `times`."""
    return replace(work, prompts=max(1, math.ceil(work.prompts * times)))
