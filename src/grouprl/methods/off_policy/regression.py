"""Regression on differences: the log-ratios of a group's completions are fitted to their rewards, without ratio or
clip."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.regression import Anchor, GroupRegression, Regression
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import KL_NEED, kl_in_reward

TWO = "at least two completions per prompt"
SEVERAL = "several updates per rollout, or it is a policy gradient (batch.minibatches or batch.epochs of 2 or more)"
REFERENCE = "a reference model"
MEAN = "Loss and gradient are a mean over prompts weighted by their number of completions, not a sum."
DIRECTION = "R - mean is (G-1)/G times R - mean of the others; at the anchor the residual is the advantage"


def gvpo(beta: Positive = 0.1, anchor: Anchor = "old") -> Method:
    """Compose GVPO.

    Half the sample variance, in each group, of β·log(π/π_anchor)(y) - R. Its optimum is π_anchor·exp(R/β)/Z whatever
    policy the completions were sampled from.
    """
    return Method(
        advantage=Relative("group", center="mean", scale="none"),
        objective=GroupRegression(beta=beta, coef=0.5, anchor=anchor),
        aggregate=SequenceMean(),
    )


entry(
    "gvpo",
    gvpo,
    Card(
        title="Group Variance Policy Optimization",
        papers=[
            Paper("GVPO: Group Variance Policy Optimization for Large Language Model Post-Training", "2504.19599", 2025)
        ],
        summary="Fit β·log(π/π_old), centred in the group, to centred rewards: one optimum, off-policy safe.",
        formula="L = mean_g 1/(2(G-1)) Σ_i [β(d_i - mean_g d) - (R_i - mean_g R)]²,  d_i = Σ_t log(π/π_anchor)(y_i,t)",
        defaults={
            "beta": "jszkc/GVPO run script: 0.1",
            "anchor": "the authors' code: the policy that sampled the completions; any anchor is allowed",
        },
        differs=[MEAN],
        reduces=[
            Reduction(
                "rebel", other={"eta": 10.0}, scale=0.0025, why="½ the sample variance is ¼ of the mean over pairs"
            ),
            Reduction(
                "copg", settings={"anchor": "ref"}, other={"beta": 0.1}, scale=0.05, why="CoPG has 1/(2β) per pair"
            ),
            Reduction("rloo", ["on_policy"], scale=0.1, why="β·(R - mean of the others): " + DIRECTION),
        ],
        needs=[TWO, SEVERAL],
        source="jszkc/GVPO: GVPO/gvpo_core_algos.py, run script, README",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.5, -0.5],
                loss=0.216225,
                grad=[[-0.0465], [0.0465, 0.0465]],
                why="d = 0.3 and -0.4, β d centred ±0.035, residuals ∓0.465: ½·2·0.465², slope 0.1·0.465",
            ),
            Golden(
                rewards=[1, 0, 0.5],
                log_ratio=[[0.4], [-0.2], [1.0]],
                advantage=[0.5, -0.5, 0.0],
                loss=0.1118,
                grad=[[-0.025], [0.022], [0.003]],
                why="d centred 0, -0.6, 0.6; residuals -0.5, 0.44, 0.06: squares 0.4472/4, slopes β/2 times them",
            ),
        ],
        recommended={"group": 8, "learning_rate": 1e-6},
    ),
)


def rebel(eta: Positive = 1.0, kl_coef: NonNegative = 0.0, kl_estimator: ValueEstimator = "k1") -> Method:
    """Compose REBEL.

    Mean over pairs of ((d_1 - d_2) - η(R_1 - R_2))², d the log-ratio of a completion to the policy that sampled it. One
    Gauss-Newton step is the natural policy gradient.
    """
    return Method(
        reward_transform=kl_in_reward(kl_coef, kl_estimator),
        advantage=Relative("group", center="mean", scale="none"),
        objective=GroupRegression(beta=1 / eta, coef=2 * eta**2, anchor="old"),
        aggregate=SequenceMean(),
    )


entry(
    "rebel",
    rebel,
    Card(
        title="REgression to RElative REward Based RL",
        papers=[Paper("REBEL: Reinforcement Learning via Regressing Relative Rewards", "2404.16767", 2024)],
        summary="Fit the difference of two completions' log-ratios to the difference of their rewards.",
        formula="L = mean_pairs [(d_1 - d_2) - η(R_1 - R_2)]²,  d = Σ_t log(π/π_old)(y_t)",
        defaults={
            "eta": "ZhaolinGao/REBEL, src/tldr and src/nectar: 1.0",
            "kl_coef": "off, so that no reference is needed; the TL;DR script has 0.05",
            "kl_estimator": "the scripts: log π_old - log π_ref, which is k1",
        },
        differs=[
            "Prompts weigh by their number of completions (the mean is over completions): where groups differ in "
            "size, large ones weigh more. With groups of one size it is the paper's mean over prompts.",
            "More than two completions: the mean over all pairs of the group.",
            "The KL in the reward is off by default (0.05 in the TL;DR script).",
            "Its script gives completions without end a reward of -1; here they keep theirs.",
        ],
        reduces=[
            Reduction("gvpo", other={"beta": 1.0}, scale=4.0, why="a sum over pairs is G times a sum around the mean"),
            Reduction(
                "rloo", ["on_policy", "two_completions"], scale=4.0, why="2η(R_1 - R_2) on each of two: RLOO has half"
            ),
        ],
        needs=[TWO, SEVERAL, KL_NEED],
        source="ZhaolinGao/REBEL: src/tldr/rebel.py, src/nectar/rebel.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.5, -0.5],
                loss=0.09,
                grad=[[-0.6], [0.6, 0.6]],
                why="(0.7 - 1)² = 0.09, slope 2·(-0.3)",
            ),
            Golden(
                rewards=[1, 0, 0.5],
                log_ratio=[[0.4], [-0.2], [1.0]],
                settings={"eta": 2.0},
                loss=1.52,
                grad=[[-2.0], [0.8], [1.2]],
                why="pairs (0.6 - 2)², (-0.6 - 1)² and (-1.2 + 1)²: (1.96 + 2.56 + 0.04)/3",
            ),
        ],
        recommended={"group": 2, "learning_rate": 3e-6, "epochs": 4},
    ),
)


def opmd_kimi(tau: Positive = 0.1) -> Method:
    """Compose Kimi's OPMD: gradient -A·∇log π(y) + τ·d·∇log π(y), d the completion's log-ratio to the old policy."""
    return Method(
        advantage=Relative("group", center="mean", scale="none"),
        objective=Regression(beta=tau, coef=1 / (2 * tau), anchor="old", level="sequence"),
        aggregate=SequenceMean(),
    )


entry(
    "opmd_kimi",
    opmd_kimi,
    Card(
        title="Online Policy Mirror Descent with a squared log-ratio",
        papers=[Paper("Kimi k1.5: Scaling Reinforcement Learning with LLMs", "2501.12599", 2025)],
        summary="Group-centred REINFORCE with the squared log-ratio of each completion to the old policy as a leash.",
        formula="∇L = -mean_i [A_i ∇log π(y_i) - τ/2 ∇(log(π/π_old)(y_i))²],  A_i = R_i - mean_g R",
        defaults={"tau": "ours; the paper states no number, 0.1 is GVPO's β in the same place"},
        differs=[
            "Written as (τ·d - A)²/(2τ), d = log(π/π_old)(y), which has this gradient.",
            "The paper's length penalty and curriculum are not part of the objective and not here.",
        ],
        reduces=[
            Reduction("gvpo", ["on_policy", "one_group"], scale=None, why="at d = 0 both push by R - mean"),
            Reduction("dr_grpo", ["on_policy", "equal_lengths"], scale=None, why="every log-ratio is 0"),
        ],
        needs=[TWO, SEVERAL],
        confidence="partly",
        uncertain="The paper's τ; whether its log-ratio is divided by the length.",
        source="the paper, section 2.3.2, in the notation of arXiv:2509.24203",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                settings={"tau": 0.5},
                advantage=[0.5, -0.5],
                loss=0.10625,
                grad=[[-0.175], [0.15, 0.15]],
                why="0.5·0.3 - 0.5 = -0.35 and 0.5·(-0.4) + 0.5 = 0.3: half of their squares' sum; slopes half of them",
            )
        ],
    ),
)


def copg(beta: Positive = 0.1) -> Method:
    """Compose CoPG.

    Mean over pairs of ((R_1 - R_2) - β(d_1 - d_2))²/(2β), d the log-ratio to the reference: the gradient is
    -(R^β_1 - R^β_2)(∇log π(y_1) - ∇log π(y_2)).
    """
    return Method(
        advantage=Relative("group", center="mean", scale="none"),
        objective=GroupRegression(beta=beta, coef=1 / beta, anchor="ref"),
        aggregate=SequenceMean(),
    )


entry(
    "copg",
    copg,
    Card(
        title="Contrastive Policy Gradient",
        papers=[
            Paper(
                "Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a supervised-friendly fashion",
                "2406.19185",
                2024,
            )
        ],
        summary="Policy gradient on pairs, the KL to the reference differentiated inside the reward; off-policy safe.",
        formula=(
            "∇L = -mean_pairs (R^β_1 - R^β_2)(∇log π(y_1) - ∇log π(y_2)),  R^β = R - β·log(π/π_ref)(y);  "
            "L = mean_pairs 1/(2β)·[(R_1 - R_2) - β(d_1 - d_2)]²"
        ),
        defaults={"beta": "ours: GVPO's β in the same place; the paper's bandit has 0.5"},
        differs=[
            "Prompts weigh by their number of completions (the mean is over completions): where groups differ in "
            "size, large ones weigh more. With groups of one size it is the paper's mean over prompts.",
            "Written as the square of which it is the gradient; the value differs from the paper's by a constant.",
            "The paper once says that its loss is minimised by ascent: it is maximised, as here with the sign turned.",
            "More than two completions: the mean over all pairs, which the paper names as the extension.",
        ],
        reduces=[
            Reduction("gvpo", other={"anchor": "ref", "beta": 0.1}, scale=20.0, why="the same square; 2/β"),
            Reduction("rebel", ["on_policy"], settings={"beta": 1e-9}, scale=0.5, why="no KL is left; REBEL has 2η"),
        ],
        needs=[TWO, REFERENCE],
        source="the full paper, section 3 and the bandit of its experiments",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                fields={"ref_bt": [[-1.5], [-1.0, -1.2]]},
                settings={"beta": 0.5},
                advantage=[0.5, -0.5],
                loss=0.7225,
                grad=[[-0.85], [0.85, 0.85]],
                why="d = 0.5 and 0.2; 1 - 0.5·0.3 = 0.85; its square over 2β = 1; slope -0.85",
            )
        ],
    ),
)
