"""Generative flow networks: rows are sampled in proportion to their reward, not at its maximum."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.returns import ReturnsToGo
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.critic.flow_loss import FlowLoss
from grouprl.algorithms.flow import Lambda
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.flow_balance import FlowBalance
from grouprl.algorithms.objective.papers.vargrad import VarGrad
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def vargrad(coef: Positive = 1.0) -> Method:
    """Compose VarGrad: the reward of a row is log R(x), and log P_B of its trajectory where that is not 0."""
    return Method(
        advantage=Relative("group", center="mean", scale="none"),
        objective=VarGrad(coef=coef),
        aggregate=SequenceMean(),
    )


entry(
    "vargrad",
    vargrad,
    Card(
        title="Robust Scheduling with GFlowNets",
        papers=[
            Paper("Robust Scheduling with GFlowNets", "2302.05446", 2023),
            Paper("VarGrad: A Low-Variance Gradient Estimator for Variational Inference", "2010.10436", 2020),
            Paper("Trajectory balance: Improved credit assignment in GFlowNets", "2201.13259", 2022),
        ],
        summary="Sample in proportion to the reward: log-probs differ in a group as log rewards do.",
        formula="L = mean_i (d_i - mean_g d)²,  d_i = Σ_t log π(y_i,t) - R_i,  R_i = log R(x_i) + Σ_t log P_B",
        defaults={"coef": "the papers: 1"},
        differs=[
            "Trajectory balance learns log Z; here the group's mean stands for it.",
            "Backward probabilities are the environment's to pay, as part of the reward; they are not learned.",
        ],
        needs=["at least two completions per prompt", "rewards that are logarithms: log R(x)"],
        source="GFNOrg/torchgfn: gfn/gflownet/trajectory_balance.py (LogPartitionVarianceGFlowNet)",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.5, -0.5],
                loss=0.1225,
                grad=[[0.35], [-0.35, -0.35]],
                why="old log-probs are -1: Σ log π = -0.7 and -2.4, less A: -1.2 and -1.9, centred ±0.35",
            ),
        ],
        recommended={"learning_rate": 1e-3},
    ),
)


PRETRAINING = Paper("Pre-Training and Fine-Tuning Generative Flow Networks", "2310.03419", 2023)
BALANCE = (
    "u_t = log F(s_t) - Σ_{s<t} (log π(a_s) - r_s),  r_t = log P_B(s_t | s_{t+1}), log R(x) besides at the end, "
    "where log F = 0"
)
SPLIT = [
    "The gradient is taken in two parts, by log-probs at fixed flows and by flows at fixed log-probs: together that of "
    "the whole loss in one optimiser step, which is all that a rollout gets.",
    "Flows and log Z learn at the policy's rate; the papers give log Z a larger one.",
    "Backward probabilities are the environment's to pay, as rewards of its steps; they are not learned.",
]
NEEDS = [
    "a critic (value head), whose value is log F",
    "rewards that are logarithms: log P_B of each step, and log R(x) at the end",
    "exactly one update per rollout",
]
RECORDED = (
    "After 100 steps on the 8 by 8 grid of docs/routing.md (one rate, no sweep) it is no nearer to the exact "
    "distribution than vargrad, which learns no flow: the seeds overlap."
)
SOURCE = "GFNOrg/torchgfn: gfn/gflownet/{trajectory_balance,detailed_balance,sub_trajectory_balance}.py"
FIELDS = {"value_bt": [[0.5, 0.25]], "turn_bt": [[0, 1]], "turn_reward_bs": [[0.25, 0.75]]}
LEVELS = "A is the reward to go; Σ(log π - r) before each state is 0, -1.25, -3, so u = 0.5, 1.5, 3"


def tb() -> Method:
    """Compose trajectory balance: log Z is the critic's value of the first state."""
    return subtb(None)


entry(
    "tb",
    tb,
    Card(
        title="Trajectory balance",
        papers=[
            Paper("Trajectory balance: Improved credit assignment in GFlowNets", "2201.13259", 2022),
            PRETRAINING,
        ],
        summary="Sample in proportion to the reward: a whole trajectory is balanced against a learned log Z.",
        formula=f"L = mean_i (u_0 - u_T)²,  {BALANCE};  log Z = log F(s_0)",
        differs=[*SPLIT, "Of the pre-training of conditional flow networks (the second paper) only this base is here."],
        reduces=[Reduction("subtb", other={"lam": None}, why="only the whole trajectory counts")],
        needs=NEEDS,
        notes=[RECORDED],
        source=SOURCE,
        golden=[
            Golden(
                [1],
                [2],
                fields=FIELDS,
                advantage=[[1, 0.75]],
                loss=6.25,
                grad=[[-5, -5]],
                why=f"{LEVELS}: (0.5 - 3)² = 6.25",
            ),
        ],
        recommended={"learning_rate": 1e-3},
    ),
)


def db() -> Method:
    """Compose detailed balance: every step has a flow of its own to balance."""
    return subtb(0.0)


entry(
    "db",
    db,
    Card(
        title="Detailed balance of flows",
        papers=[Paper("GFlowNet Foundations", "2111.09266", 2023), PRETRAINING],
        summary="Sample in proportion to the reward: the flow of each state is balanced with that of the next.",
        formula=f"L = mean_i 1/T Σ_t (u_t - u_{{t+1}})²,  {BALANCE}",
        differs=[*SPLIT, "Trajectories weigh the same, whatever their length; torchgfn's steps do."],
        reduces=[Reduction("subtb", other={"lam": 0.0}, why="only single steps count")],
        needs=NEEDS,
        notes=[RECORDED],
        source=SOURCE,
        golden=[
            Golden(
                [1],
                [2],
                fields=FIELDS,
                advantage=[[1, 0.75]],
                loss=1.625,
                grad=[[-1, -1.5]],
                why=f"{LEVELS}: (1 + 2.25)/2",
            ),
        ],
        recommended={"learning_rate": 1e-3},
    ),
)


def subtb(lam: Lambda = 0.9) -> Method:
    """Compose sub-trajectory balance: a stretch of n steps weighs λ^(n-1), None: only the whole trajectory."""
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=ReturnsToGo(),
        objective=FlowBalance(lam=lam),
        aggregate=SequenceMean(),
        critic=FlowLoss(lam=lam),
        on_policy=True,
    )


entry(
    "subtb",
    subtb,
    Card(
        title="Sub-trajectory balance",
        papers=[
            Paper(
                "Learning GFlowNets from partial episodes for improved convergence and stability", "2209.12782", 2023
            ),
            PRETRAINING,
        ],
        summary="Sample in proportion to the reward: every stretch of a trajectory is balanced, long ones weigh less.",
        formula=f"L = mean_i Σ_{{j<k}} λ^(k-j-1) (u_j - u_k)² / Σ_{{j<k}} λ^(k-j-1),  {BALANCE}",
        defaults={"lam": "the paper: 0.9"},
        differs=SPLIT,
        reduces=[
            Reduction("tb", settings={"lam": None}, why="only the whole trajectory counts"),
            Reduction("db", settings={"lam": 0.0}, why="only single steps count"),
        ],
        needs=NEEDS,
        notes=[RECORDED],
        source=SOURCE,
        golden=[
            Golden(
                [1],
                [2],
                fields=FIELDS,
                advantage=[[1, 0.75]],
                loss=8.875 / 2.9,
                grad=[[-6.5 / 2.9, -7.5 / 2.9]],
                why=f"{LEVELS}: (1 + 2.25 + 0.9·6.25)/(1 + 1 + 0.9)",
            ),
        ],
        recommended={"learning_rate": 1e-3},
    ),
)
