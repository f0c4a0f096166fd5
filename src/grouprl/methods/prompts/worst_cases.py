"""REINFORCE for the worst of several settings of an environment: robust control without a model of chance."""

from __future__ import annotations

from grouprl.algorithms.curriculum.papers.worst_cases import WorstCases, WorstNow
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Count, NonNegative, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry

SAME_LOSS = Reduction("reinforce", why="the loss is REINFORCE's; only the case that is played differs")
CASES = "prompts that are the cases (task.grid, and as many data.prompts as it has combinations)"
LUCK = "episodes with chance events of their own (task.own_luck)"
GOLDEN = Golden(
    rewards=[1, 0, 2],
    lengths=[2, 1, 1],
    groups=[0, 1, 2],
    advantage=[1.0, 0.0, 2.0],
    loss=4 / 3,
    grad=[[-1 / 3] * 2, [0.0], [-2 / 3]],
    why="log-probs are -1: (1·2 + 2·1)/3",
)


def iwocs(base: Method, every: Count = 10, episodes: Count = 16) -> Method:
    """Compose IWOCS: REINFORCE on the worst of a set of cases to which the worst of all is added now and then."""
    return base.with_parts(curriculum=WorstCases(every=every, episodes=episodes))


entry(
    "iwocs",
    iwocs,
    Card(
        title="Incremental Worst-Case Search",
        papers=[Paper("Solving robust MDPs as a sequence of static RL problems", "2410.06212", 2024)],
        summary="REINFORCE on the worst of the known settings of an environment, to which the worst of all is added.",
        formula=(
            "L = -1/B Σ_i Σ_t (R_i - b) log π(a_t) in the case argmin_{ψ ∈ T} J(π; ψ);  T = {ψ_0} at first, every n "
            "steps T ← T ∪ {argmin_ψ J(π; ψ)}"
        ),
        defaults={"every": "n, our choice: 10 steps", "episodes": "our choice: 16 measure a case"},
        differs=[
            "One policy is trained on; the paper solves each case anew and acts by the least of their Q functions.",
            "All cases are measured, where the paper searches them by an evolution strategy.",
            "A run has as many steps as it has; the paper ends when the worst case is a known one.",
        ],
        reduces=[SAME_LOSS],
        needs=["exactly one update per rollout", CASES, LUCK],
        confidence="partly",
        uncertain="the paper's algorithm beyond its theorems",
        notes=[
            "A store against five demands, three seeds: -4.31 to -4.36 in the worst, -4.28 being the best, and -7.07 "
            "to -8.05 by reinforce on all in turn (docs/control.md).",
        ],
        source="an overview of the paper",
        golden=[GOLDEN],
    ),
    base="reinforce",
    keeps=("baseline",),
)


def drpg(base: Method, episodes: Count = 16, tolerance: NonNegative = 1.0, shrink: Share = 0.95) -> Method:
    """Compose DRPG: REINFORCE on the case that is the worst for the policy of the step, to within a tolerance."""
    return base.with_parts(curriculum=WorstNow(episodes=episodes, tolerance=tolerance, shrink=shrink))


entry(
    "drpg",
    drpg,
    Card(
        title="Double-loop robust policy gradient",
        papers=[Paper("Policy Gradient in Robust MDPs with Global Convergence Guarantee", year=2023)],
        summary="REINFORCE on the setting of an environment that is now the worst, found ever more exactly.",
        formula=(
            "L = -1/B Σ_i Σ_t (R_i - b) log π(a_t) in a case ψ_k with J(π_k; ψ_k) ≤ min_ψ J(π_k; ψ) + ε_k,  "
            "ε_{k+1} = γ·ε_k"
        ),
        defaults={
            "episodes": "our choice: 16 measure a case",
            "tolerance": "ε_0, our choice: 1",
            "shrink": "γ, our choice: 0.95; the paper has that of the returns",
        },
        differs=[
            "The cases are finitely many and gone through, where the paper climbs on the transition kernel.",
            "The policy's step is the optimiser's on sampled episodes; the paper projects exact gradients of tables.",
        ],
        reduces=[SAME_LOSS],
        needs=["exactly one update per rollout", CASES, LUCK],
        confidence="partly",
        uncertain="the paper's constants",
        notes=["It is as good as iwocs on a store against five demands, for more measurements (docs/control.md)."],
        source="the abstract and summaries of the paper",
        golden=[GOLDEN],
    ),
    base="reinforce",
    keeps=("baseline",),
)
