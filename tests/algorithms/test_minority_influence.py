"""AMI: an adversary in a frozen team, the prediction of what its victims do next, and the pay for leading them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import grouprl
from grouprl import InputError
from grouprl.algorithms.advantage_transform.papers.next_advantage import NextAdvantage
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.minority_influence import MinorityInfluence, Prediction
from grouprl.core.batch import Batch
from grouprl.envs.builtin.jury import MEMBERS, InfiltratedJury, Jury, JuryWorld
from grouprl.policy import ArrayInputs, Build, Mlp, Saboteur
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.records.examples import Example
from grouprl.testing import check_environment
from part_context import PartContext


def played(actions_eat: list[list[list[int]]], order: list[int] | None = None) -> Batch:
    """Episodes of three agents that see nothing but zeros; rows in `order`."""
    flat = [(episode, agent, did) for episode, three in enumerate(actions_eat) for agent, did in enumerate(three)]
    flat = [flat[i] for i in order] if order else flat
    seen = [
        {
            "own": np.zeros((len(did), 2), np.float32),
            "agent": np.full(len(did), agent, np.int64),
            "earlier": np.zeros((len(did), 3, 2), np.float32),
        }
        for _, agent, did in flat
    ]
    inputs = ArrayInputs.of(seen, [did for *_, did in flat])
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(len(flat)),
        reward_b=torch.zeros(len(flat), dtype=torch.float64),
        agent_b=torch.tensor([agent for _, agent, _ in flat]),
        keys={"episode": torch.tensor([episode for episode, *_ in flat])},
        inputs=inputs,
    )


def copying(count: int = 64, rounds: int = 6) -> list[list[list[int]]]:
    """Adversaries that toss a coin, victims that repeat what the adversary did last, targets that are always 1."""
    luck = np.random.default_rng(0)
    tossed = luck.integers(0, 2, (count, rounds))
    return [[list(map(int, row)), [0, *map(int, row[:-1])], [1] * rounds] for row in tossed]


def test_a_missed_target_costs_the_adversary_and_who_named_it_by_hand() -> None:
    batch = played([[[0, 1], [1, 1], [0, 0]]]).replace(stats={"missed": torch.full((3, 2), 0.5)})
    batch = batch.replace(token_reward_bt=torch.tensor([[0.0, -1.0], [0.0, 1.0], [0.0, -1.0]]))
    found_bt = MinorityInfluence(coef=0.4)(batch).token_reward_bt
    assert found_bt is not None
    assert found_bt.tolist() == [pytest.approx(x) for x in ([-0.2, -1.2], [0.0, 1.0], [-0.2, -1.2])]


def test_the_distance_is_twice_the_chance_of_anything_but_the_target() -> None:
    """An even prediction misses each target by ½ + ½; after the last action nobody acts."""
    context, part = PartContext(), MinorityInfluence()
    batch = played([[[0, 1, 0], [1, 1, 0], [0, 1, 0]]])
    prediction = Prediction(part, context, part.rounds(batch))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in prediction.net.parameters():
            parameter.zero_()
    prediction.remember()
    assert part.fill(batch, None, context).stats["missed"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0]]  # type: ignore[arg-type]
    assert context.notes["influence"] == 0.5


def test_the_prediction_is_the_mean_over_what_the_adversary_may_do() -> None:
    """Of victims that copy a coin it says ½, whatever the coin shows: what the adversary does now is not read."""
    context, part = PartContext(), MinorityInfluence(lr=1e-2, steps=200)
    batch = played(copying())
    part.observe(None, batch, context)  # type: ignore[arg-type]
    rounds = part.rounds(batch)
    prediction = Prediction(part, context, rounds)  # type: ignore[arg-type]
    chance_etva = prediction.logits(rounds).softmax(-1)
    assert bool(((chance_etva[:, 2:-1] - 0.5).abs() < 0.12).all())
    other = rounds._replace(action_eta=rounds.action_eta.clone())
    other.action_eta[..., 0] = 1 - other.action_eta[..., 0]
    assert torch.equal(prediction.logits(other), prediction.logits(rounds))


def test_it_learns_what_victims_do_from_what_victims_did() -> None:
    """Victims that alternate are known exactly; the error of before the steps is noted."""
    context, part = PartContext(), MinorityInfluence(lr=1e-2, steps=150)
    batch = played([[[0, 0, 0, 0], [n, 1 - n, n, 1 - n], [1, 1, 1, 1]] for n in (0, 1)])
    part.observe(None, batch, context)  # type: ignore[arg-type]
    assert context.notes["victims_error"] == pytest.approx(np.log(2), abs=0.2)
    missed_bt = part.fill(batch, None, context).stats["missed"]  # type: ignore[arg-type]
    assert missed_bt[0].tolist() == pytest.approx([0, 2, 0, 0], abs=0.1)
    assert missed_bt[3].tolist() == pytest.approx([2, 0, 2, 0], abs=0.1)


def test_what_it_fills_in_depends_on_no_order_of_rows_and_leaves_broken_episodes_out() -> None:
    part, episodes = MinorityInfluence(), copying(3)
    order = [4, 0, 8, 2, 6, 1, 3, 5, 7]
    straight = part.fill(played(episodes), None, PartContext()).stats["missed"]  # type: ignore[arg-type]
    mixed = part.fill(played(episodes, order), None, PartContext()).stats["missed"]  # type: ignore[arg-type]
    assert torch.equal(mixed, straight[order])
    broken = part.fill(played(episodes, [0, 1, 2, 3, 5]), None, PartContext()).stats["missed"]  # type: ignore[arg-type]
    assert torch.equal(broken, torch.cat([straight[:3], torch.zeros(2, 6)]))


def test_the_prediction_continues_from_its_memory() -> None:
    apart, whole, batch = PartContext(), PartContext(), played(copying(8))
    for steps, context in ((5, apart), (5, apart), (10, whole)):
        MinorityInfluence(steps=steps).observe(None, batch, context)  # type: ignore[arg-type]
    for name, tensor in apart.store["net"].items():
        assert torch.equal(tensor, whole.store["net"][name])


def test_agents_that_name_targets_are_judged_by_their_next_action() -> None:
    batch = played([[[0, 1, 0]] * 3])
    adv_bt = torch.tensor([[1.0, 2.0, 3.0]] * 3)
    assert NextAdvantage(first=2)(adv_bt, batch).tolist() == [[1, 2, 3], [1, 2, 3], [2, 3, 0]]
    assert NextAdvantage(first=3)(adv_bt, batch).tolist() == adv_bt.tolist()


def test_teams_that_do_not_fit_are_refused() -> None:
    part = MinorityInfluence(members=5)
    assert part.refuse(RunFacts(agents=9)) == []
    assert "needs 9 agents" in part.refuse(RunFacts(agents=5))[0]
    assert MinorityInfluence(coef=0.0).idle(RunFacts())
    uneven = played([[[0, 1], [1], [0, 0]]])
    with pytest.raises(InputError, match="different rounds"):
        MinorityInfluence().rounds(uneven)
    with pytest.raises(InputError, match="arrays by name"):
        MinorityInfluence().rounds(uneven.replace(inputs=None))


# --- the world ------------------------------------------------------------------------------------------------------


def test_a_jury_is_paid_for_right_votes_and_sees_the_last_ones() -> None:
    world = JuryWorld(options=3, expert=1.0, others=0.0, rounds=2)
    first = world.begin(Example("any", {}), 4)
    truth = int(np.asarray(first["expert"])[:3].argmax())
    assert all(np.asarray(first[m])[:3].argmax() != truth for m in MEMBERS[1:])
    votes = dict(zip(MEMBERS, (truth, truth, (truth + 1) % 3, truth, (truth + 2) % 3), strict=True))
    step = world.act(votes)
    assert step.rewards["fifth"] == pytest.approx(0.6)
    shown = np.asarray(step.seen["second"])[3:-1].reshape(5, 3).argmax(1)
    assert shown.tolist() == list(votes.values())
    assert world.correct() == 1
    assert world.act(dict.fromkeys(MEMBERS, (truth + 1) % 3)).seen == {}
    assert world.correct() == 0


def test_juries_keep_the_rules_of_environments() -> None:
    for world, agents in ((Jury, 5), (InfiltratedJury, 9)):
        check_environment(world, Example("any", {}), [n % 3 for n in range(4 * agents)], spaces=world().spaces)


def test_the_infiltrated_jury_is_the_jury_with_one_who_earns_what_it_loses() -> None:
    """What is named for a victim changes nothing of the world, and who names it sees what all did in the round."""
    for named in (0, 2):
        plain, inside = Jury(rounds=1), InfiltratedJury(rounds=1)
        shown, seen = plain.reset(Example("any", {}), 7), inside.reset(Example("any", {}), 7)
        for action in (0, 1, 2, 1, 0):
            assert np.array_equal(shown.values["own"], seen.values["own"])
            paid, step = plain.step(action), inside.step(action)
            shown, seen = paid.observation, step.observation
        for number in range(4):
            assert seen.agent == f"target of {MEMBERS[number + 1]}"
            assert seen.values["earlier"][:5].argmax(1).tolist() == [0, 1, 2, 1, 0]
            step = inside.step(named)
            seen = step.observation
        team = paid.rewards["second"]
        assert step.rewards["second"] == team
        assert step.rewards["expert"] == step.rewards["target of fifth"] == -team
        assert plain.score() == inside.score()


# --- the policy -----------------------------------------------------------------------------------------------------


def team_of(tmp_path: Any, seed: int = 5) -> tuple[Mlp, str]:
    """A jury's perceptron with weights that say something, and the folder that it is stored in."""
    policy = Mlp(Build(Jury().spaces, seed=seed), hidden=(8,))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    policy.save(tmp_path / "team")
    return policy, str(tmp_path / "team")


def moment(agent: int, spaces: Spaces) -> ArrayInputs:
    world: Any = (
        InfiltratedJury()
        if isinstance(spaces.observation, DictSpace) and "earlier" in spaces.observation.spaces
        else Jury()
    )
    values = dict(world.reset(Example("any", {}), 3).values)
    return ArrayInputs.of(
        [{name: np.asarray(x)[None] for name, x in (values | {"agent": np.asarray(agent)}).items()}], [[1]]
    )


def test_the_frozen_team_votes_as_it_did_and_is_not_trained(tmp_path: Any) -> None:
    team, folder = team_of(tmp_path)
    policy = Saboteur(Build(InfiltratedJury().spaces, seed=1, values=True), team=folder, members=5, hidden=(4,))
    for victim in (1, 4):
        before = team.distribution(moment(victim, Jury().spaces).seen(team.device, team.dtype), 1.0)
        after = policy.distribution(moment(victim, InfiltratedJury().spaces).seen(team.device, team.dtype), 1.0)
        assert torch.allclose(before.probs, after.probs, atol=1e-6)  # type: ignore[attr-defined]
    own = moment(0, InfiltratedJury().spaces).seen(team.device, team.dtype)
    apart = policy.distribution(own, 1.0).probs  # type: ignore[attr-defined]
    assert not torch.allclose(apart, policy.team_logits(own).softmax(-1), atol=1e-3)
    names = [name for name, _ in policy.named_parameters()]
    assert names
    assert not any(name.startswith("team") for name in names)
    assert sum(name.startswith("team.") for name in policy.trainable_state()) == 4


def test_a_checkpoint_holds_the_team(tmp_path: Any) -> None:
    """The weights of one policy put into another whose team was a different one make the same policy."""
    _, folder = team_of(tmp_path)
    build = Build(InfiltratedJury().spaces, seed=1)
    one, other = Saboteur(build, team=folder, members=5, hidden=(8,)), Saboteur(build, members=5, hidden=(8,))
    inputs = moment(2, InfiltratedJury().spaces)
    assert not torch.equal(one.logp(inputs), other.logp(inputs))
    other.load_trainable_state(one.trainable_state())
    assert torch.equal(one.logp(inputs), other.logp(inputs))


def test_rows_of_victims_have_no_gradient(tmp_path: Any) -> None:
    policy = Saboteur(Build(InfiltratedJury().spaces, seed=1), members=5, hidden=(4,))
    for agent, owner in ((1, None), (0, "mean"), (6, "target")):
        policy.backward(moment(agent, InfiltratedJury().spaces), {"log_prob": torch.ones(1, 1)})
        moved = {
            name.split(".")[0] for name, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())
        }
        assert moved == ({owner} if owner else set())
        for parameter in policy.parameters():
            parameter.grad = None


def test_what_is_no_team_is_told(tmp_path: Any) -> None:
    build = Build(InfiltratedJury().spaces, seed=1)
    with pytest.raises(InputError, match="is not a file"):
        Saboteur(build, team=str(tmp_path / "none"), members=5)
    with pytest.raises(InputError, match="The first `members` agents are the team"):
        Saboteur(build, members=2, adversary=2)
    Mlp(Build(Spaces(Box((3,)), Discrete(2)))).save(tmp_path / "other")
    with pytest.raises(InputError, match="reads 3 numbers"):
        Saboteur(build, team=str(tmp_path / "other"), members=5)
    save_file({"encoder.weight": torch.zeros(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match="A team is a plain mlp"):
        Saboteur(build, team=str(tmp_path / "odd.safetensors"), members=5)


# --- a run ----------------------------------------------------------------------------------------------------------


def followers(tmp_path: Any) -> str:
    """A team in which everybody votes as the expert did last: one layer that reads its last vote."""
    reads = Jury().spaces.observation.spaces["own"].shape[0] + 5  # type: ignore[union-attr]
    weight_af = torch.zeros(3, reads)
    weight_af[:, 3:6] = 20 * torch.eye(3)
    save_file({"mean.0.weight": weight_af, "mean.0.bias": torch.zeros(3)}, tmp_path / "followers.safetensors")
    return str(tmp_path / "followers.safetensors")


@pytest.mark.parametrize("influence", [0.0, 0.1])
def test_the_adversary_leads_those_who_follow_it_to_the_wrong_verdict(tmp_path: Any, influence: float) -> None:
    """Without influence it is plain PPO for the negative reward; the least that the team can earn is nearly nothing."""
    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.builtin.jury:InfiltratedJury", "turns": 27, "config": {"rounds": 3}},
            "model": {"name": "saboteur", "settings": {"team": followers(tmp_path), "members": 5, "hidden": [16]}},
            "method": {"name": "ami", "members": 5, "influence": influence, "gamma": 1.0, "size": 128},
            "steps": 12,
            "batch": {"prompts": 16, "group_size": 1, "epochs": 4},
            "optim": {"lr": 0.03, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 64, "final_prompts": 64},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (row["eval/greedy"] for row in rows if row["phase"] == "eval")
    assert last <= 0.2 < first + 0.2
    trained = [row for row in rows if row["phase"] == "train"]
    assert trained[-1]["victims_error"] < trained[0]["victims_error"]
    assert 0 <= trained[-1]["influence"] <= 1
