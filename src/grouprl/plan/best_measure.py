"""Checks that the measure of `eval.best` tells policies apart where a reward only compares completions of a group."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.method import Method
from grouprl.config.run import Config
from grouprl.rewards.contract import Reward
from grouprl.rewards.judging.comparing import comparing
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.measured import paid_reward

REMEDY = (
    "Name a yardstick of eval.metrics, or set reward.gold beside a judge or a reward model and name reward/gold; or "
    "leave eval.best empty"
)
MEANS = ("reward", "greedy_reward")
"""Means of the paid reward itself."""


def best_refusals(config: Config, reward: Reward, *, environment: bool) -> Iterator[str]:
    """Say why `eval.best` would choose a checkpoint by a constant: its mean is the same for every policy."""
    judge, name = comparing(reward), config.eval.best.removeprefix("eval/")
    if judge is None or environment:  # what an environment pays is added to the judge's share, and is no constant
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
