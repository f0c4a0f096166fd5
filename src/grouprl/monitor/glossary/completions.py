"""Metrics of the lengths of completions, and of how they end."""

from grouprl.monitor.glossary.entry import define

define(
    "completions",
    {
        "length_mean": (
            "tokens",
            "mean number of tokens the policy wrote per completion",
            "steady, or growing together with pass@1. Bad: growing without it, or shrinking to almost nothing",
        ),
        "length_max": ("tokens", "tokens of the longest completion", "below the limit of the run"),
        "truncated_fraction": (
            "share",
            "share of completions cut off by the token limit before they ended by themselves",
            "below 0.05. Above 0.10 is a known sign of coming instability (ScaleRL, arXiv:2510.13786)",
        ),
        "loop_fraction": (
            "share",
            "share of completions that end in a block of at most 64 tokens which stands there four times or more",
            "below 0.01. Above 0.10: the policy writes the same over and over",
        ),
        "tokens": (
            "tokens",
            "tokens the policy wrote in this step, completions that were later dropped included",
            "the budget really spent; compare methods by this, not by steps",
        ),
        "verifier_noise": (
            "share",
            "share of completions scored twice, for the same prompt, whose two scores differ; by chance or by "
            "reward.rescore",
            "0. Above 0.05: the reward is not a function of its inputs",
        ),
        "scored_twice": (
            "completions",
            "comparisons of two scores of one text: sampled twice in a group, or scored again by reward.rescore",
            "what duplicates and reward.rescore give; verifier_noise means little below 32",
        ),
    },
)
