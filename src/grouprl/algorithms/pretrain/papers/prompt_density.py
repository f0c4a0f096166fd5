"""The density ratio of prompts, of liked completions to disliked ones, from their embeddings (BCO)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from grouprl.algorithms.critic.papers.text_encoders import MeanEncoder, TextEncoder, TrunkEncoder
from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.papers.density_weight import DENSITY
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import TextSamples, as_text

AT_ONCE = 32
"""Prompts that are read and encoded at a time."""
MOST = 500
"""Largest number of steps of the classifier's fit."""


@part("pretrain")
class PromptDensity(Pretraining):
    """Give `past.density_ratio`: clamp(p/(1 - p + 1e-8), low, high) of each row's prompt, p its chance to be one of a
    liked completion (BCO's matching of underlying distributions, arXiv:2404.04656).

    p is a logistic regression's on embeddings of prompts: up to `sample` rows of each label, the two labels weighed
    evenly, with a penalty of ½|w|². It is fitted once, before the first step; the ratios of all prompts are remembered.
    A completion is liked if its reward is above `threshold`. `encoder` is "policy", the hidden state of the
    prompt's last token before training, or any model of transformers by name or folder, the mean of its states.

    Differs: TRL draws the rows with repetition, and has the embedding function as an argument of its trainer.

    Raises:
        InputError: low above high; all completions liked, or none.
    """

    needs_text = True
    one_policy: ClassVar[bool] = True
    metrics: ClassVar = {
        "density_accuracy": Metric(
            words="share of labels that prompts tell, mean of liked and disliked ones; 0.5: prompts are alike",
            group="update",
        )
    }

    encoder: str = "policy"
    sample: Count = 1024
    low: Positive = 0.5
    high: Positive = 10.0
    threshold: float = 0.5
    fills: ClassVar[tuple[str, ...]] = (DENSITY,)
    equation = "r(x) = clamp(p/(1 - p + 1e-8), {low:g}, {high:g}),  p = P(liked | embedding of x)"

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InputError(
                f"prompt_density has low = {self.low:g} and high = {self.high:g}",
                "ratios are held between them",
                "Let low be at most high",
            )

    def second_models(self) -> int:
        """Return 1 where prompts are read by a copy of the policy, which is kept until they are."""
        return int(self.encoder == "policy")

    def count(self, context: RunContext) -> int:
        """Return 1: all is done at once."""
        return 1

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Embed all prompts, fit the classifier, and remember the ratio of each prompt."""
        embedding_nd, liked_n, names = self._read(context)
        chosen = drawn(liked_n, self.sample, context.rng(self))
        weight_d, bias = balanced_fit(embedding_nd[chosen], liked_n[chosen])
        logit_n = embedding_nd @ weight_d + bias
        ratio_n = density_ratio(torch.sigmoid(logit_n), self.low, self.high)
        context.state_of(self)["ratio"] = dict(zip(names, ratio_n.tolist(), strict=True))
        right_n = ((logit_n > 0) == liked_n).double()
        return {"density_accuracy": float((right_n[liked_n].mean() + right_n[~liked_n].mean()) / 2)}

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.density_ratio`; it is 1 for rows that do not count."""
        ratio: Mapping[str, float] = context.state_of(self)["ratio"]
        rows = zip(samples.examples, samples.valid_b.tolist(), strict=True)
        ratio_b = [ratio[example.id] if valid else 1.0 for example, valid in rows]
        given_b = torch.tensor(ratio_b, dtype=batch.dtype, device=batch.reward_b.device)
        return batch.replace(past={**batch.past, DENSITY.partition(".")[2]: given_b})

    def _read(self, context: RunContext) -> tuple[Tensor, Tensor, list[str]]:
        """Return each row's prompt embedding [N,D], whether the row is liked [N], and the name of its prompt.

        Raises:
            InputError: rows of one label alone.
        """
        policy = context.text.policy
        trunk = self.encoder == "policy"
        encoder = TrunkEncoder(policy.model) if trunk else MeanEncoder(self.encoder, policy.decode_all)
        encoder = encoder.to(policy.device).eval()
        found, names = list[Tensor](), list[str]()
        liked = list[bool]()
        for first in range(0, context.examples or 0, AT_ONCE):
            indices = range(first, min(first + AT_ONCE, context.examples or 0))
            rows = as_text(context.sample([context.request(index) for index in indices]))
            valid = np.flatnonzero(rows.valid_b).tolist()
            found.append(embedded(rows, valid, encoder))
            liked += [bool(rows.scores.reward_b[row] > self.threshold) for row in valid]
            names += [rows.examples[row].id for row in valid]
        if len(set(liked)) < 2:
            raise InputError(
                f"of {len(liked)} completions {sum(liked)} are liked",
                "a classifier tells prompts of liked completions from those of disliked ones",
                "Leave encoder out: without both there is nothing to match",
            )
        return torch.cat(found), torch.tensor(liked), names

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse completions that are not stored, and prompts that never end."""
        found = []
        if not run.stored:
            found.append(f"{self.name} reads stored labels. Use the task pairs:FILE or preferences")
        if run.examples is None:
            found.append(f"{self.name} embeds every prompt, and the training prompts never end. Set data.prompts")
        return found

    @override
    def words(self) -> str:
        of = "the policy's state" if self.encoder == "policy" else f"the mean state of '{self.encoder}'"
        return (
            f"before the first step, fit a classifier that tells liked from disliked completions by {of} at the prompt"
        )


@torch.no_grad()
def embedded(rows: TextSamples, index: list[int], encoder: TextEncoder) -> Tensor:
    """Return the embedding of the prompt of each row of `index`, [N,D] float64 on the CPU; equal prompts are read
    once.
    """
    prompts = [tuple(rows.prompt_ids[row]) for row in index]
    known = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
    if not known:
        return torch.zeros(0, encoder.width, dtype=torch.float64)
    found_nd = encoder([list(ids) for ids in known]).double().cpu()
    return found_nd[[known[ids] for ids in prompts]]


def drawn(liked_n: Tensor, most: int, rng: np.random.Generator) -> Tensor:
    """Return the numbers of up to `most` rows of each label, drawn without repetition."""
    of_each = [rng.permutation(np.flatnonzero(same.numpy()))[:most] for same in (liked_n, ~liked_n)]
    return torch.from_numpy(np.concatenate(of_each))


def balanced_fit(embedding_nd: Tensor, liked_n: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights [D] and bias of the logistic regression with labels of equal weight and the penalty ½|w|².

    Each of the N rows counts N/2 over the number of rows of its label (the class weights and the penalty of
    scikit-learn's LogisticRegression(class_weight="balanced")).
    """
    weight_d, bias = embedding_nd.new_zeros(embedding_nd.shape[1]), embedding_nd.new_zeros(())
    share = liked_n.double().mean()
    count_n = torch.where(liked_n, 0.5 / share, 0.5 / (1 - share))
    given = [each.requires_grad_() for each in (weight_d, bias)]
    optimizer = torch.optim.LBFGS(
        given, max_iter=MOST, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        logit_n = embedding_nd @ weight_d + bias
        error_n = binary_cross_entropy_with_logits(logit_n, liked_n.double(), reduction="none")
        loss = (count_n * error_n).sum() + 0.5 * weight_d.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weight_d.detach(), bias.detach()


def density_ratio(chance_n: Tensor, low: float, high: float) -> Tensor:
    """Return clamp(p/(1 - p + 1e-8), low, high) of chances p, [N]."""
    return (chance_n / (1 - chance_n + 1e-8)).clamp(low, high)
