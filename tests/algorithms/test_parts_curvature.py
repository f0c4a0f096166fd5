"""CAPO: predicted shifts of objective and policy on a linear softmax toy and on a model, and the mask."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from grouprl import InputError, method
from grouprl.algorithms.update.papers.curvature import CurvatureMask, adam, plain, reduced, shifts, trained_head
from grouprl.training.update import Learner, update
from updates import gradient, make_batch, make_policy


class Toy:
    """Tokens of a linear softmax layer: W [V,H], states h [N,H], sampled tokens, advantages of both signs."""

    def __init__(self, tokens: int = 6, vocabulary: int = 7, hidden: int = 5, temperature: float = 1.3) -> None:
        sample = torch.Generator().manual_seed(4)
        randn = lambda *shape: torch.randn(*shape, generator=sample, dtype=torch.float64)  # noqa: E731
        self.weight_vh = nn.Parameter(randn(vocabulary, hidden))
        self.hidden_nh, self.a_n = randn(tokens, hidden), randn(tokens)
        self.target_n = torch.randint(0, vocabulary, (tokens,), generator=sample)
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
    (step,) = learner.steps(chosen.compute_advantages(batch))
    objective_bt, policy_bt = chosen.update.foresee(learner, step)
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
        chosen = chosen if settings else chosen.with_parts(update=None)
        prepared = chosen.compute_advantages(make_batch(policy))
        metrics = update(policy, torch.optim.AdamW(policy.parameters(), lr=1e-2), chosen, prepared, parts=2)
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
    metrics = update(policy, optimizer, chosen, chosen.compute_advantages(batch))
    assert metrics["tokens_rejected"] == pytest.approx(rejected)
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    assert torch.equal(before, after) == (rejected == 1.0)


def test_rejected_tokens_leave_the_loss_and_its_denominator() -> None:
    policy, chosen = make_policy(), method("capo", model="sgd", tau_objective=0.0, tau_policy=1e-5)
    learner = Learner(policy, torch.optim.AdamW(policy.parameters(), lr=1e-2), chosen)
    (step,) = learner.steps(chosen.compute_advantages(make_batch(policy)))
    shift_bt = chosen.update.foresee(learner, step)[1]
    keep_bt = step.active_bt & (shift_bt < 1e-5)
    assert 0.2 < float(keep_bt.sum() / step.active_bt.sum()) < 0.95
    learner.accumulate(chosen.compute_loss_weights(step.replace(loss_mask_bt=keep_bt)))
    expected = gradient(policy)
    seen = []

    class Watched(Learner):
        def apply(self) -> float:
            seen.append(gradient(policy))
            return 0.0

    watched = Watched(policy, learner.optimizer, chosen)
    (record,) = chosen.update(watched, chosen.compute_advantages(make_batch(policy)))
    torch.testing.assert_close(seen[0], expected, rtol=1e-12, atol=0)
    assert record["tokens_rejected"] == pytest.approx(1 - float(keep_bt.sum() / step.active_bt.sum()))


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
        update(policy, frozen, chosen, chosen.compute_advantages(make_batch(policy)))
    with pytest.raises(InputError, match="changes its logits"):
        trained_head(None, frozen)
    with pytest.raises(InputError, match="model: sgd"):
        plain_sgd = torch.optim.SGD(policy.parameters(), lr=1e-2)
        update(policy, plain_sgd, chosen, chosen.compute_advantages(make_batch(policy)))
