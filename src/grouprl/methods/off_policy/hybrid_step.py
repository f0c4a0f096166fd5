"""TRPO whose critic and actor also use stored trajectories: HNPG."""

from __future__ import annotations

from grouprl.algorithms.advantage.returns import ReturnsToGo
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.update.papers.hybrid_step import HybridStep
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def hnpg(
    stored: str = "",
    share: NonNegative = 1.0,
    gamma: Share = 0.99,
    lam: Share = 0.95,
    sweeps: Count = 5,
    critic_steps: Count = 30,
    critic_lr: Positive = 3e-3,
    width: Count = 64,
    delta: Positive = 0.01,
    damping: NonNegative = 0.1,
    cg_iterations: Count = 10,
    backtracks: Count = 10,
) -> Method:
    """Compose HNPG: a natural gradient step on a rollout and on stored states, credited by a critic fitted to both."""
    step = HybridStep(
        stored=stored,
        share=share,
        gamma=gamma,
        lam=lam,
        sweeps=sweeps,
        steps=critic_steps,
        lr=critic_lr,
        width=width,
        delta=delta,
        damping=damping,
        iterations=cg_iterations,
        backtracks=backtracks,
    )
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=ReturnsToGo(gamma=gamma),
        objective=Importance(),
        aggregate=TokenMean(),
        update=step,
        on_policy=True,
    )


entry(
    "hnpg",
    hnpg,
    Card(
        title="Hybrid natural policy gradient",
        papers=[
            Paper("Offline Data Enhanced On-Policy Policy Gradient with Provable Guarantees", "2311.08384", 2023),
        ],
        summary="TRPO on the rollout and on stored states, with a critic that is fitted to both.",
        formula=(
            "min_f mean_on (f(s,a) - G)² + mean_off (f(s,a) - [r + γ·Σ_a' π(a'|s')f(s',a')])²;  "
            "max_θ mean_{on ∪ off} ρ·A  subject to  mean KL ≤ δ,  A_on by GAE with V = Σ_a π·f,  "
            "A_off = f(s,a) - V(s) with a ~ π"
        ),
        defaults={
            "stored": "none: the function that returns your trajectories is yours to name",
            "share": "YifeiZhou02/HNPG: as many stored steps as the rollout has",
            "gamma": "customary: 0.99; the code sets 1, with finite episodes",
            "lam": "customary: 0.95",
            "sweeps": "our choice: 5, for the code's recursion over the steps of an episode",
            "critic_steps": "the code: 30 steps of Adam",
            "critic_lr": "our choice: 3e-3; the code has 3e-4 for a critic of each step",
            "width": "our choice: two layers of 64",
            "delta": "TRPO's: 0.01",
            "damping": "customary: 0.1",
            "cg_iterations": "the code: 10",
            "backtracks": "the code: 10",
        },
        differs=[
            "One policy and one critic serve all steps of an episode; the code has one of each for every step, fitted "
            "from the last step to the first.",
            "Targets of stored steps take the mean over the policy's actions, the code one sampled action.",
            "A step is taken when the KL is small enough and the loss has fallen; the code asks for a tenth of the "
            "expected gain.",
            "The code's weight decay, which in effect reaches one layer alone, is left out.",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["on_policy", "equal_lengths", "no_turn_rewards"],
                settings={"gamma": 1.0, "share": 0.0},
                scale=None,
                why="one pay at the end: before its critic is asked, every action has the reward; the step is TRPO's",
            ),
        ],
        needs=[
            "exactly one update per rollout",
            "weights in float32",
            "numbered actions and observations that are one array (model: mlp)",
            "a function that returns stored trajectories (method.stored)",
        ],
        notes=[
            in_the_update("TRPO's objective with the returns themselves as advantages"),
            "The rollout's half is credited by its own returns, so that stored data without use add noise and no bias "
            "to it; the stored half is as good as the critic is.",
            "share: 0 is TRPO with a critic that is fitted to returns alone.",
            "A lock with ten places of ten numbers is opened with an expert's trajectories, by four of eight seeds "
            "within 40 steps, and not without; with trajectories of chance an easy lock is learnt as well as without "
            "(docs/control.md).",
        ],
        source="YifeiZhou02/HNPG trpo.py",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.3, -0.5]],
                fields={"turn_bt": [[0, 1]], "turn_reward_bs": [[0.25, 0.75]]},
                settings={"gamma": 0.5},
                advantage=[[0.625, 0.75]],
                loss=-0.649280,
                grad=[[-0.42183088, -0.22744900]],
                why="0.25 + 0.5·0.75 and 0.75; -ρ·A/2: 0.625·e^0.3/2 and 0.75·e^-0.5/2",
            )
        ],
        recommended={"delta": 0.01},
    ),
)
