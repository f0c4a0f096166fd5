"""Methods with an update of their own: Lopti's two phases, TRPO's natural step, CAPO's curvature mask."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from grouprl import Batch, InputError, method
from grouprl.methods.compose import compose
from grouprl.parts.curvature import CurvatureMask, adam, plain, reduced, shifts, trained_head
from grouprl.parts.learn import PHASE, TwoPhase, only
from grouprl.parts.trust_region import Fisher, TrustRegion, conjugate_gradients, flat, mean_kl, natural_step, thinned
from grouprl.policy.causal_lm import PolicyOutput
from grouprl.policy.tokens import Tokens
from grouprl.train.update import Learner, update
from small import near
from test_update import gradient, make_batch, make_policy

# --- Lopti --------------------------------------------------------------------------------------------------------


def with_likely_tokens(batch: Batch) -> Batch:
    """Old probabilities on both sides of 0.5, and a reference."""
    assert batch.old_bt is not None
    old_bt = torch.where(batch.mask_bt, (batch.old_bt + 1.85).clamp(max=-0.05), 0)
    return batch.replace(old_bt=old_bt, behavior_bt=old_bt, ref_bt=old_bt - 0.2)


def learner_of(policy, chosen, **options) -> Learner:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, fused=True)
    return Learner(policy, optimizer, chosen, **options)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "lopti", "kl_coef": 0.1},
        {"name": "ar_lopti", "kl_coef": 0.1},
        {"base": "lopti", "kl_coef": 0.1, "add": {"regularize": [{"part": "entropy_bonus", "coef": 0.05}]}},
        {"base": "ppo", "learn": "two_phase"},
    ],
    ids=["lopti", "ar_lopti", "entropy", "critic"],
)
def test_the_gradients_of_both_phases_add_up_to_that_of_one_update(spec) -> None:
    chosen = compose(spec).method
    policy = make_policy(value_head=chosen.critic is not None)
    batch = with_likely_tokens(make_batch(policy))
    if chosen.critic is not None:
        batch = batch.replace(value_bt=torch.rand(batch.size, dtype=torch.float64))
    learner, judged = learner_of(policy, chosen), chosen.judge(batch)
    low_bt = chosen.learn.unlikely(judged)
    assert 0.2 < float(low_bt[judged.mask_bt].double().mean()) < 0.8
    (step,) = learner.steps(judged.replace(marks={PHASE: low_bt}))
    learner.accumulate(step)
    whole = gradient(policy)
    halves = []
    for kept_bt in (step.marks[PHASE], ~step.marks[PHASE]):
        learner.accumulate(only(step, kept_bt))
        halves.append(gradient(policy))
    torch.testing.assert_close(halves[0] + halves[1], whole, rtol=1e-9, atol=1e-13)
    assert all(float(half.norm()) > 0.05 * float(whole.norm()) for half in halves)


@pytest.mark.parametrize(("order", "first"), [("low_first", True), ("high_first", False)])
def test_all_steps_of_the_first_phase_come_before_the_second(order, first) -> None:
    """Two minibatches and two epochs are eight steps; the tokens of a phase are its own, and all are used."""
    seen: list[tuple[bool, float]] = []

    class Watched(Learner):
        def take(self, step: Batch) -> dict[str, float]:
            kept_bt = step.weight_bt != 0
            low = step.old_bt[kept_bt].exp() < 0.5
            assert bool(low.all()) or not bool(low.any())
            seen.append((bool(low.all()), float(step.weight_bt.sum())))
            return {}

    policy, chosen = make_policy(), method("lopti", order=order)
    learner = Watched(policy, torch.optim.SGD(policy.parameters(), lr=0.0), chosen, parts=2, epochs=2)
    list(chosen.learn(learner, chosen.judge(with_likely_tokens(make_batch(policy)))))
    assert [low for low, _ in seen] == [first] * 4 + [not first] * 4
    near(torch.tensor([a + b for (_, a), (_, b) in zip(seen[:4], seen[4:], strict=True)]), [1.0] * 4)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_phase_without_tokens_leaves_the_single_update(eta) -> None:
    found = []
    for name, settings in (("lopti", {"eta": eta}), ("advantage_reweighting", {"alpha": 0.0})):
        policy, chosen = make_policy(), method(name, **settings)
        judged = chosen.judge(with_likely_tokens(make_batch(policy)))
        update(policy, torch.optim.AdamW(policy.parameters(), lr=1e-2), chosen, judged, parts=2)
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(found[0], found[1])


def test_the_second_phase_sees_the_moved_policy() -> None:
    policy, chosen = make_policy(), method("lopti", kl_coef=0.0)
    batch = make_batch(policy)
    old_bt = policy.logp(batch.inputs).logp_bt
    batch = batch.replace(old_bt=old_bt, behavior_bt=old_bt)
    middle = TwoPhase(eta=0.5, by="quantile")
    chosen = chosen.with_parts(learn=middle)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    records = list(middle(Learner(policy, optimizer, chosen), chosen.judge(batch)))
    assert records[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-12)
    assert abs(records[1]["ratio_mean"] - 1) > 1e-4
    assert [r["unlikely_fraction"] for r in records] == pytest.approx([0.5, 0.5], abs=0.05)


def test_quantiles_are_those_of_the_rollouts_tokens() -> None:
    p = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.9, 0.0]], dtype=torch.float64)
    mask_bt = torch.tensor([[True, True, True], [True, True, False]])
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.zeros(2, dtype=torch.int64),
        reward_b=torch.zeros(2, dtype=torch.float64),
        old_bt=torch.where(mask_bt, p.log(), 0),
    )
    low = lambda **settings: (TwoPhase(**settings).unlikely(batch) & mask_bt).tolist()  # noqa: E731
    assert low(eta=0.5, by="quantile") == [[True, True, False], [False, False, False]]  # the median is 0.3
    assert low(eta=0.25) == [[True, True, False], [False, False, False]]
    assert low(eta=0.5) == [[True, True, True], [True, False, False]]


# --- TRPO ---------------------------------------------------------------------------------------------------------


class Bandit:
    """Softmax tables of logits [states, actions]; the logits are `theta @ map.T`. A prompt is a state."""

    def __init__(self, logits_sa: torch.Tensor, map_aa: torch.Tensor | None = None) -> None:
        self.map_aa = torch.eye(logits_sa.shape[1], dtype=logits_sa.dtype) if map_aa is None else map_aa
        self.theta_sa = nn.Parameter(torch.linalg.solve(self.map_aa, logits_sa.T).T.contiguous())

    def all_logp(self) -> torch.Tensor:
        return (self.theta_sa @ self.map_aa.T).log_softmax(-1)

    def logp(self, tokens: Tokens, *, grad: bool = False, entropy: bool = False, values: bool = False) -> PolicyOutput:
        state_b = torch.tensor([prompt[0] for prompt in tokens.prompt_ids])
        action_b = torch.tensor([response[0] for response in tokens.response_ids])
        with torch.set_grad_enabled(grad):
            return PolicyOutput(self.all_logp()[state_b, action_b][:, None])

    def backward(self, tokens: Tokens, grad_logp_bt, *_others) -> None:
        (self.logp(tokens, grad=True).logp_bt * grad_logp_bt).sum().backward()

    def passes(self, tokens: Tokens, rows) -> list[list[int]]:
        return [list(rows)] if rows else []

    def parameters(self) -> list[nn.Parameter]:
        return [self.theta_sa]

    def named_parameters(self):
        yield "theta", self.theta_sa


def logits_of_a_bandit(states: int = 3, actions: int = 4, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(states, actions, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def play(policy: Bandit, per_state: int = 4000) -> Batch:
    """Answers of one token drawn from the policy; the reward is a fixed table."""
    with torch.no_grad():
        logp_sa = policy.all_logp().double()
    drawn_sn = torch.multinomial(logp_sa.exp(), per_state, True, generator=torch.Generator().manual_seed(1))
    state_b = torch.arange(len(logp_sa)).repeat_interleave(per_state)
    action_b = drawn_sn.flatten()
    table_sa = torch.randn(logp_sa.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    tokens = Tokens.of([[int(s)] for s in state_b], [[int(a)] for a in action_b])
    old_bt = policy.logp(tokens).logp_bt
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
    spec = {"base": "dr_grpo", "objective": "importance", "learn": {"part": "trust_region", **settings}}
    return compose(spec).method


def climbed(policy: Bandit, batch: Batch, **settings) -> dict[str, float]:
    chosen = bandit_method(**settings)
    return update(policy, torch.optim.SGD(policy.parameters(), lr=0.0), chosen, chosen.judge(batch))


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
                chosen = bandit_method().with_parts(learn=None)
                update(policy, torch.optim.SGD(policy.parameters(), lr=0.5), chosen, chosen.judge(batch))
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
        policy.backward(batch.inputs, one_bt)
        tokens_tp.append(gradient(policy))
    slope_tp = torch.stack(tokens_tp).double()
    v_p = torch.randn(slope_tp.shape[1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    v_p = v_p * slope_tp.mean(0)
    expected = slope_tp.T @ (slope_tp @ v_p) / len(slope_tp) + 0.1 * v_p
    start = flat(parameters)
    found = Fisher(policy, parameters, batch, 0.1)(v_p.to(dtype))
    assert float((found.double() - expected).norm() / expected.norm()) < close
    assert torch.equal(flat(parameters), start), "looking moves nothing"


def test_thinned_fisher_products_are_those_of_the_answers_left() -> None:
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
        batch = batch.replace(old_bt=policy.logp(batch.inputs).logp_bt, value_bt=torch.zeros(batch.size).double())
        judged = chosen.judge(batch)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
        before = policy.trainable_state()
        metrics = update(policy, optimizer, chosen, judged)
        after = policy.trainable_state()
        trunks.append({n: x for n, x in after.items() if not n.startswith("value_head.")})
        assert 0 < metrics["step_kl"] <= 0.01
        assert all(not torch.equal(after[n], before[n]) for n in ("value_head.weight", "value_head.bias"))
        mask_bt = judged.mask_bt
        error = (policy.logp(batch.inputs, values=True).value_bt - judged.return_bt)[mask_bt].square().mean()
        value_errors.append((float(judged.return_bt[mask_bt].square().mean()), float(error)))
    assert all(torch.equal(trunks[0][n], trunks[1][n]) for n in trunks[0])
    assert all(after < before for before, after in value_errors)


def test_the_kl_is_that_of_the_old_policy() -> None:
    """KL(old || new) = Σ p log p/q, on tokens in the proportions of the old policy: p = (1/2, 1/2), q = (1/4, 3/4)."""
    old_bt, new_bt = torch.tensor([[0.5], [0.5]]).log(), torch.tensor([[0.25], [0.75]]).log()
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert mean_kl(old_bt, new_bt, torch.ones(2, 1, dtype=torch.bool)) == pytest.approx(expected, rel=1e-6)


def test_trpo_says_that_the_learning_rate_does_not_reach_the_policy() -> None:
    from grouprl.parts.part import RunFacts

    region = TrustRegion()
    assert "optim.lr" in region.idle(RunFacts())[0]
    assert region.refuse(RunFacts()) == []
    assert "float32" in region.refuse(RunFacts(exact_sampler=False))[0]
    with pytest.raises(InputError, match="delta"):
        method("trpo", delta=0.0)


def test_the_plan_counts_the_steps_of_both_phases() -> None:
    from grouprl.train.config import parse_config
    from grouprl.train.plan import plan

    run = {"task": {"name": "addition", "digits": 1}, "model": {"name": "tiny"}, "batch": {"minibatches": 1}}
    found = plan(parse_config({**run, "method": "lopti"}))
    assert (found.batch.updates_per_rollout, found.batch.updates) == (2, 2 * found.config.steps)
    assert not any("clip" in sentence for sentence in found.idle), "the second phase's ratios are not 1"
    refused = plan(parse_config({**run, "method": {"base": "reinforce", "learn": "two_phase"}})).refusals
    assert any("× phases of learn is 2" in sentence for sentence in refused)
    assert any("optim.lr" in sentence for sentence in plan(parse_config({**run, "method": "trpo"})).idle)


# --- CAPO ---------------------------------------------------------------------------------------------------------


class Toy:
    """Tokens of a linear softmax layer: W [V,H], states h [N,H], sampled tokens, advantages of both signs."""

    def __init__(self, tokens: int = 6, vocabulary: int = 7, hidden: int = 5, temperature: float = 1.3) -> None:
        draw = torch.Generator().manual_seed(4)
        randn = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
        self.weight_vh = nn.Parameter(randn(vocabulary, hidden))
        self.hidden_nh, self.a_n = randn(tokens, hidden), randn(tokens)
        self.target_n = torch.randint(0, vocabulary, (tokens,), generator=draw)
        self.temperature = temperature

    def logp(self, weight_vh: torch.Tensor, token: int | None = None) -> torch.Tensor:
        logp_nv = (self.hidden_nh @ weight_vh.T / self.temperature).log_softmax(-1)
        return logp_nv if token is None else logp_nv[token, self.target_n[token]]

    def shifts(self, lr: float, direction=plain, top: int = 100) -> torch.Tensor:
        with torch.no_grad():
            id_nk, p_nk = reduced(self.logp(self.weight_vh), self.target_n, top)
        return shifts(self.a_n, self.hidden_nh, id_nk, p_nk, lr, direction, self.temperature)

    def gradient(self, token: int) -> torch.Tensor:
        (g_vh,) = torch.autograd.grad(self.a_n[token] * self.logp(self.weight_vh, token), self.weight_vh)
        return g_vh

    def after(self, token: int, step_vh: torch.Tensor) -> tuple[float, float]:
        """A·(ρ - 1) and Δ log π of a token after a step of the weight."""
        with torch.no_grad():
            change = self.logp(self.weight_vh + step_vh, token) - self.logp(self.weight_vh, token)
        return float(self.a_n[token] * torch.expm1(change)), float(change)


def adam_step(toy: Toy, optimizer: torch.optim.Optimizer, token: int) -> torch.Tensor:
    """What the optimiser itself does to the weight, were the token's gradient that of the whole batch."""
    twin = nn.Parameter(toy.weight_vh.detach().clone())
    group = optimizer.param_groups[0]
    double = torch.optim.AdamW([twin], lr=group["lr"], betas=group["betas"], eps=group["eps"], weight_decay=0.0)
    double.state[twin] = {name: x.clone() for name, x in optimizer.state[toy.weight_vh].items()}
    twin.grad = -toy.gradient(token)
    double.step()
    return twin.detach() - toy.weight_vh.detach()


def test_the_objective_shift_is_the_second_order_expansion() -> None:
    """The error of m_H falls eightfold where the learning rate halves; that of a first-order model only fourfold."""
    toy, errors = Toy(), []
    for lr in (1e-2, 5e-3, 2.5e-3):
        m_h = toy.shifts(lr)[0]
        true = [toy.after(n, lr * toy.gradient(n))[0] for n in range(len(toy.a_n))]
        errors.append((m_h - torch.tensor(true, dtype=torch.float64)).abs())
    for coarse, fine in itertools.pairwise(errors):
        assert torch.all((coarse / fine > 7) & (coarse / fine < 9))


def test_the_policy_shift_is_half_the_squared_change_of_the_log_prob() -> None:
    toy = Toy()
    for lr, close in ((1e-3, 2e-2), (1e-5, 2e-4)):
        true = [0.5 * toy.after(n, lr * toy.gradient(n))[1] ** 2 for n in range(len(toy.a_n))]
        torch.testing.assert_close(toy.shifts(lr)[1], torch.tensor(true, dtype=torch.float64), rtol=close, atol=0)


def test_the_adam_model_is_the_step_that_adamw_would_take() -> None:
    toy, lr = Toy(), 1e-5
    optimizer = torch.optim.AdamW([toy.weight_vh], lr=lr, betas=(0.8, 0.95), weight_decay=0.0)
    for token in (0, 3, 1):
        toy.weight_vh.grad = -toy.gradient(token)
        optimizer.step()
    found = toy.shifts(lr, adam(optimizer, optimizer.param_groups[0], toy.weight_vh))
    true = [toy.after(n, adam_step(toy, optimizer, n)) for n in range(len(toy.a_n))]
    objective, change = torch.tensor(true, dtype=torch.float64).T
    torch.testing.assert_close(found[0], objective, rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(found[1], 0.5 * change.square(), rtol=1e-3, atol=1e-16)


def test_a_reduced_vocabulary_comes_close_when_it_holds_the_mass() -> None:
    toy = Toy(vocabulary=40)
    toy.weight_vh.data *= 3
    exact, close = toy.shifts(1e-2), toy.shifts(1e-2, top=12)
    torch.testing.assert_close(close, exact, rtol=0.05, atol=1e-5)
    assert not torch.equal(close, exact)


def test_the_sampled_token_is_counted_once() -> None:
    logp_nv = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]).log()
    id_nk, p_nk = reduced(logp_nv, torch.tensor([0, 2]), 2)
    assert id_nk.tolist() == [[0, 0, 1], [2, 0, 1]]
    torch.testing.assert_close(p_nk, torch.tensor([[0.5, 0.0, 0.3], [0.2, 0.5, 0.3]]))


def test_shifts_of_a_model_are_those_of_its_output_layer() -> None:
    """Through the part, on ragged rows: a token's m_H is A·(ρ - 1) after a tiny gradient step of the layer alone."""
    policy = make_policy(64)
    batch = make_batch(policy)
    chosen = method("capo", model="sgd")
    learner = Learner(policy, torch.optim.SGD(policy.parameters(), lr=1e-4), chosen)
    (step,) = learner.steps(chosen.judge(batch))
    objective_bt, policy_bt = chosen.learn.foresee(learner, step)
    assert not objective_bt[~step.mask_bt].any()
    assert not policy_bt[~step.mask_bt].any()
    hidden = policy.hidden(step.inputs)
    weight_vh = policy.model.get_output_embeddings().weight.detach()
    for b, t in step.active_bt.nonzero().tolist():
        a, h, token = step.advantage_bt[b, t], hidden[b][t], step.inputs.response_ids[b][t]
        leaf = weight_vh.clone().requires_grad_()
        (g_vh,) = torch.autograd.grad(a * (leaf @ h).log_softmax(-1)[token], leaf)
        after, before = ((w @ h).log_softmax(-1)[token] for w in (weight_vh + 1e-4 * g_vh, weight_vh))
        assert float(objective_bt[b, t]) == pytest.approx(float(a * torch.expm1(after - before)), rel=1e-5, abs=1e-12)
        assert float(policy_bt[b, t]) == pytest.approx(float(0.5 * (after - before) ** 2), rel=1e-2, abs=1e-12)


def test_thresholds_out_of_reach_leave_the_plain_update() -> None:
    found = []
    for settings in ({"tau_objective": 0.0, "tau_policy": 0.0}, {"tau_objective": 1e9, "tau_policy": 1e9}, None):
        policy, chosen = make_policy(), method("capo", **(settings or {}))
        chosen = chosen if settings else chosen.with_parts(learn=None)
        judged = chosen.judge(make_batch(policy))
        metrics = update(policy, torch.optim.AdamW(policy.parameters(), lr=1e-2), chosen, judged, parts=2)
        assert metrics.get("tokens_rejected", 0.0) == 0.0
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize(("lr", "rejected"), [(1e-9, 0.0), (10.0, 1.0)])
def test_a_small_learning_rate_accepts_all_and_a_large_one_nothing(lr, rejected) -> None:
    policy, chosen = make_policy(), method("capo")
    batch = make_batch(policy, groups=3).rows(torch.arange(4, 12))  # without the group that is all right
    before = torch.cat([p.detach().flatten() for p in policy.parameters()])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, weight_decay=0.0)
    metrics = update(policy, optimizer, chosen, chosen.judge(batch))
    assert metrics["tokens_rejected"] == pytest.approx(rejected)
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    assert torch.equal(before, after) == (rejected == 1.0)


def test_rejected_tokens_leave_the_loss_and_its_denominator() -> None:
    policy, chosen = make_policy(), method("capo", model="sgd", tau_objective=0.0, tau_policy=1e-5)
    learner = learner_of(policy, chosen)
    (step,) = learner.steps(chosen.judge(make_batch(policy)))
    shift_bt = chosen.learn.foresee(learner, step)[1]
    kept_bt = step.active_bt & (shift_bt < 1e-5)
    assert 0.2 < float(kept_bt.sum() / step.active_bt.sum()) < 0.95
    learner.accumulate(chosen.weigh(step.replace(loss_mask_bt=kept_bt)))
    expected = gradient(policy)
    seen = []

    class Watched(Learner):
        def apply(self) -> float:
            seen.append(gradient(policy))
            return 0.0

    watched = Watched(policy, learner.optimizer, chosen)
    (record,) = chosen.learn(watched, chosen.judge(make_batch(policy)))
    torch.testing.assert_close(seen[0], expected, rtol=1e-12, atol=0)
    assert record["tokens_rejected"] == pytest.approx(1 - float(kept_bt.sum() / step.active_bt.sum()))


def test_one_sided_thresholds_keep_only_gains() -> None:
    m_h, m_f = torch.tensor([-0.5, 0.0, 0.5, 2.0, 0.5]), torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    part = CurvatureMask(objective=1.0, policy=1.0)
    assert part.keeps(m_h, m_f).tolist() == [True, True, True, False, False]
    part = CurvatureMask(objective=1.0, policy=1.0, symmetric=False)
    assert part.keeps(m_h, m_f).tolist() == [False, True, True, False, False]


def test_what_has_no_trained_linear_head_is_refused_in_words() -> None:
    policy, chosen = make_policy(), method("capo")
    frozen = torch.optim.AdamW(list(policy.parameters())[1:], lr=1e-2)  # the tied embedding left out
    with pytest.raises(InputError, match="output layer that is not trained"):
        update(policy, frozen, chosen, chosen.judge(make_batch(policy)))
    with pytest.raises(InputError, match="changes its logits"):
        trained_head(None, frozen)
    with pytest.raises(InputError, match="model: sgd"):
        plain_sgd = torch.optim.SGD(policy.parameters(), lr=1e-2)
        update(policy, plain_sgd, chosen, chosen.judge(make_batch(policy)))
