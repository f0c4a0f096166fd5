"""Metrics of evaluations on held-out prompts."""

from grouprl.monitor.glossary.entry import define

define(
    "evaluation",
    {
        "eval/greedy": (
            "share",
            "share of held-out prompts solved with greedy decoding",
            "rises. The number to quote for 'how good is it'",
        ),
        "eval/pair_accuracy": (
            "share",
            "share of the held-out pairs of stored completions whose better one a reward model scores higher; a tie "
            "is wrong",
            "rises above 0.5, which is chance. The number to quote for a reward model",
        ),
        "eval/pair_loss": (
            "nats",
            "mean over held-out pairs of -log σ(gap), the gap being a reward model's score of the better one less the "
            "other's",
            "falls below 0.693, which is that of equal scores. It rises while pair_accuracy does not fall: "
            "overconfidence",
        ),
        "eval/pair_confidence": (
            "share",
            "mean of σ(|gap|) over held-out pairs: how often a reward model's gaps say that it ranks right",
            "near eval/pair_accuracy; far above it the gaps are too large for what the model knows",
        ),
        "eval/longer_preferred": (
            "share",
            "share of held-out pairs of different lengths whose longer completion a reward model scores higher",
            "near eval/longer_better; above it the model pays for length",
        ),
        "eval/longer_better": (
            "share",
            "share of held-out pairs of different lengths whose longer completion is the better one",
            "a property of the data",
        ),
        "eval/marked_preferred": (
            "share",
            "share of held-out pairs with different amounts of Markdown of which a reward model scores that with more "
            "higher",
            "near eval/marked_better; above it the model pays for style",
        ),
        "eval/marked_better": (
            "share",
            "share of held-out pairs with different amounts of Markdown of which that with more is the better one",
            "a property of the data",
        ),
        "eval/pass@*": (
            "share",
            "unbiased estimate, on held-out prompts, of the chance that at least one of k sampled completions is "
            "correct",
            "pass@1 rises. If pass@1 rises while a large k falls, the policy sharpens and loses variety",
        ),
        "eval/reward": (
            "reward",
            "mean reward of sampled held-out completions (of greedy ones where none are sampled), over prompts",
            "rises. The number to quote where a reward is graded",
        ),
        "eval/greedy_reward": ("reward", "mean reward of greedy held-out completions", "rises"),
        "eval/reward/*": (
            "reward",
            "mean of a component of the reward of held-out completions, before weighting",
            "shows which component the gain comes from",
        ),
        "eval/template/*": (
            "share",
            "held-out prompts whose conversation sets a variable of the chat template to this value",
            "as in training: template/*",
        ),
        "eval/metric/*": (
            "as the function says",
            "mean over held-out prompts of a yardstick of eval.metrics, which nothing is trained on",
            "rises with the reward. A reward that rises alone is being pleased rather than earned",
        ),
        "eval/graded": (
            "0 or 1",
            "1 where rewards are graded and no completion is simply right or wrong: pass@k and greedy then count "
            "rewards of 1",
            "judge by eval/reward then",
        ),
        "eval/returns": (
            "0 or 1",
            "1 where rewards are returns of episodes over arrays, other than 0 and 1: the mean return is the first "
            "number then",
            "judge by eval/reward then; pass@k is the share of episodes that reach the task's threshold",
        ),
        "eval/compared": (
            "0 or 1",
            "1 where a reward is how often a completion is preferred in its own group: its mean is one half, always",
            "judge by eval/reward/gold (reward.gold), or by what wins against an earlier policy; absent otherwise",
        ),
        "eval/proportional": (
            "0 or 1",
            "1 where the method samples in proportion to rewards, and does not raise their mean",
            "judge by how near the samples' shares are to exp(reward); absent otherwise",
        ),
        "eval/*_low": ("share or reward", "lower end of the 95 % interval of that number", "compare intervals"),
        "eval/*_high": ("share or reward", "upper end of the 95 % interval of that number", "compare intervals"),
        "eval/*_gain": (
            "share or reward",
            "change of that number since the evaluation before training, over the same held-out prompts",
            "learned where its interval (eval/*_gain_low, eval/*_gain_high) lies above 0",
        ),
        "eval/length_mean": ("tokens", "mean tokens of a sampled held-out completion", "see length_mean"),
        "eval/prompts": ("prompts", "held-out prompts behind these numbers", "200 or more"),
        "eval/samples": ("completions", "completions sampled for each held-out prompt", "at least k"),
        "eval/truncated": ("share", "share of held-out completions cut off by the limit", "see truncated_fraction"),
    },
)
