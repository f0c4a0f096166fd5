"""Metrics of the parts of a method during the update."""

from grouprl.monitor.glossary.entry import define

define(
    "update",
    {
        "loss": (
            "nats",
            "value that the optimiser minimised, summed over all its terms (warm-up: cross-entropy per token)",
            "in RL it is not a measure of progress: it stands near 0 by construction. In the warm-up it falls",
        ),
        "policy_loss": (
            "nats",
            "surrogate loss of the method's objective, without regularisers",
            "near 0 by construction when advantages are centred; not a measure of progress",
        ),
        "*_loss": ("nats", "value of one further term of the loss, with its weight", "small beside policy_loss"),
        "ratio_mean": (
            "ratio",
            "mean importance ratio new/old of the trained tokens",
            "close to 1. Exactly 1 always: one update per rollout, so a clip cannot act",
        ),
        "clip_fraction": (
            "share",
            "share of trained tokens whose gradient the clip removed",
            "0.001 to 0.2. Always 0: the clip never acts. Above 0.3: steps are too large",
        ),
        "clip_fraction_high": ("share", "the part of it clipped above (good completions)", "see clip_fraction"),
        "clip_fraction_low": ("share", "the part of it clipped below (bad completions)", "see clip_fraction"),
        "clip_fraction_dual": (
            "share",
            "share of trained tokens of bad completions whose loss the dual clip bounded",
            "near 0. Above 0.01: bad completions became much more likely within one rollout",
        ),
        "clip_bound_low": (
            "ratio",
            "lower bound of the ratio that the balanced clip has found",
            "its start. At its end: the upper bound is exhausted and good completions still carry too little of the "
            "loss",
        ),
        "clip_bound_high": (
            "ratio",
            "upper bound of the ratio that the balanced clip has found",
            "between its start and its end. Always its end: the target share is out of reach",
        ),
        "covariance_fraction": (
            "share",
            "share of trained tokens held back because their log-prob and advantage vary together",
            "the method's share. 0: no token has a covariance within its bounds",
        ),
        "guarded_fraction": (
            "share",
            "share of trained tokens of good completions that became less likely and are held up",
            "below 0.5. Always 0: one update per rollout. Near 1: the policy drifts away from its good completions",
        ),
        "dropped_fraction": (
            "share",
            "share of tokens that sample dropout leaves out of this update (D-PPO)",
            "near the requested share. 0: the scores are equal, as when nothing has moved yet",
        ),
        "gated/*": (
            "share",
            "share of trained tokens that a gate leaves out of the policy loss because of where the policy is now",
            "what the gate is set to leave out. Always 0: it never acts. Near 1: hardly anything is learnt from",
        ),
        "gate_mean": (
            "share",
            "mean share of each token's gradient that a soft gate on the ratio lets through",
            "just below 1. Exactly 1 always: one update per rollout, so the gate cannot act",
        ),
        "capped_fraction": (
            "share",
            "share of trained tokens whose importance weight was cut to the method's cap",
            "small. Always 0: the cap never acts. Large: sampler and trainer have drifted apart",
        ),
        "grad_norm": (
            "norm",
            "length of the gradient before clipping to max_grad_norm, mean over the optimiser steps",
            "steady. Spikes of ten times and more, or NaN, announce a collapse; 0 means that nothing is learnt",
        ),
        "clip_bias": (
            "norm",
            "norm of what the clip leaves out of the policy's gradient (ST-PPO); the gradient is divided by it above "
            "its limit",
            "0 in the first step after a rollout, then small. Large: the data are far off-policy, and steps become "
            "tiny",
        ),
    },
)
define(
    "update",
    {
        "score_error": (
            "score",
            "mean distance of the scores of a reward model from the rewards that it is fitted to",
            "falls, down to the noise of the ratings",
        ),
    },
    level="row",
)
define(
    "update",
    {
        "drift": (
            "loss",
            "mean of what the drift takes off the gain of each token (Discovered Policy Optimisation)",
            "0 in the first step after a rollout, then small. Large: steps are too large",
        ),
    },
)
define(
    "policy",
    {
        "rewards/chosen": (
            "β·nats",
            "β times log π/π_ref of better or liked completions (without a reference β times their score; TRL's)",
            "0 at first, then above rewards/rejected. Falling with it is common: see logps/chosen",
        ),
        "rewards/rejected": (
            "β·nats",
            "β times log π/π_ref of worse or disliked completions (without a reference β times their score; TRL's)",
            "0 at first, then below rewards/chosen",
        ),
        "rewards/margins": (
            "β·nats",
            "rewards/chosen less rewards/rejected (TRL's name); pair_margin is the difference that the loss sees",
            "rises above 0",
        ),
        "rewards/accuracies": (
            "share",
            "share of the pairs whose better completion has the larger reward: pair_accuracy (TRL's name, where a tie "
            "is 0)",
            "rises above 0.5",
        ),
        "logps/chosen": (
            "nats",
            "log-prob of better or liked completions, summed over tokens; mean over pairs or these (TRL's name)",
            "steady, or falls slowly. A fast fall with rising margins is likelihood displacement",
        ),
        "logps/rejected": (
            "nats",
            "log-prob of worse or disliked completions, summed over tokens; mean over pairs or these (TRL's name)",
            "falls",
        ),
    },
    level="pair",
)
define(
    "policy",
    {
        "label_accuracy": (
            "share",
            "share of labelled completions whose score stands on the right side of 0: above it if desirable, else "
            "below; one that is 0 but for rounding counts half",
            "rises above 0.5. Near 1 nothing is left to learn from the labels",
        ),
        "score_baseline": (
            "nats",
            "what the scores of labelled completions are compared with: KTO's estimate of the KL, BCO's running mean",
            "near 0 at first. KTO: rises slowly with the distance from the reference",
        ),
    },
    level="row",
)
define(
    "policy",
    {
        "pair_accuracy": (
            "share",
            "share of the pairs in which the better completion has the larger score, such as its gain against the "
            "reference; a pair whose scores differ by no more than rounding counts half",
            "rises above 0.5, where it stands if policy and reference are the same. Near 1 nothing is left to learn",
        ),
        "pair_margin": (
            "nats",
            "mean over the pairs of the better completion's score minus that of the worse one",
            "rises above 0",
        ),
        "user_kl": (
            "nats",
            "mean over the pairs of the KL of what a reward model believes of the user from what it believes of nobody",
            "rises above 0 as judgements tell users apart; 0 says that they tell nothing",
        ),
        "chosen_logp": (
            "nats/token",
            "mean over the pairs of the better completion's log-prob per token",
            "steady. A fall by 0.7 with rising margins is likelihood displacement: a token is half as likely",
        ),
        "chosen_drift": (
            "nats/token",
            "mean over the pairs of the better completion's log-prob per token, less the reference's",
            "0 at first, then above rejected_drift. Below -0.7: likelihood displacement",
        ),
        "rejected_drift": (
            "nats/token",
            "mean over the pairs of the worse completion's log-prob per token, less the reference's",
            "0 at first, then falls. Below -1: the reference is left far behind",
        ),
    },
    level="pair",
)
define(
    "completions",
    {
        "chosen_length": (
            "tokens",
            "mean tokens of the better completion of a pair",
            "near rejected_length. Longer: the pairs prefer length",
        ),
        "rejected_length": ("tokens", "mean tokens of the worse completion of a pair", "near chosen_length"),
        "pair_overlap": (
            "share",
            "share of the longer completion's tokens that lie in a beginning or an end common to both of a pair",
            "below 0.8. Above: the pairs are near-duplicates",
        ),
    },
    level="pair",
)
define(
    "update",
    {
        "sampling_temperature": (
            "",
            "temperature at which this step's completions were sampled (rising_temperature)",
            "its schedule",
        ),
        "prompt_similarity": (
            "cosine",
            "mean cosine of the prompts of different groups in the rollout (similar_prompts)",
            "the prompts of the data. Near 1: contrasts across prompts all weigh alike",
        ),
        "largest_group_weight": (
            "share",
            "largest weight of a labelled group of the data after this step (robust_groups)",
            "settles. Near 1: one group decides alone",
        ),
    },
)
define(
    "policy",
    {
        "nll_loss": (
            "nats",
            "negative log-likelihood of chosen completions, before its coefficient, by chosen_nll's mean (TRL's name)",
            "falls, or stays",
        ),
    },
    level="token",
)
define(
    "policy",
    {
        "kl": (
            "nats",
            "KTO's estimate of the KL to the reference, score_baseline by TRL's name",
            "rises slowly from 0",
        ),
    },
    level="row",
)
define(
    "update",
    {
        "pair_clip_fraction": (
            "share",
            "share of the halves of pairs whose push is dropped because a ratio has moved far enough in its direction",
            "0.001 to 0.2. Always 0: the clip never acts. Above 0.3: steps are too large",
        ),
        "pair_clip_fraction_high": (
            "share",
            "the part of it dropped above (better completions)",
            "see pair_clip_fraction",
        ),
        "pair_clip_fraction_low": (
            "share",
            "the part of it dropped below (worse completions)",
            "see pair_clip_fraction",
        ),
    },
    level="pair",
)
define(
    "update",
    {
        "unlikely_fraction": (
            "share",
            "share of tokens that the two-phase update counts as unlikely",
            "0.05 to 0.5. 0: every token is likely, and there is one phase only",
        ),
        "step_fraction": (
            "share",
            "how much of the full natural step the line search left: 1, ½, ¼ …; 0 for a step that was not taken",
            "1 most of the time. Often 0: the sampled Fisher matrix misjudges the KL; raise damping or the number of "
            "completions",
        ),
        "step_kl": (
            "nats/token",
            "KL(old || new) of the natural step that was taken, by the k3 estimator on the sampled tokens",
            "just below delta. Far below: damping decides the size of the step",
        ),
        "kl_penalty": (
            "weight",
            "weight of the KL from the policy before the update, where a bound on the worst state moves it (fix_up)",
            "it settles where the worst state is near the bound. Growing without end: steps are too large; lower "
            "optim.lr",
        ),
        "kl_worst": (
            "nats/action",
            "largest KL(old || new) of a state of the rollout at the end of the update, over all its actions (fix_up)",
            "at or below epsilon. Far below it: the penalty is heavier than it has to be; exactly 0: the update was "
            "undone",
        ),
        "fix_steps": (
            "steps",
            "steps on the penalty alone after the others, until no state was outside of the bound (fix_up)",
            "a few per cent of all steps. Many in each update: lower optim.lr, or take larger steps (size)",
        ),
        "fix_undone": (
            "share",
            "share of updates that were undone, as states stayed outside of the bound (fix_up)",
            "0. Above: steps overshoot the bound; lower optim.lr",
        ),
        "tokens_rejected": (
            "share",
            "share of tokens left out because their own step would change objective or policy too much",
            "below 0.08. Always 0: the thresholds never act. Near 1: nothing is learnt; thresholds go with the square "
            "of lr",
        ),
        "objective_shift": (
            "reward",
            "mean size of the change of A·(ρ - 1) that a token's own step on the output layer is expected to make",
            "below the threshold of the method for nearly all tokens",
        ),
        "policy_shift": (
            "nats",
            "mean of ½(Δ log π)² that a token's own step on the output layer is expected to make",
            "below the threshold of the method for nearly all tokens",
        ),
        "lr": ("per step", "learning rate of the last optimiser step", "follows the schedule; never 0 in mid-run"),
    },
)
define(
    "outcome",
    {
        "initial_rate": (
            "share",
            "share of the initial policy's completions that are right, over the prompts of this piece",
            "between 0.1 and 0.9: there is something to learn, and something to start from",
        ),
        "initial_solved": (
            "share",
            "share of the prompts of this piece to which the initial policy has a correct completion",
            "above initial_rate",
        ),
    },
)
define(
    "update",
    {
        "reference_rows": (
            "completions",
            "completions of the initial policy added to the step",
            "the method's number. 0: the initial policy solved no prompt well enough",
        ),
        "replayed_fraction": (
            "share",
            "share of the rows of the step that were sampled in earlier steps",
            "0 while the store fills, then the method's share",
        ),
        "replay_age": (
            "steps",
            "mean number of steps since the replayed rows were sampled",
            "small. Large: the rows come from a policy that is long gone",
        ),
    },
)
define(
    "critic",
    {
        "turns_stored": (
            "turns",
            "turns that the utterance critic may learn from (ArCHer)",
            "rises to the store's capacity, then stays",
        ),
        "critic_q_loss": (
            "reward²",
            "squared error of Q against r + gamma·V' over both heads, mean of the step's updates (ArCHer)",
            "falls, then rises a little whenever the policy finds something new",
        ),
        "critic_v_loss": (
            "reward²",
            "squared error of V against Q' of fresh actions over both heads, mean of the step's updates (ArCHer)",
            "falls. It stays above 0 as long as actions differ in worth",
        ),
        "critic_q": (
            "reward",
            "mean of the lesser Q of the actions that the policy learns from (ArCHer)",
            "near the mean reward to come from there on. Far above it: the critic overestimates",
        ),
        "critic_v": (
            "reward",
            "mean of the lesser V of the observations where those actions were sampled (ArCHer)",
            "near critic_q: it is what actions of the policy are worth on average",
        ),
    },
)
define(
    "completions",
    {
        "branches": (
            "episodes",
            "episodes that began with turns of another one",
            "up to the method's number. 0: no episode takes a second turn, or no turn is unsure",
        ),
        "reviews": ("reviews", "episodes that the policy is to review", "as many as are sampled"),
        "reviews_no_room": (
            "reviews",
            "episodes that are too long to be reviewed: transcript and review do not fit the model's positions",
            "0. Otherwise give the model more positions, or a form of reviews with shorter prompts",
        ),
        "reviews_unread": (
            "reviews",
            "reviews that cannot be read: neither a verdict nor an existing turn",
            "falls to a few. Many: the policy was never shown the form (warm-up), or the budget `tokens` cuts reviews "
            "off",
        ),
        "reviews_content": (
            "share",
            "share of the reviews that find nothing wrong",
            "grows with the share of right episodes. 1 from the start: nothing is ever retried",
        ),
        "retries": ("episodes", "episodes begun again because of a review", "some, while many episodes fail"),
        "retries_good": ("episodes", "second attempts that train reviewing and acting on reviews", "> 0"),
        "actor_reward": (
            "reward",
            "mean reward of the frozen actor's first trials, without any review",
            "as before training: it never learns",
        ),
        "retry_gain": (
            "reward",
            "mean reward of further attempts minus that of the attempts before them",
            "rises above 0: reviews help",
        ),
        "review_model_error": (
            "reward²",
            "mean squared error of the reward model of reviews on those just followed by a trial, before training on "
            "them",
            "falls well below the variance of what reviews gain (0.25 where half of them bring 1). Otherwise it "
            "guesses",
        ),
        "rows_doubled": (
            "rows",
            "rows of called agents that count twice, so that every episode has equally many",
            "few: episodes call about as often as the method expects",
        ),
        "rows_surplus": (
            "rows",
            "rows of called agents beyond the number that every episode has",
            "few: episodes call about as often as the method expects",
        ),
        "exam_accuracy": (
            "share",
            "share of the exam's held-out prompts that the player solves after its update",
            "rises. Where it stands still, the coach earns nothing",
        ),
    },
)
define(
    "update",
    {
        "coach_reward": (
            "points",
            "the gain of the player's accuracy in this step, times the method's scale: the coach's advantage",
            "around 0, more often above it while the player learns",
        ),
    },
)
define(
    "completions",
    {
        "exchange_lag": (
            "steps",
            "steps that the weights of a called agent lack, the step at hand included",
            "small. At the method's limit: the caller waits for the called agent's trainer",
        ),
    },
)
define(
    "speed",
    {
        "seconds_exchange": (
            "s",
            "seconds spent on the rows and weights that trainers exchange, waiting included",
            "small. Large: this trainer is faster than the other",
        ),
    },
)
define(
    "update",
    {
        "player_restored": (
            "count",
            "1 in a step that restored the player's best weights",
            "rare: the accuracy fell too often before",
        ),
    },
)
define(
    "completions",
    {
        "horizon": ("turns", "turns that an episode of this step could take", "the method's schedule"),
    },
)
define(
    "update",
    {
        "successes_replayed": (
            "completions",
            "stored successes that replaced a completion of a failed group",
            "falls as fewer groups fail. Always 0: no prompt that fails now was solved before",
        ),
        "update_ratio": (
            "ratio",
            "size of the last optimiser step against that of the weights, both as norms (weight decay left out)",
            "1e-3 to 1e-2 for a small model, 1e-5 to 1e-4 for a large pretrained one; 0.1 overturns the policy",
        ),
        "update_ratio/*": (
            "ratio",
            "the same of one kind of weights: embeddings, attention, mlp, norms, head, adapters, value_head or other",
            "within fifty times of each other. 0: these weights get no gradient. Above 0.1: the rate is too high for "
            "them",
        ),
        "advantage_positive": (
            "share",
            "share of advantage above 0 in |advantage|, each token with its weight in the loss",
            "around 0.5 with centred advantages. Near 0 or 1: few tokens stand against many, as when lengths differ "
            "greatly",
        ),
        "gradient_signal": (
            "number",
            "squared norm of the expected gradient of a group, without bias, from the minibatches of a rollout",
            "above 0 on average over some steps; a single value may be negative",
        ),
        "gradient_noise": (
            "number",
            "variance of the gradient of a single group around it, summed over the weights",
            "divided by gradient_signal: the number of groups at which signal and noise of an update are equal",
        ),
    },
)
