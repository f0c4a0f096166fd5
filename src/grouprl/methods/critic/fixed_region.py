"""PPO for control in a trust region that holds in every state: a penalty, then steps until none is outside."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.update.papers.fix_up import FixUp
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

AUTHORS = "the authors' code"


def fixpo(
    base: Method,
    size: Count,
    epsilon: Positive = 0.2,
    target: Positive = 2.0,
    start: NonNegative = 1.0,
    beta_lr: Positive = 0.01,
    sweeps: Count = 100,
    entropy_coef: NonNegative = 0.01,
) -> Method:
    """Compose FixPO: no clip; an update that ends with KL(π_old || π) at most ε in every state of the rollout."""
    update = FixUp(size=size, epsilon=epsilon, target=target, start=start, beta_lr=beta_lr, sweeps=sweeps)
    return base.with_parts(objective=Importance(), update=update)


entry(
    "fixpo",
    fixpo,
    Card(
        title="FixPO",
        papers=[
            Paper("Guaranteed Trust Region Optimization via Two-Phase KL Penalization", "2312.05405", 2023),
        ],
        summary="PPO for control without a clip: a KL penalty, then repairs until no state has moved by more than ε.",
        formula=(
            "L = mean over M actions of -ρ·A + c·½·(V - G)² - c_H·H + β·KL_s,  KL_s = KL(π_old(·|s) || π(·|s));  after "
            "each step β ← max(0, Adam on β·(ε - C·max KL_s));  then steps on β·mean KL_s until max KL_s ≤ ε"
        ),
        defaults={
            "epsilon": f"{AUTHORS}: 0.2",
            "target": f"C, {AUTHORS}: 2",
            "start": f"β at the beginning, {AUTHORS}: 1",
            "beta_lr": f"{AUTHORS}: 0.01",
            "sweeps": "our choice: 100",
            "entropy_coef": f"{AUTHORS}: 0.01",
        },
        differs=[
            "Advantages are whitened once over the rollout, the authors' in each minibatch.",
            "The second phase comes once, after all passes over the rollout.",
            "The authors repeat it without end; here, after `sweeps` passes with a state outside, the weights go back "
            "to those before the update.",
        ],
        reduces=[
            Reduction(
                "ppo_control",
                ["on_policy"],
                settings={"entropy_coef": 0.0},
                why="the loss is ρ·A alone, which a clip leaves as it is where ρ is 1; the penalty is in the update",
            ),
        ],
        needs=["a critic (value head)", "a policy over arrays with a known KL (model: mlp or squashed)"],
        notes=[
            "On CartPole it shows no sure gain over ppo_control, eight seeds each (docs/control.md).",
            in_the_update("those of whole sequences, without the penalty"),
            "The bound holds in the states of the rollout, not in others.",
            "For text it would need the old probabilities of the whole vocabulary at every token; it is not for text.",
        ],
        source="the authors' FixPOPolicy (tianshou)",
        golden=[
            Golden(
                rewards=[1],
                log_ratio=[[0.4054651081081644]],
                fields={"value_bt": [[0.5]], "turn_bt": [[0]], "turn_reward_bs": [[1.0]]},
                settings={"whiten": False, "entropy_coef": 0.0},
                advantage=[[0.5]],
                loss=-0.75,
                grad=[[-0.75]],
                why="ρ = 1.5 is not clipped: -1.5·0.5",
            ),
        ],
        recommended={"epochs": 10},
    ),
    base="ppo_control",
    keeps=("gamma", "lam", "size", "whiten", "value_coef", "value_clip", "entropy_coef", "scale_rewards"),
)
