"""Dialects of TRL's trainers for preferences without a reference: CPO (with SimPO and AlphaPO), ORPO and TPO.

Settings have TRL's names and defaults. `tests/parity/test_trl_preference.py` runs TRL 1.16.0's own losses against these
entries.
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.filter.papers.best_apart import BestApart
from grouprl.algorithms.link.link import Hinge, Link, Squared
from grouprl.algorithms.margin.margin import Constant
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.gold import GoldNLL
from grouprl.algorithms.score.power import PowerProb
from grouprl.algorithms.score.score import Length, LogProb
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.dialects.trl_preference import Smoothing, smoothed
from grouprl.methods.preference.composing import PAIRS, TIES, of_pairs, one_pair, three_pairs
from grouprl.methods.preference.reference_free import chosen_nll, orpo
from grouprl.methods.registry import entry

CPOLoss = Literal["sigmoid", "hinge", "ipo", "simpo", "alphapo"]


def cpo_trl(
    beta: Positive = 0.1,
    loss_type: CPOLoss = "sigmoid",
    cpo_alpha: NonNegative = 1.0,
    simpo_gamma: NonNegative = 0.5,
    alpha: float = 0.0,
    label_smoothing: Smoothing = 0.0,
) -> Method:
    """Compose the losses of TRL's CPOTrainer with its settings."""
    kind = "simpo" if loss_type == "alphapo" else loss_type
    length: Length = "mean" if kind in ("ipo", "simpo") else "sum"
    links: dict[str, Link] = {"hinge": Hinge(beta=beta), "ipo": Squared(beta=beta)}
    return of_pairs(
        score=LogProb(length=length) if alpha == 0 else PowerProb(alpha=alpha, length=length),
        link=links.get(kind) or smoothed(beta, label_smoothing),
        margin=Constant(value=simpo_gamma if kind == "simpo" else 0.0),
        regularize=chosen_nll(0.0 if loss_type == "alphapo" else cpo_alpha),
    )


entry(
    "cpo@trl",
    cpo_trl,
    Card(
        title="CPO, SimPO and AlphaPO as TRL computes them",
        summary="All losses of TRL's CPOTrainer; the likelihood of chosen completions is on unless cpo_alpha is 0.",
        formula=(
            "L = mean over pairs of -log σ(0.1·Δ) - mean over tokens of all y_w of log π,  Δ = log π(y_w) - log π(y_l)"
        ),
        defaults={
            "beta": "CPOConfig.beta (SimPO's is 2 and more)",
            "loss_type": "CPOConfig.loss_type; alphapo is simpo without the likelihood",
            "cpo_alpha": "CPOConfig.cpo_alpha: 1; SimPO proper has 0",
            "simpo_gamma": "CPOConfig.simpo_gamma: read by simpo alone",
            "alpha": "CPOConfig.alpha: 0, log-probs as they are; AlphaPO's power otherwise, with every loss",
            "label_smoothing": "CPOConfig.label_smoothing: read by sigmoid and simpo",
        },
        differs=[
            "With loss_type simpo alone the likelihood of chosen completions is added: CPO-SimPO, not SimPO",
            "The likelihood is a mean over the optimiser step; TRL's is over each micro-batch, which agrees when a "
            "step is one micro-batch",
            "alpha with sums of log-probs (sigmoid, hinge) overflows in TRL; here the exponent is held at 80",
            PAIRS,
            TIES,
        ],
        reduces=[
            Reduction("cpo", why="the default loss"),
            Reduction("simpo", settings={"loss_type": "simpo", "beta": 2.0, "cpo_alpha": 0.0}, why="no likelihood"),
        ],
        source="TRL 1.16.0, experimental/cpo: CPOTrainer.cpo_loss, run against this entry",
        golden=[
            one_pair(1.51334717, [-0.55099987, -0.55099987], 0.05099987, "Δ = -1.6 + 1.2; 0.8 is the mean NLL"),
            three_pairs(
                0.979928,
                "0.313262, 1.313262, 1.313262",
                settings={"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.0},
            ),
        ],
    ),
)


def orpo_trl(beta: Positive = 0.1) -> Method:
    """Compose TRL's ORPO."""
    return orpo(beta=beta)


entry(
    "orpo@trl",
    orpo_trl,
    Card(
        title="ORPO as TRL computes it",
        summary="The odds ratio with the likelihood of chosen completions, which weighs 1.",
        formula=(
            "L = -mean over tokens of all y_w of log π - β·mean over pairs of log σ(o(y_w) - o(y_l)),  o the log-odds"
        ),
        defaults={"beta": "ORPOConfig.beta, the paper's λ: 0.1"},
        differs=[
            "TRL's likelihood counts the tokens of the prompt, too; a method sees those of the completion alone",
            "TRL computes the odds in float32",
            PAIRS,
            TIES,
        ],
        reduces=[Reduction("orpo", why="the same loss")],
        source="TRL 1.16.0, experimental/orpo: ORPOTrainer.odds_ratio_loss, run against this entry",
        golden=[one_pair(0.84241061, [-0.53138403, -0.53138403], 0.04946232, "0.8 - 0.1·log σ of the odds' ratio")],
    ),
)


TPOLoss = Literal["sigmoid", "hinge", "ipo", "tpo-l"]


def tpo_trl(
    beta: Positive = 0.01,
    loss_type: TPOLoss = "sigmoid",
    label_smoothing: Smoothing = 0.0,
    tpo_alpha: NonNegative = 1.0,
    tpo_l_gamma: NonNegative = 0.5,
) -> Method:
    """Compose the losses of TRL's TPOTrainer with its settings."""
    links: dict[str, Link] = {"hinge": Hinge(beta=beta), "ipo": Squared(beta=beta)}
    pairs = of_pairs(
        score=LogProb(length="mean" if loss_type in ("ipo", "tpo-l") else "sum"),
        link=links.get(loss_type) or smoothed(beta, label_smoothing),
        margin=Constant(value=tpo_l_gamma if loss_type == "tpo-l" else 0.0),
    )
    return pairs.with_parts(
        filter=(BestApart(), *pairs.filter), regularize=(GoldNLL(coef=tpo_alpha),) if tpo_alpha else ()
    )


entry(
    "tpo@trl",
    tpo_trl,
    Card(
        title="TPO as TRL computes it",
        summary="All losses of TRL's TPOTrainer, with the likelihood of the gold completion.",
        formula=(
            "L = mean over pairs of -log σ(0.01·Δ) - mean over tokens of all gold y of log π,  "
            "Δ = log π(y_w) - log π(y_l)"
        ),
        defaults={
            "beta": "TPOConfig.beta: 0.01",
            "loss_type": "TPOConfig.loss_type",
            "label_smoothing": "TPOConfig.label_smoothing: read by sigmoid and tpo-l",
            "tpo_alpha": "TPOConfig.tpo_alpha: 1",
            "tpo_l_gamma": "TPOConfig.tpo_l_gamma: read by tpo-l alone",
        },
        differs=[
            "The likelihood is a mean over the optimiser step; TRL's is over each micro-batch, which agrees when a "
            "step is one micro-batch",
            "TRL's column reference is the gold completion: the best of a group of three here",
            PAIRS,
            TIES,
        ],
        reduces=[
            Reduction("tpo", why="the default loss"),
            Reduction("tpo", settings={"loss_type": "tpo-l"}, other={"gamma": 0.5}, why="TPO-L"),
        ],
        source="TRL 1.16.0, experimental/tpo: TPOTrainer._compute_loss, run against this entry",
        golden=[
            Golden(
                rewards=[1, 0, 2],
                lengths=[2, 1, 1],
                log_ratio=[[0.3, 0.1], [-0.2], [-0.5]],
                advantage=[1.0, 0.0, 0.0],
                loss=0.6951491806 + 1.5,
                grad=[[-0.00501, -0.00501], [0.00501], [-1.0]],
                why="-log σ(0.01·(-1.6 + 1.2)), and 1.5 nats of the gold one's token",
            ),
        ],
    ),
)
