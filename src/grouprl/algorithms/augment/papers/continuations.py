"""Completions that continue a beginning of their own, a shared plan or part of the solution."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.resampling import again, groups, prefixes, sampled_rows, splice, through
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.papers.prefix_mask import PrefixMask
from grouprl.core.numbers import PositiveShare
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.records.tokens import Tokens


@part("augment")
class Continuations(Augmentation):
    """PPPO: sample `count` continuations of the beginning of each completion and count the right ones
    (arXiv:2512.15274).

    The beginning is the first ⌊η|y|⌋ tokens, with the same growing η as `prefix_mask`. The number becomes the reward
    component `continuations`; the continuations themselves are not trained on. A completion that has already ended
    there counts as its own continuation.
    """

    needs_text = True

    count: Annotated[int, Field(ge=1)] = 8
    start: PositiveShare = 0.15
    grow: Annotated[float, Field(ge=0)] = 0.05
    limit: PositiveShare = 0.35
    says = "sample {count} continuations of the beginning of each completion and count the right ones"
    fills = ("rewards.continuations",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with the reward component `continuations`."""
        share = PrefixMask(start=self.start, grow=self.grow, limit=self.limit).share(context.batch(samples))
        samples, number_b = as_text(samples), np.where(samples.valid_b, 0.0, np.nan)
        requested: list[int] = []
        requests: list[RolloutRequest] = []
        for rows in groups(samples, samples.valid_b):
            for place, (row, prefix) in enumerate(zip(rows, prefixes(samples, rows, context), strict=True)):
                ids = samples.response_ids[row]
                beginning = ids[: int(share * len(ids) + 1e-9)]
                if len(beginning) == len(ids):
                    number_b[row] = self.count * samples.scores.correct_b[row]
                    continue
                room = context.max_new_tokens - len(beginning)
                changes = {"completions": self.count, "prefix": (*prefix, *beginning), "max_new_tokens": room}
                requests.append(again(samples, row, place * self.count, **changes))
                requested.append(row)
        if requests:
            right_b = context.sample(requests, count_failures=False).scores.correct_b
            number_b[requested] = right_b.reshape(len(requests), self.count).sum(1)
            context.note("continuations", len(right_b))
        components = {**samples.scores.components, "continuations": number_b}
        return replace(samples, scores=replace(samples.scores, components=components))

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many continuations are sampled besides the completions of the run."""
        completions = run.prompts * run.group_size
        return f"up to {completions} × {self.count} = {completions * self.count} continuations per rollout, to measure"


@part("augment")
class PlanTree(Augmentation):
    """PTA-GRPO: completions branch where their plan ends, each plan into `leaves` completions (arXiv:2510.01833).

    The plan is what a completion says up to the first `sign` (None: the task's `plan_end`). batch.group_size is the
    number of plans; the completion that wrote the plan is its first leaf, and the others are trained as a whole too.
    `keys.plan` numbers the plans of a prompt and `marks.plan` marks their tokens. A completion without the sign stays
    alone, without a plan.
    """

    needs_text = True

    sign: Annotated[str, Field(min_length=1)] | None = None
    leaves: Annotated[int, Field(ge=1)] = 4
    fills = ("keys.plan", "marks.plan")
    idle_at = ("leaves", 1, "plan_tree samples nothing: leaves is 1")

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with the further leaves of every plan."""
        samples, sign = as_text(samples), self.sign or context.task.plan_end
        ends_b = np.array([through(context, ids, sign) or 0 for ids in samples.response_ids])
        marked = _planned(samples, samples.sample_b, ends_b)
        requests, roots = self._branches(samples, ends_b, context)
        context.note("plans", len(requests))
        if not requests:
            return marked
        leaves = as_text(context.sample(requests))
        roots_b = np.repeat(np.array(roots), self.leaves - 1)
        whole = regrown(leaves, samples, roots_b, ends_b[roots_b])
        whole = _planned(whole, samples.sample_b[roots_b], ends_b[roots_b])
        return splice(marked, np.zeros(len(samples), dtype=bool), [whole])

    def _branches(
        self, samples: TextSamples, ends_b: np.ndarray, context: RunContext
    ) -> tuple[list[RolloutRequest], list[int]]:
        """Return a request for the further leaves of each plan, and the rows that wrote the plans."""
        more, requests, roots = self.leaves - 1, [], []
        for rows in groups(samples, sampled_rows(samples) & (ends_b > 0)):
            for place, (row, prefix) in enumerate(zip(rows, prefixes(samples, rows, context), strict=True)):
                room = context.max_new_tokens - int(ends_b[row])
                if more == 0 or room < 1:
                    continue
                plan = samples.response_ids[row][: ends_b[row]]
                changes = {"completions": more, "prefix": (*prefix, *plan), "max_new_tokens": room}
                requests.append(again(samples, row, place * more, **changes))
                roots.append(row)
        return requests, roots

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        completions, more = run.prompts * run.group_size, self.leaves - 1
        total = completions * more
        return f"up to {completions} × {more} = {total} completions per rollout, which are trained on" if more else ""

    @override
    def words(self) -> str:
        end = "" if self.sign is None else f", up to '{self.sign}',"
        return f"every completion's plan{end} is carried out {self.leaves} times"


def _planned(samples: TextSamples, plan_b: np.ndarray, ends_b: np.ndarray) -> TextSamples:
    """Return the rows with the number of their plan and its tokens marked: the first `ends_b` ([B])."""
    width = max(map(len, samples.response_ids))
    return samples.with_extras(keys__plan=plan_b, marks__plan=np.arange(width) < ends_b[:, None])


def regrown(leaves: TextSamples, samples: TextSamples, roots: np.ndarray, size_b: np.ndarray) -> TextSamples:
    """Return continuations with the tokens that they continue put in front of their own.

    Row i continues the first `size_b[i]` tokens of row `roots[i]` of `samples`; these keep the log-probs they have in
    `samples`.
    """
    old, new = samples.rollout, leaves.rollout
    begun = [old.response_ids[r][:n] for r, n in zip(roots, size_b, strict=True)]
    response_ids = tuple((*a, *b) for a, b in zip(begun, new.response_ids, strict=True))
    shape = (len(response_ids), max(map(len, response_ids)))
    logp_bt, entropy_bt = (torch.zeros(shape, dtype=x.dtype) for x in (new.logp_bt, new.entropy_bt))
    for i, (root, n) in enumerate(zip(roots.tolist(), size_b.tolist(), strict=True)):
        rest = len(new.response_ids[i])
        for whole_bt, begun_bt, rest_bt in (
            (logp_bt, old.logp_bt, new.logp_bt),
            (entropy_bt, old.entropy_bt, new.entropy_bt),
        ):
            whole_bt[i, :n] = begun_bt[root, :n]
            whole_bt[i, n : n + rest] = rest_bt[i, :rest]
    prompt_ids = tuple(old.prompt_ids[r] for r in roots)
    rollout = Rollout(Tokens(prompt_ids, response_ids), logp_bt, entropy_bt, new.truncated_b, old.exact and new.exact)
    return replace(leaves, rollout=rollout, foreign_b=leaves.foreign_b | samples.foreign_b[roots])
