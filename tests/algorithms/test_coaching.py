"""CPMobius: labels by majority, the band of difficulty, and a coach that is paid for what its player learns."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from episode_runs import launch, records, run_config
from fake_context import FakeContext
from grouprl.algorithms.augment.papers.majority_vote import MajorityVote, majority
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.refill.papers.refills import EpisodeBand
from grouprl.algorithms.update.papers.coach_after_player import CoachAfterPlayer
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.methods import method
from grouprl.records.episode_records import Record, Turn
from grouprl.training.loop import train
from killed_runs import evidence

ATTEMPTS = 4


@pytest.mark.parametrize(
    ("completions", "label"),
    [(["1", "2", "2"], "2"), (["1", "2"], "1"), ([None, None, "3"], "3"), ([None, None], None), ([], None)],
)
def test_the_label_is_what_most_say(completions: list[str | None], label: str | None) -> None:
    assert majority(completions) == label


def said(words: list[str], agents: list[int], episodes: list[int]) -> Any:
    """Rows of a task whose final answer is the text itself, each with one turn."""
    context = FakeContext()
    request = replace(context.request(0), completions=len(words))
    rows = context.rows([(request, i) for i in range(len(words))], [(7,)] * len(words), [True] * len(words))
    made = tuple(Record("", "terminated", (Turn(0, "", word),)) for word in words)
    rows = replace(rows, records=made)
    return rows.with_extras(agent_b=np.array(agents), keys__episode=np.array(episodes)), context


def test_a_player_is_paid_for_agreeing_with_itself_in_each_episode() -> None:
    rows, context = said(["5", "6", "6", "5", "", "9", "p"], [0, 0, 0, 0, 0, 0, 1], [1, 1, 1, 2, 2, 2, 2])
    voted = MajorityVote()(rows, context)
    assert voted.scores.reward_b.tolist() == [0, 1, 1, 1, 0, 0, 0]
    assert rows.scores.reward_b.tolist() == [1] * 7
    assert voted.scores.correct_b.tolist() == [True] * 7


def test_nobody_agrees_with_silence() -> None:
    rows, context = said(["", ""], [0, 0], [1, 1])
    assert MajorityVote()(rows, context).scores.reward_b.tolist() == [0, 0]


def test_only_episodes_in_the_band_are_wanted() -> None:
    """Shares ¼, 1, 0 of the player, whatever the coach's rows say; an episode without the player is not wanted."""
    player = [1, 0, 0, 0, 1, 1, 0, 0]
    batch = Batch(
        mask_bt=torch.ones(11, 1, dtype=torch.bool),
        group_b=torch.zeros(11, dtype=torch.int64),
        reward_b=torch.tensor([*player, 0.0, 0.5, 0.5]),
        agent_b=torch.tensor([0] * 8 + [1, 1, 1]),
        keys={"episode": torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 0, 1, 3])},
    )
    assert EpisodeBand().wanted(batch).tolist() == [*[True] * 4, *[False] * 4, True, False, False]
    assert EpisodeBand(low=0.25, high=1.0).wanted(batch).tolist() == [*[True] * 6, False, False, True, True, False]
    with pytest.raises(InputError, match="must not be empty"):
        method("cpmobius", low=0.5, high=0.2)


# --- the coach ------------------------------------------------------------------------------------------------------


@dataclass
class Arms:
    """A coach over three arms of difficulty, and a player whose skill rises on the middle one alone."""

    method: Method
    context: Any
    learns: bool = True
    skill: float = 0.1
    logits: torch.Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    taken: list[str] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    policy: Any = None

    def __post_init__(self) -> None:
        self.policy = self
        self.weights = torch.zeros(1)
        self.context.rates = lambda index, step: self.skill

    def owners(self) -> list[list[torch.Tensor]]:
        return [[self.weights], [self.logits]]

    def play(self, problems: int, g: torch.Generator) -> Batch:
        """Problems that the coach sets, and two attempts at each, right by coin."""
        arm_b = torch.multinomial(self.logits.softmax(0), problems, replacement=True, generator=g)
        rows = problems * 3
        agent_b = torch.arange(rows) % 3 // 2
        token_bt = torch.where(agent_b == 1, arm_b.repeat_interleave(3), arm_b.repeat_interleave(3))[:, None]
        old_bt = torch.where(agent_b[:, None] == 1, self.logits.log_softmax(0)[token_bt], 0)
        episode_b = torch.arange(rows) // 3
        batch = Batch(
            mask_bt=torch.ones(rows, 1, dtype=torch.bool),
            group_b=torch.arange(rows) // 3 * 2 + agent_b,
            reward_b=(torch.arange(rows) % 3 == 0).double(),
            old_bt=old_bt,
            agent_b=agent_b,
            token_bt=token_bt,
            keys={"episode": episode_b},
        )
        return self.method.compute_advantages(batch)

    def steps(self, prepared: Batch) -> Iterator[Batch]:
        yield self.method.compute_loss_weights(prepared)

    def take(self, step: Batch) -> dict[str, float]:
        if bool((step.agent_b == 0).all()):
            self.taken.append("player")
            if self.learns:
                self.skill = min(1.0, self.skill + 0.0005 * int((step.token_bt == 1).sum()))
            self.weights += 1
            return {}
        self.taken.append("coach")
        logits = self.logits.clone().requires_grad_()
        loss = self.method.loss(logits.log_softmax(0)[step.token_bt], step, None).value
        (grad,) = torch.autograd.grad(loss, logits)
        self.gradients.append(grad)
        self.logits -= 0.5 * grad
        return {}


def arms(**settings: Any) -> tuple[Arms, Method]:
    chosen = method("cpmobius", coach_entropy=0.0, exam=8, completions=200, **settings)
    return Arms(chosen, FakeContext()), chosen


def test_the_coach_learns_to_set_what_the_player_learns_from() -> None:
    """One number pays all problems of a step, so single runs wander; in each the middle arm still gains most."""
    masses = []
    for seed in range(3):
        learner, chosen = arms()
        g = torch.Generator().manual_seed(seed)
        for _ in range(80):
            list(chosen.update(learner, learner.play(16, g)))
        masses.append(learner.logits.softmax(0))
        assert learner.taken[:2] == ["player", "coach"]
        assert int(masses[-1].argmax()) == 1
    assert torch.stack(masses).mean(0)[1] > 0.55


def test_a_coach_whose_player_stands_still_is_not_moved_at_all() -> None:
    learner, chosen = arms()
    learner.learns = False
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        list(chosen.update(learner, learner.play(16, g)))
    assert learner.taken == ["player"] * 5
    assert learner.logits.tolist() == [0, 0, 0]
    assert learner.context.notes["coach_reward"] == 0


def test_the_gradient_is_the_gain_times_that_of_the_problems() -> None:
    """Before any update the ratio is 1: dL/dlogits = -gain·mean(1[arm] - π)."""
    learner, chosen = arms()
    played = learner.play(6, torch.Generator().manual_seed(1))
    before = chosen.update.accuracy(learner.context)
    list(chosen.update(learner, played))
    gain = 100 * (chosen.update.accuracy(learner.context) - before)
    chosen_b = played.token_bt[played.agent_b == 1, 0]
    share = torch.bincount(chosen_b, minlength=3) / len(chosen_b)
    assert gain > 0
    assert torch.allclose(learner.gradients[0], -gain * (share - 1 / 3).double())


def test_the_player_gets_its_best_weights_back() -> None:
    learner, chosen = arms(falls=2, falls_from=0)
    g, restored = torch.Generator().manual_seed(0), []
    for skill in (0.1, 0.6, 0.5, 0.3, 0.3):
        learner.learns, learner.skill = False, skill
        list(chosen.update(learner, learner.play(4, g)))
        restored.append(float(learner.weights))
        learner.context.step += 1
    assert restored == [1, 2, 3, 2, 3]  # each update adds 1; after the second fall those of the second step are back
    assert learner.context.notes["player_restored"] == 1
    assert learner.context.state_of(chosen.update)["accuracy"] < 0.4


def test_where_it_cannot_work() -> None:
    part = CoachAfterPlayer()
    assert "needs an agent 1" in part.refuse(RunFacts(agents=1))[0]
    assert part.refuse(RunFacts(agents=2)) == []
    assert "it has 50 steps" in part.idle(RunFacts(agents=2, steps=50))[0]
    assert "a task with an environment" in MajorityVote().refuse(RunFacts())[0]


# --- whole runs -----------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "task": {"name": "propose", "largest": 9, "attempts": ATTEMPTS, "free": True},
    "method": {"base": "cpmobius", "exam": 6, "completions": 2, "low": 0.0, "high": 1.0, "falls": 1, "falls_from": 0},
    "warmup": {"steps": 150, "batch": 16, "lr": 1e-2},
    "batch": {"prompts": 6, "group_size": 1},
}


@pytest.mark.parametrize("agents", ["shared", "separate"])
def test_it_trains(tmp_path: Path, agents: str) -> None:
    model = {**run_config()["model"], "agents": agents}
    steps = records(launch(tmp_path / "run", **RUN, model=model, steps=4), "train")
    assert [step["exam_accuracy"] for step in steps] != []
    accuracies = [step["exam_accuracy"] for step in steps]
    for before, step in zip(accuracies, steps[1:], strict=False):
        assert step["coach_reward"] == pytest.approx(100 * (step["exam_accuracy"] - before)) or agents == "separate"
    assert max(step["grad_norm"] for step in steps) > 0


def test_it_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    run = {"checkpoint_every": 2, "keep": 9, "threads": 1}
    model = {**run_config()["model"], "agents": "separate"}
    settings = {**RUN, "model": model, "steps": 4, "run": run}
    whole = launch(tmp_path / "whole", **settings)
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(sorted((copy / "checkpoints").glob("step-*"))[-1])
    train(parse_config(run_config(**settings)), folder=copy, resume=True, console=Console(file=io.StringIO()))
    assert evidence(copy) == evidence(whole)
