"""What happens once before the first step: initial completions, value pre-training, second models."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl.algorithms.advantage.known_baseline import KnownBaseline
from grouprl.algorithms.advantage.papers.guided_gae import GuidedGAE
from grouprl.algorithms.augment.papers.retrospect import Retrospect
from grouprl.algorithms.auxiliary_models import second_policy
from grouprl.algorithms.buffer.papers.reference_rows import ReferenceRows
from grouprl.algorithms.curriculum.initial_rate import InitialRate
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.initial_completions import InitialCompletions, soft_value
from grouprl.algorithms.pretrain.papers.progress import ProgressModel
from grouprl.algorithms.pretrain.papers.second_model import GlobalValue, PreferenceModel
from grouprl.algorithms.pretrain.value_pretraining import ValuePretraining, foreseen
from grouprl.algorithms.reward_transform.papers.expert_reward import ExpertReward
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.errors import InputError, RunError
from grouprl.policy.language.load import load_policy
from grouprl.records.samples import ScoredSamples
from pretraining_runs import cut_at, records, run
from small import f64, near, small

# --- the initial policy's completions
# -------------------------------------------------------------------------------------


def test_soft_value_lies_between_mean_and_largest_reward() -> None:
    reward_n = np.array([1.0, 0.0, 0.0, 1.0])
    assert soft_value(reward_n, 0.5) == pytest.approx(0.5 * math.log((math.e**2 + 1) / 2))
    assert soft_value(reward_n, 0) == 0.5
    assert soft_value(reward_n, 1e6) == pytest.approx(0.5, abs=1e-6)
    assert soft_value(reward_n, 1e-3) == pytest.approx(1, abs=1e-3)
    assert soft_value(np.zeros(8), 0.5) == 0
    assert soft_value(np.array([]), 0.5) == 0
    assert soft_value(np.array([1e4, 0.0]), 0.5) == pytest.approx(1e4 - 0.5 * math.log(2))


def surveyed(rates: list[float], **settings: Any) -> tuple[FakeContext, InitialCompletions]:
    """A context whose prompts were all sampled before training."""
    context, part = FakeContext(rates), InitialCompletions(**{"completions": 4, "prompts_per_piece": 3, **settings})
    for number in range(part.count(context)):
        context.step = number
        part.piece(number, context)
    context.step = 0
    return context, part


def test_every_prompt_is_sampled_once_in_pieces() -> None:
    context, part = surveyed([0.0, 1.0, 0.5, 0.5, 1.0, 0.0, 1.0, 0.25])
    assert part.count(context) == 3
    assert [len(rows) for rows in context.sampled] == [12, 12, 8]
    requested = np.concatenate([rows.index_b for rows in context.sampled])
    assert np.bincount(requested).tolist() == [4] * 8
    store = context.state_of(part)
    assert store["rate"][[0, 1, 4, 5, 6]].tolist() == [0, 1, 1, 0, 1]
    near(store["value"][[0, 1]], [0.0, 1.0])


def test_values_and_rates_reach_the_batch() -> None:
    context, part = surveyed([0.0, 1.0, 1.0, 0.0])
    rows = context.sample([context.request(1), context.request(3)])
    batch = part.fill(context.batch(rows), rows, context)
    near(batch.past["baseline"], [1.0] * 4 + [0.0] * 4)
    near(batch.past["rate"], [1.0] * 4 + [0.0] * 4)
    assert "visits" in batch.past
    near(KnownBaseline()(batch)[:, 0], [0.0] * 8)


def test_only_a_finite_set_can_be_sampled_through() -> None:
    for part in (InitialCompletions(), InitialRate(above=0.0), ReferenceRows()):
        assert "data.prompts" in part.refuse(RunFacts(examples=None))[0]
        assert not part.refuse(RunFacts(examples=5))


def test_prompts_are_sampled_by_their_initial_rate() -> None:
    context, _ = surveyed([0.0, 1.0, 1.0, 0.0, 1.0])
    above = InitialRate(above=0.0)
    requested = [request.index for _ in range(3) for request in above.choose(2, context)]
    assert sorted(requested[:3]) == sorted(requested[3:]) == [1, 2, 4]
    assert {request.index for request in InitialRate(below=1.0).choose(4, context)} == {0, 3}
    with pytest.raises(RunError, match=r"above 0 and below 1"):
        InitialRate(above=0.0, below=1.0).choose(1, context)


def test_reference_rows_are_right_completions_of_the_initial_policy_to_solved_prompts() -> None:
    context, _ = surveyed([0.0, 1.0, 0.5, 1.0], completions=16)
    replay = ReferenceRows()
    new = context.sample(context.take(4))
    mixed = replay.mix(new, context)
    assert mixed is not None
    old = np.flatnonzero(mixed.source_b == SOURCES["reference"])
    assert sorted(mixed.index_b[old].tolist()) == [1, 3]
    assert mixed.scores.correct_b[old].all()
    assert not mixed.foreign_b[old].any()
    assert not set(mixed.group_b[old].tolist()) & set(new.group_b.tolist())
    assert context.notes["reference_rows"] == 2
    batch = context.batch(mixed)
    assert torch.equal(batch.behavior_bt[old], batch.old_bt[old])
    some = ReferenceRows(solved=0.1).mix(None, context)
    assert some is not None
    assert set(some.index_b.tolist()) == {1, 2, 3}


def test_without_solved_prompts_no_reference_row_joins() -> None:
    context, _ = surveyed([0.0, 0.0])
    new = context.sample(context.take(1))
    assert ReferenceRows().mix(new, context) is new
    assert ReferenceRows().mix(None, context) is None


# --- pieces that need a model -----------------------------------------------------------------------------------------


def policy(seed: int = 0, **options: Any) -> Any:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}
    return load_policy("tiny", alphabet="0123456789q=rightwon", dtype="float64", seed=seed, **sizes, **options)


class Written(FakeContext):
    """A context whose completions are letters that a tiny policy can read: right ones say 'right', wrong ones
    'wrong'."""

    def rows(self, rows: Any, ids: Any, right: Any) -> ScoredSamples:
        texts = ["right"[: len(x)] if good else "wrong"[: len(x)] for x, good in zip(ids, right, strict=True)]
        made = super().rows(rows, [self.policy.encode(text) for text in texts], right)
        logp_bt = self.policy.logp(made.tokens)
        return dataclasses.replace(made, rollout=dataclasses.replace(made.rollout, logp_bt=logp_bt))


def context_with(rates: Any, **options: Any) -> Written:
    return Written(rates, policy=options.pop("policy", None) or policy(), lengths=lambda i, n: 5, **options)


def test_value_pretraining_finds_the_best_linear_head() -> None:
    context = context_with([0.0, 1.0, 1.0, 0.0] * 4, policy=policy(value_head=True), prompts=4)
    part = ValuePretraining(steps=8, ridge=1e-6)
    found = []
    for number in range(8):
        context.step = number
        found.append(part.piece(number, context))
    batches = [context.batch(rows) for rows in context.sampled]
    states = torch.cat([torch.cat(context.policy.hidden(b.inputs)) for b in batches])
    returns = torch.cat([b.reward_b[:, None].expand(b.size)[b.mask_bt] for b in batches])
    design = torch.cat([states, torch.ones(len(states), 1, dtype=torch.float64)], 1)
    head = context.policy.value_head
    weight = torch.cat([head.weight[0], head.bias]).detach()
    penalty = 1e-6 * design[:, :-1].square().sum(0).mean() * torch.cat([weight[:-1], f64([0.0])])
    near(design.T @ (design @ weight - returns) + penalty, torch.zeros(17), 1e-9)
    near(context.policy.evaluate(batches[0].inputs, ["value"])["value"], (design @ weight)[: 16 * 5].view(16, 5), 1e-9)
    assert found[0]["value_loss"] == pytest.approx(0.5 * float(batches[0].reward_b.square().mean()))
    assert found[-1]["value_loss"] < 0.4 * found[0]["value_loss"]
    assert found[-1]["explained_variance"] > 0.3
    assert context.state_of(part) == {}


def test_value_pretraining_is_fitted_to_the_policys_own_tokens() -> None:
    context = context_with([1.0, 0.0] * 4, policy=policy(value_head=True), prompts=4)
    lay_out = context.batch

    def with_replies(rows: Any) -> Batch:
        batch = lay_out(rows)
        heard_bt = batch.mask_bt.clone()
        heard_bt[:, 1:3] = False  # an environment's reply amid the policy's text
        return batch.replace(mask_bt=heard_bt)

    context.batch = with_replies
    ValuePretraining(steps=2, ridge=1e-10).piece(0, context)
    batch = with_replies(context.sampled[0])
    states = context.policy.hidden(batch.inputs)
    own = torch.cat([each[mask[: len(each)]] for each, mask in zip(states, batch.mask_bt, strict=True)])
    return_m = batch.reward_b[:, None].expand(batch.size)[batch.mask_bt]
    design = torch.cat([own, torch.ones(len(own), 1, dtype=torch.float64)], 1)
    value_m = context.policy.evaluate(batch.inputs, ["value"])["value"][batch.mask_bt]
    best_m = design @ torch.linalg.lstsq(design, return_m[:, None], driver="gelsd").solution[:, 0]
    near(value_m, best_m, 1e-3)


def test_value_pretraining_touches_nothing_but_the_head() -> None:
    own = policy(value_head=True)
    before = own.trainable_state()
    context = context_with([0.0, 1.0], policy=own, prompts=2)
    ValuePretraining(steps=1).piece(0, context)
    changed = {name for name, x in own.trainable_state().items() if not torch.equal(x, before[name])}
    assert changed == {"value_head.weight", "value_head.bias"}


def test_value_pretraining_needs_a_value_head() -> None:
    with pytest.raises(InputError, match="value head"):
        ValuePretraining().piece(0, context_with([0.5] * 4))


def test_discounted_returns_are_fitted_where_gamma_asks_for_them() -> None:
    context = context_with([1.0], policy=policy(value_head=True), prompts=1)
    ValuePretraining(steps=2, gamma=0.5, ridge=1e-10).piece(0, context)
    value_bt = context.policy.evaluate(context.sampled[0].tokens, ["value"])["value"]
    near(value_bt[0], [0.0625, 0.125, 0.25, 0.5, 1.0], 1e-4)


def test_foresight() -> None:
    return_m = f64([0.0, 1.0, 1.0, 0.0])
    assert foreseen(return_m, return_m) == {"value_loss": 0.0, "explained_variance": 1.0}
    assert foreseen(f64([0.5] * 4), return_m) == {"value_loss": 0.125, "explained_variance": 0.0}
    assert foreseen(f64([0.5] * 2), f64([1.0, 1.0]))["explained_variance"] == 0.0


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_a_second_policy_is_the_same_and_goes_its_own_way(lora: Any) -> None:
    own = policy(lora=lora)
    copy = second_policy(own)
    tokens = context_with([0.5], policy=own).sample([FakeContext().request(0)]).tokens
    before = own.logp(tokens)
    assert torch.equal(copy.logp(tokens), before)
    assert copy.trainable_state().keys() == own.trainable_state().keys()
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.1)
    assert torch.equal(own.logp(tokens), before)
    assert not torch.equal(copy.logp(tokens), before)
    assert second_policy(own, trainable=False).parameters() == []
    assert {"value_head.weight", "value_head.bias"} <= second_policy(own, value_head=True).trainable_state().keys()


@pytest.mark.parametrize("chosen", ["completions", "solutions"])
def test_the_value_model_learns_who_is_right(chosen: Any) -> None:
    context = context_with([0.5] * 12, prompts=6)
    before = context.policy.trainable_state()
    part = GlobalValue(steps=12, lr=3e-3, chosen=chosen, whiten=False)
    found = [part.piece(number, context) for number in range(12)]
    assert found[-1]["explained_variance"] > 0.5 > found[0]["explained_variance"]
    assert all(torch.equal(x, before[name]) for name, x in context.policy.trainable_state().items())
    rows = context.sample(context.take(6))
    value_bt = part.fill(context.batch(rows), rows, context).value_bt
    assert value_bt is not None
    right = torch.from_numpy(rows.scores.correct_b)
    assert float(value_bt[right, -1].mean()) > 0.5
    assert float(value_bt[~right, -1].mean()) < -0.5


def test_the_value_after_a_token_is_the_value_before_the_next_and_at_last_of_the_whole_completion() -> None:
    context, part = context_with([0.5] * 4), GlobalValue(steps=2, lr=1e-2, whiten=False)
    for number in range(2):
        part.piece(number, context)
    rows = context.sample(context.take(2))
    batch = part.fill(context.batch(rows), rows, context)
    near(batch.stats["value_after"][:, :-1], batch.value_bt[:, 1:])
    model, tokens = part.model(context), rows.tokens
    whole = torch.tensor([[*tokens.prompt_ids[0], *tokens.response_ids[0]]])
    with torch.no_grad():
        hidden = model.model(input_ids=whole, output_hidden_states=True).hidden_states[-1][0, -1]
        near(batch.stats["value_after"][0, -1], model.value_head(hidden)[0], 1e-6)


def test_the_first_targets_of_the_value_model_are_discounted_by_lambda() -> None:
    context, part = context_with([0.5] * 4), GlobalValue(lam=0.5)
    pairs = part.pairs(context.sample(context.take(4)), context)
    assert pairs is not None
    target_bt = part.targets(part.model(context), pairs, context)
    half = len(pairs) // 2
    near(target_bt[0], [1 / 32, 0.0625, 0.125, 0.25, 0.5, 1.0])
    near(target_bt[half], [-1 / 32, -0.0625, -0.125, -0.25, -0.5, -1.0])
    assert pairs.scores.correct_b.tolist() == [True] * half + [False] * half
    assert pairs.group_b[:half].tolist() == pairs.group_b[half:].tolist()


def test_values_of_the_value_model_are_whitened() -> None:
    context, part = context_with([0.5] * 8), GlobalValue(steps=2, lr=1e-2)
    for number in range(2):
        part.piece(number, context)
    rows = context.sample(context.take(4))
    batch = part.fill(context.batch(rows), rows, context)
    value_m = batch.value_bt[batch.mask_bt]
    assert float(value_m.mean()) == pytest.approx(0, abs=1e-9)
    assert float(value_m.std()) == pytest.approx(1, abs=1e-4)


def test_the_preference_model_prefers_right_completions() -> None:
    context = context_with([0.5] * 12, prompts=6)
    part = PreferenceModel(steps=10, lr=3e-3)
    found = [part.piece(number, context) for number in range(10)]
    assert found[0]["preference_loss"] == pytest.approx(math.log(2))
    assert found[0]["preference_accuracy"] == 0
    assert found[-1]["preference_accuracy"] == 1
    assert found[-1]["preference_loss"] < 0.6
    rows = context.sample(context.take(6))
    batch = part.fill(context.batch(rows), rows, context)
    gain_b = (batch.stats["expert"] - context.policy.logp(rows.tokens)).sum(1)
    right = torch.from_numpy(rows.scores.correct_b)
    assert gain_b[right].min() > gain_b[~right].max()


def test_the_gradient_of_the_preference_model_is_that_of_dpo() -> None:
    context, part = context_with([0.5] * 4), PreferenceModel(beta=0.7)
    pairs = part.pairs(context.sample(context.take(4)), context)
    assert pairs is not None
    model, half = part.model(context), len(pairs) // 2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel(), dtype=torch.float64)).view_as(parameter))
    fixed_b = part.targets(model, pairs, context)
    part.learn(model, pairs, context, fixed_b)
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.model.zero_grad()
    gap_b = model.evaluate(pairs.tokens, ["log_prob"], grad=True)["log_prob"].sum(1) - fixed_b
    loss = -torch.nn.functional.logsigmoid(0.7 * (gap_b[:half] - gap_b[half:])).mean()
    loss.backward()
    for got, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("part", [GlobalValue(steps=4), PreferenceModel(steps=4)])
def test_a_second_model_goes_on_from_its_store(part: Any, tmp_path: Path) -> None:
    whole, cut = context_with([0.5] * 40), context_with([0.5] * 40)
    for number in range(4):
        part.piece(number, whole)
    for number in range(2):
        part.piece(number, cut)
    torch.save(cut.memory, tmp_path / "data.pt")
    state, again = cut.source.state(), context_with([0.5] * 40)
    again.memory = torch.load(tmp_path / "data.pt", weights_only=True)
    again.source.restore(state)
    for number in (2, 3):
        part.piece(number, again)
    a, b = whole.state_of(part)["weights"], again.state_of(part)["weights"]
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert "optimizer" not in whole.state_of(part)
    with torch.no_grad():
        for parameter in again.policy.parameters():
            parameter.zero_()
    late = context_with([0.5] * 40, policy=again.policy)
    late.memory = again.memory
    rows = whole.sample(whole.take(2))
    for name in ("value_bt", "stats"):
        found = [getattr(part.fill(context.batch(rows), rows, context), name) for context in (whole, late)]
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_rollout_without_pairs_teaches_nothing() -> None:
    context, part = context_with([1.0] * 4), PreferenceModel(steps=2)
    before = part.model(context).trainable_state()
    assert part.piece(0, context) == {"pairs": 0.0}
    assert all(torch.equal(x, before[name]) for name, x in part.model(context).trainable_state().items())


def test_second_models_say_what_they_need() -> None:
    assert GlobalValue().refuse(RunFacts(group_size=1))
    assert not GlobalValue(chosen="solutions").refuse(RunFacts(group_size=1))
    assert PreferenceModel(chosen="solutions").refuse(RunFacts(demonstrations=False))


# --- the formulas that read them --------------------------------------------------------------------------------------


def test_dvpo_with_lambda_zero_is_the_change_of_value_minus_the_kl() -> None:
    value_bt, ref_bt = [[0.1, 0.4, 0.2]], [[-1.3, -1.0, -0.6]]
    after = {"value_after": f64([[0.4, 0.2, 0.9]])}
    batch = small([9.0], [3], value_bt=value_bt, ref_bt=ref_bt, stats=after)
    method = grouprl.method("dvpo", lam=0.0, whiten=False, kl_coef=0.5)
    kl = [0.3, 0.0, -0.4]
    near(method.prepare(batch).advantage_bt, [[0.3 - 0.5 * kl[0], -0.2 - 0.5 * kl[1], 0.7 - 0.5 * kl[2]]])


def test_dvpo_never_reads_a_reward() -> None:
    fields: dict[str, Any] = {"value_bt": [[0.1, 0.4], [0.3, 0.2]], "ref_bt": [[-1.3, -1.0], [-1.0, -1.2]]}
    fields["stats"] = {"value_after": f64([[0.4, 0.9], [0.2, -0.5]])}
    a, b = (
        grouprl.method("dvpo").prepare(small(rewards, [2, 2], **fields)).advantage_bt
        for rewards in ([1.0, 0.0], [-7.0, 3.0])
    )
    assert torch.equal(a, b)
    assert a.any()


def test_dvpo_has_no_critic_to_train() -> None:
    method = grouprl.method("dvpo")
    assert method.critic is None
    assert "value_bt" in method.needs()
    assert "value_bt" in method.pretrain[0].supplies()


def test_the_value_after_the_end() -> None:
    batch = small([1.0], [2], value_bt=[[0.25, 0.75]], stats={"value_after": f64([[0.75, 0.5]])})
    near(GuidedGAE(lam=1.0)(batch), [[0.25, -0.25]])
    near(GuidedGAE(lam=1.0, terminal="zero")(batch), [[-0.25, -0.75]])
    near(GuidedGAE(gamma=0.5, lam=0.0)(batch), [[0.125, -0.5]])
    near(GuidedGAE(lam=1.0)(batch.replace(token_reward_bt=f64([[0.0, 2.0]]))), [[2.25, 1.75]])


def expert_batch(**changes: Any) -> Batch:
    fields = {"ref_bt": [[-1.2, -1.0, -0.4]], "stats": {"expert": f64([[-0.2, -1.5, -0.1]])}} | changes
    return small([2.0], [3], **fields)


def test_unclipped_expert_rewards_add_up_to_the_implicit_reward() -> None:
    got = ExpertReward(coef=0.3, limit=None)(expert_batch())
    assert float(got.token_reward_bt.sum()) == pytest.approx(0.3 * ((-0.2 - 1.5 - 0.1) - (-1.2 - 1.0 - 0.4)))
    near(got.reward_b, [2.0])


def test_the_clip_of_expert_rewards_comes_after_the_scaling() -> None:
    near(ExpertReward(coef=0.1, limit=0.04)(expert_batch()).token_reward_bt, [[0.04, -0.04, 0.03]])
    kept = expert_batch(token_reward_bt=[[1.0, 0.0, 0.0]])
    near(ExpertReward(coef=0.1, limit=None)(kept).token_reward_bt, [[1.1, -0.05, 0.03]])


def test_rto_without_the_expert_is_ppo() -> None:
    batch = expert_batch(value_bt=[[0.1, 0.2, 0.3]])
    plain = grouprl.method("ppo", kl_coef=0.01).prepare(batch)
    rto = grouprl.method("rto", expert_coef=0.0)
    assert torch.equal(rto.prepare(batch).advantage_bt, plain.advantage_bt)
    assert rto.pretrain == ()
    same = expert_batch(value_bt=[[0.1, 0.2, 0.3]], stats={"expert": f64([[-1.2, -1.0, -0.4]])})
    near(grouprl.method("rto").prepare(same).advantage_bt, plain.advantage_bt)


def test_parts_that_read_a_prelude_ask_for_it() -> None:
    from grouprl.methods.compose import compose

    for stage in ({"curriculum": {"part": "initial_rate", "above": 0.0}}, {"buffer": "reference_rows"}):
        with pytest.raises(InputError, match="without pretrain 'initial_completions'"):
            compose({"base": "grpo", **stage})
        assert compose({"base": "grpo", "pretrain": ["initial_completions"], **stage}).method.pretrain
    with pytest.raises(InputError, match="without a critic"):
        compose({"base": "grpo", "pretrain": ["value_pretraining"]})
    assert compose({"base": "ppo", "pretrain": ["value_pretraining"]}).method.critic


def test_a_given_value_model_stands_in_for_a_critic() -> None:
    from grouprl.methods.compose import compose

    with pytest.raises(InputError, match="without a critic"):
        compose({"base": "grpo", "advantage": "gae"})
    assert compose({"base": "grpo", "advantage": "gae", "pretrain": ["global_value"]}).method.critic is None


def test_the_plan_counts_the_memory_of_a_second_model() -> None:
    from grouprl.config.run import parse_config
    from grouprl.plan.plan import plan

    costs = {name: {c.what: c.bytes for c in plan(parse_config({"method": name})).costs} for name in ("ppo", "rto")}
    assert costs["rto"]["second models"] == 2 * costs["rto"]["weights"]
    assert "second models" not in costs["ppo"]


def test_parts_say_how_many_second_models_they_keep() -> None:
    assert (GlobalValue().second_models(), ProgressModel().second_models()) == (1, 1)
    assert [Retrospect(actor=actor).second_models() for actor in ("policy", "initial")] == [0, 1]
    assert InitialCompletions().second_models() == 0


# --- in a run ---------------------------------------------------------------------------------------------------------


METHODS: dict[str, Any] = {
    "a_star_po": {"name": "a_star_po", "drop_unsolved": True},
    "dph_rl": {"name": "dph_rl", "solved": 0.25},
    "vc_ppo": {"name": "vc_ppo", "value_pretraining": 2},
    "dvpo": {"name": "dvpo", "pretraining_steps": 2},
    "rto": {"name": "rto", "pretraining_steps": 2},
}


@pytest.mark.parametrize("name", METHODS)
def test_runs_go_on_exactly_where_they_stopped(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", METHODS[name])
    before, after = records(whole, "pretraining"), records(whole, "train")
    assert len(before) == 2
    assert any(record["grad_norm"] > 0 for record in after)
    for at in ("pretraining-000001", "step-000001"):
        cut = run(cut_at(whole, tmp_path / at, at), resume=True)
        assert records(cut, "pretraining") == before
        assert records(cut, "train") == after
        for file in ("checkpoints/step-000003/policy.safetensors", "checkpoints/step-000003/optimizer.pt"):
            assert (cut / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.parametrize(("name", "part"), [("dvpo", "global_value"), ("rto", "preference_model")])
def test_a_second_model_is_frozen_while_the_policy_learns(name: str, part: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "run", METHODS[name], optim={"lr": 1e-2})
    assert all(record["pairs"] > 0 for record in records(whole, "pretraining"))
    first, last = (
        torch.load(whole / "checkpoints" / f"step-{step:06d}" / "data.pt", weights_only=True)["memory"]
        for step in (0, 3)
    )
    weights = [memory[f"pretrain.{part}"]["weights"] for memory in (first, last)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    policies = [(whole / "checkpoints" / f"step-{step:06d}" / "policy.safetensors").read_bytes() for step in (0, 3)]
    assert policies[0] != policies[1]


def test_a_star_po_samples_the_whole_set_before_training(tmp_path: Path) -> None:
    whole = run(tmp_path / "run", METHODS["a_star_po"])
    first = records(whole, "pretraining")[0]
    assert 0 < first["initial_rate"] <= first["initial_solved"] < 1
    data = torch.load(whole / "checkpoints" / "step-000003" / "data.pt", weights_only=True)["memory"]
    store = data["pretrain.initial_completions"]
    assert len(store["rate"]) == 40
    solved = float((store["rate"] > 0).double().mean())
    assert solved == pytest.approx(
        (32 * first["initial_solved"] + 8 * records(whole, "pretraining")[1]["initial_solved"]) / 40
    )


def test_value_pretraining_teaches_the_critic_before_the_policy(tmp_path: Path) -> None:
    larger = {"warmup": {"steps": 120, "batch": 32, "lr": 1e-2}, "batch": {"prompts": 16, "group_size": 8}, "steps": 1}
    whole = run(tmp_path / "run", {"name": "vapo", "value_pretraining": 5, "length_alpha": 5.0}, **larger)
    before, after = records(whole, "pretraining"), records(whole, "train")
    assert before[0]["explained_variance"] == 0
    plain = run(tmp_path / "plain", {"name": "vapo", "value_pretraining": 0, "length_alpha": 5.0}, **larger)
    assert records(plain, "pretraining") == []
    first = records(plain, "train")[0]
    assert first["value_mean"] == first["explained_variance"] == 0
    assert after[0]["explained_variance"] > 0
    assert after[0]["value_mean"] == pytest.approx(after[0]["return_mean"], abs=0.1)
    assert after[0]["value_error"] < first["value_error"]


def test_dph_rl_keeps_what_the_initial_policy_solved_and_samples_the_rest(tmp_path: Path) -> None:
    whole = run(tmp_path / "run", METHODS["dph_rl"])
    data = torch.load(whole / "checkpoints" / "step-000003" / "data.pt", weights_only=True)
    rate = data["memory"]["pretrain.initial_completions"]["rate"]
    requested = {int(index) for index in data["ledger"]["visits"]}
    assert requested
    assert all(rate[index] < 0.25 for index in requested)
    solved = int((rate >= 0.25).sum())
    after = records(whole, "train")
    assert solved > 0
    assert [record["reference_rows"] for record in after] == [min(8, solved)] * 3
    assert after[0]["coverage_loss"] == pytest.approx(0, abs=1e-6)
    assert after[2]["coverage_loss"] > 0


def test_an_endless_task_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.prompts"):
        run(tmp_path / "run", "a_star_po", data={})
