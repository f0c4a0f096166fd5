"""A learned reward that is over-optimised: the paid reward rises, the true one falls from its best."""

import pytest

from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts


def said(paid, gold, **more):
    steps = [
        {"phase": "train", "step": n, "reward_mean": p, "reward/gold": g, **more}
        for n, (p, g) in enumerate(zip(paid, gold, strict=True), 1)
    ]
    return {each.code: each for each in examine(steps, HealthFacts())}.get("overoptimisation")


RISES = [n / 10 for n in range(40)]


def hill(top, end):
    """Rises from 0.4 to `top` over 20 steps and falls to `end` over 20 more."""
    return [0.4 + (top - 0.4) * n / 19 for n in range(20)] + [top + (end - top) * n / 19 for n in range(20)]


def test_a_true_reward_that_rose_and_fell_is_named_with_its_numbers():
    finding = said(RISES, hill(0.9, 0.75), kl_ref=0.25)
    assert finding.severity == "warning"
    assert finding.key == "reward/gold"
    assert "0.25 per token" in finding.text
    assert "`gold`, has fallen from 0.8" in finding.text


def test_half_of_the_gain_lost_is_an_alarm_and_so_is_less_than_at_the_start():
    assert said(RISES, hill(0.9, 0.4)).severity == "alarm"
    assert said(RISES, [0.5 - n / 100 for n in range(40)]).severity == "alarm"


@pytest.mark.parametrize(
    ("paid", "gold"),
    [
        ([-0.497 + 0.003 * (n % 3) for n in range(6)], [1 / 512, 0, 0, 0, 0, 0]),
        (RISES, [1 / 512] + 39 * [0]),
        ([0.1 * (-1) ** n + 1e-4 * n for n in range(40)], hill(0.9, 0.4)),
        (RISES, [0.4 + n / 100 for n in range(40)]),
        (RISES, [0.5 + 0.02 * (-1) ** n for n in range(40)]),
        ([-x for x in RISES], [0.5 - n / 100 for n in range(40)]),
        (hill(4.0, 1.0), hill(0.9, 0.5)),
    ],
    ids=[
        "few steps, one success",
        "one success",
        "paid only fluctuates",
        "both rise",
        "gold is level",
        "paid falls",
        "both fall: a collapse",
    ],
)
def test_nothing_is_said_otherwise(paid, gold):
    assert said(paid, gold) is None
