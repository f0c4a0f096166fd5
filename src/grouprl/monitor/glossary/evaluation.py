"""Results on held-out questions."""

from grouprl.monitor.glossary.entry import define

define(
    "eval/greedy",
    "share",
    "evaluation",
    "share of held-out questions answered correctly with greedy decoding",
    "rises. The number to quote for 'how good is it'",
)
define(
    "eval/pass@*",
    "share",
    "evaluation",
    "unbiased estimate, on held-out questions, of the chance that at least one of k sampled answers is correct",
    "pass@1 rises. If pass@1 rises while a large k falls, the policy sharpens and loses variety",
)
define(
    "eval/reward",
    "reward",
    "evaluation",
    "mean reward of sampled held-out answers (of greedy ones where none are sampled), over questions",
    "rises. The number to quote where a reward is graded",
)
define(
    "eval/greedy_reward",
    "reward",
    "evaluation",
    "mean reward of greedy held-out answers",
    "rises",
)
define(
    "eval/reward/*",
    "reward",
    "evaluation",
    "mean of a component of the reward of held-out answers, before weighting",
    "shows which component the gain comes from",
)
define(
    "eval/graded",
    "0 or 1",
    "evaluation",
    "1 where rewards are a matter of degree and nobody says what is right: pass@k and greedy then count rewards of 1",
    "judge by eval/reward then",
)
define(
    "eval/*_low", "share or reward", "evaluation", "lower end of the 95 % interval of that number", "compare intervals"
)
define(
    "eval/*_high", "share or reward", "evaluation", "upper end of the 95 % interval of that number", "compare intervals"
)
define("eval/length_mean", "tokens", "evaluation", "mean tokens of a sampled held-out answer", "see length_mean")
define("eval/questions", "questions", "evaluation", "held-out questions behind these numbers", "200 or more")
define("eval/samples", "answers", "evaluation", "answers sampled for each held-out question", "at least k")
define(
    "eval/truncated", "share", "evaluation", "share of held-out answers cut off by the limit", "see truncated_fraction"
)
