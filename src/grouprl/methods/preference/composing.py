"""The composition and the golden examples that losses of pairs share."""

from __future__ import annotations

from collections.abc import Mapping

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.margin.margin import Constant, Margin
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair, Pairwise
from grouprl.algorithms.pair_weight.pair_weight import Even, PairWeight
from grouprl.algorithms.pairing.pairing import AllPairs, Pairing
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.methods.card import Golden, Paper

REFERENCE = "a reference model"
TWO = "two completions per prompt of which one is better: pairs with known winners (task pairs:FILE), or rewards"
NEEDS = (REFERENCE, TWO)
PAIRS = (
    "Groups of more than two completions, such as a ranked list, count as all their pairs with different rewards, "
    "averaged within the group; groups weigh by their size. The paper has one pair per prompt."
)
TIES = (
    "Two completions of equal reward are not a pair: they are left out, also from the denominator, and a step without "
    "pairs has loss 0."
)
BETA = "customary (the papers', TRL's DPOConfig.beta)"
TRL = "TRL 1.16.0, trainer/dpo_trainer.py, DPOTrainer._compute_loss"
DPO_PAPER = Paper(
    "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    "2305.18290",
    2023,
)
NCA_PAPER = Paper("Noise Contrastive Alignment of Language Models with Explicit Rewards", "2402.05369", 2024)
NCA_CODE = "thu-ml/Noise-Contrastive-Alignment: reward_trainer.py, NCATrainer.nca_loss"
ALPHA = (
    "the authors' code, NCAConfig.temperature_alpha: 1e-4, with which the best completion has all the weight; a larger "
    "α shares it by the rewards"
)
LIST_DIFFERS = (
    "Lists of any number of completions; the authors' code has four.",
    "Completions of equal reward weigh alike; the authors' code adds 0.01 to the first one's score.",
    "Groups weigh by their size, which may vary; the authors' lists have one.",
    "Without others of its prompt a completion is left out, also from the denominator. Equal rewards are not a "
    "reason to leave a group out (stored lists of equal scores: ties: keep).",
)
LIST_NEEDS = (
    REFERENCE,
    "at least two completions per prompt with rewards, such as ranked or scored lists (task pairs:FILE)",
)
RECOMMENDED = {"group": 2, "learning_rate": 1e-6, "epochs": 1}


def of_pairs(
    score: Score | None = None,
    link: Link | None = None,
    margin: Margin | None = None,
    weight: PairWeight | None = None,
    regularize: tuple[Regularizer, ...] = (),
    pairing: Pairing | None = None,
) -> Method:
    """Compose a loss of pairs from its parts; what is not given is DPO's."""
    objective = Pair(
        score=score or LogRatio(),
        link=link or Logistic(),
        margin=margin or Constant(),
        pair_weight=weight or Even(),
        pairing=pairing or AllPairs(),
    )
    return with_objective(objective, regularize, objective.pairing)


def with_objective(
    objective: Pairwise, regularize: tuple[Regularizer, ...] = (), pairing: Pairing | None = None
) -> Method:
    """Compose a loss of pairs: their order is that of rewards, their mean is over pairs."""
    return Method(
        filter=(PairedGroups(pairing=pairing or AllPairs()),),
        advantage=RawReward(),
        objective=objective,
        aggregate=SequenceMean(),
        regularize=regularize,
    )


NOTHING: Mapping[str, object] = {}
AT_ONE: Mapping[str, object] = {"ref_bt": [[-1.0, -1.0], [-1.0]]}
"""Log-probs of the reference that are -1 everywhere."""


def one_pair(
    loss: float,
    better: list[float],
    worse: float,
    why: str,
    settings: Mapping[str, object] = NOTHING,
    fields: Mapping[str, object] = AT_ONE,
) -> Golden:
    """Return a golden example with a chosen completion of two tokens and a rejected one of a single token."""
    return Golden(
        rewards=[1, 0],
        lengths=[2, 1],
        log_ratio=[[0.3, 0.1], [-0.2]],
        advantage=[1.0, 0.0],
        loss=loss,
        grad=[better, [worse]],
        why=f"s(w) = 0.3 + 0.1, s(l) = -0.2 (log-probs -0.7, -0.9 and -1.2, reference -1): {why}",
        settings=settings,
        fields=fields,
    )


LENGTHS = (6, 5, 15, 12, 5, 6)
POLICY = (-12.0, -15.0, -30.0, -24.0, -7.5, -9.0)
ANCHOR = (-13.0, -13.5, -29.0, -26.0, -8.0, -8.0)


def three_pairs(loss: float, why: str, settings: Mapping[str, object] = NOTHING) -> Golden:
    """Return a golden example with three pairs whose log-probs are spread evenly over their tokens."""
    rows = list(zip(LENGTHS, POLICY, ANCHOR, strict=True))
    return Golden(
        rewards=[1, 0] * 3,
        lengths=LENGTHS,
        groups=[0, 0, 1, 1, 2, 2],
        log_ratio=[[policy / n + 1] * n for n, policy, _ in rows],
        fields={"ref_bt": [[anchor / n] * n for n, _, anchor in rows]},
        loss=loss,
        why=f"log π = -12, -30, -7.5 and -15, -24, -9; log π_ref = -13, -29, -8 and -13.5, -26, -8: {why}",
        settings=settings,
    )
