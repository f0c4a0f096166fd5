"""Curricula that choose by difficulty: by how mixed the results of a prompt are, measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, best, pool_size
from grouprl.algorithms.curriculum.papers.probe import probe_prompts, right_share, rows_of
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, NonNegative, Share
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.core.batch import Batch


@part("curriculum")
class VarianceSampling(Chooser):
    """Sample part of the prompts by the variance of their outcomes (VAS of MMR1, arXiv:2509.21268).

    Score of a prompt: `outcome`·p(1-p) + `diversity`·distinct-3 of its completions, from the completions that training
    sampled; a prompt not sampled yet has the largest score. Scores become weights by min-max and w <- `momentum`·w +
    (1-momentum)·new. The share `share` of the prompts is sampled by weight, with replacement, the rest in the order of
    the stream. With `refresh_every` > 0 all prompts are measured again every so many steps with `probe` completions
    each.
    """

    share: Share = 0.5
    momentum: Share = 0.0
    outcome: NonNegative = 0.8
    diversity: NonNegative = 0.2
    refresh_every: Annotated[int, Field(ge=0)] = 0
    probe: Count = 8
    equation = "w ∝ {outcome:g}·p(1-p) + {diversity:g}·distinct-3, min-max over all prompts"

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Return prompts by weight, then others in the order of the stream."""
        if (
            self.refresh_every
            and context.step % self.refresh_every == 0
            and self._memory(context)["probed"] != context.step
        ):
            self._refresh(context)
        weighted = int(self.share * count + 0.5)
        return [*super().choose(weighted, context), *context.take(count - weighted)]

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample with replacement by weight; uniformly while all weights are zero."""
        weight_n = self._memory(context)["weight"].numpy()
        chance_n = weight_n / weight_n.sum() if weight_n.sum() > 0 else None
        return [int(i) for i in rng.choice(len(weight_n), count, p=chance_n)]

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Update the weights from the completions of this step."""
        rates = {
            i: sum(v.right for v in vs) / sum(v.completions for v in vs)
            for i, vs in context.prompt_history.at(context.step).items()
        }
        self._learn(rates, subset(samples, samples.source_b == SOURCES["sampled"]), context)

    def _refresh(self, context: RunContext) -> None:
        rows = probe_prompts(context, range(pool_size(context)), self.probe)
        self._learn(right_share(rows, rows.index_b), rows, context)
        self._memory(context)["probed"] = context.step

    def _learn(self, rates: dict[int, float], completions: ScoredSamples, context: RunContext) -> None:
        """Enter new pass rates and diversities, and update the weights."""
        memory = self._memory(context)
        memory["rate"][list(rates)] = torch.tensor(list(rates.values()), dtype=torch.float64)
        for index, rows in rows_of(completions.index_b).items():
            memory["distinct"][index] = distinct_3([completions.rollout.action_ids[row] for row in rows])
        rate_n, distinct_n = memory["rate"], memory["distinct"]
        score_n = self.outcome * rate_n * (1 - rate_n) + self.diversity * distinct_n
        fresh_n = (score_n - score_n.min()) / (score_n.max() - score_n.min() + 1e-8)
        memory["weight"] = self.momentum * memory["weight"] + (1 - self.momentum) * fresh_n

    def _memory(self, context: RunContext) -> State:
        memory = context.state_of(self)
        if "weight" not in memory:
            ones_n = torch.ones(pool_size(context), dtype=torch.float64)
            memory |= {"rate": 0.5 * ones_n, "distinct": ones_n.clone(), "weight": ones_n.clone(), "probed": None}
        return memory

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled to measure prompts."""
        if not self.refresh_every:
            return ""
        return (
            f"{self.probe} completions to each of {run.examples} prompts every {self.refresh_every} steps, to measure"
        )

    @override
    def words(self) -> str:
        fresh = f"; all measured anew every {self.refresh_every} steps" if self.refresh_every else ""
        return f"{self.share:.0%} of the prompts by the variance of their outcomes, the rest in their order{fresh}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its weights never change or no prompt is sampled by weight."""
        frozen = ["variance_sampling has no effect: momentum 1 keeps the weights equal for ever"]
        none = ["variance_sampling has no effect: share is 0"]
        return frozen * (self.momentum == 1) + none * (self.share == 0)


def distinct_3(completions: Sequence[Sequence[int]]) -> float:
    """Return the share of distinct ones among all runs of three actions; a row shorter than three counts as one run."""
    runs = [tuple(ids[k : k + 3]) for ids in completions for k in range(max(1, len(ids) - 2))]
    return len(set(runs)) / len(runs)


@part("curriculum")
class DifficultyTargeted(Chooser):
    """Choose prompts of a wanted difficulty, without replacement: P(q) ∝ exp(-|p_q - target|/temperature).

    "Improving Data Efficiency for LLM RL Fine-tuning" (DOTS, arXiv:2506.05316). `predict` "attention": every `every`
    steps `reference` random prompts get a group of completions each; the pass rate of any other is the mean of theirs,
    weighted by softmax(⟨z_q, z_i⟩/(√h·`sharpness`)) of prompt embeddings z: mean last hidden states of the policy as
    the run begins, standardised over the prompts. "prompt history": the pass rate at the last visit; prompts that were
    never sampled count as having the target rate, and nothing is probed.
    """

    one_policy: ClassVar[bool] = True

    target: Share = 0.5
    temperature: Annotated[float, Field(gt=0)] = 1e-3
    predict: Literal["attention", "ledger"] = "attention"
    reference: Count = 256
    every: Count = 2
    sharpness: Annotated[float, Field(gt=0)] = 1.0
    equation = "P(q) ∝ exp(-|p_q - {target:g}|/{temperature:g}), without replacement"

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample without replacement by Gumbel keys."""
        rate_n = self._rates(rng, context)
        key_n = rng.gumbel(size=len(rate_n)) - np.abs(rate_n - self.target) / self.temperature
        return best(key_n, count, chosen)

    def _rates(self, rng: np.random.Generator, context: RunContext) -> np.ndarray:
        """Return [N] expected pass rate of each prompt."""
        size, store = pool_size(context), context.state_of(self)
        if self.predict == "ledger":
            return np.array([context.prompt_history.rate(index, unseen=self.target) for index in range(size)])
        if (context.step % self.every == 0 and store.get("measured") != context.step) or "rate" not in store:
            if "embedding" not in store:
                store["embedding"] = standardised(embed_prompts(context))
            store["rate"], store["measured"] = self._measured(rng, store["embedding"], context), context.step
        return store["rate"].numpy()

    def _measured(self, rng: np.random.Generator, embedding_nh: Tensor, context: RunContext) -> Tensor:
        """Return [N] pass rates: measured for a random reference set, predicted from it for all others."""
        size = len(embedding_nh)
        reference = np.sort(rng.choice(size, min(self.reference, size), replace=False))
        rows = probe_prompts(context, reference.tolist(), context.group_size)
        share = right_share(rows, rows.index_b)
        known, rate_k = list(share), torch.tensor(list(share.values()), dtype=torch.float64)
        rate_n = attend(embedding_nh, embedding_nh[known], rate_k, self.sharpness)
        rate_n[known] = rate_k
        return rate_n

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled to measure prompts."""
        if self.predict == "ledger":
            return ""
        count = min(self.reference, run.examples or self.reference)
        return f"{run.group_size} completions to each of {count} prompts every {self.every} steps, to measure"

    @override
    def words(self) -> str:
        how = "at their last visit"
        if self.predict == "attention":
            how = f"predicted from {self.reference} random ones measured every {self.every} steps"
        return f"prompts with a pass rate near {self.target:g}, {how}"


def attend(query_nh: Tensor, key_kh: Tensor, value_k: Tensor, sharpness: float) -> Tensor:
    """Return [N] attention of N queries to K keys, whose values are averaged."""
    score_nk = query_nh @ key_kh.T / (query_nh.shape[1] ** 0.5 * sharpness)
    return torch.softmax(score_nk, 1).to(value_k.dtype) @ value_k


def standardised(value_nh: Tensor) -> Tensor:
    """Return columns with mean 0 and standard deviation 1 (0 if a column does not vary), [N,H] float32."""
    centred_nh = value_nh.float() - value_nh.float().mean(0)
    return centred_nh / centred_nh.square().mean(0).sqrt().clamp(min=1e-6)


def embed_prompts(context: RunContext, at_once: int = 256) -> Tensor:
    """Return the mean last hidden state of every training prompt, [N,H]."""
    prompts = [context.task.example("train", index).prompt for index in range(pool_size(context))]
    ids = [tuple(x) for x in context.text.policy.encode_prompts(prompts)]
    end = tuple(context.text.policy.eos_ids[:1])  # the state of a position is that which predicts the token after it
    means: list[Tensor] = []
    for start in range(0, len(ids), at_once):
        piece = ids[start : start + at_once]
        states = context.text.policy.hidden(Tokens(tuple(x[:1] for x in piece), tuple((*x[1:], *end) for x in piece)))
        means.extend(state_th.mean(0) for state_th in states)
    return torch.stack(means)
