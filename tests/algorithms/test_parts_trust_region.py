"""TRPO: conjugate gradients, the sampled Fisher matrix, the line search, the critic's head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from grouprl import Batch, InputError, method
from grouprl.algorithms.objective.importance import Fisher, flat
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.trust_region import (
    TrustRegion,
    conjugate_gradients,
    mean_kl,
    natural_step,
    thinned,
)
from grouprl.algorithms.vectors import vectors_here
from grouprl.methods.compose import compose
from grouprl.records.tokens import Tokens
from grouprl.training.update import update
from small import near
from updates import gradient, make_batch, make_policy


class Bandit:
    """Softmax tables of logits [states, actions]; the logits are `theta @ map.T`. A prompt is a state."""

    def __init__(self, logits_sa: torch.Tensor, map_aa: torch.Tensor | None = None) -> None:
        self.map_aa = torch.eye(logits_sa.shape[1], dtype=logits_sa.dtype) if map_aa is None else map_aa
        self.theta_sa = nn.Parameter(torch.linalg.solve(self.map_aa, logits_sa.T).T.contiguous())

    def all_logp(self) -> torch.Tensor:
        return (self.theta_sa @ self.map_aa.T).log_softmax(-1)

    def evaluate(self, tokens: Tokens, names, /, *, grad: bool = False) -> dict[str, torch.Tensor]:
        state_b = torch.tensor([prompt[0] for prompt in tokens.prompt_ids])
        action_b = torch.tensor([response[0] for response in tokens.response_ids])
        with torch.set_grad_enabled(grad):
            return {"log_prob": self.all_logp()[state_b, action_b][:, None]}

    def logp(self, tokens: Tokens) -> torch.Tensor:
        return self.evaluate(tokens, ["log_prob"])["log_prob"]

    def backward(self, tokens: Tokens, cotangents) -> None:
        (self.evaluate(tokens, ["log_prob"], grad=True)["log_prob"] * cotangents["log_prob"]).sum().backward()

    def passes(self, tokens: Tokens, rows) -> list[list[int]]:
        return [list(rows)] if rows else []

    def parameters(self) -> list[nn.Parameter]:
        return [self.theta_sa]

    def named_parameters(self):
        yield "theta", self.theta_sa

    def owners(self) -> list[list[nn.Parameter]]:
        return [self.parameters()]


def logits_of_a_bandit(states: int = 3, actions: int = 4, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(states, actions, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def play(policy: Bandit, per_state: int = 4000) -> Batch:
    """Completions of one token sampled from the policy; the reward is a fixed table."""
    with torch.no_grad():
        logp_sa = policy.all_logp().double()
    sampled_sn = torch.multinomial(logp_sa.exp(), per_state, True, generator=torch.Generator().manual_seed(1))
    state_b = torch.arange(len(logp_sa)).repeat_interleave(per_state)
    action_b = sampled_sn.flatten()
    table_sa = torch.randn(logp_sa.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    tokens = Tokens.of([[int(s)] for s in state_b], [[int(a)] for a in action_b])
    old_bt = policy.logp(tokens)
    return Batch(
        mask_bt=torch.ones_like(old_bt, dtype=torch.bool),
        group_b=state_b,
        reward_b=table_sa[state_b, action_b].to(old_bt.dtype),
        old_bt=old_bt,
        max_length=1,
        inputs=tokens,
    )


def bandit_method(**settings):
    """TRPO's step on group-relative advantages: a table of logits has no critic."""
    spec = {"base": "dr_grpo", "objective": "importance", "update": {"part": "trust_region", **settings}}
    return compose(spec).method


def climbed(policy: Bandit, batch: Batch, **settings) -> dict[str, float]:
    chosen = bandit_method(**settings)
    return update(policy, torch.optim.SGD(policy.parameters(), lr=0.0), chosen, chosen.compute_advantages(batch))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("delta", [0.001, 0.01])
def test_the_measured_kl_is_just_below_the_bound(dtype, delta) -> None:
    """On a bandit the exact KL(old || new) is known: it too is in (0.8 δ, δ], up to the sampling error."""
    policy = Bandit(logits_of_a_bandit(dtype=dtype))
    before_sa = policy.all_logp().detach()
    metrics = climbed(policy, play(policy), delta=delta, damping=1e-6, accept=1.05)
    after_sa = policy.all_logp().detach()
    exact = float((before_sa.exp() * (before_sa - after_sa)).sum(-1).mean())
    assert metrics["step_fraction"] == 1.0
    assert 0.8 * delta < metrics["step_kl"] <= 1.05 * delta
    assert 0.8 * delta < exact < 1.15 * delta


def test_the_step_does_not_depend_on_the_coordinates_of_the_logits() -> None:
    """Natural steps move the policy the same way under an affine change of parameters; SGD does not."""
    map_aa = torch.eye(4, dtype=torch.float64) + 0.5 * logits_of_a_bandit(4, 4)
    moved: dict[str, list[torch.Tensor]] = {"natural": [], "sgd": []}
    for chosen_map in (None, map_aa):
        for kind, found in moved.items():
            policy = Bandit(logits_of_a_bandit(), chosen_map)
            batch = play(policy)
            if kind == "natural":
                climbed(policy, batch, damping=0.0, iterations=9)
            else:
                chosen = bandit_method().with_parts(update=None)
                update(policy, torch.optim.SGD(policy.parameters(), lr=0.5), chosen, chosen.compute_advantages(batch))
            found.append(policy.all_logp().detach())
    torch.testing.assert_close(moved["natural"][0], moved["natural"][1], rtol=1e-4, atol=1e-4)
    assert float((moved["sgd"][0] - moved["sgd"][1]).abs().max()) > 0.01


def test_with_the_identity_as_fisher_the_step_is_a_normalised_gradient() -> None:
    uphill_p = torch.tensor([3.0, -4.0], dtype=torch.float64)
    step_p = natural_step(uphill_p, lambda v: v, delta=0.02, iterations=10)
    near(step_p, [0.2 * 0.6, -0.2 * 0.8])
    assert natural_step(uphill_p, lambda v: -v, delta=0.02, iterations=10) is None


def test_conjugate_gradients_solve_in_as_many_products_as_there_are_dimensions() -> None:
    root = logits_of_a_bandit(5, 5)
    matrix, b_p = root @ root.T + 0.1 * torch.eye(5), logits_of_a_bandit(1, 5)[0]
    x_p, product_p = conjugate_gradients(lambda v: matrix @ v, b_p, 5)
    torch.testing.assert_close(x_p, torch.linalg.solve(matrix, b_p), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(product_p, b_p, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-6), (torch.float32, 3e-3)])
def test_fisher_products_are_those_of_the_tokens_gradients(dtype, close) -> None:
    """On a real model: 1/N Σ g_t (g_t·v) + damping·v with every token's gradient taken by itself."""
    policy = make_policy()
    policy.model.to(dtype)
    batch = make_batch(policy)
    parameters = policy.parameters()
    tokens_tp = []
    for b, t in batch.mask_bt.nonzero().tolist():
        one_bt = torch.zeros(batch.size, dtype=dtype)
        one_bt[b, t] = 1
        policy.backward(batch.inputs, {"log_prob": one_bt})
        tokens_tp.append(gradient(policy))
    slope_tp = torch.stack(tokens_tp).double()
    v_p = torch.randn(slope_tp.shape[1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    v_p = v_p * slope_tp.mean(0)
    expected = slope_tp.T @ (slope_tp @ v_p) / len(slope_tp) + 0.1 * v_p
    start = flat(parameters)
    found = Fisher(policy, vectors_here(parameters, torch.optim.SGD(parameters), {}), batch, 0.1)(v_p.to(dtype))
    assert float((found.double() - expected).norm() / expected.norm()) < close
    assert torch.equal(flat(parameters), start), "looking moves nothing"


def test_thinned_fisher_products_are_those_of_the_completions_left() -> None:
    batch = make_batch(make_policy())
    few = thinned(batch, 5)
    assert few.inputs.response_ids == batch.inputs.response_ids[::5]
    assert few.size == (4, max(len(ids) for ids in batch.inputs.response_ids[::5]))
    policy = Bandit(logits_of_a_bandit())
    metrics = climbed(policy, play(policy), thin=5, damping=1e-6, accept=1.5)
    assert 0.007 < metrics["step_kl"] < 0.013


def test_a_step_that_cannot_be_accepted_leaves_the_policy_alone() -> None:
    policy = Bandit(logits_of_a_bandit())
    start = policy.theta_sa.detach().clone()
    metrics = climbed(policy, play(policy), accept=1e-9, backtracks=3)
    assert metrics["step_fraction"] == 0.0
    assert torch.equal(policy.theta_sa, start)


def test_without_a_gradient_there_is_no_step() -> None:
    policy = Bandit(logits_of_a_bandit())
    start = policy.theta_sa.detach().clone()
    batch = play(policy, 50)
    metrics = climbed(policy, batch.replace(reward_b=torch.ones_like(batch.reward_b)))
    assert (metrics["grad_norm"], metrics["step_fraction"]) == (0.0, 0.0)
    assert torch.equal(policy.theta_sa, start)


def test_the_line_search_halves_until_the_kl_holds() -> None:
    policy = Bandit(logits_of_a_bandit())
    batch = play(policy)
    metrics = climbed(policy, batch, damping=1e-6, accept=0.3)
    assert metrics["step_fraction"] == 0.5
    assert metrics["step_kl"] <= 0.3 * 0.01


def test_trpo_moves_the_trunk_by_the_natural_step_and_the_head_by_the_optimiser() -> None:
    """The trunk ends where it ends without a critic's loss; the head moves, and its loss falls."""
    trunks, value_errors = [], []
    for value_coef in (1.0, 5.0):
        policy, chosen = make_policy(value_head=True), method("trpo", value_coef=value_coef, critic_steps=20)
        batch = make_batch(policy)
        batch = batch.replace(old_bt=policy.logp(batch.inputs), value_bt=torch.zeros(batch.size).double())
        prepared = chosen.compute_advantages(batch)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
        before = policy.trainable_state()
        metrics = update(policy, optimizer, chosen, prepared)
        after = policy.trainable_state()
        trunks.append({n: x for n, x in after.items() if not n.startswith("value_head.")})
        assert 0 < metrics["step_kl"] <= 0.01
        assert all(not torch.equal(after[n], before[n]) for n in ("value_head.weight", "value_head.bias"))
        mask_bt = prepared.mask_bt
        error = (policy.evaluate(batch.inputs, ["value"])["value"] - prepared.return_bt)[mask_bt].square().mean()
        value_errors.append((float(prepared.return_bt[mask_bt].square().mean()), float(error)))
    assert all(torch.equal(trunks[0][n], trunks[1][n]) for n in trunks[0])
    assert all(after < before for before, after in value_errors)


def test_the_kl_is_that_of_the_old_policy() -> None:
    """KL(old || new) = Σ p log p/q, on tokens in the proportions of the old policy: p = (1/2, 1/2), q = (1/4, 3/4)."""
    old_bt, new_bt = torch.tensor([[0.5], [0.5]]).log(), torch.tensor([[0.25], [0.75]]).log()
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert mean_kl(old_bt, new_bt, torch.ones(2, 1, dtype=torch.bool)) == pytest.approx(expected, rel=1e-6)


def test_trpo_says_that_the_learning_rate_does_not_reach_the_policy() -> None:
    region = TrustRegion()
    assert "optim.lr" in region.idle(RunFacts())[0]
    assert region.refuse(RunFacts()) == []
    assert "float32" in region.refuse(RunFacts(rounded=True))[0]
    with pytest.raises(InputError, match="delta"):
        method("trpo", delta=0.0)


def test_half_precision_is_refused_and_no_sampler_is() -> None:
    (part,) = [part for part in method("trpo").parts() if part.name == "trust_region"]
    assert part.refuse(RunFacts(exact_sampler=False)) == []
    (said,) = part.refuse(RunFacts(rounded=True))
    assert "half precision" in said
