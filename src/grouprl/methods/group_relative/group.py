"""GRPO and its nearest kin: a group baseline, PPO's clip, different denominators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import ConstantLength, SequenceMean, TokenMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.filter.papers.drop_truncated import DropTruncated
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.algorithms.regularize.kl import Estimator
from grouprl.algorithms.reward_transform.reward_transform import SoftOverlong
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import (
    ALONE,
    CLIPS,
    DUAL,
    EPS,
    GROUP,
    GRPO_PAPER,
    KL_ESTIMATOR,
    KL_NEED,
    PPO_CLIP,
    SCALE,
    ClipLow,
    DualClip,
    Spread,
    kl_terms,
)


def grpo(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    dual_clip: DualClip = None,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
    kl_coef: NonNegative = 0.0,
    kl_estimator: Estimator = "k3",
) -> Method:
    """Compose GRPO with outcome supervision.

    L = -mean_i mean_t min(ρA, clip(ρ)A) + β·KL with A = (R - mean_g)/(std_g + eps). The paper's β is 0.04; here the KL
    is off by default.
    """
    return Method(
        advantage=Relative("group", center="mean", scale=scale, eps=eps, alone=alone),
        objective=Clipped(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip),
        aggregate=SequenceMean(),
        regularize=kl_terms(kl_coef, kl_estimator),
    )


entry(
    "grpo",
    grpo,
    Card(
        title="Group Relative Policy Optimization",
        papers=[GRPO_PAPER],
        summary="Compare each completion with the mean and spread of its group; PPO clip; no critic.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·KL,  "
            "A_i = (R_i - mean_g R) / (std_g R + eps)"
        ),
        defaults={
            "clip_low": "customary; the paper states no ε (0.2 is PPO's)",
            "clip_high": "customary; the paper states no ε (0.2 is PPO's)",
            "dual_clip": DUAL,
            "scale": SCALE,
            "eps": EPS,
            "alone": ALONE,
            "kl_coef": "off, as in TRL and verl with verified rewards; the paper has 0.04",
            "kl_estimator": KL_ESTIMATOR,
        },
        differs=[
            "The KL to the reference is off by default; the paper has β = 0.04 with k3 in the loss (kl_coef=0.04).",
            "Outcome supervision only; the paper's process supervision normalises rewards of steps.",
        ],
        reduces=[
            Reduction("dr_grpo", ["on_policy", "equal_lengths", "one_group"], scale=None, why="std is one factor"),
            Reduction("dapo", ["equal_lengths", "mixed_groups"], other={"clip_high": 0.2}, why="means agree"),
            Reduction("lite_ppo", ["equal_lengths", "one_group"], why="the batch is the group"),
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source="TRL grpo_trainer.py, verl core_algos.py; loss verified, the paper's hyper-parameters partly",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                advantage=[1.499997, -0.499999, -0.499999, -0.499999],
                loss=0.0,
                grad=[[-0.187499625] * 2, [0.12499975], [0.12499975], [0.12499975]],
                why="0.75/0.500001 and -0.25/0.500001; every completion weighs 1/4, its tokens share that",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.08747413,
                grad=[[0.0], [0.0, 0.19536819]],
                why="e^0.3 > 1.2 and e^-0.5 < 0.8 are clipped; e^0.1 passes: A·1.10517/(2·2)",
            ),
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.5], [-1.0]]},
                settings={"kl_coef": 0.1, "scale": "none"},
                advantage=[0.5, -0.5],
                loss=0.005326533,
                grad=[[-0.230326533], [0.25]],
                why="d = 0.5: k3 = e^-0.5 - 1 + 0.5 = 0.1065307, its slope 1 - e^-0.5 = 0.3934693; both times 0.1/2",
            ),
        ],
        recommended={"kl_coef": 0.04, "group": 64, "learning_rate": 1e-6, "updates per rollout": 1},
    ),
)


def dr_grpo(
    base: Method,
    alone: Alone,
    length: Annotated[int, Field(ge=1)] | None = None,
) -> Method:
    """Compose Dr. GRPO.

    L = -1/(B·Lmax) Σ_i Σ_t min(ρA, clip(ρ)A) with A = R - mean_g, as in the paper's code.
    """
    return base.with_parts(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        aggregate=ConstantLength(length=length),
    )


entry(
    "dr_grpo",
    dr_grpo,
    Card(
        title="GRPO Done Right",
        papers=[Paper("Understanding R1-Zero-Like Training: A Critical Perspective", "2503.20783", 2025)],
        summary="GRPO without its length bias (constant divisor) and its difficulty bias (no standard deviation).",
        formula="L = -1/(B·Lmax) Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = R_i - mean_g R",
        defaults={
            "clip_low": "sail-sg/understand-r1-zero, train_zero_math.py",
            "clip_high": "sail-sg/understand-r1-zero, train_zero_math.py",
            "length": "the run's longest allowed completion, as generate_max_length in the authors' code",
        },
        differs=["None known: as in the authors' code, with the mean over the whole optimiser step."],
        reduces=[
            Reduction("grpo", ["equal_lengths"], other={"scale": "none"}, scale=None, why="only the constant differs"),
            Reduction(
                "rloo",
                ["on_policy", "one_group"],
                scale=None,
                why="R - mean is (G-1)/G times R - mean of the others; sums over tokens in both",
            ),
        ],
        needs=["at least two completions per prompt", "the longest allowed length (max_length)"],
        source="sail-sg/understand-r1-zero: train_zero_math.py, examples/qwen2.5-math-7b.sh",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                fields={"max_length": 4},
                advantage=[0.75, -0.25, -0.25, -0.25],
                loss=-0.046875,
                grad=[[-0.046875] * 2, [0.015625], [0.015625], [0.015625]],
                why="every token weighs 1/(4·4): -(2·0.75 - 3·0.25)/16",
            )
        ],
        notes=[
            "TRL divides by B·Lmax as here, verl by Lmax only; OpenRLHF's and AReaL's 'Dr. GRPO' keep the token mean.",
            "Unbiased up to the factor (G-1)/G; rloo removes that too.",
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "length": 3000, "temperature": 1.0, "epochs": 1},
    ),
    base="grpo",
    keeps=CLIPS,
)


def dapo(
    base: Method,
    clip_high: Positive = 0.28,
    overlong_buffer: Positive = 0.2,
    overlong_penalty: NonNegative = 1.0,
    overlong_filter: bool = False,
    dynamic_sampling: bool = True,
    max_rounds: Annotated[int, Field(ge=1)] = 10,
) -> Method:
    """Compose DAPO.

    Token mean of min(ρA, clip(ρ, 0.8, 1.28)A) over mixed groups, rewards lowered for completions that reach into the
    last `overlong_buffer` (a fraction of the limit, or tokens). `overlong_filter` leaves truncated completions out of
    the loss. The paper's formula averages within groups; its code and this entry average over the whole step.
    """
    return base.with_parts(
        reward_transform=(SoftOverlong(buffer=overlong_buffer, penalty=overlong_penalty),),
        filter=(*((MixedGroups(),) if dynamic_sampling else ()), *((DropTruncated(),) if overlong_filter else ())),
        aggregate=TokenMean(),
        refill=DynamicSampling(max_rounds=max_rounds) if dynamic_sampling else None,
    )


entry(
    "dapo",
    dapo,
    Card(
        title="Decoupled Clip and Dynamic sAmpling Policy Optimization",
        papers=[Paper("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "2503.14476", 2025)],
        summary="GRPO with a higher upper clip, a token mean, only mixed groups, and overlong completions punished.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  "
            "A_i = (R_i - mean_g R) / (std_g R + eps),  R ← R + clip((Lmax - Lc - |y|)/Lc, -1, 0),  "
            "groups with 0 < #correct < G only"
        ),
        defaults={
            "clip_low": "the paper, section 3.1",
            "clip_high": "the paper, section 3.1",
            "overlong_buffer": "the paper: Lc = 4096 of Lmax = 20480 tokens",
            "overlong_penalty": "the paper, eq. 13: at most -1",
            "overlong_filter": "off: the paper's final system punishes overlong completions instead of masking them",
            "dynamic_sampling": "the paper, section 3.2",
            "max_rounds": "verl's recipe: max_num_gen_batches = 10 (the paper has no limit)",
        },
        differs=[
            "The paper's formula averages tokens within each group; its code, and this, over the optimiser step.",
            "Refilling stops after max_rounds rounds with the groups found so far.",
            "Without max_length no completion counts as overlong.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths", "mixed_groups"],
                settings={"clip_high": 0.2},
                why="with equal lengths the token mean is the mean of completions' means",
            ),
            Reduction("cispo", ["on_policy", "mixed_groups"], why="every ratio is 1"),
        ],
        needs=["at least two completions per prompt", "raw correctness, or a reward that tells right from wrong"],
        source="TRL paper_index.md, verl reward_manager/dapo.py and agg_loss, NVlabs/NFT train_7B.sh",
        golden=[
            Golden(
                rewards=[1, -1, 1, 1],
                lengths=[3, 1, 2, 2],
                groups=[0, 0, 1, 1],
                log_ratio=[[0.24, 0.0, 0.3], [0.0], [0.0, 0.0], [0.0, 0.0]],
                fields={"max_length": 10},
                advantage=[0.70710628, -0.70710628, 0.0, 0.0],
                loss=-0.45100107,
                grad=[[-0.22472706, -0.17677657, 0.0], [0.17677657], [0.0, 0.0], [0.0, 0.0]],
                why="group 1 is all right and leaves the denominator (4 tokens); e^0.24 = 1.271 passes, e^0.3 not",
            ),
            Golden(
                rewards=[1, -1],
                lengths=[9, 10],
                fields={"max_length": 10},
                advantage=[0.70710638, -0.70710638],
                why="Lc = 2: rewards become 0.5 and -2, their sample std 1.76777",
            ),
        ],
        recommended={
            "group": 16,
            "learning_rate": 1e-6,
            "updates per rollout": 16,
            "prompts": 512,
            "reward": "+1 / -1",
        },
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def lite_ppo(
    base: Method,
    eps: NonNegative,
    alone: Alone,
    scale: Spread = "sample_std",
) -> Method:
    """Compose Lite PPO.

    Token mean of min(ρA, clip(ρ)A) with A = (R - mean_group R)/(std_batch R + eps), as in the paper's recipe.
    """
    return base.with_parts(
        advantage=Relative("group", center="mean", scale=scale, eps=eps, alone=alone, scale_key="batch"),
        aggregate=TokenMean(),
    )


entry(
    "lite_ppo",
    lite_ppo,
    Card(
        title="Lite PPO",
        papers=[Paper("Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning", "2508.08221", 2025)],
        summary="Two tricks on plain PPO without critic: group mean with the batch's spread, and a token mean.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R) / (std_B R + eps)"
        ),
        defaults={
            **PPO_CLIP,
            "scale": "sample (n-1), as TRL's scale_rewards='batch'",
        },
        differs=["None known. The spread is that of raw rewards over the batch; ROLL and TRL agree."],
        reduces=[
            Reduction("grpo", ["equal_lengths", "one_group"], why="with one prompt the batch is the group"),
            Reduction("dapo", ["one_group", "mixed_groups"], other={"clip_high": 0.2}, why="the batch is the group"),
        ],
        needs=["at least two completions per prompt"],
        source="alibaba/ROLL LitePPO.md, TRL paper_index.md (scale_rewards='batch', loss_type='dapo', beta 0)",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                groups=[0, 0, 1, 1],
                advantage=[0.999998, -0.999998, 0.0, 0.0],
                loss=0.0,
                grad=[[-0.2499995], [0.2499995], [0.0], [0.0]],
                why="the sample std of [1, 0, 1, 1] is 0.5; the solved group gets 0 but stays in the denominator",
            )
        ],
        recommended={"group": 8, "temperature": 0.99, "top_p": 0.99, "top_k": 100, "epochs": 1},
    ),
    base="grpo",
    keeps=CLIPS,
)
