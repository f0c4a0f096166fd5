"""Notes of a plan on a judge, and refusals of runs in which its scores would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grouprl.algorithms.method import Method
from grouprl.config.run import Config
from grouprl.config.sections import Judge
from grouprl.config.sections.scoring import PROBED

if TYPE_CHECKING:  # a plan without a judge loads no torch
    from grouprl.algorithms.augment.opponents import Opponents


def judge_notes(config: Config, method: Method, held_out: int | None, *, environment: bool) -> Iterator[str]:
    """Say which model judges, with how many requests, and how the scores are used.

    `held_out` is the number of prompts to evaluate on; None if they never end.
    """
    judge = config.reward.judge
    if judge is None:
        return
    who = f"{judge.model} at {judge.url}" if judge.model else f"the model at {judge.url}"
    if judge.compare:
        replies, pairs = judge.samples * (1 + judge.both_orders), compared_pairs(config, method)
        asked = pairs * replies * config.batch.prompts
        in_all = _in_all(config, asked, _asked_of(config.eval.samples, judge) * replies, held_out)
        which, paid = _how_compared(judge)
        yield (
            f"the reward is a judge: {who} compares {which.format(pairs)} of each group, {replies} "
            f"repl{'ies' if replies > 1 else 'y'} each: up to {asked:,} requests per rollout{in_all}; {paid}"
        )
        yield from _probe(config, _asked_of(config.batch.group_size, judge) * replies)
        return
    paid = ", added to the environment's reward" if environment else ", instead of the task's reward"
    asked = config.batch.prompts * (1 + sum(1 + each.together for each in _opponents(method)))
    yield (
        f"the reward is a judge: {who} ranks the {config.batch.group_size} trajectories of each group in one request, "
        f"{asked} per rollout{_in_all(config, asked, 2, held_out)}; scores from 0 to 1{paid}"
    )
    yield from _probe(config, 1)


def _probe(config: Config, of_group: int) -> Iterator[str]:
    """Say what it costs to ask the judge again about kept groups, with so many requests for a group."""
    judge, times = config.reward.judge, config.steps // PROBED
    assert judge is not None
    if judge.probe and times:
        groups = min(judge.probe, config.batch.prompts)
        kept = f"{groups} kept group{'s' if groups > 1 else ''}"
        yield (
            f"the judge is asked again about {kept} every {PROBED} steps, to see whether it drifts: up to "
            f"{groups * of_group * (times + 1):,} requests more (reward.judge.probe)"
        )


def compared_pairs(config: Config, method: Method) -> int:
    """Return how many pairs of a prompt a rollout has compared: the group's, and those with opponents.

    Where verdicts are kept, a pair that is asked about twice costs nothing the second time.
    """
    from grouprl.algorithms.augment.opponents import Comparisons

    judge = config.reward.judge
    assert judge is not None
    own, others = config.batch.group_size, sum(each.count for each in _opponents(method))
    every, across = _pairs_of(own + others), own * others
    apart = _asked_of(own, judge) + _asked_of(others, judge)
    again = [_asked_of(own + others, judge)] * any(each.together for each in _opponents(method))
    again += [
        {"all": every, "opponents": across, "measure": max(own - 1, 0)}[each.against]
        for each in method.augment
        if isinstance(each, Comparisons)
    ]
    if not judge.cache:
        return apart + sum(again)
    if judge.compare == "tournament":
        return min(apart + sum(again), every)
    return every if any(count >= across for count in again) else apart


def _opponents(method: Method) -> list[Opponents]:
    from grouprl.algorithms.augment.opponents import Opponents

    return [each for each in method.augment if isinstance(each, Opponents) and each.scored]


def _how_compared(judge: Judge) -> tuple[str, str]:
    """Say which pairs are compared, with a place for their number, and what a completion is paid."""
    if judge.compare == "tournament":
        said = "the reward of the best completion is 1, of the worst 0, of the others ½"
        return "by tournaments, which take {} comparisons, the completions", said
    return "the {} pairs", "a completion's reward is how often it is preferred"


def _asked_of(count: int, judge: Judge) -> int:
    """Return how many comparisons a group of so many completions takes."""
    from grouprl.rewards.judging.tournament import comparisons

    return comparisons(count) if judge.compare == "tournament" else _pairs_of(count)


def _pairs_of(count: int) -> int:
    return count * (count - 1) // 2


def _evaluated(config: Config, held_out: int | None) -> int:
    """Return how many held-out prompts the evaluations of a run ask for, before, between and after."""
    many = [config.eval.final_prompts, config.eval.prompts]
    ends, between = (each if held_out is None else min(each, held_out) for each in many)
    return 2 * ends + (between * ((config.steps - 1) // config.eval.every) if config.eval.every else 0)


def _in_all(config: Config, asked: int, of_prompt: int, held_out: int | None) -> str:
    """Say how many requests a run makes, with so many per rollout and held-out prompt, and how long a rollout takes."""
    assert config.reward.judge is not None
    tried = _evaluated(config, held_out) * of_prompt
    pace = config.reward.judge.per_minute
    least = "" if pace is None else f", at least {_lasting(60 * asked / pace)} each at {pace:,} a minute"
    tokens = f"replies of {config.reward.judge.tokens:,} tokens at most"
    steps = f" and {asked * config.steps:,} in {config.steps:,} steps"
    return f"{steps}, up to {tried:,} in evaluations besides{least}, {tokens}"


def _lasting(seconds: float) -> str:
    """Say how long something lasts, in seconds, or in minutes if it is long."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def judge_refusals(config: Config, method: Method) -> Iterator[str]:
    """Say why a comparing judge would have nothing to compare."""
    if config.reward.judge is None:
        return
    if config.batch.group_size < 2 and not any(each.together for each in _opponents(method)):
        yield "reward.judge compares the trajectories of a group, and batch.group_size is 1. Set it to 2 or more"
    if method.greedy_baseline:
        yield (
            f"reward.judge compares the trajectories of a group, and {method.name} has greedy completions scored alone "
            "as baselines. Take a method without greedy baselines"
        )


def judge_idle(config: Config) -> Iterator[str]:
    """Say which settings of rewards have no effect when a judge scores."""
    if config.reward.model is not None:
        for name in sorted(config.reward.model_fields_set & {"workers", "timeout", "memory_gb", "self_test"}):
            yield f"reward.{name} has no effect: a reward model is not a function, and scores in the trainer's process"
    if config.reward.judge is not None and not config.reward.judge.compare:
        for name in sorted(config.reward.judge.model_fields_set & {"samples", "both_orders"}):
            yield f"reward.judge.{name} has no effect: it is about pairs. Set reward.judge.compare: true"
    if config.reward.judge is not None:
        for name in sorted(config.reward.model_fields_set & {"workers", "timeout", "memory_gb", "self_test"}):
            yield f"reward.{name} has no effect: an LLM judge is not a function; see reward.judge.timeout and its tries"
