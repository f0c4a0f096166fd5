"""The parts of online preference learning: pairs, preferences, opponents, outer loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grouprl
from batches import outcome, random_case
from grouprl import Edges, InputError
from grouprl.algorithms.advantage.papers.against_one import AgainstOne
from grouprl.algorithms.advantage.preferred import Preferred
from grouprl.algorithms.filter.compared import Compared
from grouprl.algorithms.filter.papers.lopsided import LopsidedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.link.papers.soft import Soft
from grouprl.algorithms.pairing.pairing import Across, Extremes, Gap, Own
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.outer_loops import Extragradient, RoundMomentum
from grouprl.policy.language.blended_policy import BlendedPolicy
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.protocols import Request
from grouprl.rollout.local.decode_loop import decode
from small import near


def f64(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def rows(rewards: list[float], **fields: Any) -> grouprl.Batch:
    """One group of one-token completions."""
    size = len(rewards)
    mask_bt = torch.ones(size, 1, dtype=torch.bool)
    return grouprl.Batch(mask_bt=mask_bt, group_b=torch.zeros(size, dtype=torch.int64), reward_b=f64(rewards), **fields)


def chosen(pairing: Any, batch: grouprl.Batch) -> set[tuple[int, int]]:
    index_e2 = (batch.reward_b[:, None] > batch.reward_b).nonzero()
    return {tuple(pair) for pair in index_e2[pairing(batch, index_e2)].tolist()}


def test_pairs_of_a_group_by_each_rule():
    batch = rows([3.0, 1.0, 0.0, 2.5, 0.0], keys={"opponent": torch.tensor([0, 0, 1, 1, 0])})
    assert chosen(Extremes(), batch) == {(0, 2), (0, 4)}  # both of the worst
    assert chosen(Extremes(against="next"), batch) == {(0, 3)}
    assert chosen(Gap(least=1.5), batch) == {(0, 1), (0, 2), (0, 4), (3, 1), (3, 2), (3, 4)}
    assert chosen(Gap(least=0.5, chosen_from=3.0), batch) == {(0, 1), (0, 2), (0, 3), (0, 4)}
    assert chosen(Across(), batch) == {(0, 2), (0, 3), (1, 2), (3, 1), (3, 4)}
    assert chosen(Own(), batch) == {(0, 1), (0, 4), (1, 4)}


def test_a_group_without_a_pair_far_enough_apart_leaves_the_denominator():
    """Two groups, gaps 1 and 0.1: the loss is that of the first alone."""
    mask_bt = torch.ones(4, 1, dtype=torch.bool)
    ref_bt = torch.full((4, 1), -1.0, dtype=torch.float64)
    batch = grouprl.Batch(
        mask_bt=mask_bt, group_b=torch.tensor([0, 0, 1, 1]), reward_b=f64([1, 0, 1, 0.9]), refs={"iterates": ref_bt}
    )
    logp_bt = f64([[-0.6], [-1.2], [-0.5], [-3.0]])
    method = grouprl.method("dno_prct", least=0.4, chosen_from=None)
    value = method.loss(logp_bt, method.prepare(batch)).value
    assert float(value) == pytest.approx(-float(torch.nn.functional.logsigmoid(f64(0.1 * 0.6))))


def test_preferences_of_a_judge_are_probabilities_and_what_is_missing_is_not_half():
    edges = Edges(torch.tensor([[0, 1], [1, 2]]), f64([0.9, 0.6]))
    batch = rows([0.0, 0.0, 0.0, 0.0], edges={"preferred": edges})
    near(Preferred(by="judge")(batch)[:, 0], [0.4, (-0.4 + 0.1) / 2, -0.1, 0.0])
    near(Preferred(by="judge", itself=True)(batch)[:, 0], [0.2, -0.3 / 3, -0.05, 0.0])
    near(Preferred(by="judge", unit="log_odds")(batch)[:1, 0], [float(torch.logit(f64(0.9)))])
    kept = Compared(by="judge")(batch)
    assert kept.active_bt[:, 0].tolist() == [True, True, True, False]
    wrong = batch.replace(edges={"preferred": Edges(torch.tensor([[0, 1]]), f64([1.5]))})
    with pytest.raises(InputError, match=r"preference of 1\.5"):
        Preferred(by="judge")(wrong)


def test_a_completion_is_judged_against_its_opponents_alone():
    batch = rows([2.0, 0.0, 1.0], keys={"opponent": torch.tensor([0, 0, 1])})
    sigma = torch.sigmoid
    near(Preferred(against="opponents")(batch)[:, 0], [float(sigma(f64(1.0))) - 0.5, float(sigma(f64(-1.0))) - 0.5, 0])


def test_with_itself_included_the_expected_step_is_that_of_independent_opponents():
    """Online IPO: Σ over samples of its gradient is (4/β)·Σ_y π(y)·(P(y ≻ π) - ½)·∇log π at the reference."""
    generator = torch.Generator().manual_seed(0)
    prefer_kk = torch.tensor([[0.5, 0.9, 0.2], [0.1, 0.5, 0.7], [0.8, 0.3, 0.5]], dtype=torch.float64)
    logit_k = f64([0.4, 0.0, -0.3]).requires_grad_()
    groups, size = 3000, 3
    token_b = torch.multinomial(logit_k.detach().softmax(0), groups * size, True, generator=generator)
    group_b = torch.arange(groups).repeat_interleave(size)
    first = torch.arange(groups) * size
    index_e2 = torch.cat([torch.stack([first + i, first + j], 1) for i, j in ((0, 1), (0, 2), (1, 2))])
    value_e = prefer_kk[token_b[index_e2[:, 0]], token_b[index_e2[:, 1]]]
    logp_bt = logit_k.log_softmax(0)[token_b][:, None]
    batch = grouprl.Batch(
        mask_bt=torch.ones(groups * size, 1, dtype=torch.bool),
        group_b=group_b,
        reward_b=torch.zeros(groups * size, dtype=torch.float64),
        ref_bt=logp_bt.detach(),
        edges={"preferred": Edges(index_e2, value_e)},
    )
    method = grouprl.method("egpo", beta=0.5, by="judge").with_parts(update=None)
    (grad_k,) = torch.autograd.grad(method.loss(logp_bt, method.prepare(batch)).value, logit_k)
    policy_k = logit_k.detach().softmax(0)
    worth_k = prefer_kk @ policy_k - 0.5
    exact_k = -4 / 0.5 * policy_k * (worth_k - (policy_k * worth_k).sum())
    torch.testing.assert_close(grad_k, exact_k, rtol=0, atol=0.05)
    assert float(exact_k.abs().max()) > 0.3


def test_a_soft_link_has_its_minimum_at_the_log_odds():
    gap_e = f64([-40.0, 0.0, 3.0, 500.0]).requires_grad_()
    margin_e = f64([2.0, 0.5, 0.3, 1.0])
    soft = Soft(beta=0.1)
    at = (margin_e / 0.1).clone().requires_grad_()
    (slope,) = torch.autograd.grad(soft(at, margin_e).sum(), at)
    near(slope, [0.0] * 4, 1e-12)
    sure = soft(gap_e, torch.full_like(margin_e, 1e3))
    torch.testing.assert_close(sure, Logistic(beta=0.1)(gap_e, torch.zeros_like(margin_e)))


def test_one_against_the_others_and_groups_that_are_lopsided():
    keys = {"measure": torch.tensor([0, 1, 0, 0])}
    batch = rows([2.0, 1.0, 0.0, 1.0], keys=keys)
    near(AgainstOne(by="reward")(batch)[:, 0], [1.0, 0.0, -1.0, -1.0])  # a tie is no win
    assert LopsidedGroups(by="reward")(batch).active_bt.all()
    best = rows([2.0, 3.0, 0.0, 1.0], keys=keys)
    assert not LopsidedGroups(by="reward")(best).active_bt.any()  # |-3|/4 > 0.6


@pytest.mark.parametrize("reference", [0.0, 0.4])
def test_inpos_loss_is_flat_at_its_closed_form(reference):
    """π_{t+1} ∝ π_t^(1-ρ)·ref^ρ·exp(P(y ≻ π_t)/η): the gradient over all pairs, by how likely they are, is 0."""
    eta, prefer_kk = 0.7, torch.tensor([[0.5, 0.9, 0.2], [0.1, 0.5, 0.7], [0.8, 0.3, 0.5]], dtype=torch.float64)
    now_k, ref_k = f64([0.5, 0.3, 0.2]), f64([0.2, 0.2, 0.6])
    target_k = ((1 - reference) * now_k.log() + reference * ref_k.log() + prefer_kk @ now_k / eta).softmax(0)

    def slope(policy_k: torch.Tensor) -> torch.Tensor:
        logit_k, total = policy_k.log().requires_grad_(), torch.zeros((), dtype=torch.float64)
        for i in range(3):
            for j in range(3):
                if i != j:
                    pair = torch.tensor([i, j])
                    refs = {"iterates": now_k.log()[pair][:, None]}
                    batch = rows([1.0, 0.0], ref_bt=ref_k.log()[pair][:, None], refs=refs)
                    method = grouprl.method("inpo", eta=eta, share=reference)
                    value = method.loss(logit_k.log_softmax(0)[pair][:, None], method.prepare(batch)).value
                    total = total + now_k[i] * now_k[j] * prefer_kk[i, j] * value
        return torch.autograd.grad(total, logit_k)[0]

    near(slope(target_k), [0.0, 0.0, 0.0], 1e-9)
    assert float(slope(now_k).abs().max()) > 0.01


class TwoNumbers:
    """A policy of two numbers, with the names that updates ask for."""

    def __init__(self) -> None:
        self.x = torch.nn.Parameter(f64([1.0, -1.0]))

    def trainable_state(self) -> dict[str, torch.Tensor]:
        return {"x": self.x.detach()}

    def load_trainable_state(self, state: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            self.x.copy_(state["x"])


class Rotating:
    """A learner whose gradient turns around 0: plain steps spiral away, looking ahead spirals in."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **settings: Any) -> None:
        self.policy = TwoNumbers()
        self.optimizer = optimizer([self.policy.x], lr=0.3, **settings)
        self.memory: dict[str, Any] = {}
        self.seen = self.policy.x.detach().clone()
        self.context = SimpleNamespace(step=0, steps=10, state_of=lambda part: self.memory)

    def rollout(self) -> None:
        self.seen = self.policy.x.detach().clone()  # what opponents are sampled from

    def steps(self, prepared: Any) -> list[Any]:
        return [prepared]

    def take(self, step: Any) -> dict[str, float]:
        self.policy.x.grad = torch.stack([self.seen[1], -self.seen[0]])
        self.optimizer.step()
        return {"loss": 0.0, "logp_gap_max": 1.0}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_looking_ahead_takes_the_gradient_of_the_point_ahead_from_the_point_before(optimizer):
    learner, part, plain = Rotating(optimizer), Extragradient(), Rotating(optimizer)
    start = learner.policy.x.detach().clone()
    learner.rollout()
    assert list(part(learner, None)) == [{"loss": 0.0, "logp_gap_max": 1.0}]
    ahead = learner.policy.x.detach().clone()
    assert not torch.equal(ahead, start)
    learner.rollout()
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.2  # the rate of the second step is its own
    assert list(part(learner, None)) == [{"loss": 0.0}]  # sampled elsewhere: no gap to speak of
    plain.seen = ahead
    for group in plain.optimizer.param_groups:
        group["lr"] = 0.2
    plain.take(None)
    torch.testing.assert_close(learner.policy.x, plain.policy.x)
    assert learner.memory == {}


def test_looking_ahead_spirals_in_where_plain_steps_spiral_out():
    ahead, plain, part = Rotating(), Rotating(), Extragradient()
    for _ in range(40):
        for _ in range(2):
            ahead.rollout()
            list(part(ahead, None))
        plain.rollout()
        plain.take(None)
    assert float(ahead.policy.x.detach().norm()) < 0.5 < 1.42 < float(plain.policy.x.detach().norm())


def test_an_odd_number_of_steps_is_refused():
    assert "even number" in Extragradient().refuse(RunFacts(steps=7))[0]
    assert Extragradient().refuse(RunFacts(steps=8)) == []
    assert "async_steps" in Extragradient().refuse(RunFacts(steps=8, async_steps=1))[0]


def test_rounds_go_on_by_a_share_of_their_way_but_not_the_last():
    learner, part = Rotating(), RoundMomentum(every=2, momentum=0.5)
    learner.context.steps = 4
    learner.seen = f64([1.0, -1.0])  # a constant gradient: -0.3·(-1, -1) a step
    found = []
    for step in range(4):
        learner.context.step = step
        list(part(learner, None))
        found.append(learner.policy.x.detach().clone())
    near(found[0] - f64([1.0, -1.0]), [0.3, 0.3])
    near(found[1] - found[0], [0.3 + 0.3, 0.3 + 0.3])  # 0.5 of the round's 0.6 on top
    near(found[3] - found[2], [0.3, 0.3])  # the run's last round ends where it is


def policy(seed: int) -> CausalPolicy:
    return CausalPolicy(*build_tiny("abcdefgh>", hidden=16, layers=1, heads=2, intermediate=32, seed=seed))


def test_a_blend_samples_from_the_geometric_mixture():
    one, other = policy(1), policy(2)
    prompt = tuple(one.encode("abc>"))
    requests = [Request(prompt=prompt, budget=3, seed=seed, name=seed) for seed in range(40)]
    same = decode(BlendedPolicy(one, other, 0.0), requests), decode(one, requests)
    assert same[0].ids == same[1].ids
    torch.testing.assert_close(same[0].logp_bt, same[1].logp_bt, rtol=0, atol=1e-6)
    assert decode(BlendedPolicy(one, other, 1.0), requests).ids == decode(other, requests).ids
    half = decode(BlendedPolicy(one, other, 0.5), requests)
    first = [log_probs(each, prompt) for each in (one, other)]
    mixed = (first[0] / 2 + first[1] / 2).log_softmax(0)
    for row, ids in enumerate(half.ids):
        assert float(half.logp_bt[row, 0]) == pytest.approx(float(mixed[ids[0]]), abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_blend_samples_from_the_arithmetic_mixture(temperature: float):
    """Its probabilities are the mean of the two models', each at the temperature."""
    one, other = policy(1), policy(2)
    one.temperature = temperature
    prompt = tuple(one.encode("abc>"))
    requests = [Request(prompt=prompt, budget=3, seed=s, name=s, temperature=temperature) for s in range(40)]
    found = decode(BlendedPolicy(one, other, 0.3, "arithmetic"), requests)
    first = [(log_probs(each, prompt) / temperature).softmax(0) for each in (one, other)]
    mixed = (0.7 * first[0] + 0.3 * first[1]).log()
    for row, ids in enumerate(found.ids):
        assert float(found.logp_bt[row, 0]) == pytest.approx(float(mixed[ids[0]]), abs=1e-5)


def log_probs(each: CausalPolicy, prompt: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return each.model(input_ids=torch.tensor([prompt])).logits[0, -1].double().log_softmax(0)


def test_rows_that_only_a_term_reads_keep_their_gradient():
    """HyPO's unlabelled rows are in no pair, so that the policy loss has no weight for them."""
    method, case = grouprl.method("hypo", coef=1.0), random_case(3)
    ready = method.prepare(case.batch)
    opponent_b = case.batch.keys["opponent"] == 1
    assert not ready.active_bt[opponent_b].any()
    assert outcome(method, case, ready).grad_bt[opponent_b].any()
    assert not method.zero_rows(ready)[opponent_b & (case.batch.group_b == 0)].any()
    off = grouprl.method("hypo", coef=0.0)
    assert off.zero_rows(off.prepare(case.batch))[opponent_b].all()


def test_small_groups_are_refused_where_they_have_no_pair():
    alone = RunFacts(group_size=1)
    assert [part.refuse(alone) for part in grouprl.method("xpo").filter] == [[]]
    assert grouprl.method("xpo").objective.refuse(alone) == []
    assert grouprl.method("online_dpo").objective.refuse(alone)
