"""Regression of log-ratios on given targets: advantages, standardised rewards or optimal values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.known_baseline import KnownBaseline
from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage.soft_baseline import SoftBaseline
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.curriculum.initial_rate import InitialRate
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.regression import Anchor, GroupRegression, Regression
from grouprl.algorithms.pretrain.initial_completions import InitialCompletions
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.critic.decoupled_critic import pretrained
from grouprl.methods.off_policy.regression import REFERENCE, SEVERAL, TWO
from grouprl.methods.registry import entry
from grouprl.methods.settings import KL, KL_NEED

CRITIC = "a critic (value head)"


def reg_grpo(base: Method, predicted_eps: Positive = 0.1) -> Method:
    """Compose Reg-GRPO.

    Squared distance of standardised advantages and standardised log-ratios of a group; nothing is clipped.
    """
    return base.with_parts(
        objective=GroupRegression(coef=1.0, average="population", standardize_eps=predicted_eps),
    )


entry(
    "reg_grpo",
    reg_grpo,
    Card(
        title="Regressive GRPO",
        papers=[
            Paper(
                "DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO", "2506.07464", 2025
            )
        ],
        summary="Fit the group's standardised log-ratios to its standardised rewards: GRPO as a regression.",
        formula=(
            "L = mean_i [A_i - (d_i - mean_g d)/sqrt(var_g d + e²)]² + β·KL,  A_i = (R_i - mean_g R)/(std_g R + eps),  "
            "d_i = Σ_t log(π/π_old)(y_i,t)"
        ),
        defaults={
            "predicted_eps": "ours: e keeps the first update finite, where every d is 0; the paper shows none",
            "kl_coef": "off, so that no reference is needed; the paper has a β we could not see",
            "kl_estimator": "k3, as GRPO; the paper writes KL(π || π_ref)",
        },
        differs=[
            "The difficulty-aware inputs (hints for hard prompts, noise on easy ones) are not here.",
            "The predicted spread is sqrt(var + e²); the paper divides by the plain spread, which is 0 at first.",
        ],
        reduces=[
            Reduction("grpo", ["on_policy", "equal_lengths"], scale=None, why="at d = 0 the gradient is -2A/(e·B)"),
        ],
        needs=[TWO, SEVERAL, KL_NEED],
        confidence="partly",
        uncertain="How the authors treat the first update, where the predicted spread is 0, and their KL weight.",
        source="notes on the paper; the official repository was not at hand",
        golden=[
            Golden(
                rewards=[1, 0, 0.5],
                log_ratio=[[0.4], [-0.2], [1.0]],
                advantage=[0.999998, -0.999998, 0.0],
                loss=0.657718015,
                grad=[[-1.09599106], [0.53358781], [0.56240325]],
                why="d centred 0, -0.6, 0.6 over sqrt(0.36 + 0.01) = 0.60828; finite differences of the formula",
            ),
            Golden(
                rewards=[1, 0, 0.5],
                loss=0.666664,
                grad=[[-6.66665333], [6.66665333], [0.0]],
                why="all d = 0: slope -2·A/(3·0.1)",
            ),
        ],
        recommended={"group": 8},
    ),
    base="grpo",
    keeps=(*KL, "eps"),
)


def a_star_po(
    value: Literal["initial", "group"] = "initial",
    completions: Annotated[int, Field(ge=1)] = 8,
    beta1: NonNegative = 0.5,
    beta2: Positive = 1e-3,
    drop_unsolved: bool = False,
    value_under: Anchor = "ref",
) -> Method:
    """Compose A*-PO.

    Least squares of β2·log(π/π_ref)(y) on R - V*. V* is the soft mean, at temperature β1, of the rewards of
    `completions` completions of the initial policy to the prompt; with value="group" of the completion's own group.
    """
    initial = value == "initial"
    return Method(
        advantage=KnownBaseline() if initial else SoftBaseline(beta=beta1, under=value_under),
        objective=Regression(beta=beta2, coef=1.0, anchor="ref", level="sequence"),
        aggregate=SequenceMean(),
        pretrain=(InitialCompletions(completions=completions, beta=beta1),) if initial else (),
        curriculum=InitialRate(above=0.0) if initial and drop_unsolved else None,
    )


entry(
    "a_star_po",
    a_star_po,
    Card(
        title="A*-PO: Optimal Advantage Regression",
        papers=[Paper("Accelerating RL for LLM Reasoning with Optimal Advantage Regression", "2505.20686", 2025)],
        summary="Fit β2·log(π/π_ref) of each completion to reward minus the optimal value V* of its prompt.",
        formula=(
            "L = mean_i [β2·log(π/π_ref)(y_i) - (R_i - V*)]²,  V* = β1·log 1/N Σ_j exp(R_j/β1) over N completions of "
            "π_ref, sampled once before training"
        ),
        defaults={
            "value": "the paper: V* is estimated once, before training; group: anew from each group",
            "completions": "ZhaolinGao/A-PO: N = 8 completions of the reference",
            "beta1": "ZhaolinGao/A-PO: 0.5, on purpose not beta2; 0 is the plain mean",
            "beta2": "ZhaolinGao/A-PO: 1e-3",
            "drop_unsolved": "off; optional in the paper",
            "value_under": "with value=group: a mean over completions of the reference, w_j ∝ π_ref(y_j)/π_old(y_j)",
        },
        differs=[
            "Every completion of a group is trained on; the paper samples one per prompt (batch.group_size: 1).",
            "value=group is ours, for endless tasks: V* from the group itself, its completions weighted to stand "
            "for the "
            "reference's.",
        ],
        reduces=[
            Reduction(
                "dr_grpo",
                ["on_policy", "one_group", "equal_lengths"],
                settings={"value": "group", "beta1": 1e5, "beta2": 1e-9, "value_under": "old"},
                scale=None,
                why="β1→∞ makes V* the mean, β2→0 leaves the residual R - mean",
            )
        ],
        needs=["a finite set of prompts (data.prompts)", REFERENCE],
        source="ZhaolinGao/A-PO: verl/trainer/apo/core_algos.py, verl/utils/dataset/rl_dataset.py, README",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                groups=[0, 1],
                log_ratio=[[0.3], [-0.2, 0.1]],
                fields={"ref_bt": [[-1.0], [-1.0, -1.0]], "past.baseline": [0.4, 0.1]},
                settings={"beta2": 0.5},
                advantage=[0.6, -0.1],
                loss=0.1025,
                grad=[[-0.225], [0.025, 0.025]],
                why="residuals 0.5·0.3 - 0.6 = -0.45 and 0.5·(-0.1) + 0.1 = 0.05; (0.2025 + 0.0025)/2, slopes β2·e",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.3], [-0.2]],
                fields={"ref_bt": [[-1.0], [-1.0]]},
                settings={"value": "group"},
                advantage=[0.28310958, -0.71689042],
                loss=0.296813207,
                grad=[[-0.00028281], [0.00071669]],
                why="V* = 0.5·log((e² + 1)/2) = 0.71689; residuals 0.0003 - 0.28311 and -0.0002 + 0.71689; slope β2",
            ),
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.5], [-1.0]]},
                settings={"value": "group"},
                advantage=[0.38633185, -0.61366815],
                loss=0.262727407,
                grad=[[-0.00038583], [0.00061367]],
                why="weights e^-0.5 : 1; V* = 0.5·log((0.60653·e² + 1)/1.60653) = 0.61367",
            ),
        ],
        recommended={"learning_rate": 1e-6, "batch": 256, "group": 1},
    ),
)


def apa(temperature: Positive = 0.1, gamma: Share = 1.0, lam: Share = 0.95, value_coef: NonNegative = 1.0) -> Method:
    """Compose APA: token mean of (log(π/π_ref) - A/λ)², A by generalised advantage estimation."""
    return Method(
        advantage=GAE(gamma=gamma, lam=lam),
        objective=Regression(beta=temperature, coef=1 / temperature**2, anchor="ref", level="token"),
        aggregate=TokenMean(),
        critic=ValueLoss(lam=lam, gamma=gamma, clip=None, coef=value_coef),
    )


entry(
    "apa",
    apa,
    Card(
        title="Advantage-Induced Policy Alignment",
        papers=[Paper("Fine-Tuning Language Models with Advantage-Induced Policy Alignment", "2306.02231", 2023)],
        summary="Fit each token's log-ratio to the initial policy to its advantage over λ, which bounds the drift.",
        formula="L = 1/Σ|y_i| Σ_i Σ_t (log(π/π_ref)(y_t) - A_t/λ)² + c·½(V - G)²,  A_t by GAE",
        defaults={
            "temperature": "microsoft/RLHF-APA: λ = 0.1 (adv_coeff 10)",
            "gamma": "microsoft/RLHF-APA: 1",
            "lam": "microsoft/RLHF-APA: GAE's λ 0.95",
            "value_coef": "microsoft/RLHF-APA: 1, on half the squared error",
        },
        differs=["The authors' code divides rewards by their running spread; here they are taken as they are."],
        reduces=[],
        needs=[CRITIC, REFERENCE],
        source="microsoft/RLHF-APA: trlx/models/modeling_sppo.py, trlx/trainer/accelerate_sppo_trainer.py, examples",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]], "ref_bt": [[-1.2, -1.0]]},
                advantage=[[0.475, 0.5]],
                loss=22.85125,
                grad=[[-4.55, -5.0]],
                why="0.2 - 4.75 and 0 - 5: mean of the squares, twice the difference over two tokens",
            )
        ],
        notes=[
            "No partition function: it assumes that E_ref[exp(A/λ)] is about 1.",
            "A token of advantage 0 is pulled back to the reference.",
        ],
        recommended={"kl in the reward": 0},
    ),
)


def dapo_direct(
    beta: Positive = 1.0,
    anchor: Anchor = "old",
    lam: Share = 0.0,
    value_coef: NonNegative = 1.0,
    value_pretraining: Annotated[int, Field(ge=0)] = 50,
) -> Method:
    """Compose Direct Advantage Policy Optimization.

    Token mean of ½(log(π/π_anchor) - A/β)², A = V(next) - V, after `value_pretraining` rollouts of the frozen policy
    to which the value head is fitted.
    """
    return Method(
        advantage=GAE(gamma=1.0, lam=lam),
        objective=Regression(beta=beta, coef=0.5 / beta**2, anchor=anchor, level="token"),
        aggregate=TokenMean(),
        critic=ValueLoss(lam=1.0, gamma=1.0, clip=None, coef=value_coef),
        pretrain=pretrained(value_pretraining, gamma=1.0),
    )


entry(
    "dapo_direct",
    dapo_direct,
    Card(
        title="Direct Advantage Policy Optimization",
        papers=[
            Paper(
                "Improving Multi-Step Reasoning Abilities of Large Language Models with Direct Advantage Policy "
                "Optimization",
                "2412.18279",
                2024,
            )
        ],
        summary="Fit the log-ratio of each step to the critic's one-step advantage, V(s+a) - V(s), at last R - V(s).",
        formula=(
            "L = 1/Σ|y_i| Σ_i Σ_t ½(log(π/π_old)(y_t) - A_t/β)² + c·½(V - R)²,  "
            "A_t = V(s_{t+1}) - V(s_t), at the end R - V(s_t)"
        ),
        defaults={
            "beta": "ours: 1, so that no token aims at more than e times its probability where rewards are in [0, 1]; "
            "the paper's number was not seen",
            "anchor": "the paper's iterative version: the reference becomes the policy, here at every rollout",
            "lam": "the paper's one-step advantage, which is GAE with λ = 0",
            "value_coef": "1 on half the squared error, as ppo",
            "value_pretraining": "the paper: the critic is fitted before the policy moves; 50 rollouts are VAPO's; 0 "
            "leaves it out",
        },
        differs=[
            "A step is a token; the paper's is a step of reasoning.",
            "The critic is a head on the policy's own trunk: fitted before the first step to the rewards of the "
            "frozen policy's completions, in closed form, then beside the policy, by least squares; the paper trains "
            "a model of its own to convergence, by cross-entropy on several completions from each state.",
            "Fresh completions at every step; the paper works on a fixed set of states with several actions each.",
        ],
        reduces=[
            Reduction(
                "apa",
                settings={"anchor": "ref", "beta": 0.1},
                other={"lam": 0.0, "temperature": 0.1},
                scale=0.5,
                why="the same square with GAE of λ = 0 and without the ½",
            )
        ],
        needs=[CRITIC, SEVERAL],
        confidence="partly",
        uncertain="β and the paper's other constants.",
        source="notes on the paper; the authors' code was not at hand",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.2, 0.0]],
                fields={"value_bt": [[0.5, 0.5]]},
                advantage=[[0.0, 0.5]],
                loss=0.0725,
                grad=[[0.1, -0.25]],
                why="½·0.2² and ½·0.5², over two tokens; slopes 0.2/2 and -0.5/2",
            ),
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.2, 0.0]],
                fields={"value_bt": [[0.5, 0.5]]},
                settings={"beta": 0.1},
                advantage=[[0.0, 0.5]],
                loss=6.26,
                grad=[[0.1, -2.5]],
                why="½·0.2² and ½·5²; slopes 0.2/2 and -5/2",
            ),
        ],
        notes=[
            "Not the DAPO of ByteDance (dapo).",
            "A small beta with a critic that knows nothing yet destroys the policy: a value of 0 everywhere makes the "
            "last token of a right completion aim at e^(1/β) times its probability (22,026 at β = 0.1).",
            "One-step advantages are as good as the critic: where its explained_variance stays at 0 (task reverse with "
            "a tiny model) they are noise and the policy gets worse. Raise lam there.",
            "Changed after 0.1: beta was 0.1 and the critic began with nothing.",
        ],
    ),
)
