"""PPO for control whose encoder learns, every few rollouts, to tell achievements and to foresee them (PPO-AD)."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.achievement_phases import AchievementPhases
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Paper, Reduction
from grouprl.methods.critic.control import CLIPPED
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

AUTHORS = "the authors' code"


def ppo_ad(
    base: Method,
    size: Count,
    every: Count = 8,
    passes: Count = 6,
    together: Count = 512,
    above: NonNegative = 0.1,
    temperature: Positive = 0.1,
    targets: Count = 16,
    hold_policy: NonNegative = 1.0,
    hold_values: NonNegative = 1.0,
) -> Method:
    """Compose PPO-AD: PPO for control, and phases of contrastive learning between its updates."""
    update = AchievementPhases(
        size=size,
        every=every,
        passes=passes,
        together=together,
        above=above,
        temperature=temperature,
        targets=targets,
        kl_coef=hold_policy,
        value_coef=hold_values,
    )
    return base.with_parts(update=update)


entry(
    "ppo_ad",
    ppo_ad,
    Card(
        title="Achievement Distillation",
        papers=[
            Paper(
                "Discovering Hierarchical Achievements in Reinforcement Learning via Contrastive Learning",
                "2307.03486",
                2023,
            ),
        ],
        summary="PPO for control, with phases in which the encoder learns which achievements are the same or next.",
        formula=(
            "PPO;  every k rollouts, with φ ∝ enc(o') - enc(o) and h(o,a) of length 1:  "
            "CE(φ_i; sg φ_same, sg φ_any) and CE(sg φ_next; h_t, h_s) of cosines over τ,  "
            "each + c_π·KL(π || π_k) + c_V·(V - G)²"
        ),
        defaults={
            "every": f"rollouts from phase to phase, {AUTHORS}: 8",
            "passes": f"{AUTHORS}: 6",
            "together": f"actions of a step of a phase, {AUTHORS}: at most 512",
            "above": f"pay of an achievement, {AUTHORS}: 0.1",
            "temperature": f"τ, {AUTHORS}: 0.1",
            "targets": f"other trajectories that one is matched with, {AUTHORS}: 16",
            "hold_policy": f"c_π, {AUTHORS}: 1",
            "hold_values": f"c_V, {AUTHORS}: 1",
        },
        differs=[
            "A step of a phase takes achievements or actions of several trajectories, theirs of one.",
            "Matches are found once a pass, theirs before each trajectory's steps.",
            "One optimiser; theirs has one for PPO and one for each of the two losses.",
            "The memory is encoded by the weights as they are, theirs as they were when it was stored.",
            "Advantages and discounts are ppo_control's; theirs are gamma 0.95, lambda 0.65.",
        ],
        reduces=[
            Reduction("ppo_control", why="the loss is ppo_control's; the phases are in the update"),
        ],
        needs=["a critic (value head)", "a policy that represents achievements (model: achievements)"],
        notes=[
            "In a workshop of five things a gain over ppo_control is likely, not sure: +0.42 [-0.01, +0.84] of 3.2 "
            "unlocked (docs/control.md).",
            in_the_update("those of ppo_control"),
            "An environment that shows the last unlocking (grouprl.records.unlocking) gives the policy its memory.",
            "With every above the number of steps it is ppo_control, bit by bit.",
        ],
        source="the authors' ppo_ad.py",
        golden=[CLIPPED],
        recommended={"epochs": 3},
    ),
    base="ppo_control",
)
