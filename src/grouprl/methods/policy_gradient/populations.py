"""Populations of strategies, trained so that one of them is good at each instance."""

from __future__ import annotations

from grouprl.algorithms.advantage.papers.winner import StrictWinner, WinnerMargin
from grouprl.algorithms.allocation.variants import Strategies
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Count
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

POPPY = Paper(
    "Winner Takes It All: Training Performant RL Populations for Combinatorial Optimization", "2210.03475", 2022
)
COMPASS = Paper("Combinatorial Optimization with Policy Adaptation using Latent Space Search", "2311.13569", 2023)
POMO = Reduction(
    "reinforce",
    ["one_strategy"],
    other={"baseline": "group"},
    why="a single strategy: the mean of its own solutions is the baseline",
)
NEEDS = [
    "exactly one update per rollout",
    "a task that tells the policy its strategy (construct: with task.strategies)",
]
GROUP = "equal numbers of solutions of each strategy; the j-th of each are compared, in the order sampled"

BEHIND = "On 8 cities, 80 steps, the best of four tours was behind that of a single strategy (docs/routing.md)."


def poppy(base: Method, strategies: Count = 4) -> Method:
    """Compose Poppy: the best of several strategies is credited by how far it beats the second best."""
    return base.with_parts(allocation=Strategies(limit=strategies), advantage=WinnerMargin())


entry(
    "poppy",
    poppy,
    Card(
        title="Poppy, a population whose winner takes it all",
        papers=[POPPY],
        summary="Several strategies solve each instance; only the best one learns, by its lead over the second.",
        formula=(
            "L = -1/B Σ_j,k A_j,k Σ_t log π_k(y_t),  A_j,k = [k = argmax_k' R_j,k']·(max_k' R_j,k' - second_k' R_j,k'),"
            "  j the solution, k the strategy"
        ),
        defaults={"strategies": "4: ours; the paper has 4, 8 and 16"},
        differs=[
            "The paper has a decoder for each strategy, copies of one that POMO trained; here one policy reads the "
            "number of its strategy, and all strategies are trained from the start.",
            "The loss is divided by all rows, the paper's by those of one strategy: under Adam this does not matter.",
            "Where a tour starts is drawn for each row, so the solutions of a slot may start in different cities.",
        ],
        reduces=[POMO],
        needs=NEEDS,
        notes=[GROUP, BEHIND, "Strategies that are equal learn from chance alone: what is sampled must differ."],
        source="instadeepai/poppy, poppy/trainers/trainer.py",
        golden=[
            Golden(
                rewards=[1.0, 3.0, 2.5, 3.0],
                fields={"keys.variant": [0, 0, 1, 1]},
                advantage=[0.0, 0.0, 1.5, 0.0],
                loss=0.375,
                grad=[[0.0], [0.0], [-0.375], [0.0]],
                why="slot 0 has 1 and 2.5: strategy 1 wins by 1.5. Slot 1 is tied. Log-probs are -1, of 4 rows",
            ),
        ],
        recommended={"learning_rate": 1e-4},
    ),
    base="reinforce",
    keeps=("kl_coef", "kl_estimator"),
)


def compass(base: Method, strategies: Count = 4) -> Method:
    """Compose COMPASS: the strategy that alone does best is compared with its own other solutions."""
    return base.with_parts(allocation=Strategies(limit=strategies), advantage=StrictWinner())


entry(
    "compass",
    compass,
    Card(
        title="COMPASS, policies conditioned on a latent vector",
        papers=[COMPASS],
        summary="Latent vectors make one policy many; only the winner of an instance learns.",
        formula=(
            "L = -1/B Σ_j,k A_j,k Σ_t log π(y_t | z_k),  A_j,k = [k alone is best of slot j]·(R_j,k - mean_j' R_j',k), "
            " z_k ~ U(-1, 1)^d for each instance"
        ),
        defaults={"strategies": "4 latent vectors per instance: ours; the paper has 128 with 20 starts each"},
        differs=[
            "The paper begins with a POMO policy, and multiplies the latent vector by 100.",
            "The loss is divided by all rows; the paper's by those that won alone. Under Adam this hardly matters.",
            "The paper searches for the best z of an instance at test time (CMA-ES); a run's evaluations draw them, "
            "and the search is a function: grouprl.evaluation.latent_search.search.",
        ],
        reduces=[POMO],
        needs=[*NEEDS, "latent vectors for strategies: task.latent"],
        notes=[GROUP, BEHIND],
        source="instadeepai/compass, trainers/routing/trainer_routing.py",
        golden=[
            Golden(
                rewards=[1.0, 3.0, 2.5, 3.0],
                fields={"keys.variant": [0, 0, 1, 1]},
                advantage=[0.0, 0.0, -0.25, 0.0],
                loss=-0.0625,
                grad=[[0.0], [0.0], [0.0625], [0.0]],
                why="strategy 1 alone wins slot 0, with less than its own mean of 2.75; slot 1 is tied",
            ),
        ],
        recommended={"learning_rate": 1e-4},
    ),
    base="reinforce",
    keeps=("kl_coef", "kl_estimator"),
)
