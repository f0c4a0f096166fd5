"""Dialects of TRL's trainers for labelled completions: KTO, and BCO as its last version had it.

Settings have TRL's names and defaults. `tests/parity/test_trl_labels.py` runs TRL's own losses against these entries.
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.augment.papers.preferences.mismatched import Mismatched
from grouprl.algorithms.link.papers.saturating import Saturating
from grouprl.algorithms.method import Method
from grouprl.algorithms.pretrain.papers.prompt_density import PromptDensity
from grouprl.algorithms.score.score import LogRatio
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.preference.labels import LARGE, SMALL, bco, kto, matched, of_labels
from grouprl.methods.registry import entry

KTOLoss = Literal["kto", "apo_zero_unpaired"]


def kto_trl(
    beta: Positive = 0.1,
    loss_type: KTOLoss = "kto",
    desirable_weight: NonNegative = 1.0,
    undesirable_weight: NonNegative = 1.0,
) -> Method:
    """Compose the losses of TRL's KTOTrainer with its settings."""
    if loss_type == "apo_zero_unpaired":
        return of_labels(LogRatio(), Saturating(beta=beta), desirable_weight, undesirable_weight)
    return kto(beta, desirable_weight, undesirable_weight).with_parts(augment=(Mismatched(order="rotation"),))


entry(
    "kto@trl",
    kto_trl,
    Card(
        title="KTO as TRL computes it",
        summary="The losses of TRL's KTOTrainer: partners by rotation, and APO-zero for single completions.",
        formula=(
            "L = mean of 1 - σ(0.1·(s - z0)) if liked, 1 - σ(0.1·(z0 - s)) if not,  z0 = max(0, mean of s over "
            "completions behind the next prompt);  apo_zero_unpaired: z0 = 0"
        ),
        defaults={
            "beta": "KTOConfig.beta",
            "loss_type": "KTOConfig.loss_type",
            "desirable_weight": "KTOConfig.desirable_weight",
            "undesirable_weight": "KTOConfig.undesirable_weight",
        },
        differs=[
            "The rotation and the baseline go over the optimiser step; TRL's over each device's batch, which agrees "
            "when a step is one micro-batch on one device",
            "TRL weighs apo_zero_unpaired the same way, and its batches need two rows or more, as here two prompts",
        ],
        reduces=[
            Reduction("kto", why="the same loss: partners come with the rows"),
        ],
        source="TRL 1.16.0, trainer/kto_trainer.py: KTOTrainer._compute_loss, run against this entry",
        golden=[SMALL, LARGE],
    ),
)


def bco_trl(
    beta: Positive = 0.1,
    prompt_sample_size: Count = 1024,
    min_density_ratio: Positive = 0.5,
    max_density_ratio: Positive = 10.0,
    encoder: str | None = None,
) -> Method:
    """Compose TRL's BCO, with matched prompts if there is an encoder: without one, as in TRL, nothing else is read."""
    if encoder is None:
        return bco(beta=beta)
    density = PromptDensity(encoder=encoder, sample=prompt_sample_size, low=min_density_ratio, high=max_density_ratio)
    return matched(bco(beta=beta), density)


entry(
    "bco@trl",
    bco_trl,
    Card(
        title="BCO as TRL computed it",
        summary="The classifier of TRL's BCOTrainer, with its running mean of rewards.",
        formula="L = mean of -log σ(0.1·(s - δ)) if liked, -log σ(-0.1·(s - δ)) if not,  s = Σ_t log π/π_ref",
        defaults={
            "beta": "BCOConfig.beta",
            "prompt_sample_size": "BCOConfig.prompt_sample_size",
            "min_density_ratio": "BCOConfig.min_density_ratio",
            "max_density_ratio": "BCOConfig.max_density_ratio",
            "encoder": "BCOTrainer.embedding_func and embedding_tokenizer: None",
        },
        differs=[
            "The running mean takes in a rollout at once; TRL takes in each micro-batch, which agrees when a rollout "
            "is one micro-batch",
            "TRL's trainer is given an embedding function and its tokenizer; encoder names a model of transformers, or "
            "policy: the last hidden state of the policy as the run begins",
            "TRL draws the classifier's rows with repetition, here without",
        ],
        reduces=[Reduction("bco", why="the same loss")],
        source="TRL 1.13.0, the last that has it, experimental/bco: BCOTrainer.bco_loss, run against this entry",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields={"ref_bt": [[-1.0, -1.0], [-1.0]], "past.score_mean": [0.1, 0.1]},
                advantage=[1.0, 0.0],
                loss=0.67825968,
                grad=[[-0.02462503, -0.02462503], [0.02462503]],
                why="s = 0.4 and -0.2, δ = 0.1: -log σ(0.1·0.3) twice",
            ),
        ],
    ),
)
