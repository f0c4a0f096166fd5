"""Learning from stored trajectories: cloning of what earned much, or more than its state's value."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.residual_weight import ResidualWeight
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.critic.implicit_values import Divergence, ImplicitValues
from grouprl.algorithms.curriculum.papers.stored_returns import Against, StoredReturns
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.update.papers.orthogonal_values import OrthogonalValues
from grouprl.algorithms.update.transitions import Transitions
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

EXPERT = (
    "warmup={steps: 0}",
    "task=trajectories:grouprl.envs.construction.combination_lock:expert_episodes",
    "task.of=env:grouprl.envs.construction.combination_lock:CombinationLock",
    "batch.group_size=1",
    "model.name=mlp",
)
"""Changes to a recipe that train on the trajectories of an expert."""


def weighted_bc(base: Method, temperature: Positive = 0.1, against: Against = "beginning") -> Method:
    """Compose behaviour cloning of stored trajectories that are drawn by their returns."""
    return base.with_parts(curriculum=StoredReturns(temperature=temperature, against=against))


entry(
    "weighted_bc",
    weighted_bc,
    Card(
        title="Behaviour cloning of trajectories drawn by their returns (AW and RW)",
        papers=[
            Paper(
                "Harnessing Mixed Offline Reinforcement Learning Datasets via Trajectory Weighting", "2306.13085", 2023
            )
        ],
        summary="Clone stored trajectories, which are drawn the more often the more they earned.",
        formula=(
            "p_i ∝ exp(x_i/α),  x_i = (Ĝ_i - min Ĝ)/(max Ĝ - min Ĝ),  Ĝ_i = G_i - V(s_0), V a linear regression of G "
            "on s_0 (AW; RW: Ĝ = G);  L = -1/Σ|y_i| Σ_i Σ_t log π(a_t|s_t)"
        ),
        defaults={
            "temperature": "Improbable-AI/harness-offline-rl, d3rlpy_examples: 0.1 (its CQL and IQL benchmark has 0.2)",
            "against": "the paper prefers AW where episodes begin in different states",
        },
        differs=[
            "Trajectories are drawn whole, where the paper draws single transitions; with a mean over the actions of a "
            "step both weigh an action by exp(x_i/α).",
            "The paper weighs the data of CQL, IQL and TD3+BC as well as cloning; here it is cloning alone.",
        ],
        notes=[
            "The code of the paper's d3rlpy example normalises returns and then takes a softmax of the raw ones; here "
            "it is the formula of its README.",
            "The gain is bounded by the positive-sided variance of the returns, which `grouprl plan` says.",
        ],
        reduces=[
            Reduction("sft", ["always"], why="the loss is that of cloning; only the choice of trajectories differs")
        ],
        needs=["stored trajectories with their rewards, one per prompt (task: trajectories:FILE)"],
        source="Improbable-AI/harness-offline-rl d3rlpy_examples/weighted_datasets.py, README",
        golden=[
            Golden(
                rewards=[3, 0],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.5, 0.0], [-1.0]],
                advantage=[1.0, 1.0],
                loss=3.5 / 3,
                grad=[[-1 / 3] * 2, [-1 / 3]],
                why="log-probs -0.5, -1 and -2, whatever the returns",
            )
        ],
        run=EXPERT,
    ),
    base="sft",
)


SAMPLE = (
    "One sample r + γV(s') stands for Q(s, a): where chance moves the state, a lucky step is taken for a merit of its "
    "action."
)
TARGET = (
    "The target V_old is the value as the step began, not a moving average with rate 0.005, and there is one critic."
)
FIELDS: dict[str, object] = {"value_bt": [[0.5, 0.5]], "turn_bt": [[0, 1]], "turn_reward_bs": [[0.25, 0.75]]}


def f_dvl(
    lam: Annotated[float, Field(gt=0.5, lt=1)] = 0.8,
    gamma: Share = 0.99,
    divergence: Divergence = "chi_square",
    temperature: Positive = 3.0,
    limit: Positive = 100.0,
    size: Count = 64,
) -> Method:
    """Compose f-DVL: implicit values, and cloning weighted by exp of the difference to them."""
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=ResidualWeight(gamma=gamma, rule="exponential", temperature=temperature, limit=limit),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
        critic=ImplicitValues(lam=lam, gamma=gamma, divergence=divergence),
        update=Transitions(size=size),
    )


entry(
    "f_dvl",
    f_dvl,
    Card(
        title="f-DVL: implicit values of stored data, then weighted cloning (dual RL)",
        papers=[
            Paper("Dual RL: Unification and New Methods for Reinforcement and Imitation Learning", "2302.08560", 2024)
        ],
        summary="Learn which stored actions turned out better than usual, without asking for others, and clone these.",
        formula=(
            "L_V = mean[λ·F(δ_t) - (1-λ)·δ_t],  F(δ) = max(δ,0) (total variation) or δ⁺ + (δ⁺)²/4 (χ²),  "
            "δ_t = r_t + γV_old,{t+1} - V_t;  L_π = -mean[min(exp(τδ_t), 100)·log π(a_t|s_t)]"
        ),
        defaults={
            "lam": "the paper: between 0.5 and 1; ours in between",
            "gamma": "the paper: 0.99",
            "divergence": "χ², as in most of the paper's settings",
            "temperature": "IQL's for locomotion: 3",
            "limit": "hari-sikchi/DVL, actor.py: 100",
            "size": "that of ppo_control; DVL has 256",
        },
        differs=[
            SAMPLE,
            TARGET,
            "χ² is flat below 0: the authors' code takes max(δ + δ²/4, 0), which rises again below -4.",
        ],
        notes=[
            in_the_update("those of whole trajectories"),
            "χ² knows the scale of rewards; total variation does not.",
        ],
        reduces=[Reduction("sft", settings={"temperature": 1e-12}, why="every action weighs 1")],
        needs=["stored trajectories with their rewards (task: trajectories:FILE)", "a critic (value head)"],
        source="hari-sikchi/DVL offline/critic.py, actor.py; the paper, section 5",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields=FIELDS,
                settings={"gamma": 0.5, "temperature": 2.0},
                advantage=[[1.0, 1.648721271]],
                loss=1.324360635,
                grad=[[-0.5, -0.824360635]],
                why="δ = 0.25 + 0.5·0.5 - 0.5 = 0 and 0.75 - 0.5 = 0.25: weights e^0 and e^0.5, log-probs -1",
            )
        ],
        recommended={"group": 1, "learning_rate": 3e-4},
        run=EXPERT,
    ),
)


def odice(
    lam: Annotated[float, Field(gt=0.5, lt=1)] = 0.6,
    gamma: Share = 0.99,
    eta: NonNegative = 1.0,
    limit: Positive = 100.0,
) -> Method:
    """Compose ODICE: values by an orthogonal gradient, and cloning weighted by what is above them."""
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=ResidualWeight(gamma=gamma, rule="residual", limit=limit),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
        critic=ImplicitValues(lam=lam, gamma=gamma, divergence="conjugate"),
        update=OrthogonalValues(eta=eta),
    )


entry(
    "odice",
    odice,
    Card(
        title="ODICE: values by an orthogonal gradient, then weighted cloning",
        papers=[
            Paper(
                "ODICE: Revealing the Mystery of Distribution Correction Estimation via Orthogonal-gradient Update",
                "2402.00348",
                2024,
            )
        ],
        summary="As f-DVL, and values also learn from a state to the next, as far as that does not undo the other way.",
        formula=(
            "g = ∇(1-λ)V(s) + g_f + η·(g_b - (g_f·g_b/|g_f|²)·g_f),  g_f = ∇_{V(s)} λf*(r + γV_old' - V),  "
            "g_b = ∇_{V(s')} λf*(r + γV' - V_old),  f*(x) = x + x²/4 from -2 on, else -1;  "
            "L_π = -mean[min(max(δ_t, 0), 100)·log π(a_t|s_t)]"
        ),
        defaults={
            "lam": "maoliyuan/ODICE-Pytorch: 0.6, another for some data sets",
            "gamma": "the code: 0.99",
            "eta": "the code: 1",
            "limit": "the code: 100",
        },
        differs=[TARGET, "No layer normalisation and one critic, where the code has two."],
        notes=[in_the_update("those of whole trajectories; the backward gradient is not among them")],
        reduces=[
            Reduction(
                "f_dvl",
                settings={"limit": 1e-7},
                other={"temperature": 1e9},
                scale=None,
                why="both clone every action that turned out better than its value, all alike, and no other",
            ),
        ],
        needs=["stored trajectories with their rewards (task: trajectories:FILE)", "a critic (value head)"],
        source="maoliyuan/ODICE-Pytorch: odice.py, configs/offline_RL.yaml",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields=FIELDS,
                settings={"gamma": 0.5},
                advantage=[[0.0, 0.25]],
                loss=0.125,
                grad=[[0.0, -0.125]],
                why="max(δ, 0) of 0 and 0.25: one action of two is cloned, log-prob -1",
            )
        ],
        recommended={"group": 1, "learning_rate": 2e-4},
        run=EXPERT,
    ),
)
