"""Metrics of the success of a run."""

from grouprl.monitor.glossary.entry import define

define(
    "outcome",
    {
        "reward_mean": (
            "reward",
            "mean reward of all sampled completions of the step, as the reward functions returned it (before any "
            "shaping)",
            "rises, then levels off. A sudden fall is a collapse. The loss says nothing about progress; this does",
        ),
        "reward_std": (
            "reward",
            "standard deviation of the reward over all sampled completions of the step",
            "clearly above 0: with no spread there is nothing to compare. 0 means every completion got the same reward",
        ),
        "reward/*": (
            "reward",
            "mean of one component of the reward over the completions it applies to",
            "the component that states the goal rises. If only a format or length component rises, the reward is "
            "being gamed",
        ),
        "pass@1": (
            "share",
            "share of the completions sampled for training that are correct (raw correctness, before any shaping); "
            "pieces of episodes under way are left out",
            "rises towards 1. It is measured on training prompts with exploration on: rely on the eval numbers",
        ),
        "reward_errors": (
            "completions",
            "completions of the step whose reward or environment raised, timed out or returned nonsense (never "
            "counted as 0)",
            "0. Anything else means that the scorer, not the model, needs attention",
        ),
        "reward_timeouts": (
            "completions",
            "completions of the step whose reward took longer than reward.timeout, or whose environment took longer "
            "than environment.timeout (they are among reward_errors)",
            "0. A few: scoring never ends on some completions. Many: the time is too short, or the machine overloaded",
        ),
        "demonstrations_failed": (
            "prompts",
            "prompts of a warm-up step that had no demonstration, as it raised or its environment failed",
            "0. The warm-up imitates the others; reward.on_error and reward.max_failed_fraction say when a run stops",
        ),
        "environment_errors": (
            "rows",
            "rows of the step whose environment raised, hung, or returned nonsense (they are among reward_errors)",
            "0. Anything else means that the environment needs attention: the column `problem` of the rollouts names "
            "episodes",
        ),
    },
)
