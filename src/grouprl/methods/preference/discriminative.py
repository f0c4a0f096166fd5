"""Methods that separate correct completions from wrong ones: likelihoods and classifiers in place of an advantage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.labels import Labels
from grouprl.algorithms.aggregate.aggregate import ConstantLength, SequenceMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.discriminative import Classify, ImplicitNegative, Separate
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.algorithms.regularize.papers.kl_constraint import KLConstraint
from grouprl.algorithms.token_weight.papers.success_weight import SuccessWeight
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

LABELS = "raw correctness of every completion (correct_b)"
TWO = "at least two completions per prompt"
SEVERAL = "several updates per rollout, or it is a policy gradient (batch.minibatches or batch.epochs of 2 or more)"


def nft(
    weighting: Literal["failure", "root_odds", "none"] = "failure",
    negative: NonNegative = 1.0,
    floor: Positive = 1.0,
    length: Annotated[int, Field(ge=1)] = 1000,
    dynamic_sampling: bool = True,
    max_rounds: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose NFT.

    Sum over tokens, divided by a constant, of -log ρ for correct completions and -log((1 - pρ)/(1 - p)) for wrong ones.
    """
    return Method(
        filter=(MixedGroups(),),
        advantage=Labels(size="odds"),
        token_weight=(SuccessWeight(form=weighting),) if weighting != "none" else (),
        objective=ImplicitNegative(negative=negative, floor=floor),
        aggregate=ConstantLength(length=length, sequences="sum"),
        refill=DynamicSampling(max_rounds=max_rounds) if dynamic_sampling else None,
    )


entry(
    "nft",
    nft,
    Card(
        title="Negative-aware Fine-Tuning",
        papers=[Paper("Bridging Supervised Learning and Reinforcement Learning in Math Reasoning", "2505.18116", 2025)],
        summary="Likelihood of correct completions, and of wrong ones under the implied policy of wrong completions.",
        formula=(
            "L = 1/1000 Σ_i Σ_t ω_g·ℓ_t,  ℓ_t = -log ρ_t if right, -w·log max((1 - p·ρ_t)/(1 - p), ε) if wrong,  "
            "ω = 1-p or sqrt((1-p)/p) or 1,  p = share of correct completions in the group"
        ),
        defaults={
            "weighting": "NVlabs/NFT train_7B.sh: normalize=1, which is 1 - p",
            "negative": "NVlabs/NFT: 1 (0.5 suggested for 32B; 0 is RFT)",
            "floor": "NVlabs/NFT train_7B.sh: ε = 1",
            "length": "NVlabs/NFT: token losses summed and divided by 1000",
            "dynamic_sampling": "NVlabs/NFT: prompts with p = 0 or 1 are never trained on",
            "max_rounds": "as dapo",
        },
        differs=["The token ratio; the sequence ratio that the authors' code offers is not here."],
        reduces=[
            Reduction("dr_grpo", ["on_policy", "mixed_groups"], scale=None, why="right: 1-p; wrong: (1-p)·p/(1-p) = p"),
            Reduction(
                "raft",
                ["on_policy", "mixed_groups", "one_group"],
                settings={"negative": 0.0},
                scale=None,
                why="only correct completions count",
            ),
        ],
        needs=[TWO, LABELS],
        source="NVlabs/NFT: dp_actor.py, ray_nft_trainer.py, train_7B.sh",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                log_ratio=[[0.2], [0.1], [-0.3], [1.0]],
                fields={"correct_b": [True, False, False, False]},
                advantage=[1.0, -1 / 3, -1 / 3, -1 / 3],
                loss=-0.000212147915,
                grad=[[-0.00075], [0.000276292730], [0.000170476427], [0.000679570457]],
                tolerance=1e-9,
                why="ω = 0.75; wrong: 0.75·(ρ/3)/max(1 + (1-ρ)/3, 1)/1000, so only ρ < 1 has a quotient above 1",
            ),
            Golden(
                rewards=[1, 0, 0, 0],
                log_ratio=[[0.2], [0.1], [-0.3], [1.0]],
                fields={"correct_b": [True, False, False, False]},
                settings={"floor": 0.1},
                loss=0.00045242484,
                grad=[[-0.00075], [0.000286330614], [0.000170476427], [0.001590608151]],
                tolerance=1e-9,
                why="the quotients at ρ = 1.105 and 2.718 are 0.965 and 0.427, above the floor",
            ),
        ],
        recommended={"group": 16, "prompts": 512, "updates per rollout": 16, "learning_rate": 1e-6},
    ),
)


def pacs(
    beta: Positive = 1.0, balanced: bool = True, center: Literal["leave_one_out", "none"] = "leave_one_out"
) -> Method:
    """Compose PACS: mean over completions of the weighted cross-entropy of correctness on ψ; no ratio, no clip."""
    return Method(
        advantage=Labels(size="balanced" if balanced else "one", one_sided="one"),
        objective=Classify(beta=beta, center=center),
        aggregate=SequenceMean(),
    )


entry(
    "pacs",
    pacs,
    Card(
        title="PACS: implicit actor critic by supervised learning",
        papers=[
            Paper("Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR", "2509.02522", 2025)
        ],
        summary=(
            "Cross-entropy of correctness on the completion's own log-ratio, compared with the others of its group."
        ),
        formula="L = mean_i w_i·BCE(σ(ψ_i), [right]),  ψ_i = r_i - mean_{j≠i} r_j,  r_i = β Σ_t log(π/π_old)(y_i,t)",
        defaults={
            "beta": "ritzz-ai/PACS scripts: 1.0 (2.0 in others)",
            "balanced": "ritzz-ai/PACS: class weights G/(2 n_c) within the group, 1 where only one class occurs",
            "center": "ritzz-ai/PACS: leave-one-out mean of the implicit rewards, with gradient",
        },
        differs=["The variants with a group z-score, or with a mean log-prob as implicit reward, are not here."],
        reduces=[
            Reduction(
                "rloo",
                ["on_policy", "binary_rewards"],
                settings={"balanced": False},
                why="at ψ = 0 the weight is (½ - label)·β, and centring makes ½ vanish",
            )
        ],
        needs=[TWO, LABELS, SEVERAL],
        source="ritzz-ai/PACS: src/pacs/pacs_core_algos.py, scripts/pacs",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                log_ratio=[[0.2], [-0.1], [0.0], [0.3]],
                fields={"correct_b": [True, False, False, False]},
                advantage=[2.0, -2 / 3, -2 / 3, -2 / 3],
                loss=0.653137347,
                grad=[[-0.3148422], [0.09268524], [0.10001643], [0.12214053]],
                why="ψ = 0.1333, -0.2667, -0.1333, 0.2667; finite differences of the formula",
            ),
            Golden(
                rewards=[1, 0, 0, 0],
                fields={"correct_b": [True, False, False, False]},
                loss=0.693147181,
                grad=[[-1 / 3], [1 / 9], [1 / 9], [1 / 9]],
                why="ψ = 0: log 2; slopes w·(½ - label)/4 = -¼ and 1/12, less a third of the others' sum",
            ),
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "updates per rollout": 4},
    ),
)


def disco(
    score: Literal["log_likelihood", "ratio"] = "log_likelihood",
    tau: Annotated[float, Field(gt=0)] | None = 10.0,
    kl_limit: NonNegative = 1e-4,
    kl_coef: NonNegative = 1000.0,
    kl_estimator: Literal["k1", "k3"] = "k1",
) -> Method:
    """Compose DisCO.

    Mean over prompts of the wrong completions' soft maximum score minus the right ones' mean score, plus a squared
    hinge on the KL from the old policy.
    """
    constraint = KLConstraint(coef=kl_coef, limit=kl_limit, estimator=kl_estimator)
    return Method(
        advantage=Labels(size="class_mean", one_sided="zero"),
        objective=Separate(score=score, tau=tau),
        aggregate=SequenceMean(),
        regularize=(constraint,) if kl_coef > 0 else (),
    )


entry(
    "disco",
    disco,
    Card(
        title="Discriminative Constrained Optimization",
        papers=[
            Paper(
                "DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization",
                "2505.12366",
                2025,
            )
        ],
        summary=(
            "Raise correct completions' scores over the hardest wrong ones', with a hinge on the KL instead of a clip."
        ),
        formula=(
            "L = -mean_g [mean_pos s_i - τ·log mean_neg exp(s_j/τ)] + β/2·max(0, K - δ)²,  "
            "s = 1/|y| Σ_t log π(y_t) or 1/|y| Σ_t ρ_t,  K = mean(log π_old - log π)"
        ),
        defaults={
            "score": "Optimization-AI/DisCO: logL, its first variant",
            "tau": "Optimization-AI/DisCO: 10 for logL, 1 for L-ratio; none is DisCO-b, the plain mean",
            "kl_limit": "Optimization-AI/DisCO: δ = 1e-4",
            "kl_coef": "Optimization-AI/DisCO: β = 1e3",
            "kl_estimator": "Optimization-AI/DisCO: kl, which is k1 (K below 0 is not a penalty)",
        },
        differs=[
            "Prompts weigh by their number of completions (the mean is over completions): where groups differ in "
            "size, large ones weigh more. With groups of one size it is the paper's mean over prompts.",
            "K is averaged over each completion's tokens, then over completions; the authors' code takes the "
            "mean over tokens.",
            "The authors' scripts dispatch to other variants than their names say; the formulas are the paper's here.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["on_policy", "one_group", "mixed_groups"],
                settings={"tau": None},
                scale=None,
                why="GRPO is DisCO-b times sqrt(p(1-p)), its bias towards middling prompts",
            ),
            Reduction(
                "disco",
                ["mixed_groups"],
                settings={"tau": 1e8},
                other={"tau": None},
                why="τ→∞ makes the soft maximum the mean",
            ),
        ],
        needs=[TWO, LABELS],
        source="Optimization-AI/DisCO: verl/verl/trainer/ppo/core_algos.py, workers/actor/dp_actor.py, scripts/train",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[1, 2, 1],
                log_ratio=[[0.0], [0.2, -0.4], [0.5]],
                fields={"correct_b": [True, False, False]},
                settings={"tau": 1.0},
                advantage=[3.0, -1.5, -1.5],
                loss=0.24434077,
                grad=[[-1.0], [0.17717185, 0.17717185], [0.6456563]],
                why="s = -1, -1.1, -0.5: weights softmax(-1.1, -0.5) = 0.3543, 0.6457; K < 0 is not a penalty",
            ),
            Golden(
                rewards=[1, 0, 0],
                lengths=[1, 2, 1],
                log_ratio=[[-0.3], [0.2, -0.4], [-0.1]],
                fields={"correct_b": [True, False, False]},
                settings={"tau": None},
                loss=27.96111111,
                grad=[[-56.52222222], [-27.51111111, -27.51111111], [-55.02222222]],
                why="K = 1/6: 0.2 + 1000·(1/6 - 1e-4)/6; slope -1000·(1/6 - 1e-4)/3 beside -1, ½ over two tokens, ½",
            ),
        ],
        notes=[
            "Prompts whose completions are all right or all wrong count 0 in the mean, but stay in its denominator."
        ],
        recommended={"group": 8, "learning_rate": 2e-6, "temperature": 0.6, "updates per rollout": 4},
    ),
)
