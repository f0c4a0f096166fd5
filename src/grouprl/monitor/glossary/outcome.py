"""Metrics of the success of a run."""

from grouprl.monitor.glossary.entry import define

define(
    "reward_mean",
    "reward",
    "outcome",
    "mean reward of all sampled completions of the step, as the reward functions returned it (before any shaping)",
    "rises, then levels off. A sudden fall is a collapse. The loss says nothing about progress; this does",
)
define(
    "reward_std",
    "reward",
    "outcome",
    "standard deviation of the reward over all sampled completions of the step",
    "clearly above 0: with no spread there is nothing to compare. 0 means every completion got the same reward",
)
define(
    "reward/*",
    "reward",
    "outcome",
    "mean of one component of the reward over the completions it applies to",
    "the component that states the goal rises. If only a format or length component rises, the reward is being gamed",
)
define(
    "pass@1",
    "share",
    "outcome",
    "share of the completions sampled for training that are correct (raw correctness, before any shaping); pieces of "
    "episodes under way are left out",
    "rises towards 1. It is measured on training prompts with exploration on: rely on the eval numbers",
)
define(
    "reward_errors",
    "completions",
    "outcome",
    "completions of the step whose reward or environment raised, timed out or returned nonsense (never counted as 0)",
    "0. Anything else means that the scorer, not the model, needs attention",
)
define(
    "reward_timeouts",
    "completions",
    "outcome",
    "completions of the step whose reward took longer than reward.timeout, or whose environment took longer than "
    "environment.timeout (they are among reward_errors)",
    "0. A few: scoring never ends on some completions. Many: the time is too short, or the machine overloaded",
)
define(
    "demonstrations_failed",
    "prompts",
    "outcome",
    "prompts of a warm-up step that had no demonstration, as it raised or its environment failed",
    "0. The warm-up imitates the others; reward.on_error and reward.max_failed_fraction say when a run stops",
)
define(
    "environment_errors",
    "rows",
    "outcome",
    "rows of the step whose environment raised, hung, or returned nonsense (they are among reward_errors)",
    "0. Anything else means that the environment needs attention: the column `problem` of the rollouts names episodes",
)
