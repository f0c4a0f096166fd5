"""What lets TRL's trainer take one step per turn, and adds up what its parts take."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback
from trl import GRPOTrainer

from gate import Gate


class Turns(TrainerCallback):
    """One training step, data loading included, per turn."""

    def __init__(self, gate: Gate, seconds: dict[str, float]) -> None:
        self.gate, self.seconds, self.steps = gate, seconds, 0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self.steps:
            parts = dict(self.seconds)
            parts["seconds_update"] = parts.pop("seconds_step") - parts.pop("seconds_prepare")
            self.gate.step_done(parts)
        else:
            self.gate.ready()
        self.steps += 1
        self.seconds.clear()
        self.gate.wait()


def measure(trainer: GRPOTrainer, seconds: dict[str, float]) -> None:
    """Add up the wall-clock seconds of generation, scoring and everything before the update."""
    timed(trainer.model, "generate", seconds, "seconds_rollout")
    timed(trainer, "_calculate_rewards", seconds, "seconds_score")
    timed(trainer, "_prepare_inputs", seconds, "seconds_prepare")
    timed(trainer, "training_step", seconds, "seconds_step")
    generate = trainer._generate_and_score_completions

    def counted(inputs: Any) -> Any:
        out = generate(inputs)
        seconds["tokens"] = float(out["completion_mask"].sum())
        return out

    trainer._generate_and_score_completions = counted


def timed(owner: Any, name: str, seconds: dict[str, float], key: str) -> None:
    """Replace a method by one that adds its seconds to `key`."""
    inner = getattr(owner, name)

    def outer(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*arguments, **named)
        finally:
            seconds[key] += time.perf_counter() - start

    setattr(owner, name, outer)
