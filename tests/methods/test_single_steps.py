"""Groups of single steps: a planner paid by what its actor makes of a sub-goal (Hi-Agent), steps that are paid."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import grouprl
from grouprl.algorithms.filter.papers.agents_in_turn import AgentsInTurn
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.components import WeightedComponents
from grouprl.core.errors import InputError
from grouprl.envs.builtin.subgoals import ACTOR, PLANNER, Subgoals, read_subgoal
from grouprl.rewards.by_task.stepwise import (
    LINES,
    final_line,
    in_order,
    key_step_share,
    line_step_rewards,
    step_rewards,
)
from grouprl.tasks import Example, StepsTask, SubgoalsTask
from single_runs import launch, records
from small import near, small

NAN = math.nan


# --- parts ----------------------------------------------------------------------------------------------------------


def test_the_reward_of_one_agent_is_made_anew() -> None:
    batch = small(
        [5.0, 7.0, 9.0],
        agent_b=[0, 1, 0],
    ).replace(rewards={"format": torch.tensor([1.0, NAN, 0.0]), "execution": torch.tensor([0.5, NAN, NAN])})
    part = WeightedComponents(weights={"format": 2.0, "execution": 4.0, "judge": 0.0}, agent=0)
    near(part(batch).reward_b, [4.0, 7.0, 0.0])
    near(WeightedComponents(weights={"format": 2.0})(batch).reward_b, [2.0, 0.0, 0.0])
    assert part.needs() == ("rewards.format", "rewards.execution", "agent_b")
    with pytest.raises(InputError, match=r"rewards\.judge.*components are format, execution"):
        WeightedComponents(weights={"judge": 1.0})(batch)
    assert "no agent 2" in WeightedComponents(agent=2).idle(RunFacts(agents=2))[0]
    assert "pays nothing" in WeightedComponents(weights={"format": 0.0}).idle(RunFacts())[0]


@pytest.mark.parametrize(("step", "kept"), [(0, [0, 2]), (1, [0, 2]), (2, [1]), (3, [1]), (4, [0, 2])])
def test_agents_learn_in_turn(step: int, kept: list[int]) -> None:
    batch = small([0.0, 1.0, 2.0], agent_b=[0, 1, 0], step=step)
    found = AgentsInTurn(every=2)(batch)
    assert found.active_bt.any(1).nonzero()[:, 0].tolist() == kept
    assert bool(found.stats_b.all())
    assert AgentsInTurn().idle(RunFacts(agents=2)) == []
    assert "train no agent" in AgentsInTurn().idle(RunFacts(agents=1))[0]


# --- the environment ------------------------------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    "pages": [[["c", 2, 5], ["h", 4, 7]], [["k", 0, 0], ["d", 9, 9]]],
    "goals": ["h", "=bob", "k"],
    "done": 0,
    "whole": False,
}


def played(*actions: str, **changes: Any) -> tuple[Subgoals, list[Any]]:
    settings = {key: changes.pop(key) for key in ("judge", "attempts") if key in changes}
    episode = Subgoals(12, **settings)
    episode.reset(Example("q", "c25 h47:h,=bob,k>", {**COLUMNS, **changes}), 0)
    return episode, [episode.step(action) for action in actions]


def test_each_attempt_begins_afresh_and_the_planner_earns_their_mean() -> None:
    episode, steps = played("tap h", "tap 47", "tap 25", "scroll", "what?")
    assert [s.observation.text for s in steps] == [*["c25 h47|tap h>"] * 4, ""]
    assert [s.observation.agent for s in steps[:-1]] == [ACTOR] * 4
    assert all(s.observation.fresh for s in steps)
    assert [s.valid for s in steps] == [True, True, True, True, False]
    thought = played("tap h", "h47 tap 47", "h47 tap 25", "h47 scroll", "47 tap 47")[1]
    near(torch.tensor([s.reward for s in thought]), [0, 1, 2 / 3, 0, 0], 1e-6)
    near(torch.tensor([s.reward for s in steps]), [0, 1, 2 / 3, 1 / 3, 0], 1e-6)  # format, kind, place: a third each
    assert steps[-1].terminated
    found = episode.scores()
    assert found[PLANNER] == {"correct": 0.0, "format": 1.0, "execution": pytest.approx(0.5)}
    assert found[ACTOR] == {"correct": 0.0}


def test_what_is_no_sub_goal_ends_the_episode_with_nothing() -> None:
    episode, (step,) = played("touch h", judge="kind")
    assert step.terminated
    assert not step.valid
    assert episode.scores()[PLANNER] == {"correct": 0.0, "format": 0.0, "execution": 0.0, "judge": 0.0}
    assert [read_subgoal(x) for x in ("tap h", "type bob", "scroll", "tap", "tap hh", "scrolls")] == [
        *(("tap", "h"), ("type", "bob"), ("scroll", "")),
        *[None] * 3,
    ]


def test_the_judge_sees_the_kind_alone() -> None:
    for subgoal, seen in (("tap c", 1.0), ("tap h", 1.0), ("scroll", 0.0)):
        episode, _ = played(subgoal, "tap 47", judge="kind", attempts=1)
        assert episode.scores()[PLANNER] == {"correct": 1.0, "format": 1.0, "execution": 1.0, "judge": seen}


def test_a_step_on_the_way_begins_where_the_way_has_led() -> None:
    for done, right in ((1, "type bob"), (2, "scroll"), (3, "tap 00")):
        episode, steps = played("scroll", right, done=done, attempts=1)
        assert steps[1].reward == 1
        assert episode.correct


def test_a_whole_way_is_gone_by_both_in_turn() -> None:
    way = ("tap h", "tap 47", "type bob", "type bob", "scroll", "scroll", "tap k", "tap 99", "tap k", "tap 00")
    episode, steps = played(*way, whole=True)
    assert [s.observation.text for s in steps[:6]] == [
        *("c25 h47|tap h>", "c25 h47:=bob,k>", "c25 h47|type bob>", "c25 h47:k>", "c25 h47|scroll>", "k00 d99:k>"),
    ]
    assert [s.terminated for s in steps] == [False] * 9 + [True]
    assert episode.correct
    assert episode.scores()[PLANNER]["execution"] == pytest.approx((4 + 2 / 3) / 5)


def test_training_samples_single_steps_and_evaluation_whole_ways() -> None:
    task = SubgoalsTask(pages=2, goals=2)
    steps = [task.example("train", i).columns for i in range(30)]
    assert not any(c["whole"] for c in steps)
    assert len({c["done"] for c in steps}) > 2
    assert all(task.example("eval", i).columns["whole"] for i in range(5))
    assert task.max_turns == 10
    assert SubgoalsTask(pages=1, goals=1, attempts=8).max_turns == 9


# --- Hi-Agent -------------------------------------------------------------------------------------------------------

SUBGOALS = ("tap c", "tap h", "scroll")
TABLE = {"tap c": "tap 25", "tap h": "tap 47", "scroll": "scroll"}
"""An actor that never changes: what it does with each sub-goal."""


def rollout(logits: Tensor, generator: torch.Generator, size: int = 16) -> tuple[Any, Tensor]:
    """Sub-goals sampled at one state, each executed by the table's actor; rows of the planner alone."""
    chosen_b = torch.multinomial(logits.softmax(-1), size, replacement=True, generator=generator)
    parts: dict[str, list[float]] = {"format": [], "execution": [], "judge": []}
    for choice in chosen_b.tolist():
        subgoal = SUBGOALS[choice]
        found = played(subgoal, TABLE[subgoal], attempts=1, judge="kind")[0].scores()[PLANNER]
        for name, values in parts.items():
            values.append(found[name])
    batch = small([0.0] * size, agent_b=[0] * size, keys={"episode": torch.arange(size)}, step=0)
    batch = batch.replace(rewards={name: torch.tensor(x, dtype=torch.float64) for name, x in parts.items()})
    logp_bt = logits.log_softmax(-1)[chosen_b][:, None]
    return batch.replace(old_bt=logp_bt.detach(), behavior_bt=logp_bt.detach()), logp_bt


def chances(**weights: float) -> list[float]:
    """Chances of the sub-goals after 60 steps."""
    method, generator = grouprl.method("hi_agent", **weights), torch.Generator().manual_seed(0)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for _ in range(60):
        batch, logp_bt = rollout(logits, generator)
        (grad,) = torch.autograd.grad(method.loss(logp_bt, method.prepare(batch)).value, logits)
        logits = (logits - 0.3 * grad).detach().requires_grad_()
    return logits.detach().softmax(-1).tolist()


def test_the_planner_learns_the_sub_goal_that_its_actor_gets_right() -> None:
    """Execution is not differentiable, and format and judge cannot tell "tap c" from "tap h"."""
    found = chances()
    assert found[1] > 0.9


def test_without_foresight_only_what_the_judge_sees_is_learnt() -> None:
    first, second, third = chances(execution_weight=0.0)
    assert third < 0.1
    assert 0.2 < first / (first + second) < 0.8
    assert chances(execution_weight=0.0, judge_weight=0.0) == pytest.approx([1 / 3] * 3)


def test_planner_and_actor_of_their_own_learn_in_turn(tmp_path: Path) -> None:
    folder = launch(
        tmp_path / "run",
        task={"name": "subgoals", "goals": 1, "pages": 1, "attempts": 2},
        model={
            "name": "tiny",
            "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64},
            "agents": "separate",
        },
        method={"name": "hi_agent", "judge_weight": 0.0},
        warmup={"steps": 120, "batch": 64, "lr": 1e-2},
        steps=4,
        run={"threads": 1, "checkpoint_every": 1, "keep": 10},
    ).folder
    states = [load_file(folder / "checkpoints" / f"step-{i:06d}" / "policy.safetensors") for i in range(5)]
    moved = []
    for before, after in itertools.pairwise(states):
        changed = {name for name in after if not torch.equal(before[name], after[name])}
        moved.append({name.split(".")[0] for name in changed})
    assert moved[0] <= {"planner"}
    assert moved[1] <= {"actor"}
    assert moved[2] <= {"planner"}
    assert moved[3] <= {"actor"}
    assert set().union(*moved) == {"planner", "actor"}
    assert all({"reward/format", "reward/execution"} <= r.keys() for r in records(folder, "train"))


def test_a_judge_that_the_task_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reads the component 'judge'"):
        launch(
            tmp_path / "run",
            task={"name": "subgoals", "goals": 1, "pages": 1, "attempts": 2},
            method="hi_agent",
        )


# --- StepGRPO -------------------------------------------------------------------------------------------------------

COMPLETION = """### Image Description: a triangle
### Rationales: add the sides
### Step 1: Two sides are 3 and 4.
They add up to 7.
### Step 2: The third is 5
### The final answer is: 12
or so"""


def test_the_rewards_of_a_completion_in_steps() -> None:
    keys = [["add up to 7", "3 + 4"], "the third is 5", ["perimeter"], "a triangle"]
    assert key_step_share(COMPLETION, keys) == 0.5  # what the description says is no step
    assert step_rewards(COMPLETION, "12", keys) == {
        "accuracy": 1.0,
        "key_steps": 0.5,
        "valid_steps": 1.0,
        "correct": 1.0,
    }
    assert key_step_share(COMPLETION, []) == 0.0
    assert final_line("no heading at all ") == "no heading at all"


@pytest.mark.parametrize(
    "broken",
    [
        COMPLETION.replace("Step 1", "Step 3").replace("Step 2", "Step 1").replace("Step 3", "Step 2"),
        COMPLETION.replace("Step 2", "Step 3"),
        COMPLETION.replace("### Rationales:", ""),
        COMPLETION.replace("### Step 1:", "").replace("Step 2", "Step 1").replace("### Step 1:", ""),
        "### The final answer is: 12\n" + COMPLETION,
        COMPLETION.partition("### The")[0],
        "",
    ],
    ids=["permuted", "skipped", "a section is missing", "no step", "answered first", "no completion", "nothing"],
)
def test_steps_out_of_order_are_not_valid(broken: str) -> None:
    assert in_order(COMPLETION)
    assert not in_order(broken)


def test_short_headings_mean_the_same() -> None:
    found = line_step_rewards("?7+5+8\n1:12\n2:20\n=20", "20", ["12", "20"])
    assert found == dict.fromkeys(("accuracy", "key_steps", "valid_steps", "correct"), 1.0)
    found = line_step_rewards("?7+5+8\n2:12\n1:19\n=20", "20", ["12", "20"])
    assert found == {"accuracy": 1.0, "key_steps": 0.5, "valid_steps": 0.0, "correct": 1.0}
    assert not in_order("1:12\n=12", LINES)
    task = StepsTask()
    example = Example("q", "7+5+8>", {"answer": "20", "key_steps": ["12", "20"]})
    assert task.solution(example) == "?7+5+8\n1:12\n2:20\n=20"
    assert len(task.solution(example)) + 2 == task.max_new_tokens


@pytest.mark.parametrize("level", range(1, 7))
def test_completions_in_steps_fit_and_are_spelt_in_the_alphabet(level: int) -> None:
    task, best = StepsTask(level=level), []
    for index in range(40):
        example = task.example("train", index)
        right, shown = task.solution(example), task.demonstration(example, index)
        assert max(len(right), len(shown)) < task.max_new_tokens
        assert set(str(example.prompt) + right + shown) <= set(task.alphabet)
        assert sum(task.reward(right, **example.columns).values()) == 4
        best.append(task.reward(shown, **example.columns)["valid_steps"])
    assert 0.5 < sum(best) / 40 < 0.95


def test_demonstrations_in_steps_are_as_good_as_they_should_be() -> None:
    task = StepsTask()
    examples = [task.example("train", index) for index in range(400)]
    found = [task.reward(task.demonstration(q, 0), **q.columns) for q in examples]
    means = {name: sum(each[name] for each in found) / 400 for name in found[0]}
    assert 0.62 < means["accuracy"] < 0.74  # (0.85² + 0.15²/2)·(1 - 0.3/4) = 0.68: without "=20" nothing is said
    assert 0.72 < means["valid_steps"] < 0.85  # a line is lost in 0.3; without the last of four the order holds: 0.775
