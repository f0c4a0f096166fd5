"""Methods for teams: several agents act in one episode, each compared with its own peers."""

from __future__ import annotations

from grouprl.algorithms.advantage.papers.outcome_and_actions import OutcomeAndActions
from grouprl.algorithms.advantage.per_agent import RoleRelative
from grouprl.algorithms.augment.papers.align import AlignCalls
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.called_reward import CalledReward
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

AGENTS = "a task with several agents"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i)"
BY_AGENT = "A_i = (R_i - mean R)/(std R + eps) over the rows of the same agent for the same prompt"


def m_grpo(
    loss: Method,
    scale: Scale,
    eps: NonNegative,
    alone: Alone,
    calls: Count = 1,
    by_outcome: bool = True,
    right: float = 1.0,
    wrong: float = 0.1,
    clip_high: Positive = 0.28,
) -> Method:
    """Compose M-GRPO: GRPO by prompt and agent over aligned calls, rewarded by the planner's outcome."""
    shape = (CalledReward(right=right, wrong=wrong),) if by_outcome else ()
    return loss.with_parts(
        reward_transform=shape,
        advantage=RoleRelative(keys=("group",), scale=scale, eps=eps, alone=alone),
        augment=(AlignCalls(calls=calls),),
    )


entry(
    "m_grpo",
    m_grpo,
    Card(
        title="M-GRPO: groups of agents that call each other",
        papers=[
            Paper(
                "Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
                "2511.13288",
                2025,
            )
        ],
        summary="A planner and the agents it calls, each compared in a group of its own; equally many calls "
        "in every episode.",
        formula=f"{GRPO_LOSS},  {BY_AGENT};  D rows of each called agent per episode, doubled or left out at random",
        defaults={
            "calls": "not known: 1",
            "by_outcome": "the released code: called agents earn by the planner's outcome",
            "right": "the released code: 1",
            "wrong": "the released code: 0.1",
            "clip_low": "the released code: 0.2",
            "clip_high": "the released code: 0.28",
        },
        differs=[
            "Alignment is the paper's; the released code takes called agents' rows from a queue in groups of eight.",
            "An episode that called nobody has no rows of called agents; the paper fills with rows without tokens.",
            "Agents share weights unless model.agents is separate; then each has an optimiser and clipping of its own, "
            "in one process, or in one for each agent that exchange rows and weights through a folder (parts "
            "send_called and take_called), in order and with a bounded lag; the authors' take samples as they come.",
            "A format counts as kept where the environment calls every turn of the row valid.",
        ],
        notes=[
            "Changed after 0.1: rows are told apart by agent also in a batch whose groups are prompts. Those of runs "
            "are groups of prompt and agent anyway."
        ],
        reduces=[
            Reduction(
                "grpo",
                ["one_agent"],
                settings={"by_outcome": False, "clip_high": 0.2},
                why="where one agent acts, its group is the prompt's",
            ),
        ],
        needs=["at least two completions per prompt", AGENTS],
        confidence="partly",
        uncertain="The number of aligned calls D and the weights of the paper's reward.",
        source="AQ-MedAI/MrlX main_agent_reward.py, sub_agent_reward.py and the paper's abstract, by our notes on them",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                groups=[0, 1, 0, 1],
                fields={
                    "correct_b": [True, False, False, True],
                    "agent_b": [0, 1, 0, 1],
                    "keys.episode": [0, 0, 1, 1],
                    "turn_bt": [[0], [0], [0], [0]],
                    "valid_bs": [[True], [True], [True], [True]],
                },
                advantage=[0.70710578, 0.70710567, -0.70710578, -0.70710567],
                grad=[[-0.17677645], [-0.17677642], [0.17677645], [0.17677642]],
                why="the called rows earn 1 and 0.1 by the planner, whatever they got themselves: "
                "0.45/(0.63640 + 1e-6); every row weighs 1/4",
            )
        ],
        recommended={"group": 8, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def hrpo(
    loss: Method,
    scale: Scale,
    eps: NonNegative,
    alone: Alone,
    action_weight: NonNegative = 1.0,
) -> Method:
    """Compose HRPO: GRPO's outcome advantage plus absolute rewards of actions."""
    return loss.with_parts(advantage=OutcomeAndActions(weight=action_weight, scale=scale, eps=eps, alone=alone))


entry(
    "hrpo",
    hrpo,
    Card(
        title="HRPO: hierarchical relative policy optimization (MasHost)",
        papers=[
            Paper(
                "MasHost Builds It All: Autonomous Multi-Agent System Directed by Reinforcement Learning",
                "2506.08507",
                2025,
            )
        ],
        summary="Outcomes compared within the group, and absolute rewards of single actions that price what they cost.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t) A_t),  "
            "A_t = (R_O - mean_g R_O)/(std_g R_O + eps) + λ·r(turn of t)"
        ),
        defaults={
            "action_weight": "not known: λ = 1",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed; the paper's is not known",
        },
        differs=["Roles and edges are the environment's actions (task host); their rewards are the environment's."],
        reduces=[
            Reduction(
                "grpo",
                ["no_turn_rewards"],
                why="without rewards of single actions only the outcome is left",
            ),
        ],
        needs=["at least two completions per prompt", "turns with rewards of their own", KL_NEED],
        confidence="partly",
        uncertain="The action rewards, λ, and whether action rewards are discounted.",
        source="the paper's method section and a review of it, by our notes on it",
        golden=[
            Golden(
                rewards=[0.9, -0.2],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "turn_reward_bs": [[-0.1, 0.0], [-0.1, -0.1]]},
                settings={"scale": "none"},
                advantage=[[0.4, 0.5], [-0.6, -0.6]],
                grad=[[-0.1, -0.125], [0.15, 0.15]],
                why="outcomes 1 and 0 are ±0.5 around their mean; each turn adds its own cost; 1/2 · 1/2 per token",
            ),
            Golden(
                rewards=[-0.1, -0.1],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "turn_reward_bs": [[-0.1, 0.0], [-0.1, 0.0]]},
                advantage=[[-0.1, 0.0], [-0.1, 0.0]],
                why="outcomes are equal: what an action costs is still learned",
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
