"""Advantages steered towards planning (HICRA), exploration or exploitation (THR, NTHR), or an entropy (DCPO)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.distribution import TemperedBlend
from grouprl.algorithms.advantage_transform.papers.influence import HiddenReward, SparedTokens
from grouprl.algorithms.advantage_transform.papers.planning import PHRASES, PlanningBoost
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIP, CLIPS, GROUP, PPO_CLIP, DualClip

TWO = "at least two completions per prompt"
INFLUENCE = "the tokens' influence on correct completions (stats.influence, from last hidden states)"
Beta = Annotated[float, Field(ge=0)] | None


def hicra(
    base: Method,
    alpha: NonNegative = 0.2,
    rule: Literal["paper", "verl"] = "paper",
    share: Annotated[float, Field(gt=0, le=1)] = 0.3,
    phrases: Annotated[tuple[str, ...], Field(min_length=1)] = PHRASES,
    scale: Scale = "none",
) -> Method:
    """Compose HICRA: GRPO with A + α|A| on the tokens of planning phrases."""
    return base.with_parts(
        advantage_transform=(PlanningBoost(alpha=alpha, rule=rule, share=share, phrases=phrases),),
    )


entry(
    "hicra",
    hicra,
    Card(
        title="Hierarchy-Aware Credit Assignment",
        papers=[Paper("Emergent Hierarchical Reasoning in LLMs through Reinforcement Learning", "2509.03646", 2025)],
        summary="GRPO with more credit on the tokens of planning phrases.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  A_t = A_i + α|A_i| on planning tokens, "
            "else A_i,  A_i = R_i - mean_g R"
        ),
        defaults={
            "alpha": "the paper: 0.2",
            "rule": "the paper's; 'verl' is the rule of a port that cites a branch of the authors",
            "share": "the port of the verl rule: the 30% most uncertain tokens; the paper's rule has none",
            "phrases": "a short list of phrases of deduction, branching and going back; the paper mines its list",
            "clip_low": CLIP,
            "clip_high": CLIP + "; the experiments clip higher, by how much was not seen",
            "scale": "the paper: rewards minus the group's mean",
        },
        differs=[
            "The paper mines its strategic n-grams from completions by clustering; here the phrases are a setting.",
        ],
        reduces=[
            Reduction("grpo", settings={"alpha": 0.0}, other={"scale": "none"}, why="no token is amplified"),
        ],
        needs=[TWO, "planning tokens (marks.plan)"],
        confidence="partly",
        uncertain="How the paper finds its phrases, and which of the two rules its runs used.",
        source="notes on the paper; textpolicy tinker/advantages.py; a TRL port; the official repository has no code",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={"marks.plan": [[True, False], [False, True]]},
                advantage=[[0.6, 0.5], [-0.5, -0.4]],
                loss=-0.05,
                grad=[[-0.15, -0.125], [0.125, 0.1]],
                why="0.5 + 0.2·0.5 and -0.5 + 0.2·0.5; every token weighs 1/4",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[3, 1],
                fields={
                    "marks.plan": [[True, False, False], [True]],
                    "entropy_bt": [[1.0, 1.0, 2.0], [1.0]],
                },
                settings={"rule": "verl"},
                advantage=[[0.6, 0.5, 0.6], [-0.5]],
                why=(
                    "good and longer than 2: its plan and the token above the 0.7-quantile 1.4; the wrong "
                    "completion stays"
                ),
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, "eps", "alone"),
)


def thr(
    base: Method,
    p: Annotated[float, Field(ge=-1, le=1)] = 0.1,
    beta: Beta = 1.0,
) -> Method:
    """Compose THR: GRPO whose advantages become [|THR| > τ]·(1 + p·sign THR)·A."""
    return base.with_parts(
        advantage_transform=(HiddenReward(p=p, beta=beta),),
    )


entry(
    "thr",
    thr,
    Card(
        title="Token Hidden Reward",
        papers=[
            Paper(
                "Token Hidden Reward: Steering Exploration-Exploitation in Group Relative Deep Reinforcement Learning",
                "2510.03669",
                2025,
            )
        ],
        summary="Only tokens that matter to the correct completions count, tilted towards exploiting or exploring.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  "
            "A_t = [|THR_t| > τ]·(1 + p·sign THR_t)·A_i,  THR_t = s_t if y_i is right else -s_t,  "
            "s_t = Σ_{right j} Σ_k <g_t, g_jk><h_t, h_jk>,  τ = β·min_{right i} mean_t s_t"
        ),
        defaults={
            "p": "about 0.1 in size, above 0 for greedy accuracy, below 0 for pass@k; the best depends on the model",
            "beta": "the predecessor NTHR: 1; None takes no threshold",
            **PPO_CLIP,
        },
        differs=[
            "Groups that are all right or all wrong are left as they are; their advantage is 0 anyway.",
            "The influence is taken once per rollout, over the token ids that occur in the group.",
        ],
        reduces=[Reduction("grpo", settings={"p": 0.0, "beta": None}, why="nothing is left out and nothing tilted")],
        needs=[TWO, INFLUENCE, "raw correctness"],
        confidence="partly",
        uncertain="The factor (1 + p·sign THR) and the size of p: from descriptions of the paper only.",
        source="notes on the NTHR implementation; reviews of THR, which confirm mask, sign and threshold",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={"stats.influence": [[3.0, 1.0], [2.5, -1.0]], "correct_b": [True, False]},
                advantage=[[0.77781636, 0.0], [-0.6363952, 0.0]],
                loss=-0.03535529,
                grad=[[-0.19445409, 0.0], [0.1590988, 0.0]],
                why="τ = mean(3, 1) = 2 keeps 3 and 2.5; THR = 3 and -2.5: 1.1 and 0.9 times ±0.70710578",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def nthr(base: Method, beta: Beta = 1.0) -> Method:
    """Compose NTHR: GRPO with 2|0.5 - p|·A on the tokens of wrong completions whose influence is above τ."""
    return base.with_parts(
        advantage_transform=(SparedTokens(beta=beta),),
    )


entry(
    "nthr",
    nthr,
    Card(
        title="Negative Token Hidden Reward",
        papers=[
            Paper(
                "On the Effect of Negative Gradient in Group Relative Deep Reinforcement Optimization",
                "2505.18830",
                2025,
            )
        ],
        summary="Wrong completions are punished less on the tokens that also carry the right ones.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  "
            "A_t = 2|½ - p_g|·A_i where y_i is wrong and s_t > τ, else A_i,  τ = β·min_{right i} mean_t s_t"
        ),
        defaults={
            "beta": "a note on the authors' code: 1; None spares every token of the wrong completions",
            **PPO_CLIP,
        },
        differs=["The influence is taken once per rollout, over the token ids that occur in the group."],
        needs=[TWO, INFLUENCE, "raw correctness"],
        confidence="partly",
        uncertain="Checked against a note on the implementation, not against the code itself.",
        source="notes on the NTHR implementation",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[1, 2, 1],
                fields={"stats.influence": [[2.0], [3.0, 1.0], [-1.0]], "correct_b": [True, False, False]},
                advantage=[[1.15469854], [-0.19244976, -0.57734927], [-0.57734927]],
                loss=-0.06415,
                grad=[[-0.38489951], [0.03207496, 0.09622488], [0.19244976]],
                why="p = 1/3: the token with s = 3 > τ = 2 counts 2·|1/2 - 1/3| = 1/3",
                tolerance=2e-6,
            )
        ],
        notes=["At a pass rate of one half the spared tokens have no gradient at all."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def dcpo_distribution(
    base: Method,
    target: NonNegative = 0.25,
    limit: NonNegative = 0.1,
    hot: Positive = 1.2,
    cold: Positive = 0.8,
    dual_clip: DualClip = 3.0,
) -> Method:
    """Compose distribution-centric DCPO.

    Token mean of the clipped loss; A blends GRPO's with π_T/π on correct completions, in proportion to the distance of
    the entropy from its target.
    """
    return base.with_parts(
        advantage_transform=(TemperedBlend(target=target, limit=limit, hot=hot, cold=cold),),
        aggregate=TokenMean(),
    )


entry(
    "dcpo_distribution",
    dcpo_distribution,
    Card(
        title="Distribution-Centric Policy Optimization",
        papers=[
            Paper(
                "Distribution-Centric Policy Optimization Dominates Exploration-Exploitation Trade-off",
                "2601.12730",
                2026,
            )
        ],
        summary="GRPO that holds its entropy: correct completions also pull towards a hotter or a cooler policy.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  "
            "A_t = (1-α)·(R_i - mean_g R)/(std_g R + eps) + α·[y_i right]·π_T(y_t)/π_old(y_t),  "
            "α = x/(c+x), x = min(|H0-H|, limit), c the share of correct completions, T = hot if H ≤ H0 else cold"
        ),
        defaults={
            "target": "the authors' README: H0 = 0.25 is best (the released script has 0.5)",
            "limit": "the authors' code: 0.1",
            "hot": "the authors' code: 1.2",
            "cold": "the authors' code: 0.8",
            "clip_low": "the authors' script: 0.2",
            "clip_high": "the authors' script: 0.2",
            "dual_clip": "the authors' script: 3",
        },
        differs=[
            "Without a correct completion in the batch α is 0; the released code computes infinity by infinity there.",
            "H is the mean entropy of the last step's tokens; the released code estimates it by -log π of the samples.",
            "A correct completion is one the verifier accepts; the code takes scores above 0.05.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"limit": 0.0},
                other={"dual_clip": 3.0},
                why="α = 0: nothing blended",
            )
        ],
        needs=[TWO, "log-probs rescored at the temperatures hot and cold", "the entropy of the last step"],
        source="597358816/DCPO: verl/trainer/ray_trainer.py, core_algos.py, examples/qwen-math-7b-DCPO.sh, README",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={
                    "step": 1,
                    "last_entropy": 0.1,
                    "stats.logp@1.2": [[-0.8], [-1.1]],
                    "stats.logp@0.8": [[-1.3], [-0.9]],
                },
                advantage=[0.79282194, -0.58925482],
                loss=-0.10178356,
                grad=[[-0.39641097], [0.29462741]],
                why="H = 0.1 < 0.25: T = 1.2, q = e^0.2; x = 0.1, c = 1/2, α = 1/6: 5/6·(±0.70710578) + 1/6·1.2214",
            ),
            Golden(
                rewards=[1, 0],
                fields={
                    "step": 5,
                    "last_entropy": 0.3,
                    "stats.logp@1.2": [[-0.8], [-1.1]],
                    "stats.logp@0.8": [[-1.3], [-0.9]],
                },
                advantage=[0.71017055, -0.64282344],
                why="H = 0.3: T = 0.8, q = e^-0.3 = 0.74081822; x = 0.05, α = 1/11",
            ),
        ],
        notes=["Not Dynamic Clipping Policy Optimization, which has the same letters: see dcpo_clip."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
