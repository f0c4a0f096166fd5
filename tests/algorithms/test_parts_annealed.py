"""Reward components that change weight along a cosine."""

import pytest
import torch

from grouprl.algorithms.reward_transform.papers.annealed import Annealed
from grouprl.core.errors import InputError
from grouprl.methods.compose import compose
from small import small


def shaped(step, steps, **settings):
    rewards = {"format": torch.tensor([1.0, 0.0]), "accuracy": torch.tensor([0.0, 1.0])}
    batch = small([9.0, 9.0], step=step, steps=steps).replace(rewards=rewards)
    return Annealed(**settings)(batch).reward_b.tolist()


@pytest.mark.parametrize(
    ("step", "steps", "expected"),
    [(0, 5, [1.0, 0.0]), (1, 5, [0.853553, 0.146447]), (2, 5, [0.5, 0.5]), (4, 5, [0.0, 1.0]), (0, 1, [1.0, 0.0])],
)
def test_by_hand(step, steps, expected):
    assert shaped(step, steps) == pytest.approx(expected, abs=1e-6)


def test_the_same_components_on_both_sides_are_never_changed():
    both = ("format", "accuracy")
    assert [shaped(step, 7, fading=both, growing=both) for step in range(7)] == [pytest.approx([1.0, 1.0])] * 7


def test_an_unknown_component_is_named():
    with pytest.raises(InputError, match=r"no reward component 'formats'.*'format'"):
        shaped(0, 5, fading=("formats",))


def test_it_is_found_in_a_configuration():
    spec = {"base": "grpo", "reward_transform": [{"part": "annealed", "fading": ["a"], "growing": ["b", "c"]}]}
    (part,) = compose(spec).method.reward_transform
    assert part.growing == ("b", "c")
    assert part.words() == "move the reward along a cosine from a to b + c"
    assert part.formula().startswith("R ← w·(R_a) + (1 - w)·(R_b + R_c)")
