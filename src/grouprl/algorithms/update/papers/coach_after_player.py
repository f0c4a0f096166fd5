"""A coach that is updated after its player and rewarded for the player's progress (CPMobius)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from typing_extensions import override

from grouprl.algorithms.advantage.per_agent import one_agent
from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, Whole
from grouprl.records.requests import RolloutRequest

EXAM_ORDINAL = 2**40
"""Ordinal of the exam's first prompt, above all ordinals of the run."""


FAR = 1_000_000
"""Number of the exam's first prompt where the held-out prompts never end."""


@part("update")
class CoachAfterPlayer(DataPart, Update):
    """CPMobius: update the player, measure what it has learnt, reward the coach for that, update the coach.

    The coach's advantage is `scale`·(accuracy now - accuracy before), the same for all of its rows, without a baseline;
    if the accuracy has not changed, the coach takes no step. The accuracy is the player's on `exam` held-out prompts:
    those of the split 'eval' from number 1,000,000 on, or its last ones where it ends; by greedy completions, or by
    `completions` sampled ones to each, with the same seeds every time. From step `falls_from` on, falls of the accuracy
    are counted, and after `falls` of them (0: never) the player gets the weights back with which it was best.
    """

    needs_text = True

    phases: ClassVar[int] = 2

    player: Whole = 0
    coach: Whole = 1
    exam: Count = 64
    completions: Whole = 0
    scale: float = 100.0
    falls: Whole = 15
    falls_from: Whole = 100
    equation = "A_coach = {scale:g}·(acc after the player's update - acc before)"
    reads = ("agent_b",)

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the player's steps, examine it, then take the coach's steps unless the accuracy is unchanged."""
        context, coach_b = learner.context, prepared.need("agent_b", self.name) == self.coach
        store = context.state_of(self)
        if "accuracy" not in store:
            store["accuracy"] = self.accuracy(context)
        if not bool(coach_b.all()):
            for step in learner.steps(prepared.rows(~coach_b)):
                yield learner.take(step)
        before, store["accuracy"] = store["accuracy"], self.accuracy(context)
        gain = self.scale * (store["accuracy"] - before)
        context.note("exam_accuracy", store["accuracy"])
        context.note("coach_reward", gain)
        if gain != 0 and bool(coach_b.any()):
            for step in learner.steps(paid(prepared.rows(coach_b), gain)):
                yield learner.take(step)
        self._guard(learner, store, fell=gain < 0)

    def accuracy(self, context: RunContext) -> float:
        """Return the share of correct completions of the player to the exam."""
        size = context.task.size("eval")
        first, count = (FAR, self.exam) if size is None else (max(0, size - self.exam), min(size, self.exam))
        examples = [context.task.example("eval", first + i) for i in range(count)]
        requests = [
            RolloutRequest(EXAM_ORDINAL + i, i, example, max(1, self.completions)) for i, example in enumerate(examples)
        ]
        found = context.sample(requests, greedy=self.completions == 0, count_failures=False)
        agent_b = found.extras.get("agent_b", np.zeros(len(found), dtype=np.int64))
        right = [key[:2] for key, agent, ok in zip(found.row_keys, agent_b, found.scores.correct_b, strict=True)
                 if ok and agent == self.player]  # fmt: skip
        return len(set(right)) / (count * max(1, self.completions))

    def _guard(self, learner: UpdateSteps, store: State, *, fell: bool) -> None:
        """Remember the best weights of the player, and go back to them after too many falls."""
        if self.falls == 0:
            return
        owners = learner.policy.owners()
        own = owners[self.player if len(owners) > 1 else 0]
        if store["accuracy"] > store.get("best", -1.0):
            store["best"], store["weights"] = store["accuracy"], [p.detach().cpu().clone() for p in own]
        store["fallen"] = store.get("fallen", 0) + (fell and learner.context.step >= self.falls_from)
        if store["fallen"] < self.falls:
            return
        with torch.no_grad():
            for parameter, best in zip(own, store["weights"], strict=True):
                parameter.copy_(best)
        store["fallen"], store["accuracy"] = 0, store["best"]
        learner.context.note("player_restored", 1)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions the exam takes."""
        return f"the player is examined on {self.exam} prompts after each of its updates, and once before the first"

    @override
    def words(self) -> str:
        back = f"; after {self.falls} falls from step {self.falls_from} on its best weights return" * bool(self.falls)
        return (
            f"update agent {self.player} first, then agent {self.coach}, whose advantage is {self.scale:g} times what "
            f"the former's accuracy on {self.exam} held-out prompts has gained{back}"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without the coach's agent."""
        return [
            f"{self.name} needs an agent {self.coach}, which the task does not have. Use a task such as propose"
        ] * bool(one_agent(self.name, run) or self.coach >= run.agents)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the best weights never return if the run ends before `falls_from`."""
        if self.falls and run.steps < self.falls_from + self.falls:
            return [f"{self.name} cannot return to the best weights before the run ends: it has {run.steps} steps"]
        return []


def paid(rows: Batch, advantage: float) -> Batch:
    """Return prepared rows with one advantage for all their tokens."""
    return rows.replace(advantage_bt=rows.broadcast(torch.full_like(rows.reward_b, advantage)))
