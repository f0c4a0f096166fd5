"""Findings on policies that degenerate: loops, clips that act on most tokens, references left far behind."""

from __future__ import annotations

from typing import Any

import pytest

from grouprl.core.finding import RunFinding
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.loops import loop_fraction


def records(steps: int = 15, begun: dict[str, Any] | None = None, **values: Any) -> list[dict[str, Any]]:
    """Return records with these values, whose first five have those of `begun`."""
    early = {**values, **(begun or {})}
    return [{"phase": "train", "step": n, **(early if n <= 5 else values)} for n in range(1, steps + 1)]


def found(history: list[dict[str, Any]], **facts: Any) -> dict[str, RunFinding]:
    return {each.code: each for each in examine(history, HealthFacts(**facts))}


@pytest.mark.parametrize(
    ("ids", "looped"),
    [
        ([7] * 16, True),
        ([7] * 15, False),  # too few tokens to be no answer
        ([1, 2, 3, *([4, 5] * 8)], True),
        ([*([4, 5] * 8), 9], False),  # it went on to something else
        ([1, 2, 3, 4, 5] * 4, True),
        ([1, 2, 3, 4, 5] * 3, False),  # three times, of four
        ([*range(64)] * 4, True),
        ([*range(65)] * 4, False),  # a block of 65 tokens is a paragraph
        ([*range(300)], False),
        ([], False),
    ],
)
def test_a_loop_is_a_block_four_times_at_the_end(ids: list[int], looped: bool) -> None:
    assert loop_fraction([ids]) == float(looped)
    assert loop_fraction([ids, [1, 2, 3], [5] * 40, []]) == pytest.approx((1 + looped) / 4)


@pytest.mark.parametrize(
    ("begun", "now", "right", "severity"),
    [
        ({"loop_fraction": 0.0, "pass@1": 0.3}, 0.2, 0.3, "warning"),
        ({"loop_fraction": 0.0, "pass@1": 0.1}, 0.2, 0.4, "warning"),  # better, but they were not there before
        ({"loop_fraction": 0.15, "pass@1": 0.1}, 0.12, 0.4, "note"),
        ({"loop_fraction": 0.15, "pass@1": 0.4}, 0.12, 0.4, "warning"),
        ({"loop_fraction": 0.0, "pass@1": 0.4}, 0.09, 0.4, None),
    ],
)
def test_loops_are_told(begun: dict[str, float], now: float, right: float, severity: str | None) -> None:
    loops = found(records(loop_fraction=now, begun=begun, **{"pass@1": right})).get("repetition_loops")
    assert (loops and loops.severity) == severity
    if loops is not None:
        assert f"{100 * now:.0f} % of the completions end in a loop" in loops.text
        assert "the reward pays them" not in loops.text


def test_a_reward_that_pays_loops_is_named_and_a_higher_limit_is_no_remedy() -> None:
    paid = found(records(loop_fraction=0.9, truncated_fraction=1.0, begun={"loop_fraction": 0.0}, **{"pass@1": 0.95}))
    assert paid["repetition_loops"].text.endswith(
        "(0 % at the start), and most completions count as right: the reward pays them."
    )
    assert "would only be longer" in paid["truncation"].remedy
    assert "Raise the token limit" in found(records(loop_fraction=0.1, truncated_fraction=0.5))["truncation"].remedy


@pytest.mark.parametrize(
    ("share", "updates", "exact", "told"),
    [
        (0.24, 2, True, False),
        (0.26, 2, True, True),  # half of the second of two updates, the first of which has ratios of 1
        (0.44, 8, True, True),
        (0.43, 8, True, False),
        (0.26, 2, False, False),  # an inexact sampler: ratios may differ from the first update on
        (0.51, 2, False, True),
        (0.51, 1, True, True),
    ],
)
def test_a_clip_that_acts_on_most_tokens_within_its_reach(share: float, updates: int, exact: bool, told: bool) -> None:
    facts = {"clips": True, "updates_per_rollout": updates, "exact_sampler": exact}
    assert ("busy_clip" in found(records(clip_fraction=share), **facts)) is told
    assert "busy_clip" not in found(records(clip_fraction=share), **{**facts, "clips": False})


def test_a_clip_of_pairs_speaks_of_pairs() -> None:
    busy = found(records(pair_clip_fraction=0.6), clips=True)["busy_clip"]
    assert busy.text == "The clip takes the gradient from 60 % of the pairs."
    assert busy.key == "pair_clip_fraction"


def test_a_policy_far_from_its_reference_that_got_no_better() -> None:
    far = found(records(kl_ref=1.2, begun={"kl_ref": 0.1}, **{"pass@1": 0.3}))["far_from_reference"]
    assert far.text == (
        "The policy is 1.20 nats per token from the reference, after 0.1 at the least, and has not got better on the "
        "way."
    )
    better = records(kl_ref=1.2, begun={"kl_ref": 0.1, "pass@1": 0.1}, **{"pass@1": 0.5})
    assert "far_from_reference" not in found(better)


@pytest.mark.parametrize(("begun", "now"), [(0.1, 1.0), (3.0, 3.2), (3.0, 1.5)])
def test_a_pupil_far_from_its_teacher_has_not_moved_away(begun: float, now: float) -> None:
    assert "far_from_reference" not in found(records(kl_ref=now, begun={"kl_ref": begun}, **{"pass@1": 0.3}))


def graded(**values: Any) -> list[dict[str, Any]]:
    """Return records of a run with graded rewards whose completions become four times as long."""
    test = {"phase": "eval", "step": 0, "eval/graded": 1.0, "eval/prompts": 8}
    return [test, *records(length_mean=20.0, begun={"length_mean": 5.0, **BEGUN}, **values)]


BEGUN = {"reward_mean": 0.3, "reward_std": 0.2}


@pytest.mark.parametrize(
    ("reward", "right", "severity", "said"),
    [
        (0.6, 0.0, "note", "and the reward rose with it."),
        (0.33, 0.0, "warning", "without getting better."),  # 0.15 deviations are noise
        (0.6, 0.2, "warning", "without getting better."),  # some are right: that is what counts
    ],
)
def test_graded_rewards_that_never_reach_one_get_better_by_themselves(
    reward: float, right: float, severity: str, said: str
) -> None:
    grown = found(graded(reward_mean=reward, **{"pass@1": right}))["length_growth"]
    assert grown.severity == severity
    assert grown.text.endswith(said)


def test_an_evaluation_in_which_nothing_is_right_does_not_show_that_the_policy_stands_still() -> None:
    """A policy that fails at everything agrees with every other that does, however far it has moved."""
    values = {"grad_norm": 1.0, "lr": 1e-3, "update_ratio": 0.0005}

    def told(reward: float, dead: float) -> dict[str, RunFinding]:
        tests = [
            {"phase": "eval", "step": n, "eval/prompts": 8, "eval/reward": reward, "eval/pass@1": 0} for n in (0, 15)
        ]
        return found([tests[0], *records(groups_zero_variance=dead, **values), tests[1]])

    assert "stands_still" in told(0.25, 0.5)
    assert "stands_still" not in told(0.0, 0.5)
    assert "stands_still" not in told(0.25, 1.0), "no group has anything to teach, and another finding says so"


BEFORE = {"phase": "eval", "step": 0, "eval/prompts": 32, "eval/length_mean": 5.0, "eval/pass@1": 0.15}


def test_figures_that_agree_do_not_say_that_a_policy_which_walked_stands_still() -> None:
    tests = [{"phase": "eval", "step": n, "eval/prompts": 8, "eval/reward": 0.97} for n in (0, 15)]

    def told(ratio: float, **facts: Any) -> bool:
        moving = records(grad_norm=1.0, lr=1e-3, update_ratio=ratio)
        return "stands_still" in found([tests[0], *moving, tests[1]], **facts)

    assert told(0.0006)
    assert not told(0.0008), "15 steps make 0.012 of the weights"
    assert not told(0.0006, reach=7.0), "15 steps at this rate can move a log-prob by 0.105 nats"


def test_growth_within_the_first_steps_is_seen_by_the_evaluation_before_them() -> None:
    """Length that a reward pays may have grown before five steps are over."""
    grown = found([BEFORE, *records(length_mean=23.0, truncated_fraction=0.9)])
    assert grown["length_growth"].text.startswith("Completions have gone from 5.0 to 23.0 tokens")
    assert "have grown into the limit, from 5.0 tokens" in grown["truncation"].text
    assert grown["truncation"].remedy.startswith("See whether the reward pays length")
    same = found([BEFORE | {"eval/length_mean": 20.0}, *records(length_mean=23.0, truncated_fraction=0.9)])
    assert "length_growth" not in same
    assert same["truncation"].remedy.startswith("Raise the token limit")


@pytest.mark.parametrize(
    ("before", "said"), [(0.15, "the policy has lost what it knew."), (0.05, "no gradient at all.")]
)
def test_groups_that_are_dead_because_the_policy_forgot(before: float, said: str) -> None:
    test = BEFORE | {"eval/pass@1": before}
    dead = found([test, *records(groups_zero_variance=1.0, groups_all_right=0.0, **{"pass@1": 0.0})])["no_signal"]
    assert dead.text.endswith(said)
    assert ("lower optim.lr" in dead.remedy) is (before > 0.1)


def test_a_reward_that_pays_everything_from_the_start_is_no_success() -> None:
    solved = {"groups_zero_variance": 1.0, "groups_all_right": 1.0, "pass@1": 1.0}
    paid = found([BEFORE | {"eval/pass@1": 1.0}, *records(**solved)])["no_signal"]
    assert (paid.severity, paid.text) == (
        "alarm",
        "Every completion has been right for 5 steps, and was before training.",
    )
    assert "check-reward" in paid.remedy
    assert found([BEFORE, *records(**solved)])["no_signal"].severity == "note"


@pytest.mark.parametrize(
    ("errors", "filters", "remedy"),
    [(8.0, (), "Repair the reward"), (8.0, ("mixed_groups",), "A selection rule"), (0.0, (), "A selection rule")],
)
def test_what_removes_every_row_is_named(errors: float, filters: tuple[str, ...], remedy: str) -> None:
    removed = records(rows_trained=0.0, groups_zero_variance=0.5, reward_errors=errors)
    assert found(removed, filters=filters)["no_signal"].remedy.startswith(remedy)


@pytest.mark.parametrize("kind", ["eval/graded", "eval/returns"])
def test_dead_groups_of_grades_and_of_returns_are_neither_right_nor_wrong(kind: str) -> None:
    dead = records(groups_zero_variance=0.9, groups_all_wrong=0.9, groups_all_right=0.0, **{"pass@1": 0.0})
    assert "all wrong" in found([BEFORE, *dead])["dead_groups"].text
    assert "all wrong" not in found([BEFORE | {kind: 1.0}, *dead])["dead_groups"].text


def test_groups_that_are_dead_because_no_answer_fits_are_told_so() -> None:
    dead = {"groups_zero_variance": 1.0, "groups_all_right": 0.0, "pass@1": 0.0}
    cut = found(records(truncated_fraction=0.97, **dead))["no_signal"]
    assert cut.text.endswith("97 % of the completions are cut off before they end.")
    assert cut.remedy.startswith("Raise the token limit")
    assert found(records(truncated_fraction=0.5, **dead))["no_signal"].remedy.startswith("Check the reward")
    assert found(records(truncated_fraction=1, turns_mean=3, **dead))["no_signal"].remedy.startswith("Check the reward")


def test_a_gain_of_pairs_that_is_not_shown_leads_to_their_curve() -> None:
    figures = {"eval/pair_accuracy": 0.6, "eval/pair_accuracy_low": 0.4, "eval/pair_accuracy_high": 0.8}
    tests = [{"phase": "eval", "step": n, "eval/prompts": 32, **figures} for n in (0, 30)]
    assert found([tests[0], *records(30), tests[1]])["no_gain"].key == "eval/pair_accuracy"
