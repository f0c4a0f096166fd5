"""Values of stored data: losses by hand, the quantile they find, gradients, and the orthogonal step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import grouprl
from grouprl.algorithms.advantage.residual_weight import ResidualWeight
from grouprl.algorithms.critic.implicit_values import Divergence, ImplicitValues, above, slope_above
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.orthogonal_values import OrthogonalValues, pulls
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build, make_policy
from grouprl.policy.vectors.array_inputs import ArrayInputs
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.training.update import Learner
from small import f64, near, small

DIVERGENCES: tuple[Divergence, ...] = ("total_variation", "chi_square", "conjugate")


@pytest.mark.parametrize(
    ("divergence", "found"),
    [
        ("total_variation", [0.0, 0.0, 0.0, 1.0, 2.0]),
        ("chi_square", [0.0, 0.0, 0.0, 1.25, 3.0]),
        ("conjugate", [-1.0, -0.75, 0.0, 1.25, 3.0]),
    ],
)
def test_what_lies_above_counts(divergence: Divergence, found: list[float]) -> None:
    near(above(f64([-5.0, -1.0, 0.0, 1.0, 2.0]), divergence), found)


def test_the_conjugate_is_that_of_chi_square() -> None:
    """f*(x) = max over w >= 0 of x·w - (w - 1)², on a fine grid."""
    weight_n = torch.linspace(0, 6, 60_001, dtype=torch.float64)
    for x in (-5.0, -2.0, -0.3, 0.7, 4.0):
        best = float((x * weight_n - (weight_n - 1).square()).max())
        assert float(above(f64([x]), "conjugate")) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_slopes_are_derivatives(divergence: Divergence) -> None:
    x_n = f64([-3.0, -1.2, 0.4, 1.7]).requires_grad_()
    (slope_n,) = torch.autograd.grad(above(x_n, divergence).sum(), x_n)
    near(slope_above(x_n.detach(), divergence), slope_n.tolist())


def test_total_variation_finds_a_quantile() -> None:
    """λ = 0.8: a quarter lies above; of 0 … 99 the 75 % quantile."""
    part, target_n = ImplicitValues(lam=0.8, divergence="total_variation"), torch.arange(100, dtype=torch.float64)
    batch = small([0.0] * 100, [1] * 100).replace(return_bt=target_n[:, None])
    losses = [float(part(torch.full((100, 1), v, dtype=torch.float64), batch).loss_bt.sum()) for v in range(100)]
    assert int(np.argmin(losses)) in (74, 75)


def test_a_loss_by_hand_and_targets_that_go_on_behind_a_limit() -> None:
    batch = small([1.0, 0.0], [2, 1]).replace(
        value_bt=f64([[0.5, 1.0], [2.0, 0.0]]), truncated_b=torch.tensor([False, True]), final_value_b=f64([9.0, 4.0])
    )
    part = ImplicitValues(lam=0.75, gamma=0.5, divergence="chi_square")
    target_bt = part.targets(batch)
    near(target_bt, [[0.5, 1.0], [2.0, 0.0]])  # 0 + 0.5·1; 1; 0 + 0.5·4
    found = part(f64([[0.5, 0.0], [3.0, 0.0]]), batch.replace(return_bt=target_bt))
    near(found.loss_bt[batch.mask_bt], [0.0, 0.75 * 1.25 - 0.25, 0.25])


def test_weights_by_hand_and_their_limit() -> None:
    batch = small([1.0], [2]).replace(value_bt=f64([[0.5, 0.5]]))
    near(ResidualWeight(gamma=1.0, rule="residual")(batch), [[0.0, 0.5]])
    near(ResidualWeight(gamma=1.0, temperature=2.0)(batch), [[1.0, float(np.exp(1.0))]])
    near(ResidualWeight(gamma=1.0, temperature=100.0, limit=7.0)(batch), [[1.0, 7.0]])


def walk(seed: int = 0) -> tuple[object, Batch]:
    """Three rows of a policy with a critic; the second was cut by a limit."""
    torch.manual_seed(seed)
    spaces, lengths = Spaces(Box((2,)), Discrete(3)), (3, 2, 1)
    policy = make_policy("mlp", Build(spaces=spaces, values=True, dtype=torch.float64), {"hidden": [5]})
    inputs = ArrayInputs.of(
        [np.random.default_rng(n).normal(size=(length, 2)) for n, length in enumerate(lengths)],
        [np.arange(length) % 3 for length in lengths],
        final_b=[np.full(2, 0.3 * n) for n in range(3)],
    )
    mask_bt = inputs.present_bt()
    batch = small([1.0, 0.5, -1.0], list(lengths)).replace(
        inputs=inputs,
        truncated_b=torch.tensor([False, True, False]),
        group_b=torch.arange(3),
        turn_bt=torch.where(mask_bt, torch.arange(3), -1),
        turn_reward_bs=f64([[0.5, 0.0, 0.5], [0.0, 0.5, 0.0], [-1.0, 0.0, 0.0]]),
    )
    value_bt = policy.evaluate(inputs, ("value",))["value"].double()
    final_b = policy.evaluate(inputs.finals(), ("value",))["value"][:, 0].double()
    return policy, batch.replace(value_bt=value_bt, final_value_b=torch.where(batch.truncated_b, final_b, 0))


def gradients(eta: float | None) -> dict[str, Tensor]:
    """The gradient of a step with an orthogonal backward part; None: without the update part."""
    policy, batch = walk()
    method = grouprl.method("odice", eta=1.0 if eta is None else eta)
    found: dict[str, Tensor] = {}

    class Watching(Learner):
        def apply(self) -> float:
            found.update({n: p.grad.clone() for n, p in self.policy.named_parameters() if p.grad is not None})
            return 0.0

    learner = Watching(policy, None, method)  # type: ignore[arg-type]
    prepared = method.prepare(batch)
    if eta is None:
        for step in learner.steps(prepared):
            learner.take(step)
    else:
        list(OrthogonalValues(eta=eta)(learner, prepared))  # type: ignore[arg-type]
    return found


@pytest.mark.filterwarnings("ignore:the method")
def test_with_no_backward_weight_it_is_the_plain_update() -> None:
    plain, other, whole = gradients(None), gradients(0.0), gradients(1.0)
    assert plain.keys() == other.keys() == whole.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(other[name], gradient)
        if not name.startswith("value_head."):
            torch.testing.assert_close(whole[name], gradient)  # the policy's own step is the same
    assert any(not torch.allclose(whole[n], g) for n, g in plain.items() if n.startswith("value_head."))


@pytest.mark.filterwarnings("ignore:the method")
def test_what_is_added_is_orthogonal_and_is_the_backward_gradient_projected() -> None:
    policy, batch = walk()
    method = grouprl.method("odice")
    step = method.compute_loss_weights(method.prepare(batch))
    critic = method.critic
    assert isinstance(critic, ImplicitValues)
    own = [p for n, p in policy.named_parameters() if n.startswith("value_head.")]  # type: ignore[attr-defined]

    def of(by_bt: Tensor, by_b: Tensor) -> Tensor:
        policy.backward(step.inputs, {"value": by_bt})  # type: ignore[attr-defined]
        policy.backward(step.inputs.finals(), {"value": by_b[:, None]})  # type: ignore[attr-defined, union-attr]
        found = torch.cat([p.grad.flatten() for p in own])
        for p in own:
            p.grad = None
        return found

    final_b = batch.final_value_b
    assert final_b is not None
    forward_bt, backward_bt, last_b = pulls(critic, step, step.value_bt, final_b)  # type: ignore[arg-type]
    assert last_b.tolist()[0] == last_b.tolist()[2] == 0
    forward, backward = of(forward_bt, torch.zeros(3, dtype=torch.float64)), of(backward_bt, last_b)
    more = torch.cat([(gradients(1.0)[n] - gradients(0.0)[n]).flatten() for n in gradients(0.0) if "value_head" in n])
    assert abs(float(more @ forward)) < 1e-12
    torch.testing.assert_close(more, backward - (backward @ forward) / (forward @ forward) * forward)


@pytest.mark.filterwarnings("ignore:the method")
def test_the_pulls_are_derivatives_of_the_two_differences() -> None:
    _, batch = walk()
    critic = ImplicitValues(lam=0.6, gamma=0.9, divergence="conjugate")
    method = grouprl.method("odice", gamma=0.9)
    step = method.compute_loss_weights(method.prepare(batch))
    value_bt, final_b = step.value_bt.clone().requires_grad_(), step.final_value_b.clone().requires_grad_()  # type: ignore[union-attr]
    follows_bt = torch.cat([value_bt[:, 1:], torch.zeros(3, 1, dtype=torch.float64)], 1)
    ends_bt = step.last_token_bt()
    follows_bt = torch.where(ends_bt, torch.where(step.truncated_b, final_b, 0)[:, None], follows_bt)  # type: ignore[arg-type]
    paid_bt = step.return_bt - 0.9 * follows_bt.detach()  # type: ignore[operator]
    back = above((paid_bt + 0.9 * follows_bt - step.value_bt)[step.mask_bt], "conjugate").mean() * 0.6  # type: ignore[operator]
    by_bt, by_b = torch.autograd.grad(back, (value_bt, final_b))
    _, found_bt, found_b = pulls(critic, step, step.value_bt, step.final_value_b)  # type: ignore[arg-type]
    torch.testing.assert_close(found_bt, by_bt)
    torch.testing.assert_close(found_b, by_b)


def test_actions_that_the_policy_samples_are_not_weighed() -> None:
    for name in ("f_dvl", "odice"):
        (said,) = grouprl.method(name).advantage.refuse(RunFacts(stored=False))
        assert "Set task: trajectories:" in said
        assert grouprl.method(name).advantage.refuse(RunFacts(stored=True)) == []


def test_the_update_needs_its_critic_and_arrays() -> None:
    policy, batch = walk()
    ppo = grouprl.method("ppo_control")
    with pytest.raises(InputError, match="implicit_values"):
        list(OrthogonalValues()(Learner(policy, None, ppo), batch))  # type: ignore[arg-type]
    odice = grouprl.method("odice")
    with pytest.raises(InputError, match="arrays"):
        list(OrthogonalValues()(Learner(policy, None, odice), batch.replace(inputs=None)))  # type: ignore[arg-type]
