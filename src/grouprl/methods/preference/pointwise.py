"""Preference losses that judge each completion by itself: NCA, of pairs and of lists, anchored preference
optimisation, SPPO.
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.advantage.papers.win_rate import WinRate
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.pointwise import ApoDown, ApoZero, NcaPair, SppoHard
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.noise_contrast import ListNca
from grouprl.algorithms.objective.regression import Regression
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import (
    ALPHA,
    BETA,
    LIST_DIFFERS,
    LIST_NEEDS,
    NCA_CODE,
    NCA_PAPER,
    NEEDS,
    PAIRS,
    RECOMMENDED,
    TIES,
    TRL,
    of_pairs,
    one_pair,
    three_pairs,
)
from grouprl.methods.registry import entry

SCORE = "s = Σ_t log π/π_ref"
APO_PAPER = Paper(
    "Anchored Preference Optimization and Contrastive Revisions: Addressing Underspecification in Alignment",
    "2408.06266",
    2024,
)


def nca(beta: Positive = 0.1) -> Method:
    """Compose NCA for pairs: the chosen completion against noise, of which both completions are examples."""
    return of_pairs(link=NcaPair(beta=beta))


entry(
    "nca",
    nca,
    Card(
        title="Noise Contrastive Alignment, for pairs",
        papers=[NCA_PAPER],
        summary="The reward of each completion is fixed, not only their difference, so that likelihoods do not fall.",
        formula=("L = mean over pairs of -log σ(β·s_w) - ½·log σ(-β·s_w) - ½·log σ(-β·s_l),  " + SCORE),
        defaults={"beta": BETA},
        differs=[PAIRS, TIES, "Pairs alone; nca_rewards is the form with K completions and their rewards."],
        needs=NEEDS,
        source=f"{TRL}, loss nca_pair",
        golden=[
            one_pair(1.37161934, [-0.0235002, -0.0235002], 0.02475001, "β·s = 0.04 and -0.02"),
            three_pairs(1.380875, "1.327074, 1.465664, 1.349888"),
        ],
        recommended=RECOMMENDED,
    ),
)


def nca_rewards(beta: Positive = 0.1, alpha: Positive = 1e-4) -> Method:
    """Compose NCA for rewards: each of K completions against noise, weighed by its reward."""
    return Method(
        filter=(PairedGroups(ties=True),),
        advantage=RawReward(),
        objective=ListNca(beta=beta, alpha=alpha),
        aggregate=SequenceMean(),
    )


entry(
    "nca_rewards",
    nca_rewards,
    Card(
        title="Noise Contrastive Alignment, for lists with rewards",
        papers=[NCA_PAPER],
        summary="K completions with their rewards: each one's log-ratio has an optimum of its own, so that likelihoods "
        "do not fall.",
        formula=(
            "L = mean over groups of -Σ_i [w_i·log σ(β·s_i) + 1/K·log σ(-β·s_i)],  w = softmax(R/α) over the K "
            "completions,  " + SCORE
        ),
        defaults={"beta": BETA, "alpha": ALPHA},
        differs=LIST_DIFFERS,
        reduces=[
            Reduction(
                "nca",
                ["two_completions", "binary_rewards", "mixed_groups"],
                why="the softmax of 1/α and 0 is 1 and 0: the chosen completion has all the weight",
            ),
        ],
        needs=LIST_NEEDS,
        source=NCA_CODE,
        golden=[
            one_pair(
                1.37964725,
                [-0.01032203, -0.01032203],
                0.01116847,
                "w = (σ(1), σ(-1)), β·s = 0.04 and -0.02; slopes β·(½·σ(z) - w·σ(-z))",
                settings={"alpha": 1.0},
            ),
            Golden(
                rewards=[0, 2, 1],
                log_ratio=[[0.5], [0.0], [-0.5]],
                fields={"ref_bt": [[-1.0]] * 3},
                settings={"beta": 2.0, "alpha": 0.5},
                advantage=[0.0, 2.0, 1.0],
                loss=1.53308544,
                grad=[[0.47883283], [-0.53348000], [0.00777269]],
                why="w = softmax(0, 4, 2) = (0.0159, 0.8668, 0.1173); slopes 2·(σ(z)/3 - w·σ(-z)), z = 1, 0, -1",
            ),
            Golden(
                rewards=[1, 0.5, 0.5, 3],
                groups=[0, 0, 0, 1],
                fields={"ref_bt": [[-1.0]] * 4},
                loss=1.38629436,
                grad=[[-0.03333333], [0.01666667], [0.01666667], [0.0]],
                why="at the reference 2·log 2, all the weight on the first; the last completion has nothing to be "
                "compared with",
            ),
        ],
        recommended={"group": 4},
    ),
)


def apo_zero(beta: Positive = 0.1) -> Method:
    """Compose APO-zero: chosen completions become likelier than under the reference, rejected ones less likely."""
    return of_pairs(link=ApoZero(beta=beta))


entry(
    "apo_zero",
    apo_zero,
    Card(
        title="Anchored Preference Optimization, zero",
        papers=[APO_PAPER],
        summary="For chosen completions better than the model's own: they gain likelihood, the rejected ones lose it.",
        formula=f"L = mean over pairs of 1 - σ(β·s_w) + σ(β·s_l),  {SCORE}",
        defaults={"beta": BETA},
        differs=[PAIRS, TIES],
        needs=NEEDS,
        source=f"{TRL}, loss apo_zero",
        golden=[
            one_pair(0.9850015, [-0.02499, -0.02499], 0.0249975, "1 - σ(0.04) + σ(-0.02)"),
            three_pairs(0.991643, "0.937591, 1.074813, 0.962523"),
        ],
        recommended=RECOMMENDED,
    ),
)


def apo_down(beta: Positive = 0.1) -> Method:
    """Compose APO-down: both completions become less likely than under the reference, the rejected one more so."""
    return of_pairs(link=ApoDown(beta=beta))


entry(
    "apo_down",
    apo_down,
    Card(
        title="Anchored Preference Optimization, down",
        papers=[APO_PAPER],
        summary="For models better than the chosen completions: both lose likelihood, the rejected ones more.",
        formula=f"L = mean over pairs of σ(β·s_w) + 1 - σ(β·[s_w - s_l]),  {SCORE}",
        defaults={"beta": BETA},
        differs=[PAIRS, TIES],
        needs=NEEDS,
        source=f"{TRL}, loss apo_down",
        golden=[
            one_pair(0.99500317, [1.249e-05, 1.249e-05], 0.02497751, "σ(0.04) + 1 - σ(0.06)"),
            three_pairs(0.995778, "0.962803, 1.049463, 0.975068"),
        ],
        notes=["From rewards alone it need not learn: it lowers what is chosen, too."],
        recommended=RECOMMENDED,
    ),
)


def sppo(beta: Positive = 1e-3, target: Literal["hard", "win_rate"] = "hard") -> Method:
    """Compose SPPO: each log-ratio is to be (P - ½)/β, P the chance to win against the policy."""
    if target == "hard":
        return of_pairs(link=SppoHard(beta=beta))
    squared = Regression(beta=beta, coef=1 / beta**2, anchor="ref")
    return Method(advantage=WinRate(), objective=squared, aggregate=SequenceMean())


entry(
    "sppo",
    sppo,
    Card(
        title="Self-Play Preference Optimization",
        papers=[Paper("Self-Play Preference Optimization for Language Model Alignment", "2405.00675", 2024)],
        summary="Least squares: the log-ratio of a completion is to be its winning margin over the last policy.",
        formula=(
            "L = mean over pairs of (s_w - 1/(2β))² + (s_l + 1/(2β))² (hard),  or mean over completions of "
            f"(s_i - (P_i - ½)/β)² (win_rate),  {SCORE}"
        ),
        defaults={
            "beta": "uclaml/SPPO: 1e-3",
            "target": "hard, which reads the order of rewards alone (TRL's sppo_hard); the authors' code: win_rate",
        },
        differs=[
            PAIRS,
            "The authors' code keeps the best and the worst of five completions; here all completions count.",
            "The reference is the run's; the paper's is the policy at the start of the iteration: "
            "start the next run from the last one's policy.",
            "Hard is the sum of both squares of a pair, win_rate their mean: at P = 1 and 0 half of it.",
        ],
        reduces=[
            Reduction(
                "sppo",
                ["two_completions", "mixed_groups"],
                settings={"target": "win_rate"},
                other={"target": "hard"},
                scale=0.5,
                why="wins of 1 and 0, averaged over the two completions where the hard form adds",
            )
        ],
        needs=NEEDS,
        source=f"{TRL}, loss sppo_hard; uclaml/SPPO: sppo/trainer.py, scripts/compute_prob.py",
        golden=[
            one_pair(499400.2, [-999.2, -999.2], 999.6, "(0.4 - 500)² + (-0.2 + 500)²"),
            three_pairs(49.833333, "28.25, 85, 36.25", settings={"beta": 0.1}),
        ],
        recommended={**RECOMMENDED, "learning_rate": 5e-7, "optimiser": "RMSprop"},
    ),
)
