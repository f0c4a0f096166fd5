"""Policies of their own for the agents of a task: exactly what each would be alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from episode_runs import launch, records, run_config
from grouprl.algorithms.auxiliary_models import second_policy
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.evaluation.evaluate import evaluate
from grouprl.plan.plan import plan
from grouprl.policy import Tokens, load_policy
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.training.export import export, load_trained
from grouprl.training.opening import start
from grouprl.training.steps import _clipped_norm, _let_idle_rest
from killed_runs import assert_goes_on_equally

SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 32}


def member(seed: int, **options: Any) -> Any:
    return load_policy("tiny", alphabet="abc", dtype="float64", seed=seed, **{**SIZES, **options})


def team_of_two(**options: Any) -> TeamPolicy:
    return TeamPolicy({"boss": member(1, **options), "helper": member(2, **options)})


def tokens() -> Tokens:
    return Tokens.of([[3], [4, 3], [5], [3, 3]], [[3, 4], [5], [4, 4, 3], [5, 1]]).of_agents([1, 0, 1, 0])


def test_every_row_is_scored_by_its_agents_policy() -> None:
    team, all_rows = team_of_two(value_head=True), tokens()
    names = ("log_prob", "entropy", "value", "cross@1.1", "certainty")
    out = team.evaluate(all_rows, names)
    for agent, rows in ((0, [1, 3]), (1, [0, 2])):
        alone = team.member(agent).evaluate(all_rows.rows(rows), names)
        for name in names:
            whole, part = out[name][rows], alone[name]
            assert torch.equal(whole[:, : part.shape[1]], part)
            assert not whole[:, part.shape[1] :].any()


def test_some_of_a_team_are_a_team_or_one_policy() -> None:
    team = team_of_two()
    assert team.of(["helper"]) is team.members["helper"]
    turned = team.of(["helper", "boss"])
    assert isinstance(turned, TeamPolicy)
    assert turned.member(0) is team.members["helper"]
    with pytest.raises(InputError, match="the team has no policy for the agent 'clerk'"):
        team.of(["boss", "clerk"])


@pytest.mark.parametrize("through", ["graph", "cotangents"])
def test_every_row_teaches_its_agents_policy(through: str) -> None:
    team, all_rows = team_of_two(), tokens()
    cotangent_bt = torch.rand(4, 3, dtype=torch.float64) * all_rows.present_bt()
    if through == "graph":
        (team.evaluate(all_rows, ["log_prob"], grad=True)["log_prob"] * cotangent_bt).sum().backward()
    else:
        team.backward(all_rows, {"log_prob": cotangent_bt})
    for agent, rows in ((0, [1, 3]), (1, [0, 2])):
        alone = second_policy(team.member(agent))
        part = all_rows.rows(rows)
        alone.backward(part, {"log_prob": cotangent_bt[rows][:, : part.max_response]})
        for own, other in zip(team.member(agent).parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-12, atol=1e-14)


def test_passes_hold_rows_of_one_agent() -> None:
    team, all_rows = team_of_two(), tokens()
    passes = team.passes(all_rows, [3, 0, 1, 2])
    assert sorted(row for rows in passes for row in rows) == [0, 1, 2, 3]
    assert all(len({all_rows.agents[row] for row in rows}) == 1 for rows in passes)


def test_gradients_are_clipped_agent_by_agent() -> None:
    team = team_of_two()
    for i, owned in enumerate(team.owners()):
        for parameter in owned:
            parameter.grad = torch.full_like(parameter, 0.0 if i else 3.0)
    size = sum(p.numel() for p in team.owners()[0]) ** 0.5
    assert _clipped_norm(team, team.owners(), 1.0) == pytest.approx(3.0 * size)
    assert sum(float(p.grad.square().sum()) for p in team.owners()[0]) == pytest.approx(1.0)


def test_an_agent_without_a_gradient_takes_no_step() -> None:
    team = team_of_two()
    optimizer = torch.optim.AdamW(team.parameters(), lr=0.1, weight_decay=0.5)
    for round_ in range(2):
        before = [p.detach().clone() for p in team.owners()[1]]
        for i, owned in enumerate(team.owners()):
            for parameter in owned:
                parameter.grad = torch.full_like(parameter, float(i == 0 or round_ == 0))
        _let_idle_rest(team.owners())
        optimizer.step()
        moved = [not torch.equal(a, b) for a, b in zip(before, team.owners()[1], strict=True)]
        assert all(moved) if round_ == 0 else not any(moved)


def test_a_single_policy_steps_as_ever() -> None:
    policy = member(1)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    _let_idle_rest(policy.owners())
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_state_names_say_whose_they_are_and_come_back(tmp_path: Path) -> None:
    team = team_of_two(value_head=True)
    state = team.trainable_state()
    assert {name.partition(".")[0] for name in state} == {"boss", "helper", "value_head"}
    other = TeamPolicy({"boss": member(3, value_head=True), "helper": member(4, value_head=True)})
    other.load_trainable_state(state)
    assert torch.equal(other.logp(tokens()), team.logp(tokens()))
    team.save(tmp_path)
    assert load_policy(tmp_path / "helper", dtype="float64").logp(tokens().rows([0])).shape == (1, 2)


def test_a_team_needs_two_that_speak_the_same_tokens() -> None:
    with pytest.raises(InputError, match="two agents or more"):
        TeamPolicy({"boss": member(1)})
    with pytest.raises(InputError, match="has other tokens than 'boss'"):
        TeamPolicy({"boss": member(1), "helper": load_policy("tiny", alphabet="xyz", **SIZES)})
    with pytest.raises(InputError, match="rows without agents"):
        team_of_two().logp(Tokens.of([[3]], [[4]]))
    with pytest.raises(InputError, match="no output 'value'"):
        team_of_two().evaluate(tokens(), ["value"])


def test_the_reference_of_a_team_is_that_of_its_members() -> None:
    team = team_of_two()
    frozen, before = team.reference(), team.logp(tokens()).detach()
    with torch.no_grad():
        for parameter in team.parameters():
            parameter.add_(0.1)
    assert torch.equal(frozen.logp(tokens()), before)
    assert not torch.equal(team.logp(tokens()), before)


SIGNALS: dict[str, Any] = {
    "task": {"name": "signals", "things": 2},
    "model": {"name": "tiny", "tiny": {**SIZES, "max_positions": 64}, "agents": "separate"},
    "batch": {"prompts": 4, "group_size": 4},
}


def test_what_separate_weights_cannot_do_is_refused() -> None:
    def reasons(**changes: Any) -> str:
        return " ".join(plan(parse_config(run_config(**{**SIGNALS, **changes}))).refusals)

    assert not reasons()
    assert "a statistic of one policy" in reasons(method="thr")
    assert not reasons(method="intuitor")  # each row's certainty is its own agent's
    assert "trust_region looks inside one model" in reasons(method="trpo")
    assert "value_pretraining looks inside one model" in reasons(method="vc_ppo")
    assert "statistic" not in reasons(method="igpo")
    assert "samples with one model" in reasons(run={"async_steps": 1, "threads": 1})
    (idle,) = [n for n in plan(parse_config(run_config(task="addition", model=SIGNALS["model"]))).idle if "agents" in n]
    assert "one agent" in idle
    wrong = {**SIGNALS["model"], "agents": {"speaker": "tiny"}}
    with pytest.raises(InputError, match="The agents of the task 'signals' are"):
        start(parse_config(run_config(**{**SIGNALS, "model": wrong})), Path("never"))


def test_a_run_trains_saves_evaluates_and_exports_both(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run", **SIGNALS, warmup={"steps": 20, "batch": 16, "lr": 1e-2}, steps=3)
    assert all(record["grad_norm"] >= 0 for record in records(folder, "train"))
    assert sorted(p.name for p in (folder / "model").iterdir()) == ["listener", "speaker"]
    trained = load_trained(folder)
    found = evaluate(trained.policy, trained.task, prompts=8, samples=2, k=(1,), temperature=1.0, max_new_tokens=4)
    assert 0 <= found.record()["eval/pass@1"] <= 1
    export(folder, tmp_path / "out")
    assert (tmp_path / "out" / "speaker" / "config.json").is_file()


def test_two_policies_need_twice_the_memory() -> None:
    shared = {**SIGNALS["model"], "agents": "shared"}
    one, two = (plan(parse_config(run_config(**{**SIGNALS, "model": m}))) for m in (shared, SIGNALS["model"]))
    assert two.model.parameters == 2 * one.model.parameters


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_killed_and_resumed_ends_equally(tmp_path: Path, method: str) -> None:
    settings = {**SIGNALS, "method": method, "steps": 4, "run": {"checkpoint_every": 2, "keep": 9, "threads": 1}}
    settings["warmup"] = {"steps": 10, "batch": 16, "lr": 1e-2}
    whole = launch(tmp_path / "whole", **settings)
    assert_goes_on_equally(whole, tmp_path / "copy", run_config(**settings))
