"""Metrics of critics and other auxiliary models."""

from grouprl.monitor.glossary.entry import define

define(
    "critic",
    {
        "value_loss": ("reward²", "squared error of the value head, with its coefficient", "falls"),
        "value_error": ("reward²", "mean squared difference of value and return", "falls"),
        "value_mean": ("reward", "mean value over tokens", "near return_mean"),
        "return_mean": ("reward", "mean return over tokens: what the critic is fitted to", "see reward_mean"),
        "value_clip_fraction": (
            "share",
            "share of tokens whose value loss is the clipped one",
            "small. Large: the critic wants to move faster than its clip allows",
        ),
        "explained_variance": (
            "share",
            "1 - Var(return - value) / Var(return): how much of the outcome the critic predicts",
            "rises towards 1. Below 0 the critic is worse than a constant and adds noise",
        ),
        "preference_loss": (
            "nats",
            "loss of the preference model on pairs not yet trained on (DPO)",
            "falls below 0.69, that of a coin toss",
        ),
        "preference_accuracy": (
            "share",
            "share of unseen pairs in which the preference model prefers the correct completion",
            "rises above 0.5",
        ),
        "pairs": (
            "pairs",
            "pairs of a right and a wrong completion that a second model learns from",
            "many. 0: no prompt of the rollout had both, so nothing was learnt",
        ),
    },
)
