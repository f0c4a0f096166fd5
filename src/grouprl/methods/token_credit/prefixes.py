"""Methods that treat the beginning of a completion apart: its first tokens, or its plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.papers.plan_credit import PlanRelative
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.continuations import Continuations, PlanTree
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.continuation_reward import ContinuationReward
from grouprl.algorithms.token_weight.papers.prefix_mask import PrefixMask
from grouprl.core.numbers import NonNegative, Positive, PositiveShare
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, PPO_CLIP

TWO = "at least two completions per prompt"


def pppo(
    base: Method,
    prefix_start: PositiveShare = 0.15,
    prefix_grow: NonNegative = 0.05,
    prefix_limit: PositiveShare = 0.35,
    continuations: Annotated[int, Field(ge=0)] = 8,
    clip_high: Positive = 0.28,
) -> Method:
    """Compose PPPO.

    DAPO's clip and token mean over all tokens, of which only each completion's prefix carries a gradient; its reward is
    the number of right continuations plus its own. The share grows evenly here, and in plateaus in the paper.
    """
    schedule: dict[str, float] = {"start": prefix_start, "grow": prefix_grow, "limit": prefix_limit}
    return base.with_parts(
        reward_transform=(ContinuationReward(),) if continuations else (),
        token_weight=(PrefixMask(**schedule),),
        aggregate=TokenMean(),
        augment=(Continuations(count=continuations, **schedule),) if continuations else (),
    )


entry(
    "pppo",
    pppo,
    Card(
        title="Progressive Prefix-token Policy Optimization",
        papers=[
            Paper(
                "Well Begun, Half Done: Reinforcement Learning with Prefix Optimization for LLM Reasoning",
                "2512.15274",
                2025,
            )
        ],
        summary="Only the first 15 to 35 % of each completion is trained; its reward counts right continuations of it.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_{t ≤ ⌊η|y_i|⌋} min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  "
            "A_i = (R_i - mean_g R)/(std_g R + eps),  R_i = Σ_j [continuation j right] + [completion right]"
        ),
        defaults={
            "prefix_start": "the paper: 15 %",
            "prefix_grow": "the paper: 5 points at a time",
            "prefix_limit": "the paper: at most 35 %",
            "continuations": "the paper: G = 8 per prefix; 0 keeps the task's reward",
            "clip_low": "the paper: 0.2",
            "clip_high": "the paper: 0.28",
        },
        differs=[
            "The share grows in equal parts of the run; in the paper whenever validation accuracy stops improving.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"prefix_start": 1.0, "prefix_limit": 1.0, "continuations": 0},
                why="the whole completion is the prefix, the reward the task's",
            ),
        ],
        needs=[TWO, "completions of more than a few tokens", "time: each completion is continued several times"],
        confidence="partly",
        uncertain="Formulas and defaults come from a secondary source.",
        source="a third-party page with the paper's formulas",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[4, 2, 4],
                fields={"rewards.continuations": [8.0, 2.0, 0.0]},
                settings={"prefix_start": 0.25, "prefix_grow": 0.0, "prefix_limit": 0.25},
                advantage=[1.128552747, -0.352672733, -0.775880013],
                grad=[[-0.112855275, 0, 0, 0], [0, 0], [0.077588001, 0, 0, 0]],
                why="R = 9, 2, 0; prefixes of 1, 0 and 1 tokens over all ten",
            )
        ],
        recommended={
            "group": 8,
            "max_length": 10240,
            "learning_rate": 1e-6,
        },
    ),
    base="grpo",
    keeps=("clip_low", "eps", "alone"),
)


def pta_grpo(
    base: Method,
    sign: Annotated[str, Field(min_length=1)] | None = None,
    leaves: Annotated[int, Field(ge=1)] = 4,
    plan_weight: NonNegative = 1.0,
    credit: Literal["shared", "span"] = "shared",
    eps: NonNegative = 1e-6,
) -> Method:
    """Compose PTA-GRPO.

    Each plan, one per completion of batch.group_size, is carried out `leaves` times; GRPO on reward plus the mean
    reward of the completions that share the plan. `credit="span"` gives the plan's tokens the plan's value and the
    other tokens the completion's. Weights are our choice.
    """
    advantage = PlanRelative(weight=plan_weight, credit=credit, eps=eps)
    tree = PlanTree(sign=sign, leaves=leaves)
    return base.with_parts(advantage=advantage, augment=(tree,))


entry(
    "pta_grpo",
    pta_grpo,
    Card(
        title="Plan-Then-Action GRPO",
        papers=[
            Paper(
                "Plan Then Action:High-Level Planning Guidance Reinforcement Learning for LLM Reasoning",
                "2510.01833",
                2025,
            )
        ],
        summary="Several completions follow each plan; a plan is worth how often they are right.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A = norm_g(R + w·mean_plan R);  "
            "span: norm_plans(mean_plan R)·w on the plan's tokens, norm_g(R) on the others"
        ),
        defaults={
            "sign": "the task's: </plan> as in the paper, unless a task says another",
            "leaves": "4, our choice: the paper's numbers of plans and completions were not seen",
            "plan_weight": "1, our choice: the paper's weight was not seen",
            "credit": "the paper: one reward for the whole completion (shared)",
            **PPO_CLIP,
        },
        differs=[
            "A format reward belongs to the task.",
            "Without the warm-up on plans of a stronger model: a policy that writes no plan has nothing to branch.",
        ],
        reduces=[Reduction("grpo", ["always"], settings={"plan_weight": 0.0}, why="the outcome alone")],
        needs=[
            TWO,
            "completions that begin with a plan and the sign that ends it",
        ],
        confidence="partly",
        uncertain="Weights of the rewards, numbers of plans and completions, the rest of the loss.",
        source="reviews of the paper and its abstract",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                fields={"keys.plan": [0, 0, 1, 1]},
                advantage=[1.414211562, 0.0, -0.707105781, -0.707105781],
                grad=[[-0.353552891], [0.0], [0.176776445], [0.176776445]],
                why="plan values 1/2 and 0: rewards 1.5, 0.5, 0, 0",
            ),
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 2, 2, 2],
                fields={"keys.plan": [0, 0, 1, 1], "marks.plan": [[True, False]] * 4},
                settings={"credit": "span"},
                advantage=[
                    [0.707104781, 1.499997],
                    [0.707104781, -0.499999],
                    [-0.707104781, -0.499999],
                    [-0.707104781, -0.499999],
                ],
                why="two plans worth 1/2 and 0: ±0.25/0.353554 on the plan; the outcome on what follows",
            ),
        ],
    ),
    base="grpo",
    keeps=CLIPS,
)
