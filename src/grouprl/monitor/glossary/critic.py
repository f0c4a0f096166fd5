"""Metrics of critics and other auxiliary models."""

from grouprl.monitor.glossary.entry import define

define("value_loss", "reward²", "critic", "squared error of the value head, with its coefficient", "falls")
define("value_error", "reward²", "critic", "mean squared difference of value and return", "falls")
define("value_mean", "reward", "critic", "mean value over tokens", "near return_mean")
define("return_mean", "reward", "critic", "mean return over tokens: what the critic is fitted to", "see reward_mean")
define(
    "value_clip_fraction",
    "share",
    "critic",
    "share of tokens whose value loss is the clipped one",
    "small. Large: the critic wants to move faster than its clip allows",
)
define(
    "explained_variance",
    "share",
    "critic",
    "1 - Var(return - value) / Var(return): how much of the outcome the critic predicts",
    "rises towards 1. Below 0 the critic is worse than a constant and adds noise",
)

define(
    "preference_loss",
    "nats",
    "critic",
    "loss of the preference model on pairs not yet trained on (DPO)",
    "falls below 0.69, that of a coin toss",
)
define(
    "preference_accuracy",
    "share",
    "critic",
    "share of unseen pairs in which the preference model prefers the correct completion",
    "rises above 0.5",
)
define(
    "pairs",
    "pairs",
    "critic",
    "pairs of a right and a wrong completion that a second model learns from",
    "many. 0: no prompt of the rollout had both, so nothing was learnt",
)
