"""Methods that choose which questions are asked and how often; what is done with the answers is GRPO's or RAFT's."""

from __future__ import annotations

from typing import Literal

from grouprl.levels import Alone, Scale
from grouprl.method import Method
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.group import grpo
from grouprl.methods.registry import entry
from grouprl.methods.rejection import raft_pp
from grouprl.methods.settings import ALONE, CLIP, EPS, KL_ESTIMATOR, KL_NEED, SCALE, ClipLow, NonNegative, Positive
from grouprl.parts.kl import Estimator

TWO = "at least two answers per question"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps)"
AS_GRPO = "The loss is GRPO's as published, with the mean of answers' means."
DEFAULTS = {"clip_low": CLIP, "clip_high": CLIP, "scale": SCALE, "eps": EPS, "alone": ALONE}
SAME_LOSS = Reduction("grpo", ["always"], why="the loss is GRPO's; only the choice of questions differs")
ONE_OF_FOUR = Golden(
    rewards=[1, 0, 0, 0],
    lengths=[2, 1, 1, 1],
    advantage=[1.499997, -0.499999, -0.499999, -0.499999],
    grad=[[-0.187499625] * 2, [0.12499975], [0.12499975], [0.12499975]],
    why="0.75/0.500001 and -0.25/0.500001; every answer weighs 1/4, its tokens share that",
)
UNEQUAL = Golden(
    rewards=[1, 0, 1, 0, 0],
    lengths=[1] * 5,
    groups=[0, 0, 1, 1, 1],
    advantage=[0.707105781, -0.707105781, 1.154698538, -0.577349269, -0.577349269],
    grad=[[-0.141421156], [0.141421156], [-0.230939708], [0.115469854], [0.115469854]],
    why="groups of two and three: 0.5/0.707107 and (2/3)/0.577350; every answer weighs 1/5",
)


@entry(
    "vas",
    Card(
        title="Variance-Aware Sampling (MMR1)",
        papers=[
            Paper(
                "MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources",
                "2509.21268",
                2025,
            )
        ],
        summary="GRPO on questions drawn half at random, half by how much the outcomes of their answers vary.",
        formula=f"{GRPO_LOSS} + β·KL;  weight of a question: 0.8·p(1-p) + 0.2·diversity of its answers",
        defaults={
            **DEFAULTS,
            "kl_coef": "off, so that no reference is needed; the example of MMR1 has 0.01",
            "kl_estimator": "MMR1: low variance KL, which is k3",
        },
        differs=[
            "Not in this composition: the weighted sampler of questions.",
            "The KL to the reference is off by default; MMR1's example has 0.01.",
            AS_GRPO,
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, KL_NEED],
        source="LengSicong/MMR1 verl/curriculum/metrics.py, samplers.py, examples/mmr1.yaml",
        golden=[ONE_OF_FOUR],
        recommended={"group": 8, "temperature": 0.6, "kl_coef": 0.01, "learning_rate": 1e-6, "batch": 512},
    ),
)
def vas(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
    kl_coef: NonNegative = 0.0,
    kl_estimator: Estimator = "k3",
) -> Method:
    """Compose VAS: GRPO; its questions are drawn by the variance of their outcomes."""
    return grpo(clip_low, clip_high, None, scale, eps, alone, kl_coef, kl_estimator)


@entry(
    "dump",
    Card(
        title="Distribution-level curriculum (DUMP)",
        papers=[
            Paper(
                "DUMP: Automated Distribution-Level Curriculum Learning for RL-based LLM Post-training",
                "2504.09710",
                2025,
            )
        ],
        summary="GRPO on questions from several sources, drawn by a bandit that seeks large advantages.",
        formula=f"{GRPO_LOSS};  P(source) ∝ exp((mean|A| + sqrt(2 ln(N + 1)/(n + 1)))/0.1)",
        defaults=DEFAULTS,
        differs=["Not in this composition: the bandit over sources of questions.", AS_GRPO],
        reduces=[SAME_LOSS],
        needs=[TWO, "questions from several sources"],
        source="ZhentingWang/DUMP verl/utils/curriculum_learning.py",
        golden=[ONE_OF_FOUR],
    ),
)
def dump(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
) -> Method:
    """Compose DUMP: GRPO; a bandit chooses the source of its questions."""
    return grpo(clip_low=clip_low, clip_high=clip_high, scale=scale, eps=eps, alone=alone)


@entry(
    "vade",
    Card(
        title="Variance-Aware Dynamic sampling (VADE)",
        papers=[
            Paper(
                "VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL",
                "2511.18902",
                2025,
            )
        ],
        summary="GRPO on the questions that a Beta posterior of their pass rate, drawn at random, calls informative.",
        formula=f"{GRPO_LOSS};  p ~ Beta(a, b) per question, the largest p(1-p) are asked",
        defaults=DEFAULTS,
        differs=["Not in this composition: the posterior of each question and the draw from it.", AS_GRPO],
        reduces=[SAME_LOSS],
        needs=[TWO],
        confidence="partly",
        uncertain="The form of the information gain and the rates of decay.",
        source="third-party notes and the abstract",
        golden=[ONE_OF_FOUR],
    ),
)
def vade(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
) -> Method:
    """Compose VADE: GRPO; Thompson sampling chooses its questions."""
    return grpo(clip_low=clip_low, clip_high=clip_high, scale=scale, eps=eps, alone=alone)


@entry(
    "knapsack_rl",
    Card(
        title="Knapsack RL",
        papers=[
            Paper("Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation", "2509.25849", 2025)
        ],
        summary="GRPO whose answers are spread over questions so that most groups carry a gradient.",
        formula=f"{GRPO_LOSS};  max Σ_q [1 - p^N - (1-p)^N]·p(1-p)² over N_q with Σ N_q fixed",
        defaults=DEFAULTS,
        differs=["Not in this composition: how many answers each question gets.", AS_GRPO],
        reduces=[SAME_LOSS],
        needs=[TWO],
        confidence="partly",
        uncertain="Formulas come from a re-implementation and notes; the loss of the official code was not seen.",
        source="a third-party re-implementation and survey notes",
        golden=[UNEQUAL],
        recommended={"answers per question": "2 to 128"},
    ),
)
def knapsack_rl(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
) -> Method:
    """Compose Knapsack RL: GRPO on groups of unequal size."""
    return grpo(clip_low=clip_low, clip_high=clip_high, scale=scale, eps=eps, alone=alone)


@entry(
    "gvm_raft",
    Card(
        title="GVM-RAFT++",
        papers=[
            Paper(
                "Optimizing Chain-of-Thought Reasoners via Gradient Variance Minimization in Rejection Sampling and RL",
                "2505.02391",
                2025,
            )
        ],
        summary="RAFT++ or GRPO with answers spread over questions so that the gradient's variance is least.",
        formula=(
            "raft: L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = max(R_i, 0);  grpo: GRPO's;  "
            "n_q ∝ G_q/sqrt(p_q + α/p_q^(β-1)),  G_q the gradient norm of right answers"
        ),
        defaults={
            "trains": "the paper's name: RAFT++; its other variant is GRPO",
            "clip_low": CLIP,
            "clip_high": CLIP,
            "kl_coef": "off, so that no reference is needed",
            "kl_estimator": KL_ESTIMATOR,
        },
        differs=["Not in this composition: how many answers each question gets (α = 0.001, β = 2)."],
        reduces=[
            Reduction("raft_pp", ["always"], why="the loss is RAFT++'s; only the numbers of answers differ"),
            Reduction("grpo", ["always"], settings={"trains": "grpo"}, why="the loss is GRPO's"),
        ],
        needs=["rewards above 0 for right answers alone", KL_NEED],
        source="RLHFlow/GVM em/stage_2_calc_sample_size.py, stage_2_calc_acceptRates_grads.py, run_em.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                lengths=[1, 2, 1],
                groups=[0, 0, 1],
                advantage=[1.0, 0.0, 1.0],
                loss=-0.5,
                grad=[[-0.25], [0.0, 0.0], [-0.25]],
                why="two right answers of one token among four tokens",
            )
        ],
        recommended={"probes per question": 8},
    ),
)
def gvm_raft(
    trains: Literal["raft", "grpo"] = "raft",
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    kl_coef: NonNegative = 0.0,
    kl_estimator: Estimator = "k3",
) -> Method:
    """Compose GVM-RAFT++: RAFT++ (or GRPO, `trains`) on groups of unequal size."""
    if trains == "grpo":
        return grpo(clip_low=clip_low, clip_high=clip_high, kl_coef=kl_coef, kl_estimator=kl_estimator)
    return raft_pp(clip_low=clip_low, clip_high=clip_high, kl_coef=kl_coef, kl_estimator=kl_estimator)
