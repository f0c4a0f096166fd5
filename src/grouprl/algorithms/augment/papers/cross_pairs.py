"""Pairs every completion with the other forms of its prompt (Share-GRPO)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grouprl.algorithms.augment.resampling import further_numbers, groups, prefixes, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.examples import Prompt
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import as_text
from grouprl.records.tokens import Tokens


@part("augment")
class CrossPairs(Augmentation):
    """Show every completion under the prompt of every form of its prompt, too (Share-GRPO, arXiv:2505.16673).

    M forms with n completions each become M·M·n rows. The new rows have the prompt's `keys.variant`, `keys.own` 0 and
    source 'extra'; their log-probs are those of the policy given the prompt under which they are shown.
    """

    needs_text = True

    says = "every completion is also a row under the prompt of each other form of its prompt"
    reads = ("keys.variant", "keys.own")

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows, and each completion paired with the other forms of its prompt."""
        samples = as_text(samples)
        rows: list[int] = []
        prompts: list[Prompt] = []
        forms: list[int] = []
        variant_b = samples.extras["keys.variant"]
        for group in groups(samples, sampled_rows(samples)):
            first = {int(variant_b[i]): samples.prompts[i] for i in reversed(group.tolist())}
            pairs = [(i, v) for v in sorted(first) for i in group.tolist() if variant_b[i] != v]
            rows += [i for i, _ in pairs]
            forms += [v for _, v in pairs]
            prompts += [first[v] for _, v in pairs]
        if not rows:
            return samples
        paired = context.text.with_prompts(subset(samples, np.array(rows)), prompts).with_source("extra")
        begun = zip(paired.prompt_ids, prefixes(samples, rows, context), strict=True)
        tokens = Tokens(tuple((*ids, *prefix) for ids, prefix in begun), paired.response_ids)
        rollout = replace(paired.rollout, inputs=tokens)
        keys = {"keys__variant": np.array(forms, dtype=np.int64), "keys__own": np.zeros(len(rows), dtype=np.int64)}
        numbers_b = further_numbers(samples, np.array(rows))
        paired = replace(paired.with_extras(**keys), sample_b=numbers_b, rollout=rollout)
        return splice(samples, np.zeros(len(samples), dtype=bool), [paired])

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many rows there are besides the completions."""
        completions = run.prompts * run.group_size
        return f"no completions, but {completions} rows per rollout to train on for each further form of a prompt"
