"""Arenas of scripts/control.py in which an episode is a single choice of each agent."""

from __future__ import annotations

from typing import Any

PAY, TARGET = (1.0, 0.6, 0.0), 0.7
ARMS: dict[str, Any] = {
    "task": {"name": "env:grouprl.envs.construction.arms:Arms", "turns": 1},
    "model": {"name": "mlp", "settings": {"hidden": [32]}},
    "batch": {"prompts": 1, "group_size": 32, "minibatches": 1},
    "optim": {"schedule": "constant"},
    "steps": 150,
    "methods": {
        "squares": (
            {"base": "reinforce", "baseline": "group"},
            (1e-2,),
            {"task": {"config": {"pay": [-((x - TARGET) ** 2) for x in PAY]}}},
        ),
        "counterpol": ({"name": "counterpol", "baseline": "group", "target": TARGET, "every": 1000}, (1e-2,)),
    },
}
"""Three arms, and a mean pay to be reached: by the mean, or by the square of each episode's distance from it."""
COST, LIMIT, PRICE = (1.0, 0.2, 0.0), 0.5, 0.6
COSTS: dict[str, Any] = ARMS | {
    "batch": {"prompts": 1, "group_size": 64, "minibatches": 1},
    "methods": {
        "price": (
            {"base": "reinforce", "baseline": "group"},
            (3e-3, 1e-2),
            {"task": {"config": {"pay": [p - PRICE * c for p, c in zip(PAY, COST, strict=True)]}}},
        ),
        "constrained_grpo": ({"name": "constrained_grpo", "limit": LIMIT, "augmented": 1.0}, (3e-3, 1e-2)),
    },
}
"""The same arms with costs: a limit of them, or a price, the best of those that keep the limit."""
