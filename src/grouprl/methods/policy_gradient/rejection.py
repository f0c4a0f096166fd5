"""Learning from chosen completions: SFT, rejection sampling (RAFT) and methods between it and REINFORCE."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Ones, RawReward
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, DualClip

MINIMALIST = Paper("A Minimalist Approach to LLM Reasoning: from Rejection Sampling to Reinforce", "2504.11343", 2025)
SOURCE = "RLHFlow/Minimal-RL: verl/trainer/ppo/core_algos.py, verl/utils/reward_score, scripts/run_*.sh"
SCRIPT_CLIP = "RLHFlow/Minimal-RL scripts: 0.2"
KL_DEFAULTS = {
    "kl_coef": "off, so that no reference is needed; the scripts have 0.001",
    "kl_estimator": "RLHFlow/Minimal-RL scripts: low_var_kl, which is k3",
}
KL_DIFFERS = "The KL loss is off by default; the scripts have 0.001 (k3)."


def sft() -> Method:
    """Compose supervised fine-tuning: token mean of -log π, a group of one per demonstration."""
    return Method(advantage=Ones(), objective=PolicyGradient(), aggregate=TokenMean())


entry(
    "sft",
    sft,
    Card(
        title="Supervised fine-tuning",
        papers=[Paper("Training language models to follow instructions with human feedback", "2203.02155", 2022)],
        summary="Maximise the likelihood of every given completion, whatever its reward.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t log π(y_t)",
        defaults={},
        differs=["None: cross-entropy on the completions' tokens, mean over the tokens of the optimiser step."],
        source="textbook material",
        golden=[
            Golden(
                rewards=[0, 0],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.5, 0.0], [-1.0]],
                advantage=[1.0, 1.0],
                loss=3.5 / 3,
                grad=[[-1 / 3] * 2, [-1 / 3]],
                why="log-probs -0.5, -1 and -2",
            )
        ],
    ),
)


def raft(base: Method) -> Method:
    """Compose RAFT.

    Token mean of -max(R, 0) log π, as in the authors' code; their KL loss of 0.001 is off by default.
    """
    return base.with_parts(
        advantage=RawReward(positive_only=True),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
    )


entry(
    "raft",
    raft,
    Card(
        title="Reward-rAnked Fine-Tuning",
        papers=[
            MINIMALIST,
            Paper("RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", "2304.06767", 2023),
        ],
        summary="Fine-tune on the completions with positive reward, weighted by it; the others are ignored.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t max(R_i, 0) log π(y_t)",
        defaults=KL_DEFAULTS,
        differs=[
            KL_DIFFERS,
            "The token mean counts all completions' tokens, as the code does, not only the chosen ones'.",
        ],
        reduces=[
            Reduction("raft_pp", ["on_policy"], why="every ratio is 1"),
            Reduction(
                "reinforce", ["binary_rewards", "equal_lengths"], scale=None, why="rewards 0 and 1: A = R in both"
            ),
        ],
        needs=[KL_NEED],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, -1, 0],
                lengths=[2, 1, 1],
                advantage=[1.0, 0.0, 0.0],
                loss=0.5,
                grad=[[-0.25] * 2, [0.0], [0.0]],
                why="two of four tokens count, log-probs -1",
            )
        ],
        recommended={"group": 4, "batch": 1024, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=KL,
)


def raft_pp(base: Method) -> Method:
    """Compose RAFT++.

    Token mean of PPO's clipped loss with A = max(R, 0), as in the authors' code without its KL loss.
    """
    return base.with_parts(
        advantage=RawReward(positive_only=True),
        aggregate=TokenMean(),
    )


entry(
    "raft_pp",
    raft_pp,
    Card(
        title="RAFT++",
        papers=[MINIMALIST],
        summary="RAFT with importance ratio and PPO's clip, so that several updates per rollout are safe.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = max(R_i, 0)",
        defaults={
            "clip_low": SCRIPT_CLIP,
            "clip_high": SCRIPT_CLIP,
            **KL_DEFAULTS,
        },
        differs=[
            KL_DIFFERS,
            "The code's dual clip is left out: it acts on negative advantages only, and there are none.",
        ],
        reduces=[
            Reduction("raft", ["on_policy"], why="every ratio is 1"),
            Reduction("reinforce_rej", ["binary_rewards", "mixed_groups"], why="wrong completions have R = 0"),
        ],
        needs=[KL_NEED],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 1, -1],
                log_ratio=[[0.3], [0.1], [0.4]],
                advantage=[1.0, 1.0, 0.0],
                loss=-0.76839031,
                grad=[[0.0], [-0.36839031], [0.0]],
                why="e^0.3 is clipped at 1.2; e^0.1 = 1.10517 counts a third",
            )
        ],
        recommended={"group": 4, "batch": 1024, "minibatches": 4, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)


def reinforce_rej(base: Method, dual_clip: DualClip = 3.0) -> Method:
    """Compose Reinforce-Rej.

    Token mean of PPO's clipped loss with A = R over mixed groups, as in the authors' code without its KL loss.
    """
    return base.with_parts(
        filter=(MixedGroups(),),
        advantage=RawReward(),
        aggregate=TokenMean(),
    )


entry(
    "reinforce_rej",
    reinforce_rej,
    Card(
        title="Reinforce-Rej",
        papers=[MINIMALIST],
        summary="Raw rewards and PPO's clip on the prompts that are neither all right nor all wrong.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t R_i, clip(ρ_t, 1-ε, 1+ε) R_i) over groups with 0 < #correct < G",
        defaults={
            "clip_low": SCRIPT_CLIP,
            "clip_high": SCRIPT_CLIP,
            "dual_clip": "RLHFlow/Minimal-RL, verl's default: 3",
            **KL_DEFAULTS,
        },
        differs=[KL_DIFFERS, "No baseline: use rewards of ±1 for wrong completions to count (with 0/1 they do not)."],
        reduces=[
            Reduction("raft_pp", ["binary_rewards", "mixed_groups"], why="wrong completions have R = 0"),
            Reduction("raft", ["binary_rewards", "mixed_groups", "on_policy"], why="and every ratio is 1"),
        ],
        needs=[
            "at least two completions per prompt",
            "raw correctness, or a reward that tells right from wrong",
            KL_NEED,
        ],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, -1, 1, 1],
                groups=[0, 0, 1, 1],
                log_ratio=[[0.1], [1.5], [0.0], [0.0]],
                advantage=[1.0, -1.0, 0.0, 0.0],
                loss=0.94741454,
                grad=[[-0.55258546], [0.0], [0.0], [0.0]],
                why="group 1 is all right and leaves; e^1.5 > 3: the dual clip bounds the loss at 3, without gradient",
            )
        ],
        notes=["The paper's finding: most of GRPO's gain comes from leaving out prompts that are all wrong."],
        recommended={"group": 4, "batch": 1024, "minibatches": 4, "learning_rate": 1e-6, "reward": "+1 / -1"},
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)
