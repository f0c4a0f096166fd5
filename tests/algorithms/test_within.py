"""The slope of a clip at its bounds, where torch's own differs from release to release."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clamps import with_slope
from grouprl.algorithms.critic.implicit_values import above
from grouprl.algorithms.link.link import Hinge
from grouprl.algorithms.objective.objective import Clipped, clipped
from grouprl.algorithms.objective.papers.outer_clip import BoundedClip
from grouprl.algorithms.objective.ratio import within
from small import f64, near, prepared, slopes

ONE, TWO = torch.ones(1, dtype=torch.float64), 2 * torch.ones(1, dtype=torch.float64)


def slope(x: float, low: float | torch.Tensor | None, high: float | torch.Tensor | None) -> tuple[float, float]:
    """Return the clipped number and its slope."""
    value = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    found = within(value, low, high)
    found.sum().backward()
    assert value.grad is not None
    return found.item(), value.grad.item()


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (ONE, TWO), (ONE, 2.0), (1.0, None), (None, 2.0)])
@pytest.mark.parametrize(("x", "inside"), [(1.0, True), (1.5, True), (2.0, True), (0.9, False), (2.1, False)])
def test_the_slope_is_one_within_the_bounds_and_at_them(
    x: float, inside: bool, low: float | torch.Tensor | None, high: float | torch.Tensor | None
) -> None:
    unbounded = (low is None and x < 1.5) or (high is None and x > 1.5)
    value, own = slope(x, low, high)
    assert own == float(inside or unbounded)
    assert value == (x if inside or unbounded else min(max(x, 1.0), 2.0))


@given(st.floats(-5, 5), st.floats(-3, 3), st.floats(-3, 3))
def test_values_are_those_of_a_clamp(x: float, low: float, high: float) -> None:
    assert slope(x, low, high)[0] == torch.tensor(x, dtype=torch.float64).clamp(low, high).item()


@pytest.mark.parametrize("of_clamp", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("adv", [1.0, -1.0])
@pytest.mark.parametrize("part", [Clipped(clip_low=0.0), BoundedClip(bound=1.0), BoundedClip(clip_low=0.0, bound=1.0)])
def test_at_a_bound_of_one_the_first_step_has_its_whole_gradient(
    part: Clipped, adv: float, of_clamp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "clamp", with_slope(of_clamp))
    _, grad_bt = slopes(part, [[0.0]], prepared([[adv]], old_bt=[[0.0]]))
    near(grad_bt, [[-adv]])


def test_bounds_of_each_token_are_kept_like_those_of_all() -> None:
    ratio_bt, adv_bt = f64([[0.5, 1.0, 1.2, 3.0]]), f64([[-1.0, 1.0, 1.0, -1.0]])
    alike = [clipped(ratio_bt, adv_bt, low, high, 2.0) for low, high in ((0.8, 1.2), (f64([[0.8]]), f64([[1.2]])))]
    near(alike[0].loss_bt, alike[1].loss_bt)
    near(alike[0].loss_bt, [[0.8, -1.0, -1.2, 2.0]])


def test_a_hinge_and_a_value_that_stand_at_their_corner_still_learn() -> None:
    gap_e = f64([10.0]).requires_grad_()
    Hinge(beta=0.1)(gap_e, f64([0.0])).sum().backward()
    assert gap_e.grad is not None
    near(gap_e.grad, [-0.1])
    delta = f64([0.0]).requires_grad_()
    above(delta, "chi_square").sum().backward()
    assert delta.grad is not None
    near(delta.grad, [1.0])
