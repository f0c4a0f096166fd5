"""PPO of a team that is told a strategy, and paid for playing it in a way that tells which one it is (MRA)."""

from __future__ import annotations

from grouprl.algorithms.allocation.variants import Strategies
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.strategy_information import StrategyInformation
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def mra(
    base: Method,
    strategies: Count = 2,
    information: NonNegative = 0.1,
    decoder_lr: Positive = 1e-3,
    decoder_steps: Count = 20,
    decoder_width: Count = 64,
) -> Method:
    """Compose the core of MRA: PPO of several strategies, with a bonus for actions that tell them apart."""
    told = StrategyInformation(
        strategies=strategies, coef=information, lr=decoder_lr, steps=decoder_steps, width=decoder_width
    )
    return base.with_parts(allocation=Strategies(limit=strategies), reward_transform=(*base.reward_transform, told))


entry(
    "mra",
    mra,
    Card(
        title="MRA, meta representations for agents",
        papers=[
            Paper("Learning Meta Representations for Agents in Multi-Agent Reinforcement Learning", "2108.12988", 2021)
        ],
        summary="A team of any size is told a strategy for an episode; actions that tell strategies apart earn more.",
        formula=(
            "r_t = r_team + c·(log q(z|o_t, a_t) - log p(z)),  z one of K strategies for an episode, p(z) = 1/K, "
            "q fitted to the z of what was done;  then ippo's loss with π(a|o, z)"
        ),
        defaults={
            "strategies": "our choice: 2",
            "information": "not known: 0.1 is our choice",
            "decoder_lr": "our choice: 1e-3",
            "decoder_steps": "our choice: 20 steps on all actions of a rollout",
            "decoder_width": "our choice: two layers of 64",
        },
        differs=[
            "Strategies are numbers and the information has a fixed weight; the paper constrains it and optimises it "
            "and the return in turn.",
            "Agents have no encoder over the others they see: what a world shows of them is its own choice.",
            "The strategy for a new game is not adapted by gradients: each is tried, and the best one taken.",
        ],
        reduces=[
            Reduction("ippo", settings={"information": 0.0}, why="without the bonus a told strategy is an observation")
        ],
        needs=[
            "a critic (value head)",
            "a policy over arrays (model: mlp)",
            "a world that tells its agents a strategy (grouprl.envs.joint_world.told makes one)",
        ],
        notes=[
            "Equal numbers of episodes of each strategy are sampled for a prompt.",
            in_the_update("those of whole sequences"),
        ],
        confidence="partly",
        uncertain="The paper's objective beyond its abstract: how the information is constrained and estimated.",
        source="the paper's abstract, by our notes on it; the bonus is DIAYN's (arXiv:1802.06070)",
        golden=[
            Golden(
                rewards=[1, 1],
                fields={
                    "agent_b": [0, 1],
                    "keys.variant": [0, 1],
                    "value_bt": [[0.0], [0.0]],
                    "turn_bt": [[0], [0]],
                    "turn_reward_bs": [[1.0], [1.0]],
                    "entropy_bt": [[1.0], [1.0]],
                    "stats.decoded": [[0.0], [-1.3862943611198906]],
                },
                settings={"information": 1.0, "whiten": False, "entropy_coef": 0.0},
                advantage=[[1.6931471805599454], [0.30685281944005466]],
                loss=-1.0,
                grad=[[-0.8465735902799727], [-0.15342640972002733]],
                why="q is sure of the first strategy: 1 + log 2; it gives the second a chance of 1/4: 1 - log 2; "
                "the mean of two actions",
            )
        ],
        recommended={"epochs": 4},
    ),
    base="ippo",
)
