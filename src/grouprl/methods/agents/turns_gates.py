"""Rewards of episodes that depend on a condition: gates, frugality, second tries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.augment.papers.fewest_calls import FewestCalls
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.turn_gates import RewardGate, ToolProductivity, TryAgain
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, CRITIC, PPO_CLIP

TWO = "at least two completions per prompt"
TURNS = "an environment that is acted in over turns"
A_CRITIC = "a critic (value head)"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R) / (std_g R + eps)"
PPO_LOSS = "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + value loss,  A by GAE"
WHITEN = "TRL and verl: advantages whitened over all tokens of the batch"
VALUE = "as ppo: 1"
VALUE_CLIP = "as ppo: 0.2"


def g_ra(
    base: Method,
    threshold: float | None = 0.0,
    turn_weight: NonNegative = 1.0,
    outcome: Literal["rest", "correct"] = "rest",
) -> Method:
    """Compose G-RA: GRPO on the outcome and, if that is good enough, the rewards of turns."""
    return base.with_parts(
        reward_transform=(RewardGate(threshold=threshold, weight=turn_weight, outcome=outcome),),
    )


entry(
    "g_ra",
    g_ra,
    Card(
        title="G-RA: gated reward accumulation",
        papers=[
            Paper("Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards", "2508.10548", 2025)
        ],
        summary="Rewards of single turns count only where the outcome, which comes first, is good enough.",
        formula=GRPO_LOSS + ",  R = R_O + w·[R_O > threshold]·Σ_k r_k",
        defaults={
            "threshold": "our choice: 0, the outcome must earn something; the paper's are a matter of its rewards",
            "turn_weight": "the paper: rewards are summed",
            "outcome": "what an episode earns besides its turns; 'correct' for environments that pay success in a turn",
            **PPO_CLIP,
        },
        differs=[
            "Two priorities, the outcome and the turns; the paper orders any number of rewards.",
            "The base is GRPO, one of the paper's.",
        ],
        reduces=[
            Reduction("grpo", settings={"threshold": None}, why="an open gate (the paper's D-RA)"),
            Reduction("grpo", ["no_turn_rewards"], why="there is nothing to hold back"),
        ],
        needs=[TURNS, "rewards of turns beside an outcome", TWO],
        source="a note on the paper and an independent implementation that agree, by our notes on it",
        golden=[
            Golden(
                rewards=[2, 3, 1],
                lengths=[2, 2, 1],
                fields={
                    "turn_bt": [[0, 1], [0, 1], [0]],
                    "turn_reward_bs": [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]],
                },
                settings={"scale": "none"},
                advantage=[-4 / 3, 5 / 3, -1 / 3],
                loss=0.0,
                grad=[[2 / 9] * 2, [-5 / 18] * 2, [1 / 9]],
                why="outcomes 0, 1, 1: the first one's turns do not count; rewards 0, 3, 1; completions weigh 1/3",
            ),
            Golden(
                rewards=[2, 3, 1],
                lengths=[2, 2, 1],
                fields={
                    "turn_bt": [[0, 1], [0, 1], [0]],
                    "turn_reward_bs": [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]],
                    "correct_b": [True, False, True],
                },
                settings={"scale": "none", "outcome": "correct", "turn_weight": 2.0},
                advantage=[2.0, -1.0, -1.0],
                why="rewards 0 + 2·2, 1, 1: the second episode is not right",
            ),
        ],
        notes=["Without the gate the sum of rewards can rise while outcomes fall."],
    ),
    base="grpo",
    keeps=(*CLIPS, "scale", "eps"),
)


def otc(
    base: Method,
    target: Literal["fewest", "none"] = "fewest",
    smoothing: Positive = 4.0,
    alpha: Positive = 1.0,
) -> Method:
    """Compose OTC: GRPO on rewards that are multiplied by frugality."""
    return base.with_parts(
        reward_transform=(ToolProductivity(target=target, smoothing=smoothing, alpha=alpha),),
        augment=(FewestCalls(),) if target == "fewest" else (),
    )


entry(
    "otc",
    otc,
    Card(
        title="OTC: optimal tool call-controlled policy optimization",
        papers=[Paper("OTC: Optimal Tool Calls via Reinforcement Learning", "2504.14870", 2025)],
        summary="The reward is multiplied by how near an episode is to the fewest tool calls that ever sufficed.",
        formula=GRPO_LOSS + ",  R ← α r_tool R,  r_tool = sin(mπ/(m+n)) (n = 0: cos(mπ/(2m+c))), m calls, n the fewest",
        defaults={
            "target": "the paper's OTC-GRPO; 'none' is the reward of its OTC-PPO",
            "smoothing": "our choice: c = 4; the paper: the most calls allowed",
            "alpha": "the paper: 1",
            **PPO_CLIP,
        },
        differs=[
            "A call is a turn before the last, whatever it does.",
            "The paper's OTC-PPO has a critic; here its reward is on GRPO (ppo with tool_productivity has both).",
        ],
        reduces=[
            Reduction(
                "grpo", ["one_turn"], settings={"target": "none"}, why="a completion without calls keeps its reward"
            ),
        ],
        needs=[
            TURNS,
            TWO,
            "prompts that are sampled more than once, for the fewest calls to be remembered (data.prompts)",
        ],
        source="a re-implementation and a review of the paper that agree, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 1, 0],
                lengths=[3, 5, 1],
                fields={
                    "turn_bt": [[0, 1, 2], [0, 1, 2, 3, 4], [0]],
                    "past.fewest_calls": [-1, -1, -1],
                    "correct_b": [True, True, False],
                },
                settings={"scale": "none"},
                advantage=[0.37799153, 0.24401694, -0.62200847],
                loss=0.0,
                grad=[[-0.04199906] * 3, [-0.0162678] * 5, [0.20733616]],
                why="n = 2: m = 2 and 4 count 1 and sin(4π/6) = .866; the wrong completion without calls earns nothing",
            ),
            Golden(
                rewards=[1, 1, 0],
                lengths=[3, 5, 1],
                fields={
                    "turn_bt": [[0, 1, 2], [0, 1, 2, 3, 4], [0]],
                    "past.fewest_calls": [1, 1, 1],
                    "correct_b": [True, True, False],
                },
                settings={"scale": "none"},
                advantage=[0.38142185, 0.1031817, -0.48460355],
                why="one call sufficed before: sin(2π/3) = .866 and sin(4π/5) = .5878",
            ),
            Golden(
                rewards=[1, 1],
                lengths=[2, 3],
                fields={"turn_bt": [[0, 1], [0, 1, 2]]},
                settings={"scale": "none", "target": "none"},
                advantage=[0.07945931, -0.07945931],
                why="cos(π/6) = .866 and cos(2π/8) = .7071",
            ),
        ],
        notes=["Its measure is tool productivity: correct completions per call."],
    ),
    base="grpo",
    keeps=(*CLIPS, "scale", "eps"),
)


def ufo(
    base: Method,
    decay: Annotated[float, Field(gt=0, le=1)] = 0.5,
    repetition: NonNegative = 0.5,
    clip_high: Positive = 0.28,
    lam: Share = 1.0,
    entropy_coef: NonNegative = 0.001,
) -> Method:
    """Compose UFO: PPO on rewards that fall with every try and with repetition."""
    return base.with_parts(reward_transform=(TryAgain(decay=decay, repetition=repetition),))


entry(
    "ufo",
    ufo,
    Card(
        title="UFO: unary feedback as observation",
        papers=[Paper('A Simple "Try Again" Can Elicit Multi-Turn LLM Reasoning', "2507.14295", 2025)],
        summary="PPO on prompts that may be tried again: later successes count less, repeated attempts cost.",
        formula=PPO_LOSS + ",  R ← R·decay^t - λ(1 - E/T), t the last turn from 0, E different of T valid completions",
        defaults={
            "decay": "the authors' environment: 2^-t",
            "repetition": "the authors' environment: λ = 0.5",
            "clip_low": "the authors' settings: 0.2",
            "clip_high": "the authors' settings: 0.28",
            "gamma": "the authors' settings: 1",
            "lam": "the authors' settings: 1",
            "whiten": WHITEN,
            "value_coef": VALUE,
            "value_clip": VALUE_CLIP,
            "entropy_coef": "the authors' settings: 0.001",
        },
        differs=[
            "The environment says that an attempt was wrong, and ends with the right one or after its turns.",
            "Attempts are equal when their tokens are; the authors compare normalised answers.",
            "The authors' filter, the quarter of the groups with the largest spread of reward, is left out.",
        ],
        reduces=[
            Reduction(
                "ppo",
                ["one_turn"],
                settings={"entropy_coef": 0.0},
                other={"clip_high": 0.28, "lam": 1.0},
                why="one try: nothing is late, nothing repeated",
            ),
        ],
        needs=[A_CRITIC, "an environment in which one may try again"],
        source="the authors' repository: ragen/env/metamathqa/env.py, config/base.yaml",
        golden=[
            Golden(
                rewards=[1],
                lengths=[3],
                fields={
                    "turn_bt": [[0, 1, 2]],
                    "token_bt": [[5, 5, 6]],
                    "valid_bs": [[True, True, True]],
                    "value_bt": [[0.0, 0.0, 0.0]],
                },
                settings={"whiten": False},
                advantage=[0.08333333],
                loss=-0.08333333,
                grad=[[-0.02777778] * 3],
                why="right at the third try: ¼; two different of three completions: -½·⅓",
            ),
            Golden(
                rewards=[0],
                lengths=[5],
                fields={
                    "turn_bt": [[0, 1, 2, 3, 4]],
                    "token_bt": [[5, 5, 5, 5, 5]],
                    "valid_bs": [[True] * 5],
                    "value_bt": [[0.0] * 5],
                },
                settings={"whiten": False},
                advantage=[-0.4],
                why="five times the same wrong completion: -½·(1 - ⅕)",
            ),
        ],
        recommended={"turns": 5},
    ),
    base="ppo",
    keeps=(*CLIPS, *CRITIC),
)
