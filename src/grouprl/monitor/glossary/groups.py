"""Metrics of groups, and of data parts."""

from grouprl.monitor.glossary.entry import define

define(
    "groups",
    {
        "groups_zero_variance": (
            "share",
            "share of groups whose completions all got the same reward: their group-relative advantage is 0",
            "below 0.3 while learning. They cost sampling time and teach nothing; a loss of 0.0 usually has this cause",
        ),
        "groups_all_right": (
            "share",
            "share of groups that are dead because every completion is right",
            "grows when the prompts become too easy: at the end of a good run it is high",
        ),
        "groups_all_wrong": (
            "share",
            "share of groups that are dead because every completion is wrong",
            "small. Near 1 the prompts are too hard and nothing can be learnt",
        ),
        "rows_trained": (
            "share",
            "share of the sampled completions that have a gradient (not dead, not filtered, not dropped)",
            "close to 1 - groups_zero_variance",
        ),
        "rows_dropped": (
            "completions",
            "completions removed before training, by a selection rule or because they could not be scored",
            "0, or what the method's filter is meant to remove",
        ),
        "prompts_sampled": (
            "prompts",
            "training prompts sampled in this step; each is trained on or lost for one reason, so that the account "
            "closes",
            "batch.prompts, more where prompts are probed or sampled again",
        ),
        "prompts_stored": (
            "prompts",
            "prompts sampled in earlier steps, or stored observations, whose rows joined this step",
            "0 without a buffer",
        ),
        "prompts_trained": (
            "prompts",
            "those of them, sampled or stored, with a completion in the loss",
            "near prompts_sampled + prompts_stored",
        ),
        "prompts_buffered": (
            "prompts",
            "those of them whose completions are all stored for later steps",
            "see rows_buffered",
        ),
        "prompts_sent": ("prompts", "those of them whose completions all went to another trainer", "see rows_sent"),
        "prompts_set_aside": (
            "prompts",
            "prompts lost in this step because the environment hung, ended its process or failed on every episode; "
            "each is sampled once more and then left out",
            "0: the report names them",
        ),
        "prompts_lost/*": (
            "prompts",
            "prompts sampled but not trained on, by what removed the last of their completions (reasons as in "
            "rows_lost/*; not_completed: only probed, or passed over by curriculum or allocation)",
            "what the method's filters are meant to remove. error, timeout, bad_value: look at the reward",
        ),
        "rows_sampled": (
            "completions",
            "completions that the policy sampled in this step: for training, as hints, probes, baselines or trials, "
            "and what a critic is taught with",
            "batch.prompts x batch.group_size, and what the method samples besides (grouprl plan says it)",
        ),
        "tokens_sampled": (
            "tokens",
            "tokens of those completions (greedy baselines of a run that samples ahead are counted as rows alone)",
            "the cost of a step's sampling: compare methods at equal sums of it",
        ),
        "rows_stored": (
            "rows",
            "rows that joined them without being sampled: stored ones, demonstrations, a completion shown again under "
            "another prompt",
            "0 without a buffer, demonstrations or pairs",
        ),
        "kl_coef": (
            "weight",
            "weight of the KL to the reference in this step, where a controller moves it (adaptive_kl, "
            "adaptive_kl_in_reward)",
            "it settles where kl_controlled is near the target. Growing without end: the policy runs away; lower "
            "optim.lr",
        ),
        "root_weight": (
            "weight",
            "weight of the root of the KL from the old policy, β₁, where a part moves it (adapted_penalties)",
            "it settles where the update moves as far as it should. At 1000: updates are too large; lower optim.lr",
        ),
        "kl_weight": (
            "weight",
            "weight of the KL from the old policy, β₂, where a part moves it (adapted_penalties)",
            "it settles where kl_old is near the target. At 0.001: updates are far smaller than allowed",
        ),
        "multiplier": (
            "weight",
            "weight of the cost against the reward in this step, where a part holds a limit of costs (lagrangian)",
            "it settles where the mean cost is at its limit; 0: the limit does not bind. Growing without end: it "
            "cannot be met",
        ),
        "kl_controlled": (
            "nats",
            "KL of the sampled completions to the reference by which the controller moves kl_coef: mean over "
            "completions of their token mean",
            "near the controller's target",
        ),
        "rows_used": (
            "completions",
            "completions with a token in the loss",
            "rows_sampled + rows_stored, less the others",
        ),
        "rows_buffered": (
            "completions",
            "completions stored for later steps to learn from",
            "rows_sampled, where a method learns from stored actions alone (archer)",
        ),
        "rows_sent": (
            "completions",
            "completions that another trainer trains on",
            "those of called agents (send_called)",
        ),
        "rows_lost/*": (
            "completions",
            "completions neither used nor elsewhere, by reason: error, bad_value, timeout, not_applicable, group (a "
            "failed completion in the same group), too_long (a stored completion beyond max_length), no_action, "
            "baseline, late, augment, refill, replay, masked, probe (sampled to measure, to try or to teach; no row "
            "of the step), pretraining (sampled before the first step)",
            "see prompts_lost/*",
        ),
        "rows_cut": (
            "rows",
            "stored rows of which tokens were cut, because they are longer than the task's max_length; absent where "
            "none was",
            "few: raise max_length, or leave such groups out (truncation: drop)",
        ),
        "tokens_cut": (
            "tokens",
            "tokens that were cut from those rows: from the ends of completions, or from the beginning of prompts",
            "see rows_cut",
        ),
        "refill_rounds": (
            "rounds",
            "sampling rounds of this step, the first included; further ones replace zero-variance groups (dynamic "
            "sampling)",
            "a few. Always 1: the refill does nothing. Always the limit: the prompts are far too easy or too hard",
        ),
        "completions_probed": (
            "completions",
            "completions sampled in this step only to measure prompts; they are not trained on and not counted in "
            "tokens",
            "small beside the completions trained on: it is the price of choosing",
        ),
        "worst_return": (
            "reward",
            "mean return in the worst of the cases that were measured in this step (worst_cases, worst_now)",
            "rises. Far below reward_mean of steps on other cases: the policy is good in some cases alone",
        ),
        "selected_reward": (
            "reward",
            "mean reward, before the first step, of the prompts that are sampled from then on (reward_selection)",
            "well below the reward of all prompts where hard ones are kept. Near 0: most may be too hard to begin with",
        ),
        "selected_entropy": (
            "nats",
            "mean token entropy, before the first step, of the prompts that are sampled from then on (open_prompts)",
            "above the entropy of all prompts. Near 0: the policy is sure of everything, and the choice is by chance",
        ),
        "completions_least": (
            "completions",
            "fewest completions of a prompt in this step",
            "at least 2 where completions are compared with each other. Equal to completions_most: nothing was "
            "allocated",
        ),
        "completions_most": ("completions", "most completions of a prompt in this step", "see completions_least"),
        "prompts_skipped": (
            "share",
            "share of the prompts chosen that were left out before completions were sampled, because they are solved",
            "rises slowly. Near 1 there is hardly anything left to learn",
        ),
        "prompts_open": (
            "share",
            "share of the training prompts that the curriculum still deals out",
            "falls slowly as prompts are solved. 0: every prompt is solved, and none is sampled any more",
        ),
        "effective_trajectories": (
            "trajectories",
            "1/Σ p², of the chances with which stored trajectories are drawn (stored_returns)",
            "as many as there are: all are drawn alike; near 1: one alone is cloned. Raise the temperature",
        ),
        "levels_open": (
            "levels",
            "levels of difficulty from which the curriculum samples",
            "rises to the number of levels. Stuck at 1: the mastery threshold is never reached",
        ),
    },
)
define(
    "completions",
    {
        "length_budget": (
            "tokens",
            "mean token budget of the prompts of this step",
            "falls while prompts stay solved, and jumps back where they do not",
        ),
    },
)
define(
    "groups",
    {
        "groups_guided": (
            "groups",
            "groups without a correct completion that got rows sampled with a hint or after solved examples",
            "falls as the policy learns",
        ),
        "guidance_rounds": (
            "rounds",
            "how often zero-variance groups were sampled again in this step, each time with a longer hint",
            "falls as the policy learns. Always the number of levels: even the longest hint is not enough",
        ),
        "groups_demonstrated": (
            "groups",
            "groups that were given the task's own solution because the policy's own completions were too weak",
            "falls as the policy learns. All groups all along: this is supervised learning",
        ),
    },
)
define(
    "completions",
    {
        "continuations": (
            "completions",
            "continuations sampled to estimate the value of beginnings of completions",
            "as many as requested",
        ),
        "plans": (
            "completions",
            "completions that hold a plan (the sign that ends one) and were carried out several times",
            "near the number of completions requested. 0: the policy does not write plans, and nothing branches",
        ),
    },
)
define(
    "groups",
    {
        "restarts": ("prompts", "prompts completed from a beginning of the solution", "as requested"),
    },
)
define(
    "completions",
    {
        "cut_completions": (
            "completions",
            "completions sampled where thoughts were cut short",
            "thoughts x budgets x completions each",
        ),
        "extra_rows": (
            "completions",
            "good completions sampled at another temperature added to the step",
            "above 0. Always 0: no good completion was found at that temperature",
        ),
        "opponent_rows": (
            "completions",
            "completions of the opponent with which the policy's own are compared, or which HyPO samples beside the "
            "data",
            "as many as the method asks for",
        ),
        "preferences_abstained": (
            "share",
            "pairs that the judge was asked about and had no verdict on; they have no edge",
            "0. A judge that abstains often teaches little",
        ),
        "judge_agreement": (
            "share",
            "replies of the judge about a pair that say what most of them say, both orders together",
            "1; one half is a judge that guesses",
        ),
        "judge_flips": (
            "share",
            "pairs whose verdict turns with the order in which they are shown",
            "0. The chance of such a pair is about one half",
        ),
        "judge_unsure": ("share", "replies of the judge that decide nothing, and requests without a usable reply", "0"),
        "judge_drift": (
            "score",
            "mean |difference| between the judge's scores of the same kept completions now and the first time: they "
            "are those of the tenth step, and it is asked again every ten steps (reward.judge.probe)",
            "as small as judge_noise. A tenth of the scale more: the judge has changed, not the policy",
        ),
        "judge_noise": (
            "score",
            "the same between the first time and the second, at once",
            "0 for a judge that samples at temperature 0",
        ),
        "judge_requests": (
            "requests",
            "requests sent to the judge in this step or evaluation, repeated ones included",
            "0: everything was judged before",
        ),
        "judge_kept": (
            "answers",
            "answers of the judge that were kept from before and cost no request (reward.judge.cache)",
            "rises as the policy repeats itself, and after a resume",
        ),
        "judge_prompt_tokens": (
            "tokens",
            "tokens of the requests to the judge, as its endpoint counts them (usage.prompt_tokens); absent if it "
            "does not",
            "what the price of the endpoint allows",
        ),
        "judge_reply_tokens": (
            "tokens",
            "tokens of the judge's replies, as its endpoint counts them (usage.completion_tokens); absent if it does "
            "not",
            "far below reward.judge.tokens a reply",
        ),
        "verification_rows": (
            "rows",
            "rows in which the policy verifies a completion of this step",
            "above 0. Always 0: no group has right and wrong completions",
        ),
        "turns_mean": (
            "turns",
            "mean number of turns of an episode",
            "what the task needs. Growing towards the limit without more pass@1: the policy wanders",
        ),
        "calls_mean": (
            "calls",
            "mean number of calls of tools in a row of an episode in which tools are announced",
            "what the task needs. Near 0: the policy answers without its tools",
        ),
        "repeated_calls": (
            "share",
            "share of the calls of tools that are equal to an earlier one of the same row, arguments included",
            "near 0. Growing: turns are spent on what is known already",
        ),
        "demonstrated_turns": (
            "turns",
            "mean number of turns of a demonstration that the warm-up imitates",
            "near the turns_mean of the first steps of training. Far above it: the warm-up has not taken over what is "
            "shown",
        ),
        "invalid_fraction": (
            "share",
            "share of actions that the environment did not understand or did not allow",
            "falls early in training and stays near 0. Staying high: the form of an action is not learnt",
        ),
        "rows_per_episode": (
            "rows",
            "rows that an episode has on average: one for each agent, and one more for each fresh beginning",
            "what the task needs. Growing without more reward: a planner calls its helpers more often than it has to",
        ),
        "template/*": (
            "share",
            "rows of a step whose conversation sets a variable of the chat template to this value: "
            "enable_thinking/false, say",
            "0 or 1, and the same in evaluations (eval/template/*)",
        ),
        "agent_tokens/*": (
            "tokens",
            "tokens that one agent writes in an episode on average, where a task has several agents",
            "what its part of the task needs. Falling towards 0: the others have found that they do without it",
        ),
    },
)
define(
    "outcome",
    {
        "agent_reward/*": (
            "reward",
            "mean reward of the rows of one agent, where a task has several",
            "all rise where agents work together; where they play against each other, one's gain is another's loss",
        ),
    },
)
