"""Credit for agreement: between the completions of a group (COPO, SEED-GRPO), or of the policy with
itself (Intuitor).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage_transform.papers.add_outcome import AddOutcome
from grouprl.algorithms.advantage_transform.papers.semantic_scale import SemanticScale
from grouprl.algorithms.aggregate.aggregate import ConstantLength
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.two_level_clip import TwoLevelClip
from grouprl.algorithms.reward_transform.papers.certainty import CertaintyReward
from grouprl.algorithms.reward_transform.papers.prompt_advantage import PromptAdvantage
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL_ESTIMATOR, KL_NEED, PPO_CLIP, ClipLow, DualClip

TWO = "at least two completions per prompt"
ANSWERS = "a task that can extract the final answer of a text (keys.answer)"


def copo(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    dual_clip: DualClip,
    eps: NonNegative,
    gamma: Positive = 20.0,
    rho: float = 1.5,
    blend: Literal["entropy", "dead"] = "entropy",
) -> Method:
    """Compose COPO.

    w·L(A_i) + (1-w)·L(A_q), L GRPO's clipped loss, A_q the prompt's mean reward standardised over the prompts and
    w a sigmoid of the entropy of the group's final answers.
    """
    return base.with_parts(
        reward_transform=(PromptAdvantage(gamma=gamma, rho=rho, blend=blend, eps=eps),),
        objective=TwoLevelClip(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip),
    )


entry(
    "copo",
    copo,
    Card(
        title="Consistency-Aware Policy Optimization",
        papers=[Paper("COPO: Consistency-Aware Policy Optimization", "2508.04138", 2025)],
        summary="Prompts whose completions agree still teach: they are compared with the other prompts.",
        formula=(
            "L = 1/B Σ_i 1/|y_i| Σ_t [w_q ℓ_t(A_i) + (1-w_q) ℓ_t(A_q)],  ℓ_t(A) = -min(ρ_t A, clip(ρ_t, 1-ε, 1+ε) A),  "
            "A_i = (R_i - mean_g R)/(std_g R + eps),  A_q = (mean_g R - mean_Q)/(std_Q + eps),  "
            "w_q = σ(γ(H_q - ρ)), H_q the entropy of the group's final answers"
        ),
        defaults={
            "gamma": "a digest of the paper: 20",
            "rho": "a digest of the paper: 1.5 nats",
            "blend": "the paper's soft blending; 'dead' is its variant with the global part for dead groups only",
            **PPO_CLIP,
        },
        differs=[
            "The mean and spread over prompts are those of the whole rollout, not of a mini-batch.",
            "The entropy is taken in nats; the digest does not name the base of its logarithm.",
        ],
        reduces=[
            Reduction("grpo", settings={"rho": -100.0}, why="w = 1: every group counts by its own completions"),
            Reduction(
                "grpo", ["mixed_groups"], settings={"blend": "dead"}, why="no group is dead, so none is judged globally"
            ),
        ],
        needs=[TWO, "several prompts per rollout", ANSWERS],
        source="a literature digest of the paper with formulas and numbers; the code of the release was not available",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                groups=[0, 0, 1, 1],
                fields={"keys.answer": [0, 1, 2, 2]},
                settings={"gamma": 1.0, "rho": 0.0},
                advantage=[0.70710578, -0.70710578, 0.0, 0.0],
                loss=-0.0589254,
                grad=[[-0.05892557], [0.17677636], [-0.0883881], [-0.0883881]],
                why="H = ln 2 and 0: w = 2/3 and 1/2; A_q = ∓0.25/0.35355439; rows: 2/3·(±0.7071) - 0.2357, 0.35355",
            ),
            Golden(
                rewards=[1, 0, 1, 1],
                groups=[0, 0, 1, 1],
                fields={"keys.answer": [0, 1, 2, 2]},
                settings={"blend": "dead"},
                grad=[[-0.17677644], [0.17677644], [-0.1767762], [-0.1767762]],
                why="the first group by its own completions, the second, all right, by A_q = 0.70710478",
            ),
        ],
        notes=[
            "Groups whose completions are all right are pushed up and all wrong ones down, relative to other prompts.",
            "With G completions the entropy is at most log G: with 4 or fewer it never reaches ρ = 1.5.",
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def seed_grpo(
    base: Method,
    alone: Alone,
    alpha: NonNegative = 0.0417,
    curve: Literal["inverse", "linear", "exp"] = "inverse",
    normalized: bool = True,
    length: Annotated[int, Field(ge=1)] | None = None,
) -> Method:
    """Compose SEED-GRPO: Dr. GRPO with advantages divided by 1 + α·SE/log G, SE the group's semantic entropy."""
    return base.with_parts(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        advantage_transform=(SemanticScale(alpha=alpha, curve=curve, normalized=normalized),),
        aggregate=ConstantLength(length=length),
    )


entry(
    "seed_grpo",
    seed_grpo,
    Card(
        title="Semantic Entropy EnhanceD GRPO",
        papers=[
            Paper(
                "SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
                "2505.12346",
                2025,
            )
        ],
        summary="Smaller steps on prompts whose completions disagree: Dr. GRPO scaled by semantic entropy.",
        formula=(
            "L = -1/(B·Lmax) Σ_i Σ_t min(ρ_t A'_i, clip(ρ_t, 1-ε, 1+ε) A'_i),  A'_i = (R_i - mean_g R)·f(SE_g),  "
            "f = 1/(1 + α·SE/log G),  SE = -Σ_k P_k log P_k,  P_k ∝ Σ_{i in k} exp(mean_t log π(y_i,t))"
        ),
        defaults={
            "alpha": "an independent port of the authors' code: 0.0417",
            "curve": "the port's default; linear and exponential are named too",
            "normalized": "the port: α relative to the largest entropy, log G",
            **PPO_CLIP,
            "length": "the run's longest allowed completion, as in Dr. GRPO",
        },
        differs=[
            "The authors' release holds no code; formula and α are those of a port that says it matches it.",
            "The linear f stops at 0 instead of turning the sign.",
        ],
        reduces=[Reduction("dr_grpo", settings={"alpha": 0.0}, why="f = 1")],
        needs=[TWO, ANSWERS, "log-probs of the sampler", "the longest allowed length (max_length)"],
        confidence="partly",
        uncertain="α, the form of f and its normalisation: seen only in a port, not in the authors' code.",
        source="an independent re-implementation (maxent-GRPO, _compute_seed_grpo_statistics); README of the release",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={"keys.answer": [0, 1], "max_length": 2},
                advantage=[0.47998464, -0.47998464],
                loss=0.0,
                grad=[[-0.11999616], [0.11999616]],
                why="two equally likely completions: SE = log 2, f = 1/1.0417; every token weighs 1/4",
            ),
            Golden(
                rewards=[1, 0, 0],
                fields={
                    "keys.answer": [0, 1, 1],
                    "behavior_bt": [[-0.6931471805599453], [-1.3862943611198906], [-1.3862943611198906]],
                    "max_length": 1,
                },
                settings={"alpha": 1.0, "normalized": False, "curve": "exp"},
                advantage=[1 / 3, -1 / 6, -1 / 6],
                grad=[[-1 / 9], [1 / 18], [1 / 18]],
                why="masses 1/2 and 1/4 + 1/4: SE = log 2, f = e^-SE = 1/2 of 2/3, -1/3, -1/3",
            ),
        ],
        notes=[
            "A completion without a final answer is a cluster of its own.",
            "f is one factor for the whole group.",
        ],
    ),
    base="grpo",
    keeps=CLIPS,
)


def intuitor(
    base: Method,
    scale: Scale,
    eps: NonNegative,
    external: NonNegative = 0.0,
    kl_coef: NonNegative = 0.005,
) -> Method:
    """Compose Intuitor: GRPO on self-certainty, plus `external` times the outcome's own group-relative advantage."""
    return base.with_parts(
        reward_transform=(CertaintyReward(),),
        advantage_transform=(AddOutcome(weight=external, scale=scale, eps=eps),) if external > 0 else (),
    )


entry(
    "intuitor",
    intuitor,
    Card(
        title="Intuitor: Reinforcement Learning from Internal Feedback",
        papers=[Paper("Learning to Reason without External Rewards", "2505.19590", 2025)],
        summary="GRPO whose only reward is the policy's own certainty; no verifier, no labels.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·KL,  "
            "A_i = (u_i - mean_g u)/(std_g u + eps),  u_i = mean_t [logsumexp(z_t) - mean_j z_tj]"
        ),
        defaults={
            "external": "the paper: no external reward; the authors' open-r1 variant adds reward columns",
            **PPO_CLIP,
            "kl_coef": "the authors' scripts: 0.005 for 3B (0.01 for 7B)",
            "kl_estimator": KL_ESTIMATOR + "; the scripts' low_var_kl",
        },
        differs=[
            "Certainty is given with the constant log V, which the group's mean removes, as in the authors' code; the "
            "paper's form is without.",
        ],
        reduces=[],
        needs=[TWO, "the policy's certainty (stats.certainty)", KL_NEED],
        source="sunblaze-ucb/Intuitor: verl-intuitor, open-r1-intuitor",
        golden=[
            Golden(
                rewards=[0, 1],
                lengths=[2, 1],
                fields={"stats.certainty": [[1.0, 2.0], [1.0]]},
                settings={"kl_coef": 0.0},
                advantage=[0.70710478, -0.70710478],
                loss=0.0,
                grad=[[-0.1767762] * 2, [0.35355239]],
                why="u = 1.5 and 1: ±0.25/0.35355439, whatever the verifier says",
            ),
            Golden(
                rewards=[0, 1],
                lengths=[2, 1],
                fields={"stats.certainty": [[1.0, 2.0], [1.0]]},
                settings={"kl_coef": 0.0, "external": 0.5},
                advantage=[0.35355189, -0.35355189],
                grad=[[-0.08838797] * 2, [0.17677594]],
                why="minus half of 0.70710578: each column is standardised apart",
            ),
        ],
        notes=["The certainty is that of the current policy at every step; a frozen judge can be hacked."],
        recommended={"group": 7, "learning_rate": 3e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, "dual_clip", "kl_estimator"),
)
