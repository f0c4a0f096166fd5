"""Completions with which the policy's own are compared, and the judge's preferences among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.preferences import MEASURE, OPPONENT, PREFERRED
from grouprl.core.edges import Edges
from grouprl.core.numbers import Count, Share
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

SAMPLED = "Train on a task that samples completions and has a reward for them"
COLUMN = f"keys.{OPPONENT}"


@part("augment")
class Opponents(Augmentation):
    """Sample `count` completions per prompt from an opponent, a mixture of the initial and the present policy.

    Its logits are `initial` parts of the initial policy's and the rest the policy's (Nash-MD, arXiv:2312.00886); at 1
    the initial policy itself answers (XPO, arXiv:2405.21046), at 0 the policy. The rows have `keys.opponent` 1, their
    log-probs are computed anew. With `scored` false they are unlabelled: no reward is asked for (HyPO). With `together`
    a reward that judges groups judges the policy's completions and the opponent's in one: judged apart, their rewards
    would not say which of the two is better.
    """

    needs_text = True
    one_policy = True
    in_parts = True

    initial: Share = 1.0
    count: Count = 1
    scored: bool = True
    together: bool = False
    fills = (COLUMN,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows and the opponent's."""
        firsts = [int(rows[0]) for rows in groups(samples, samples.valid_b)]
        rows = self._sampled(as_text(samples), firsts, context) if firsts else None
        samples = samples.with_extras(**{COLUMN: np.zeros(len(samples), dtype=np.int64)})
        if rows is None:
            return samples
        rows = rows.with_extras(**{COLUMN: np.ones(len(rows), dtype=np.int64)})
        rows = replace(rows, foreign_b=np.ones(len(rows), dtype=bool))
        context.note("opponent_rows", len(rows))
        whole = splice(samples, np.zeros(len(samples), dtype=bool), [subset(rows, rows.valid_b)])
        return context.judged_together(whole) if self.together else whole

    def _sampled(self, samples: TextSamples, firsts: Sequence[int], context: RunContext) -> ScoredSamples:
        """Return the opponent's completions of the prompts of the rows `firsts`."""
        source = "reference" if self.initial == 1 else "extra"
        with context.acting(context.opponent(self.initial)):
            if self.scored:
                requests = [again(samples, row, completions=self.count) for row in firsts]
                return context.sample(requests, count_failures=False).with_source(source)
            each = [again(samples, row, number) for row in firsts for number in range(self.count)]
            return context.text.sample_texts(each).with_source(source)

    @override
    def reference_acts(self) -> bool:
        return self.initial > 0

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        return f"{run.prompts} × {self.count} = {run.prompts * self.count} completions of the opponent per rollout"

    @override
    def scores_samples(self) -> bool:
        """Return whether the opponent's completions are scored."""
        return self.scored

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse an opponent with a share of the initial policy where no reference is kept, and scores where none are
        given.
        """
        if self.scored and run.stored:
            return [f"{self.name} has its completions scored, and the task's rewards are stored. {SAMPLED}"]
        if self.together and run.judges_groups and run.environment:
            return [f"{self.name} has episodes judged together, whose environments score them one by one. {SAMPLED}"]
        if self.initial > 0 and not run.has_reference:
            return [f"{self.name} samples from the initial policy. Set model.reference: initial, or initial to 0"]
        return []

    @override
    def words(self) -> str:
        if self.initial in (0, 1):
            who = "the policy itself" if self.initial == 0 else "the initial policy"
        else:
            who = f"the policy with {self.initial:g} parts of the initial policy's logits"
        return f"{who} writes {self.count} further completion{'s' * (self.count > 1)} of each prompt, as opponent"


@part("augment")
class Measure(Augmentation):
    """Choose one completion of each group at random, with which the others are compared (BRPO, arXiv:2506.00103)."""

    says = "one completion of each group, chosen at random, is what the others are compared with"
    fills = (f"keys.{MEASURE}",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with `keys.measure`, 1 for the chosen ones."""
        rng, chosen_b = context.rng(self), np.zeros(len(samples), dtype=np.int64)
        for rows in groups(samples, sampled_rows(samples)):
            chosen_b[rng.choice(rows)] = 1
        return samples.with_extras(**{f"keys.{MEASURE}": chosen_b})


@part("augment")
class Comparisons(Augmentation):
    """Have every two completions of a prompt compared by the run's judge: a preference matrix (`edges.preferred`).

    The judge is the run's reward, if it compares (`reward.judge.compare`), or the task's. `against` "measure" compares
    with the chosen one alone (`measure`), "opponents" with those of an opponent alone. Pairs that the judge abstains on
    have no edge.
    """

    against: Literal["all", "measure", "opponents"] = "all"
    fills = (f"edges.{PREFERRED}",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with the edges 'preferred'."""
        pairs = self._pairs(samples)
        found = context.compare(samples, pairs)
        known = [(pair, chance) for pair, chance in zip(pairs, found, strict=True) if chance is not None]
        if pairs:
            context.note("preferences_abstained", 1 - len(known) / len(pairs), "mean")
        index_e2 = torch.tensor([pair for pair, _ in known], dtype=torch.int64).reshape(-1, 2)
        value_e = torch.tensor([chance for _, chance in known], dtype=torch.float64)
        return samples.with_edges(**{PREFERRED: Edges(index_e2, value_e)})

    def _pairs(self, samples: ScoredSamples) -> list[tuple[int, int]]:
        """Return the pairs of rows to compare, the earlier one first."""
        name = {"measure": f"keys.{MEASURE}", "opponents": COLUMN}.get(self.against)
        marked_b = None if name is None else samples.extras[name] == 1
        pairs = [pair for rows in groups(samples, samples.valid_b) for pair in combinations(rows.tolist(), 2)]
        return [(i, j) for i, j in pairs if marked_b is None or marked_b[i] != marked_b[j]]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run whose reward compares nothing."""
        words = f"{self.name} asks a judge that compares, and the run's reward scores single completions"
        return [] if run.compares else [f"{words}. Set reward.judge.compare, the task duels, or by: reward"]

    @override
    def needs(self) -> tuple[str, ...]:
        return {"all": (), "measure": (f"keys.{MEASURE}",), "opponents": (COLUMN,)}[self.against]

    @override
    def words(self) -> str:
        whom = {"all": "each other", "measure": "the chosen one", "opponents": "those of the opponent"}[self.against]
        return f"the run's judge compares the completions of a prompt with {whom}"
