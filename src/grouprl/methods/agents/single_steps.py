"""Methods whose groups are single steps: Hi-Agent's planner and actor, StepGRPO's rewarded steps of reasoning."""

from __future__ import annotations

from grouprl.algorithms.advantage.per_agent import RoleRelative
from grouprl.algorithms.filter.papers.agents_in_turn import AgentsInTurn
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.components import WeightedComponents
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative, Whole
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TWO = "at least two completions per prompt"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i) + β·KL"
KL_OFF = "off, so that no reference is needed; the paper's is not known"


def hi_agent(
    loss: Method,
    scale: Scale,
    eps: NonNegative,
    alone: Alone,
    format_weight: NonNegative = 1.0,
    execution_weight: NonNegative = 1.0,
    judge_weight: NonNegative = 1.0,
    every: Whole = 1,
) -> Method:
    """Compose Hi-Agent: GRPO over sub-goals at a state, and over attempts at a sub-goal, in turn."""
    weights = {"format": format_weight, "execution": execution_weight, "judge": judge_weight}
    return loss.with_parts(
        reward_transform=(WeightedComponents(weights=weights, agent=0),),
        filter=(AgentsInTurn(every=every),) if every else (),
        advantage=RoleRelative(keys=("group", "episode"), scale=scale, eps=eps, alone=alone),
    )


entry(
    "hi_agent",
    hi_agent,
    Card(
        title="Hi-Agent: foresight for a planner of single steps",
        papers=[
            Paper("Hi-Agent: Hierarchical Vision-Language Agents for Mobile Device Control", "2510.14388", 2025),
        ],
        summary="A planner's sub-goals are rewarded by how well the current actor carries them out, step by "
        "step, without a tree.",
        formula=(
            f"{GRPO_LOSS},  planner: R = λ1·format + λ2·R_exec(π_actor(s,g)) + λ3·V_judge(s,g), A over sub-goals at "
            "one state;  actor: its own reward, A over attempts at the same state and sub-goal;  one of the two a step"
        ),
        defaults={
            "format_weight": "not known: λ1 = 1",
            "execution_weight": "not known: λ2 = 1",
            "judge_weight": "not known: λ3 = 1; 0 where nobody judges",
            "every": "the paper alternates, how often is not known: 1 step each; 0 trains both in every step",
            **PPO_CLIP,
            "kl_coef": KL_OFF,
        },
        differs=[
            "An episode of the task is one sub-goal and several attempts at it (task subgoals): execution is their "
            "mean, where the paper speaks of one action of the actor.",
            "The actor learns from the sub-goals that the planner wrote; with which the paper's actor learns is not "
            "known.",
            "Format, execution and judge's value are reward components that the environment names so.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["format_alone"],
                settings={"execution_weight": 0.0, "judge_weight": 0.0, "every": 0},
                why="without foresight, a planner's sub-goals at one state are a plain group",
            ),
        ],
        needs=[TWO, "a planner and an actor, in this order, who attempts each sub-goal at least twice", KL_NEED],
        confidence="partly",
        uncertain="λ1, λ2 and λ3, how often the two alternate, the KL term, the sub-goals that the actor learns from.",
        source="the paper's opening and a review of it, by our notes on it",
        golden=[
            Golden(
                rewards=[0, 1, 0, 0, 0, 0],
                groups=[0, 1, 1, 0, 1, 1],
                fields={
                    "agent_b": [0, 1, 1, 0, 1, 1],
                    "keys.episode": [0, 0, 0, 1, 1, 1],
                    "rewards.format": [1.0, 0.0, 0.0, 1.0, 0.0, 0.0],
                    "rewards.execution": [0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
                    "rewards.judge": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
                    "step": 0,
                },
                settings={"scale": "none"},
                advantage=[0.25, 0.0, 0.0, -0.25, 0.0, 0.0],
                grad=[[-0.125], [0.0], [0.0], [0.125], [0.0], [0.0]],
                why="sub-goals earn 1.5 and 1: ±0.25; at step 0 the planner learns, its two rows weigh 1/2 each",
            ),
            Golden(
                rewards=[0, 1, 0, 0, 0, 0],
                groups=[0, 1, 1, 0, 1, 1],
                fields={
                    "agent_b": [0, 1, 1, 0, 1, 1],
                    "keys.episode": [0, 0, 0, 1, 1, 1],
                    "rewards.format": [1.0, 0.0, 0.0, 1.0, 0.0, 0.0],
                    "rewards.execution": [0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
                    "rewards.judge": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
                    "step": 1,
                },
                settings={"scale": "none"},
                advantage=[0.0, 0.5, -0.5, 0.0, 0.0, 0.0],
                grad=[[0.0], [-0.125], [0.125], [0.0], [0.0], [0.0]],
                why="at step 1 the actor learns: attempts at the first sub-goal differ, at the second both fail; "
                "four rows of 1/4",
            ),
        ],
        recommended={"group": 8, "model.agents": "separate"},
        notes=["A tree of sub-goals would cost G^n episodes for n steps; groups of single steps cost n·G."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def step_grpo(
    loss: Method,
    key_weight: NonNegative = 0.1,
    valid_weight: NonNegative = 1.0,
) -> Method:
    """Compose StepGRPO: GRPO on accuracy, key steps and valid order of steps."""
    weights = {"accuracy": 1.0, "key_steps": key_weight, "valid_steps": valid_weight}
    return loss.with_parts(reward_transform=(WeightedComponents(weights=weights),))


entry(
    "step_grpo",
    step_grpo,
    Card(
        title="StepGRPO: rewarded steps of reasoning (R1-VL)",
        papers=[
            Paper(
                "R1-VL: Learning to Reason with Multimodal Large Language Models via Step-wise Group Relative Policy "
                "Optimization",
                "2503.12937",
                2025,
            )
        ],
        summary="GRPO on one number per completion: right, a tenth for the key steps that occur, one for their order.",
        formula=f"{GRPO_LOSS},  R = accuracy + 0.1·StepRAR + StepRVR,  A_i = (R_i - mean_g R)/(std_g R + eps)",
        defaults={
            "key_weight": "the authors' code: 0.1",
            "valid_weight": "the authors' code: 1",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed; the authors have TRL's",
        },
        differs=[
            "None known in the optimiser: despite the name no step has an advantage of its own in the authors' code.",
            "The components accuracy, key_steps and valid_steps are the reward's (grouprl.rewards.by_task.stepwise).",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["accuracy_alone"],
                settings={"key_weight": 0.0, "valid_weight": 0.0},
                why="without rewards for steps it is GRPO on the accuracy",
            ),
        ],
        needs=[TWO, "a reward with the components accuracy, key_steps and valid_steps", KL_NEED],
        source="jingyi0000/R1-VL src/r1-vl/src/open_r1/grpo.py, by our notes on it",
        golden=[
            Golden(
                rewards=[0, 0],
                lengths=[2, 2],
                fields={
                    "rewards.accuracy": [1.0, 0.0],
                    "rewards.key_steps": [0.5, 1.0],
                    "rewards.valid_steps": [0.0, 1.0],
                },
                settings={"scale": "none"},
                advantage=[-0.025, 0.025],
                loss=0.0,
                grad=[[0.00625, 0.00625], [-0.00625, -0.00625]],
                why="R = 1 + 0.05 and 0.1 + 1: half their difference; 1/2 · 1/2 per token",
            ),
        ],
        recommended={"group": 4},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
