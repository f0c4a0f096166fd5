"""Teams: aligned calls, what called agents earn, who is compared with whom; self-play and building a team."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from episode_runs import launch, records, run_config
from grouprl import Batch, method
from grouprl.algorithms.advantage.papers.outcome_and_actions import OutcomeAndActions
from grouprl.algorithms.advantage.per_agent import RoleRelative
from grouprl.algorithms.advantage_transform.papers.late_agent import LateAgent
from grouprl.algorithms.augment.papers.align import AlignCalls
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.called_reward import CalledReward
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.builtin.propose import Propose, proposer_pay, value
from grouprl.envs.builtin.team_builder import Host
from grouprl.envs.playing import total_reward
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.training.opening import start
from grouprl.training.update import update
from grouprl.training.warmup import demonstration_batch
from small import near


def rows(agent: list[int], episode: list[int], reward: list[float], **fields: Any) -> Batch:
    count = len(agent)
    given: dict[str, Any] = {
        "mask_bt": torch.ones(count, 2, dtype=torch.bool),
        "group_b": torch.tensor(agent),
        "reward_b": torch.tensor(reward, dtype=torch.float64),
        "agent_b": torch.tensor(agent),
        "keys": {"episode": torch.tensor(episode)},
        "turn_bt": torch.zeros(count, 2, dtype=torch.int64),
        "valid_bs": torch.ones(count, 1, dtype=torch.bool),
        "correct_b": torch.zeros(count, dtype=torch.bool),
    }
    return Batch(**{**given, **fields})


# --- what called agents earn ------------------------------------------------------------------------------------------


def test_called_agents_earn_by_the_first_agents_outcome() -> None:
    batch = rows(
        agent=[0, 1, 1, 0, 1, 1],
        episode=[0, 0, 0, 1, 1, 2],
        reward=[0.7, 9.0, 9.0, 0.3, 9.0, 9.0],
        correct_b=torch.tensor([True, False, False, False, True, True]),
        valid_bs=torch.tensor([[False], [True], [False], [True], [True], [True]]),
    )
    near(CalledReward()(batch).reward_b, [0.7, 1.0, 0.0, 0.3, 0.1, 1.0])


def test_turns_that_are_not_there_are_not_invalid() -> None:
    batch = rows([1], [0], [0.0], valid_bs=torch.tensor([[True, False]]), correct_b=torch.tensor([True]))
    near(CalledReward()(batch).reward_b, [1.0])


def test_one_call_each_with_the_planners_reward_has_the_planners_advantage() -> None:
    """Proof (a) of the dossier: D = 1, d_i = 1 and R_S = R_M give A_S = A_M."""
    reward = [1.0, 0.0, 0.0, 1.0]
    batch = rows([0] * 4 + [1] * 4, [0, 1, 2, 3] * 2, reward * 2, old_bt=torch.zeros(8, 2, dtype=torch.float64))
    prepared = method("m_grpo", by_outcome=False).compute_advantages(batch)
    near(prepared.advantage_bt[:4], prepared.advantage_bt[4:])
    assert prepared.advantage_bt.any()


# --- alignment --------------------------------------------------------------------------------------------------------


def team_rows(tmp_path: Path, part: AlignCalls, terms: int = 3) -> tuple[Any, Any, Any]:
    """Rows of a task of a planner with workers before and after alignment, and the notes."""
    session = start(parse_config(run_config(task={"name": "team", "terms": terms})), tmp_path / "run")
    optimizer = torch.optim.AdamW(session.policy.parameters(), lr=1e-2)
    sft = method("sft")
    for _ in range(60):
        batch = demonstration_batch(session.policy, session.task, session.source.take(16), 0)
        update(session.policy, optimizer, sft, sft.compute_advantages(batch))
    plain = session.context.sample(session.context.take(6))
    return plain, part(plain, session.context), session.context


@pytest.mark.parametrize("calls", [1, 3])
def test_every_episode_that_called_has_as_many_rows(tmp_path: Path, calls: int) -> None:
    plain, aligned, context = team_rows(tmp_path, AlignCalls(calls=calls))
    called = plain.extras["agent_b"] == 1
    counts = np.unique(plain.extras["keys.episode"][called], return_counts=True)[1]
    assert len(counts) > 5
    assert len(set(counts.tolist())) > 1
    after = aligned.extras["agent_b"] == 1
    assert (np.unique(aligned.extras["keys.episode"][after], return_counts=True)[1] == calls).all()
    assert (~after).sum() == (~called).sum()
    keys = list(
        zip(aligned.group_b.tolist(), aligned.sample_b.tolist(), aligned.extras["keys.context"].tolist(), strict=True)
    )
    assert len(set(keys)) == len(keys)
    notes = context.read_notes()
    assert notes["rows_doubled"] == np.clip(calls - counts, 0, None).sum()
    assert notes["rows_surplus"] == np.clip(counts - calls, 0, None).sum()


def test_alignment_changes_nothing_where_there_is_one_agent(tmp_path: Path) -> None:
    session = start(parse_config(run_config()), tmp_path / "run")
    plain = session.context.sample(session.context.take(2))
    assert AlignCalls()(plain, session.context) is plain
    assert "one agent" in AlignCalls().idle(RunFacts())[0]
    assert not AlignCalls().idle(RunFacts(agents=2))


# --- who is compared with whom ----------------------------------------------------------------------------------------


def test_each_agent_is_compared_by_its_own_key() -> None:
    batch = rows([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 1], [1, 0, 1, 1, 3, 1])
    adv_bt = RoleRelative(keys=("episode", "group"), scale="none")(batch)
    near(adv_bt[:, 0], [0.5, -0.5, 0.0, 0.0, 1.0, -1.0])
    both = RoleRelative(keys=("batch",), scale="none")(batch)
    near(both[:, 0], [0.25, -0.75, 0.25, 0.25, 1.0, -1.0])


def test_an_agent_waits_for_its_step() -> None:
    batch = rows([0, 1], [0, 0], [0, 0], step=4)
    adv_bt = torch.ones(2, 2, dtype=torch.float64)
    near(LateAgent(agent=0, start=5)(adv_bt, batch), [[0, 0], [1, 1]])
    near(LateAgent(agent=0, start=5)(adv_bt, batch.replace(step=5)), [[1, 1], [1, 1]])
    assert "start is 0" in LateAgent(start=0).idle(RunFacts(agents=2))[0]


def test_costs_of_actions_are_learned_where_outcomes_are_equal() -> None:
    batch = rows([0, 0], [0, 1], [-0.1, -0.3], turn_bt=torch.tensor([[0, 1], [0, 1]]))
    batch = batch.replace(turn_reward_bs=torch.tensor([[-0.1, 0.0], [-0.1, -0.2]], dtype=torch.float64))
    near(OutcomeAndActions(weight=2.0)(batch), [[-0.2, 0.0], [-0.2, -0.4]])


# --- building a team --------------------------------------------------------------------------------------------------


def hosted(actions: list[str], chain: str = "bda") -> float:
    example = Example("q", ">".join(chain) + ":", {"chain": chain, "roles": 4})
    return total_reward(Host(9, 0.0), example, actions)


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        (["b", "db", "ad", "."], 3 * 0.1 + 1),
        (["."], 0.0),
        (["b", "db", "ad", "c", "."], 3 * 0.1 - 0.1 + 1),
        (["b", "d", "ad", "."], 0.1 - 0.1 + 0.1),
        (["b", "-b", "."], 0.1 - 0.2),
        (["b", "bb", "x", "-d", "da", "."], 0.1),
        (["d", "b", "-d", "db", "ad", "."], -0.1 + 0.1 + 0.0 + 0.1 + 0.1 + 1),
    ],
)
def test_a_team_costs_what_it_costs_and_works_if_it_fits(actions: list[str], reward: float) -> None:
    assert hosted(actions) == pytest.approx(reward)


def test_the_price_of_adding_teaches_to_stop() -> None:
    """With equal outcomes the price of adding alone moves the policy towards the exit, step by step."""
    g = torch.Generator().manual_seed(0)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # add a, add b, exit
    chosen = method("hrpo")
    exits = []
    for _ in range(60):
        act_bt = torch.multinomial(logits.softmax(0).detach().expand(8, 3), 1, generator=g)
        cost_bs = torch.where(act_bt < 2, -0.1, 0.0).double()
        batch = Batch(
            mask_bt=torch.ones(8, 1, dtype=torch.bool),
            group_b=torch.zeros(8, dtype=torch.int64),
            reward_b=cost_bs[:, 0],
            old_bt=logits.log_softmax(0).detach()[act_bt],
            turn_bt=torch.zeros(8, 1, dtype=torch.int64),
            turn_reward_bs=cost_bs,
        )
        loss = chosen.loss(logits.log_softmax(0)[act_bt], chosen.prepare(batch)).value
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits - 3.0 * grad).detach().requires_grad_()
        exits.append(float(logits.softmax(0)[2]))
    assert exits[-1] > 0.6
    assert exits[9] < exits[29] < exits[59]


# --- self-play --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "failure", "middle"), [(0, 1, 0), (0.25, 0.75, 0.75), (0.5, 0.5, 1), (0.75, 0.25, 0.75), (1, 0, 0)]
)
def test_a_proposer_is_paid_for_what_the_solver_fails_at(rate: float, failure: float, middle: float) -> None:
    assert proposer_pay(rate, "failure") == pytest.approx(failure)
    assert proposer_pay(rate, "middle") == pytest.approx(middle)


@pytest.mark.parametrize(
    ("problem", "valid"),
    [("7+5", True), ("15-3", True), ("12+0", False), ("12", False), ("6+5", False), ("7+5+", False), ("1+2+3+6", True)],
)
def test_a_problem_comes_to_the_answer_without_holding_it(problem: str, valid: bool) -> None:
    env = Propose()
    env.reset(Example("q", "12?", {"answer": 12}), 0)
    assert env.valid(problem) is valid


def test_sums_and_differences_have_their_values() -> None:
    assert (value("7+5"), value("15-3"), value("1+2-9")) == (12, 12, -6)


def test_the_solver_sees_the_problem_alone_and_tries_afresh() -> None:
    env = Propose(attempts=2)
    first = env.reset(Example("q", "12?", {"answer": 12}), 0)
    assert (first.text, first.agent) == ("12?", "proposer")
    requested = env.step("7+5").observation
    assert (requested.text, requested.agent, requested.fresh) == ("7+5=", "solver", True)
    tried = env.step("12")
    assert (tried.reward, tried.observation.fresh, tried.terminated) == (1.0, True, False)
    last = env.step("13")
    assert (last.reward, dict(last.rewards), last.terminated) == (0.0, {"proposer": 0.5}, True)
    assert env.scores() == {"solver": {"correct": 0.0}, "proposer": {"correct": 1.0}}


def test_an_invalid_problem_ends_the_episode() -> None:
    env = Propose()
    env.reset(Example("q", "12?", {"answer": 12}), 0)
    step = env.step("12+0")
    assert (step.reward, step.terminated, step.valid) == (-1.0, True, False)


def test_a_free_problem_holds_the_number_and_comes_to_anything() -> None:
    env = Propose(attempts=1, free=True)
    env.reset(Example("q", "12?", {"answer": 12}), 0)
    found = [env.valid(problem) for problem in ("7+5", "12+30", "12-30", "30-12+1", "112-3", "12")]
    assert found == [False, True, False, True, False, False]
    assert env.step("30-12+1").observation.text == "30-12+1="
    assert env.step("19").reward == 1.0
    rng = random.Random(0)
    requested = Propose(free=True)
    requested.begin({"answer": 12}, rng)
    assert all(requested.valid(requested.demonstrate(rng)) for _ in range(50))


def test_numbers_of_problems_have_a_limit() -> None:
    env, rng = Propose(below=15), random.Random(0)
    env.begin({"answer": 12}, rng)
    assert [env.valid(problem) for problem in ("7+5", "14-2", "15-3")] == [True, True, False]
    shown = {env.demonstrate(rng) for _ in range(200)}
    assert all(env.valid(problem) for problem in shown)
    assert len(shown) > 8
    with pytest.raises(InputError, match="Largest = 20 is not below = 15"):
        load_task({"name": "propose", "below": 15})


def test_the_held_out_prompts_are_problems_for_the_solver_alone() -> None:
    task = load_task("propose")
    example = task.example("eval", 0)
    env = task.environment()
    first = env.reset(example, 0)
    assert (first.text, first.agent) == (example.prompt, "solver")
    step = env.step(str(value(example.columns["problem"])))
    assert (step.reward, step.terminated, dict(step.rewards)) == (1.0, True, {})
    assert env.scores()["solver"] == {"correct": 1.0}
    assert len({task.example("eval", index).prompt for index in range(40)}) > 20


def test_held_out_problems_are_never_tried_in_training() -> None:
    env = Propose(attempts=1, held_out=lambda problem: problem == "7+5")
    env.reset(Example("q", "12?", {"answer": 12}), 0)
    step = env.step("7+5")
    assert (step.reward, step.terminated, step.valid, env.right) == (0.0, True, True, [])
    rng = random.Random(0)
    requested = Propose(held_out=lambda problem: "+" in problem)
    requested.begin({"answer": 12}, rng)
    assert all("-" in requested.demonstrate(rng) for _ in range(50))


@pytest.mark.parametrize("name", ["propose", "host"])
def test_every_prompt_can_be_solved_and_demonstrated(name: str) -> None:
    for level in range(3):
        task = load_task({"name": name, **type(load_task(name)).levels[level]})
        for index in range(20):
            example = task.example("train", index)
            assert task.reward(task.solution(example), **example.columns) > 0.9
            rng = random.Random(index)
            assert task.demonstrate(example, rng)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"name": "team", "terms": 2}, "m_grpo"),
        ({"name": "propose", "largest": 9, "attempts": 3}, {"name": "ssp", "solver_start": 1}),
        ({"name": "propose", "largest": 9, "attempts": 3}, "rae"),
        ({"name": "host", "length": 2, "roles": 6}, "hrpo"),
        ({"name": "signals", "things": 2}, "ppo"),
    ],
)
@pytest.mark.parametrize("agents", ["shared", "separate"])
def test_team_methods_train(tmp_path: Path, task: dict[str, Any], name: Any, agents: str) -> None:
    model = {**run_config()["model"], "agents": agents}
    folder = launch(
        tmp_path / "run", task=task, method=name, model=model, warmup={"steps": 150, "batch": 16, "lr": 1e-2}, steps=3
    )
    steps = records(folder, "train")
    assert sum(record["grad_norm"] for record in steps) > 0
    assert all(np.isfinite(record["loss"]) for record in steps)
