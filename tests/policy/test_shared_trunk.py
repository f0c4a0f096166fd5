"""Heads of several agents on one trunk: whose gradients are whose, what is copied and saved, and mixtures of logits."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from grouprl.core.errors import InputError
from grouprl.core.outputs import LOG_PROB
from grouprl.policy import CausalPolicy, char_tokenizer
from grouprl.policy.lora import add_lora
from grouprl.policy.teams.shared_trunk import SharedTrunk, with_heads
from grouprl.policy.teams.team_policy import TeamPolicy
from policies import ALPHABET, make_model, make_policy, make_tokens
from policies import FAMILIES as CONFIGS

TOKENS = make_tokens([3, 6, 6], 2, 5, seed=1)
AGENTS = [0, 1, 0, 1, 1, 0]
ROWS = TOKENS.of_agents(AGENTS)
FAMILIES = pytest.mark.parametrize(("family", "engine"), [("llama-gqa-tied", "lean"), ("qwen2", "transformers")])


def heads(family="llama-gqa-tied", engine="auto", noise=0.3):
    return with_heads(make_policy(family, torch.float64, engine=engine), ["one", "two"], seed=3, noise=noise)


def gradients(team, cotangent_bt):
    for parameter in team.parameters():
        parameter.grad = None
    team.backward(ROWS, {LOG_PROB: cotangent_bt})
    return {name: None if p.grad is None else p.grad.clone() for name, p in team.named_parameters()}


@FAMILIES
def test_heads_without_noise_are_the_model_itself(family, engine):
    policy = make_policy(family, torch.float64, engine=engine)
    expected = policy.logp(TOKENS)
    torch.testing.assert_close(with_heads(policy, ["one", "two"], noise=0.0).logp(ROWS), expected)


@FAMILIES
def test_a_head_has_a_gradient_from_its_own_rows_alone_and_the_trunk_from_all(family, engine):
    team, own_b = heads(family, engine), torch.tensor(AGENTS) == 0
    one_bt = torch.randn(len(ROWS), ROWS.max_response, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = gradients(team, one_bt)
    first, second = (gradients(team, torch.where(keep_b[:, None], one_bt, 0)) for keep_b in (own_b, ~own_b))
    assert first["two.weight"] is None
    assert second["one.weight"] is None
    torch.testing.assert_close(first["one.weight"], whole["one.weight"])
    torch.testing.assert_close(second["two.weight"], whole["two.weight"])
    trunk = [name for name in whole if name.startswith("trunk.")]
    assert len(trunk) > 10
    for name in trunk:
        torch.testing.assert_close(first[name] + second[name], whole[name])
    assert all(first[name].any() and second[name].any() for name in trunk)


def test_gradients_are_those_of_finite_differences():
    team, step = heads(), 1e-6
    weight_bt = torch.randn(
        len(ROWS), ROWS.max_response, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    found = gradients(team, weight_bt)
    for name, parameter in team.named_parameters():
        if name not in ("one.weight", "two.weight", "trunk.model.embed_tokens.weight", "trunk.model.norm.weight"):
            continue
        flat, place = parameter.data.view(-1), int(found[name].abs().argmax())
        around = []
        for sign in (1, -1):
            flat[place] += sign * step
            around.append(float((team.logp(ROWS) * weight_bt).sum()))
            flat[place] -= sign * step
        assert (around[0] - around[1]) / (2 * step) == pytest.approx(float(found[name].view(-1)[place]), rel=1e-5)


def test_each_parameter_is_named_once_and_the_team_is_one_owner():
    team = heads()
    names = [name for name, _ in team.named_parameters()]
    assert len({id(p) for p in team.parameters()}) == len(names) == len(set(names))
    assert names[-2:] == ["one.weight", "two.weight"]
    assert [[id(p) for p in owner] for owner in team.owners()] == [[id(p) for p in team.parameters()]]
    policy = make_policy("llama-gqa-tied")
    assert sum(p.numel() for p in team.parameters()) == sum(p.numel() for p in policy.parameters()) + 2 * 17 * 32


def test_noise_is_that_of_its_seed_and_as_large_as_asked():
    one, same, other = (
        with_heads(make_policy("llama-gqa-tied"), ["a", "b"], seed=seed, noise=1e-3) for seed in (1, 1, 2)
    )
    weights = [dict(team.named_parameters())["a.weight"] for team in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    state = one.trainable_state()
    assert float((state["a.weight"] - state["b.weight"]).std()) == pytest.approx(1e-3 * 2**0.5, rel=0.1)


def test_a_copy_has_one_trunk_of_its_own():
    team = heads()
    twin = team.copied()
    before = twin.logp(ROWS)
    torch.testing.assert_close(before, team.logp(ROWS))
    with torch.no_grad():
        for parameter in team.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(twin.logp(ROWS), before)
    frozen = team.copied(trainable=False)
    assert list(frozen.named_parameters()) == []
    torch.testing.assert_close(team.reference().logp(ROWS), team.logp(ROWS))
    twin.load_trainable_state(team.trainable_state())
    torch.testing.assert_close(twin.logp(ROWS), team.logp(ROWS))


@FAMILIES
def test_a_mixture_has_the_weighted_mean_of_logits(family, engine):
    team = heads(family, engine)
    ids = torch.tensor([[3, 5, 7, 4]])
    one, two = (team.member(agent).model(ids).logits for agent in (0, 1))
    assert float((one - two).abs().max()) > 0.1
    torch.testing.assert_close(team.mixed({"one": 3.0, "two": 1.0}).model(ids).logits, 0.75 * one + 0.25 * two)
    torch.testing.assert_close(team.mixed({"two": 2.0}).logp(TOKENS), team.member(1).logp(TOKENS))
    torch.testing.assert_close(team.mixed({"one": 0.0, "two": 1.0}).model(ids).logits, two)
    for weights in ({}, {"three": 1.0}, {"one": -1.0, "two": 2.0}, {"one": 0.0}, {"one": float("inf")}):
        with pytest.raises(InputError, match="one, two"):
            team.mixed(weights)


@FAMILIES
def test_each_head_is_saved_as_an_ordinary_model(tmp_path, family, engine):
    team = heads(family, engine)
    team.save(tmp_path)
    team.mixed({"one": 1.0, "two": 1.0}).save(tmp_path / "mixed")
    ids = torch.tensor([[3, 5, 7, 4]])
    for agent, name in enumerate(("one", "two")):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float64)
        torch.testing.assert_close(loaded(ids).logits, team.member(agent).model(ids).logits, rtol=1e-5, atol=1e-6)
    mixed = AutoModelForCausalLM.from_pretrained(tmp_path / "mixed", dtype=torch.float64)(ids).logits
    torch.testing.assert_close(mixed, sum(team.member(n).model(ids).logits for n in (0, 1)) / 2, rtol=1e-5, atol=1e-6)


def test_what_cannot_have_heads_is_refused():
    adapted = CausalPolicy(add_lora(make_model(CONFIGS["llama"]), {"r": 2}), char_tokenizer(ALPHABET))
    with pytest.raises(InputError, match=r"model\.lora"):
        with_heads(adapted, ["a", "b"])
    with pytest.raises(InputError, match="critic"):
        with_heads(make_policy("llama", value_head=True), ["a", "b"])
    with pytest.raises(InputError, match="two agents"):
        with_heads(make_policy("llama"), ["a"])
    with pytest.raises(InputError, match="one trunk"):
        SharedTrunk({"a": make_policy("llama"), "b": make_policy("llama")})
    with pytest.raises(InputError, match="critic"):
        heads().copied(value_head=True)


def test_some_agents_are_a_team_on_the_same_trunk():
    team = with_heads(make_policy("llama"), ["a", "b", "c"])
    assert team.of(["b"]) is team.members["b"]
    pair = team.of(["c", "a"])
    assert isinstance(pair, SharedTrunk)
    assert isinstance(pair, TeamPolicy)
    assert list(pair.members) == ["c", "a"]
