"""Notes of a plan on a judge, and refusals of runs in which its scores would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.method import Method
from grouprl.config.run import Config


def judge_notes(config: Config, *, environment: bool) -> Iterator[str]:
    """Say which model judges, with how many requests, and how the scores are used."""
    judge = config.reward.judge
    if judge is None:
        return
    who = f"{judge.model} at {judge.url}" if judge.model else f"the model at {judge.url}"
    if judge.compare:
        size, replies = config.batch.group_size, judge.samples * (1 + judge.both_orders)
        pairs = size * (size - 1) // 2
        asked = pairs * replies * config.batch.prompts
        yield (
            f"the reward is a judge: {who} compares the {pairs} pairs of each group, {replies} "
            f"repl{'ies' if replies > 1 else 'y'} each: up to {asked:,} requests per rollout{_in_all(config, asked)}; "
            "a completion's reward is how often it is preferred"
        )
        return
    paid = ", added to the environment's reward" if environment else ", instead of the task's reward"
    yield (
        f"the reward is a judge: {who} ranks the {config.batch.group_size} trajectories of each group in one request, "
        f"{config.batch.prompts} per rollout{_in_all(config, config.batch.prompts)}; scores from 0 to 1{paid}"
    )


def _in_all(config: Config, asked: int) -> str:
    """Say how many requests a run makes, with so many per rollout, and how long a rollout of them takes at least."""
    assert config.reward.judge is not None
    pace = config.reward.judge.per_minute
    least = "" if pace is None else f", at least {_lasting(60 * asked / pace)} each at {pace:,} a minute"
    tokens = f"replies of {config.reward.judge.tokens:,} tokens at most"
    return f" and {asked * config.steps:,} in {config.steps:,} steps, evaluations besides{least}, {tokens}"


def _lasting(seconds: float) -> str:
    """Say how long something lasts, in seconds, or in minutes if it is long."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def judge_refusals(config: Config, method: Method) -> Iterator[str]:
    """Say why a comparing judge would have nothing to compare."""
    if config.reward.judge is None:
        return
    if config.batch.group_size < 2:
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
