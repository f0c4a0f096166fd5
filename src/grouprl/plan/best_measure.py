"""Checks of the measure of `eval.best`: that evaluations have it, and that it tells policies apart."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.method import Method
from grouprl.config.run import Config
from grouprl.core.errors import suggest
from grouprl.evaluation.best import check_measure, measures
from grouprl.evaluation.yardsticks import load_yardsticks
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.components import known_components
from grouprl.plan.try_reward import RewardTrial
from grouprl.records.examples import Example
from grouprl.rewards.contract import Reward
from grouprl.rewards.judging.comparing import comparing
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.measured import MeasuredReward, paid_reward
from grouprl.rollout.kinds.row_kinds import evaluation_kind

REMEDY = (
    "Name a yardstick of eval.metrics, or set reward.gold beside a judge or a reward model and name reward/gold; or "
    "leave eval.best empty"
)
MEANS = ("reward", "greedy_reward")
"""Means of the paid reward itself."""


def check_best(run: ResolvedRun) -> None:
    """Load the yardsticks of `eval.metrics`, and check that evaluations of this run have the measure of `eval.best`.

    Raises:
        InputError: a yardstick cannot be called, or there is no such measure.
    """
    yardsticks, samples = load_yardsticks(run.config.eval.metrics), evaluation_kind(run.task).samples
    check_measure(run.config.eval.best, measures(yardsticks, run.config.eval.k, ranks=run.scores, samples=samples))


def idle_yardsticks(run: ResolvedRun) -> Iterator[str]:
    """Say that the yardsticks of `eval.metrics` have nothing to measure where a reward model is trained."""
    if run.scores and run.config.eval.metrics:
        yield (
            "eval.metrics measures completions of a policy, and a reward model writes none: its evaluations count the "
            "pairs that it ranks right. Leave it out"
        )


def unknown_component(run: ResolvedRun, trial: RewardTrial, examples: list[Example]) -> Iterator[str]:
    """Say that the reward has no such component as `eval.best` names, where its components are known."""
    name = run.config.eval.best.removeprefix("eval/")
    if not name.startswith("reward/") or isinstance(run.reward, MeasuredReward):  # its parts may be models and judges
        return
    known = known_components(run, trial, examples)
    if known is not None and name.removeprefix("reward/") not in known:
        remedy = suggest(name, [f"reward/{each}" for each in known]) if known else "Name another measure"
        yield f"eval.best is {name}, and the reward of '{run.task.name}' has no such component. {remedy}"


def best_refusals(config: Config, reward: Reward, *, environment: bool) -> Iterator[str]:
    """Say why `eval.best` would choose a checkpoint by a constant: its mean is the same for every policy."""
    judge, name = comparing(reward), config.eval.best.removeprefix("eval/")
    if judge is None or environment:  # what an environment pays is added to the judge's share, and is not a constant
        return
    if name in MEANS:
        yield (
            f"eval.best is {name}, and the reward is how often a completion is preferred in its own group: its mean is "
            f"one half for every policy, and the checkpoint would be chosen by chance. {REMEDY}"
        )
    elif config.reward.gold is None and not judge.tells_right and (name == "greedy" or name.startswith("pass@")):
        yield (
            f"eval.best is {name}, and the reward only compares completions of a group: none is right by itself, so "
            f"that {name} is 0 for every policy. {REMEDY}"
        )


def best_warnings(config: Config, method: Method, reward: Reward) -> Iterator[str]:
    """Say where the mean of `eval.best` may rise and fall without the policy."""
    name = config.eval.best.removeprefix("eval/")
    if name in (*MEANS, "reward/judge") and isinstance(paid_reward(reward), TrajectoryJudge):
        yield (
            f"eval.best is {name}, and the judge's scores are relative to the completions it ranks together: equally "
            f"good groups of a better and of a worse policy may score alike. {REMEDY}"
        )
    if name in MEANS and method.objective.proportional:
        yield (
            f"eval.best is {name}, and {method.name} samples in proportion to rewards: its aim is not the largest "
            "mean. Name a yardstick of eval.metrics"
        )
