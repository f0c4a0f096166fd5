"""Methods for agents that learn from stored successes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage_transform.stored_advantage import StoredAdvantage
from grouprl.algorithms.aggregate.aggregate import ConstantLength
from grouprl.algorithms.augment.papers.success_replay import SuccessReplay
from grouprl.algorithms.buffer.papers.self_imitation import SelfImitation
from grouprl.algorithms.filter.replay_apart import ReplayApart
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.covariance import ClipCov
from grouprl.algorithms.reward_transform.papers.turn_bonus import TurnBonus
from grouprl.algorithms.update.papers.replay_pass import ReplayPass
from grouprl.core.levels import Scale
from grouprl.core.numbers import Count, NonNegative, Positive, PositiveShare
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIP, GROUP, ClipLow, in_the_update

COMES_AGAIN = "prompts that are sampled more than once (data.prompts where the task never ends)"


def arpo_replay(
    base: Method,
    capacity: Count = 8,
    success: float = 0.1,
    failed: float = 0.2,
    spread: Positive = 0.05,
    clip_high: Positive = 0.3,
) -> Method:
    """Compose ARPO with replay: GRPO in which a stored success replaces the first row of a failed group."""
    replay = SuccessReplay(capacity=capacity, success=success, failed=failed, spread=spread)
    return base.with_parts(augment=(replay,))


entry(
    "arpo_replay",
    arpo_replay,
    Card(
        title="ARPO: agentic replay policy optimization",
        papers=[
            Paper(
                "ARPO:End-to-End Policy Optimization for GUI Agents with Experience Replay",
                "2505.16282",
                2025,
            )
        ],
        summary="GRPO in which a stored success of the same prompt joins a group that failed altogether.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  "
            "std_g R < 0.05 (n-1) and mean_g R < 0.2: the first completion gives way to a success, with its ρ against "
            "the policy that sampled it"
        ),
        defaults={
            "capacity": "the authors' code: 8 successes per prompt",
            "success": "the authors' code: a reward above 0.1",
            "failed": "the authors' code: mean reward below 0.2",
            "spread": "the authors' code: standard deviation below 0.05",
            "clip_low": "the authors' code: 0.2",
            "clip_high": "the authors' code: 0.3",
        },
        differs=[
            "Keeping only tasks that the first policy can solve at all is left to the choice of prompts "
            "(initial_completions, difficulty_band).",
            "Success is the reward above `success`; the paper's counts the task's outcome without its format term.",
            "A group of one never fails: its unbiased deviation does not exist. (After 0.1: the deviation is the "
            "unbiased one, as the authors'; it was the population's.)",
        ],
        reduces=[
            Reduction("grpo", ["always"], settings={"clip_high": 0.2}, why="an empty store: the loss is GRPO's"),
        ],
        needs=["at least two completions per prompt", COMES_AGAIN],
        source="dvlab-research/ARPO verl/trainer/replay_buffer.py, ray_trainer.py, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                log_ratio=[[0.1], [0.0], [0.0], [0.0]],
                fields={"source_b": [3, 0, 0, 0]},
                advantage=[1.499997, -0.499999, -0.499999, -0.499999],
                grad=[[-0.41443826], [0.12499975], [0.12499975], [0.12499975]],
                why="the replayed success counts in the group: 0.75/0.500001; its gradient is 1.499997·e^0.1/4",
            )
        ],
        recommended={"group": 8, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def spear(
    base: Method,
    clip_low: ClipLow,
    eps: NonNegative,
    size: Count = 2048,
    tolerate: Count = 5,
    replay_coef: NonNegative = 1.0,
    replay_rise: Annotated[int, Field(ge=0)] = 200,
    bonus: NonNegative = 0.1,
    bonus_until: Count = 200,
    share: PositiveShare = 2e-4,
    lower: float = 1.0,
    upper: float = 5.0,
    clip_high: Positive = 0.28,
    scale: Scale = "none",
) -> Method:
    """Compose SPEAR.

    Clip-Cov on centred rewards with a fading bonus for turns; completions of earlier steps that beat the median of the
    groups are learned from once more, in an update of their own.
    """
    return base.with_parts(
        reward_transform=(TurnBonus(each=bonus, until=bonus_until),) if bonus else (),
        filter=(ReplayApart(),),
        advantage_transform=(StoredAdvantage(),),
        objective=ClipCov(clip_low=clip_low, clip_high=clip_high, share=share, lower=lower, upper=upper),
        aggregate=ConstantLength(),
        buffer=SelfImitation(size=size, tolerate=tolerate, scale=scale, eps=eps),
        update=ReplayPass(coef=replay_coef, rise=replay_rise),
    )


entry(
    "spear",
    spear,
    Card(
        title="SPEAR: self-imitation with progressive exploration",
        papers=[
            Paper(
                "Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration for Agentic "
                "Reinforcement Learning",
                "2509.22601",
                2025,
            )
        ],
        summary="A fading bonus for using tools, then good completions of earlier steps are learned from once more.",
        formula=(
            "R ← R + min(1, 0.1·turns)·(1 + cos(πt/T))/2;  L = -1/(B·Lmax) Σ_i Σ_t min(ρ_t A_i, clip(ρ_t) A_i), none "
            "for some tokens of high covariance (Clip-Cov);  A_i = R_i - mean_g R;  stored: A_i = R_i - p50 of "
            "group means (over p50 of group deviations with a scale), their loss times λ(1 - cos(πt/T'))/2"
        ),
        defaults={
            "size": "the authors' code: 2048",
            "tolerate": "the authors' code: 5 steps",
            "replay_coef": "the authors' code: 1",
            "replay_rise": "the authors' code: 100 to 300 steps",
            "bonus": "the authors' code: 0.1 for each turn with a tool; 0 leaves the bonus out",
            "bonus_until": "the authors' code: 200 steps",
            "share": "the authors' code: 0.0002 of the tokens",
            "lower": "the authors' code: 1",
            "upper": "the authors' code: 5",
            "clip_low": CLIP,
            "clip_high": "the authors' code: 0.28",
            "scale": "the authors' code: none",
        },
        differs=[
            "One Clip-Cov for both losses; the authors' code takes 0.02, 2 and 60 for replayed completions.",
            "Overlong, repetitive and unreadable completions stay, and so do all groups; the authors' Dr.BoT "
            "drops such "
            "completions and the quarter of the groups that vary least.",
            "The bonus counts turns that got an answer; the authors count tool calls.",
            "Advantages of stored completions are computed from rewards without the bonus.",
            "Changed after 0.1: the percentile was the lower of the two middle values, and with a scale stored "
            "advantages were not divided.",
        ],
        reduces=[
            Reduction(
                "clip_cov",
                ["all_sampled", "equal_lengths", "mixed_groups"],
                settings={"bonus": 0.0},
                other={"clip_low": 0.2, "clip_high": 0.28, "scale": "none", "dynamic_sampling": False},
                scale=None,
                why="without bonus and stored completions it is Clip-Cov under another denominator",
            ),
        ],
        needs=["at least two completions per prompt", "log-probs under the policy that sampled each completion"],
        confidence="verified",
        source="TencentYoutuResearch/SPEAR ray_trainer_hybrid.py, dp_actor.py, core_algos.py, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                lengths=[1, 1, 2],
                groups=[0, 0, 1],
                fields={
                    "source_b": [0, 0, 3],
                    "past.advantage": [0.0, 0.0, 0.25],
                    "turn_bt": [[0], [0], [0, 1]],
                    "step": 0,
                    "max_length": 4,
                },
                advantage=[[0.5], [-0.5], [0.25, 0.25]],
                grad=[[-0.04166667], [0.04166667], [-0.02083333, -0.02083333]],
                why="new: ±0.5 around their mean, no bonus for one turn; stored: its distance to the median of then; "
                "every token weighs 1/(3·4)",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                fields={"turn_bt": [[0], [0, 1]], "step": 100, "past.advantage": [0.0, 0.0], "max_length": 4},
                advantage=[[0.475], [-0.475, -0.475]],
                why="the second completion took a turn that got an answer: half of 0.1 is left at step 100 of 200",
            ),
        ],
        notes=[in_the_update("one pass over new and stored completions together")],
        recommended={"group": 8},
    ),
    base="grpo",
    keeps=("alone",),
)
