"""Policy gradients weighted by a detached, bounded ratio: CISPO and its kin. Every token keeps a gradient."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import SequenceSum, TokenMean
from grouprl.algorithms.aggregate.papers.group_mean import GroupMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.masked_importance import MaskedImportanceObjective
from grouprl.algorithms.objective.stop_gradient import Capped
from grouprl.core.levels import Alone
from grouprl.core.numbers import Limit, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, Spread

Floor = Annotated[float, Field(ge=0)] | None


def cispo(base: Method, floor: Floor = None, cap: Limit = 5.0) -> Method:
    """Compose CISPO.

    Token mean of -sg[clip(ρ, floor, cap)]·A·log π, A as in GRPO. Limits bound the ratio itself; the paper writes 1±ε.
    """
    return base.with_parts(
        objective=Capped(floor=floor, cap=cap, floor_negative=floor, cap_negative=cap),
        aggregate=TokenMean(),
    )


entry(
    "cispo",
    cispo,
    Card(
        title="Clipped Importance Sampling-weight Policy Optimization",
        papers=[
            Paper("MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", "2506.13585", 2025)
        ],
        summary="Cap the importance weight instead of clipping the update, so that no token loses its gradient.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t sg[clip(ρ_t, floor, cap)] A_i log π(y_t),  A_i = (R_i - mean_g R) / (std_g R + eps)"
        ),
        defaults={
            "floor": "none: the paper uses no effective lower bound",
            "cap": "5.0, the cap of ScaleRL and TRL's advice; the paper tunes it and gives no number",
        },
        differs=["floor and cap bound the ratio itself (1.2, not 0.2); the paper writes 1-ε_low and 1+ε_high."],
        reduces=[
            Reduction("dapo", ["on_policy", "mixed_groups"], why="every ratio is 1"),
            Reduction("grpo", ["on_policy", "equal_lengths"], why="every ratio is 1"),
            Reduction(
                "dispo",
                other={"positive_low": None, "positive_high": 5.0, "negative_low": None, "negative_high": 5.0},
                why="the same limits on both signs",
            ),
        ],
        needs=["at least two completions per prompt"],
        confidence="partly",
        uncertain="The paper's upper bound of the weight is not published.",
        source="TRL grpo_trainer.py (loss_type cispo), verl core_algos.py, ms-swift CISPO.md",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.5], [0.0, -1.0]],
                settings={"cap": 1.2},
                advantage=[0.70710578, -0.70710578],
                loss=-0.26770056,
                grad=[[-0.28284231], [0.23570193, 0.08670989]],
                why="weights 1.2 (capped), 1 and e^-1; log-probs -0.5, -1, -2; three tokens",
            )
        ],
        notes=[
            "The same name has caps of 5.0 (SkyRL), 1.272 (open-instruct), 1.2 (verl, NeMo-RL), 1.1 (ROLL) and 0.2 "
            "(TRL's and ms-swift's fallback, which scales every on-policy token by 0.2)."
        ],
    ),
    base="grpo",
    keeps=GROUP,
)


def dispo(
    base: Method,
    positive_low: Floor = 0.8,
    positive_high: Limit = 1.28,
    negative_low: Floor = None,
    negative_high: Limit = 5.0,
) -> Method:
    """Compose DISPO.

    Token mean of -sg[w]·A·log π, w the ratio within limits that depend on the sign of A. The paper's numbers are
    unknown to us; the defaults follow its advice.
    """
    return base.with_parts(
        objective=Capped(
            floor=positive_low, cap=positive_high, floor_negative=negative_low, cap_negative=negative_high
        ),
        aggregate=TokenMean(),
    )


entry(
    "dispo",
    dispo,
    Card(
        title="DISPO: decoupled clipping of importance weights for right and wrong completions",
        papers=[
            Paper(
                "DISPO: Enhancing Training Efficiency and Stability in Reinforcement Learning for Large Language Model "
                "Mathematical Reasoning",
                "2602.00983",
                2026,
            )
        ],
        summary="CISPO with four limits: right and wrong completions have their own cap and floor of the weight.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t sg[w_t] A_i log π(y_t),  w_t = clip(ρ_t, low+, high+) if A_i > 0, "
            "clip(ρ_t, low-, high-) if A_i < 0"
        ),
        defaults={
            "positive_low": "0.8, PPO's 1-ε: our choice, the paper's numbers were not available",
            "positive_high": "1.28, DAPO's 1+ε_high: our choice, the paper's numbers were not available",
            "negative_low": "none: the paper warns that a tight floor makes completions vanish",
            "negative_high": "5.0, CISPO's cap: the paper warns that a tight cap makes completions repeat themselves",
        },
        differs=[
            "The four limits are ours: tight for correct completions, loose for wrong ones, as the paper advises."
        ],
        reduces=[
            Reduction(
                "cispo",
                settings={"positive_low": None, "positive_high": 5.0, "negative_low": None, "negative_high": 5.0},
                why="the same limits on both signs",
            ),
            Reduction("grpo", ["on_policy", "equal_lengths"], why="every ratio is 1"),
        ],
        needs=["at least two completions per prompt"],
        confidence="partly",
        uncertain="The published values of the four limits.",
        source="formula of the objective in a catalogue of papers, limits' roles from the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.5, -1.0], [0.5, -1.0]],
                advantage=[0.70710578, -0.70710578],
                loss=0.12018685,
                grad=[[-0.22627385, -0.14142116], [0.29145509, 0.06503242]],
                why=(
                    "weights 1.28 and 0.8 for the correct completion, e^0.5 and e^-1 (free) for the wrong one; "
                    "four tokens"
                ),
            )
        ],
    ),
    base="grpo",
    keeps=GROUP,
)


def scalerl(
    base: Method,
    eps: float,
    alone: Alone,
    cap: Limit = 5.0,
    scale: Spread = "sample_std",
    filter_dead: bool = True,
) -> Method:
    """Compose ScaleRL's loss.

    Mean over prompts of the token mean of -sg[min(π/π_behavior, 5)]·A·log π; A centred by group, scaled by the
    batch's spread of centred rewards, zero-variance groups left out. The paper's pipeline and schedules are not part of
    it.
    """
    return base.with_parts(
        filter=(MixedGroups(by="reward"),) if filter_dead else (),
        advantage=Relative(
            "group", center="mean", scale=scale, eps=eps, alone=alone, scale_key="batch", scale_of="centered"
        ),
        objective=Capped(floor=None, cap=cap, floor_negative=None, cap_negative=cap, against="behavior"),
        aggregate=GroupMean(),
    )


entry(
    "scalerl",
    scalerl,
    Card(
        title="ScaleRL",
        papers=[Paper("The Art of Scaling Reinforcement Learning Compute for LLMs", "2510.13786", 2025)],
        summary="CISPO against the sampler, the batch's spread, no zero-variance groups, every prompt weighs the same.",
        formula=(
            "L = -1/#g Σ_g 1/Σ_{i∈g}|y_i| Σ_{i∈g} Σ_t sg[min(π/π_behavior, cap)] A_i log π(y_t),  "
            "A_i = (R_i - mean_g R) / (std_B (R - mean_g R) + eps)"
        ),
        defaults={
            "cap": "5.0, TRL's configuration for the paper; the paper finds a wide range robust",
            "scale": "sample (n-1); the paper does not say which",
            "filter_dead": "the paper: zero-variance filtering, without resampling",
        },
        differs=[
            "Only the loss: the pipeline of at most 8 stale steps, interruption of long thinking, float32 logits and "
            "No-Positive-Resampling are settings of the run, not of the method.",
            "The spread is taken over the groups that stay in the batch.",
        ],
        reduces=[
            Reduction("lite_ppo", ["on_policy", "one_group", "mixed_groups"], why="one group: both spreads agree"),
            Reduction(
                "cispo", ["on_policy", "one_group", "mixed_groups"], why="one group is the batch; every ratio is 1"
            ),
        ],
        needs=["at least two completions per prompt", "log-probs of the sampler"],
        confidence="partly",
        uncertain="The convention of the standard deviation and the exact cap.",
        source="a detailed digest of the paper, TRL paper_index.md (ScaleRL) and grpo_trainer.py",
        golden=[
            Golden(
                rewards=[1, -1, 1, -1, -1, 1, 1],
                lengths=[1, 2, 1, 1, 1, 1, 1],
                groups=[0, 0, 1, 1, 1, 2, 2],
                advantage=[0.92581924, -0.92581924, 1.23442566, -0.61721283, -0.61721283, 0.0, 0.0],
                grad=[
                    [-0.15430321],
                    [0.15430321, 0.15430321],
                    [-0.20573761],
                    [0.10286880],
                    [0.10286880],
                    [0.0],
                    [0.0],
                ],
                why="centred rewards ±1 and 4/3, -2/3, -2/3: sample std √(7/6); two groups of three tokens each",
            ),
            Golden(
                rewards=[1, -1],
                log_ratio=[[2.0], [-0.5]],
                settings={"cap": 3.0},
                advantage=[0.70710628, -0.70710628],
                grad=[[-1.06065942], [0.21444101]],
                why="e^2 > 3 keeps its gradient with weight 3; e^-0.5 = 0.60653 is free",
            ),
            Golden(
                rewards=[0.6, 0.2, 0.0, 0.0],
                groups=[0, 0, 1, 1],
                fields={"correct_b": [False, False, False, False]},
                advantage=[0.70710428, -0.70710428, 0.0, 0.0],
                grad=[[-0.35355214], [0.35355214], [0.0], [0.0]],
                why="nobody is right, yet the first group has variance: ±0.2/(0.28284271 + 1e-6), one group, two "
                "tokens",
            ),
        ],
        notes=[
            "Changed after 0.1: groups with graded rewards of which none is right stay; only equal rewards are left "
            "out."
        ],
        recommended={"group": 16, "prompts": 48, "reward": "+1 / -1", "logits": "float32"},
    ),
    base="grpo",
    keeps=("eps", "alone"),
)


def minirl(base: Method, alone: Alone, clip_low: float, clip_high: Positive = 0.27, cap: Limit = 5.0) -> Method:
    """Compose MiniRL.

    Mean over completions of Σ_t -M·sg[min(π/π_behavior, 5)]·A·log π with A = R - mean_g, as in the paper.
    """
    return base.with_parts(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        objective=MaskedImportanceObjective(clip_low=clip_low, clip_high=clip_high, cap=cap),
        aggregate=SequenceSum(),
    )


entry(
    "minirl",
    minirl,
    Card(
        title="MiniRL",
        papers=[Paper("Stabilizing Reinforcement Learning with LLMs: Formulation and Practices", "2512.01374", 2025)],
        summary="The least that is stable: weigh by the ratio to the sampler, mask what is stale, sum tokens.",
        formula=(
            "L = -1/B Σ_i Σ_t M_t sg[min(π/π_behavior, cap)] A_i log π(y_t),  A_i = R_i - mean_g R,  "
            "M_t = 0 if A > 0 and π/π_old > 1+ε_high, or A < 0 and π/π_old < 1-ε_low"
        ),
        defaults={
            "clip_low": "the paper's experiments",
            "clip_high": "the paper's experiments",
            "cap": "the paper's experiments: token-level truncation at 5",
        },
        differs=[
            "Routing replay (for mixture-of-experts models) belongs to the model, not to the method.",
            "The sum over tokens is averaged over the completions of the optimiser step.",
        ],
        reduces=[
            Reduction("reinforce", ["on_policy"], other={"baseline": "group"}, why="no ratio, no mask"),
            Reduction("dr_grpo", ["on_policy"], other={"length": 1}, why="both sum over tokens; Lmax = 1 leaves 1/B"),
        ],
        needs=["at least two completions per prompt", "log-probs of the sampler"],
        source="the full paper",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.3, 0.1], [-0.3, 0.2]],
                fields={"behavior_bt": [[-1.1, -1.1], [-1.1, -1.1]]},
                advantage=[0.5, -0.5],
                loss=0.00484386,
                grad=[[0.0, -0.30535069], [0.0, 0.33746470]],
                why="e^0.3 > 1.27 and e^-0.3 < 0.8 are masked; weights e^0.2 and e^0.3 to the sampler; two completions",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, "alone"),
)
