"""Metrics of the parts of a method during the update."""

from grouprl.monitor.glossary.entry import define

define(
    "loss",
    "nats",
    "update",
    "value that the optimiser minimised, summed over all its terms (warm-up: cross-entropy per token)",
    "in RL it is not a measure of progress: it stands near 0 by construction. In the warm-up it falls",
)
define(
    "policy_loss",
    "nats",
    "update",
    "surrogate loss of the method's objective, without regularisers",
    "near 0 by construction when advantages are centred; not a measure of progress",
)
define("*_loss", "nats", "update", "value of one further term of the loss, with its weight", "small beside policy_loss")
define(
    "ratio_mean",
    "ratio",
    "update",
    "mean importance ratio new/old of the trained tokens",
    "close to 1. Exactly 1 always: one update per rollout, so a clip cannot act",
)
define(
    "clip_fraction",
    "share",
    "update",
    "share of trained tokens whose gradient the clip removed",
    "0.001 to 0.2. Always 0: the clip never acts. Above 0.3: steps are too large",
)
define("clip_fraction_high", "share", "update", "the part of it clipped above (good completions)", "see clip_fraction")
define("clip_fraction_low", "share", "update", "the part of it clipped below (bad completions)", "see clip_fraction")
define(
    "clip_fraction_dual",
    "share",
    "update",
    "share of trained tokens of bad completions whose loss the dual clip bounded",
    "near 0. Above 0.01: bad completions became much more likely within one rollout",
)
define(
    "clip_bound_low",
    "ratio",
    "update",
    "lower bound of the ratio that the balanced clip has found",
    "its start. At its end: the upper bound is exhausted and good completions still carry too little of the loss",
)
define(
    "clip_bound_high",
    "ratio",
    "update",
    "upper bound of the ratio that the balanced clip has found",
    "between its start and its end. Always its end: the target share is out of reach",
)
define(
    "covariance_fraction",
    "share",
    "update",
    "share of trained tokens held back because their log-prob and advantage vary together",
    "the method's share. 0: no token has a covariance within its bounds",
)
define(
    "guarded_fraction",
    "share",
    "update",
    "share of trained tokens of good completions that became less likely and are held up",
    "below 0.5. Always 0: one update per rollout. Near 1: the policy drifts away from its good completions",
)
define(
    "dropped_fraction",
    "share",
    "update",
    "share of tokens that sample dropout leaves out of this update (D-PPO)",
    "near the requested share. 0: the scores are equal, as when nothing has moved yet",
)
define(
    "gated/*",
    "share",
    "update",
    "share of trained tokens that a gate leaves out of the policy loss because of where the policy is now",
    "what the gate is set to leave out. Always 0: it never acts. Near 1: hardly anything is learnt from",
)
define(
    "gate_mean",
    "share",
    "update",
    "mean share of each token's gradient that a soft gate on the ratio lets through",
    "just below 1. Exactly 1 always: one update per rollout, so the gate cannot act",
)
define(
    "capped_fraction",
    "share",
    "update",
    "share of trained tokens whose importance weight was cut to the method's cap",
    "small. Always 0: the cap never acts. Large: sampler and trainer have drifted apart",
)
define(
    "grad_norm",
    "norm",
    "update",
    "length of the gradient before clipping to max_grad_norm, mean over the optimiser steps",
    "steady. Spikes of ten times and more, or NaN, announce a collapse; 0 means that nothing is learnt",
)
define(
    "clip_bias",
    "norm",
    "update",
    "norm of what the clip leaves out of the policy's gradient (ST-PPO); the gradient is divided by it above its limit",
    "0 in the first step after a rollout, then small. Large: the data are far off-policy, and steps become tiny",
)
define(
    "score_error",
    "score",
    "update",
    "mean distance of the scores of a reward model from the rewards that it is fitted to",
    "falls, down to the noise of the ratings",
    level="row",
)
define(
    "drift",
    "loss",
    "update",
    "mean of what the drift takes off the gain of each token (Discovered Policy Optimisation)",
    "0 in the first step after a rollout, then small. Large: steps are too large",
)
define(
    "rewards/chosen",
    "β·nats",
    "policy",
    "β times log π/π_ref of better or liked completions (without a reference β times their score; TRL's)",
    "0 at first, then above rewards/rejected. Falling with it is common: see logps/chosen",
    level="pair",
)
define(
    "rewards/rejected",
    "β·nats",
    "policy",
    "β times log π/π_ref of worse or disliked completions (without a reference β times their score; TRL's)",
    "0 at first, then below rewards/chosen",
    level="pair",
)
define(
    "rewards/margins",
    "β·nats",
    "policy",
    "rewards/chosen less rewards/rejected (TRL's name); pair_margin is the difference that the loss sees",
    "rises above 0",
    level="pair",
)
define(
    "rewards/accuracies",
    "share",
    "policy",
    "share of the pairs whose better completion has the larger reward: pair_accuracy (TRL's name, where a tie is 0)",
    "rises above 0.5",
    level="pair",
)
define(
    "logps/chosen",
    "nats",
    "policy",
    "log-prob of better or liked completions, summed over tokens; mean over pairs or these (TRL's name)",
    "steady, or falls slowly. A fast fall with rising margins is likelihood displacement",
    level="pair",
)
define(
    "logps/rejected",
    "nats",
    "policy",
    "log-prob of worse or disliked completions, summed over tokens; mean over pairs or these (TRL's name)",
    "falls",
    level="pair",
)
define(
    "label_accuracy",
    "share",
    "policy",
    "share of labelled completions whose score stands on the right side of 0: above it if desirable, else below; one "
    "that is 0 but for rounding counts half",
    "rises above 0.5. Near 1 nothing is left to learn from the labels",
    level="row",
)
define(
    "score_baseline",
    "nats",
    "policy",
    "what the scores of labelled completions are compared with: KTO's estimate of the KL, BCO's running mean",
    "near 0 at first. KTO: rises slowly with the distance from the reference",
    level="row",
)
define(
    "pair_accuracy",
    "share",
    "policy",
    "share of the pairs in which the better completion has the larger score, such as its gain against the reference; "
    "a pair whose scores differ by no more than rounding counts half",
    "rises above 0.5, where it stands if policy and reference are the same. Near 1 nothing is left to learn",
    level="pair",
)
define(
    "pair_margin",
    "nats",
    "policy",
    "mean over the pairs of the better completion's score minus that of the worse one",
    "rises above 0",
    level="pair",
)
define(
    "user_kl",
    "nats",
    "policy",
    "mean over the pairs of the KL of what a reward model believes of the user from what it believes of nobody",
    "rises above 0 as judgements tell users apart; 0 says that they tell nothing",
    level="pair",
)
define(
    "chosen_logp",
    "nats/token",
    "policy",
    "mean over the pairs of the better completion's log-prob per token",
    "steady. A fall by 0.7 with rising margins is likelihood displacement: a token is half as likely",
    level="pair",
)
define(
    "chosen_drift",
    "nats/token",
    "policy",
    "mean over the pairs of the better completion's log-prob per token, less the reference's",
    "0 at first, then above rejected_drift. Below -0.7: likelihood displacement",
    level="pair",
)
define(
    "rejected_drift",
    "nats/token",
    "policy",
    "mean over the pairs of the worse completion's log-prob per token, less the reference's",
    "0 at first, then falls. Below -1: the reference is left far behind",
    level="pair",
)
define(
    "chosen_length",
    "tokens",
    "completions",
    "mean tokens of the better completion of a pair",
    "near rejected_length. Longer: the pairs prefer length",
    level="pair",
)
define(
    "rejected_length",
    "tokens",
    "completions",
    "mean tokens of the worse completion of a pair",
    "near chosen_length",
    level="pair",
)
define(
    "pair_overlap",
    "share",
    "completions",
    "share of the longer completion's tokens that lie in a beginning or an end common to both of a pair",
    "below 0.8. Above: the pairs are near-duplicates",
    level="pair",
)
define(
    "sampling_temperature",
    "",
    "update",
    "temperature at which this step's completions were sampled (rising_temperature)",
    "its schedule",
)
define(
    "prompt_similarity",
    "cosine",
    "update",
    "mean cosine of the prompts of different groups in the rollout (similar_prompts)",
    "the prompts of the data. Near 1: contrasts across prompts all weigh alike",
)
define(
    "largest_group_weight",
    "share",
    "update",
    "largest weight of a labelled group of the data after this step (robust_groups)",
    "settles. Near 1: one group decides alone",
)
define(
    "nll_loss",
    "nats",
    "policy",
    "negative log-likelihood of chosen completions, before its coefficient, by chosen_nll's mean (TRL's name)",
    "falls, or stays",
    level="token",
)
define(
    "kl",
    "nats",
    "policy",
    "KTO's estimate of the KL to the reference, score_baseline by TRL's name",
    "rises slowly from 0",
    level="row",
)
define(
    "pair_clip_fraction",
    "share",
    "update",
    "share of the halves of pairs whose push is dropped because a ratio has moved far enough in its direction",
    "0.001 to 0.2. Always 0: the clip never acts. Above 0.3: steps are too large",
    level="pair",
)
define(
    "pair_clip_fraction_high",
    "share",
    "update",
    "the part of it dropped above (better completions)",
    "see pair_clip_fraction",
    level="pair",
)
define(
    "pair_clip_fraction_low",
    "share",
    "update",
    "the part of it dropped below (worse completions)",
    "see pair_clip_fraction",
    level="pair",
)
define(
    "unlikely_fraction",
    "share",
    "update",
    "share of tokens that the two-phase update counts as unlikely",
    "0.05 to 0.5. 0: every token is likely, and there is one phase only",
)
define(
    "step_fraction",
    "share",
    "update",
    "how much of the full natural step the line search left: 1, ½, ¼ …; 0 for a step that was not taken",
    "1 most of the time. Often 0: the sampled Fisher matrix misjudges the KL; raise damping or the number of "
    "completions",
)
define(
    "step_kl",
    "nats/token",
    "update",
    "KL(old || new) of the natural step that was taken, by the k3 estimator on the sampled tokens",
    "just below delta. Far below: damping decides the size of the step",
)
define(
    "kl_penalty",
    "weight",
    "update",
    "weight of the KL from the policy before the update, where a bound on the worst state moves it (fix_up)",
    "it settles where the worst state is near the bound. Growing without end: steps are too large; lower optim.lr",
)
define(
    "kl_worst",
    "nats/action",
    "update",
    "largest KL(old || new) of a state of the rollout at the end of the update, over all its actions (fix_up)",
    "at or below epsilon. Far below it: the penalty is heavier than it has to be; exactly 0: the update was undone",
)
define(
    "fix_steps",
    "steps",
    "update",
    "steps on the penalty alone after the others, until no state was outside of the bound (fix_up)",
    "a few per cent of all steps. Many in each update: lower optim.lr, or take larger steps (size)",
)
define(
    "fix_undone",
    "share",
    "update",
    "share of updates that were undone, as states stayed outside of the bound (fix_up)",
    "0. Above: steps overshoot the bound; lower optim.lr",
)
define(
    "tokens_rejected",
    "share",
    "update",
    "share of tokens left out because their own step would change objective or policy too much",
    "below 0.08. Always 0: the thresholds never act. Near 1: nothing is learnt; thresholds go with the square of lr",
)
define(
    "objective_shift",
    "reward",
    "update",
    "mean size of the change of A·(ρ - 1) that a token's own step on the output layer is expected to make",
    "below the threshold of the method for nearly all tokens",
)
define(
    "policy_shift",
    "nats",
    "update",
    "mean of ½(Δ log π)² that a token's own step on the output layer is expected to make",
    "below the threshold of the method for nearly all tokens",
)
define(
    "lr", "per step", "update", "learning rate of the last optimiser step", "follows the schedule; never 0 in mid-run"
)

define(
    "initial_rate",
    "share",
    "outcome",
    "share of the initial policy's completions that are right, over the prompts of this piece",
    "between 0.1 and 0.9: there is something to learn, and something to start from",
)
define(
    "initial_solved",
    "share",
    "outcome",
    "share of the prompts of this piece to which the initial policy has a correct completion",
    "above initial_rate",
)
define(
    "reference_rows",
    "completions",
    "update",
    "completions of the initial policy added to the step",
    "the method's number. 0: the initial policy solved no prompt well enough",
)
define(
    "replayed_fraction",
    "share",
    "update",
    "share of the rows of the step that were sampled in earlier steps",
    "0 while the store fills, then the method's share",
)
define(
    "replay_age",
    "steps",
    "update",
    "mean number of steps since the replayed rows were sampled",
    "small. Large: the rows come from a policy that is long gone",
)
define(
    "turns_stored",
    "turns",
    "critic",
    "turns that the utterance critic may learn from (ArCHer)",
    "rises to the store's capacity, then stays",
)
define(
    "critic_q_loss",
    "reward²",
    "critic",
    "squared error of Q against r + gamma·V' over both heads, mean of the step's updates (ArCHer)",
    "falls, then rises a little whenever the policy finds something new",
)
define(
    "critic_v_loss",
    "reward²",
    "critic",
    "squared error of V against Q' of fresh actions over both heads, mean of the step's updates (ArCHer)",
    "falls. It stays above 0 as long as actions differ in worth",
)
define(
    "critic_q",
    "reward",
    "critic",
    "mean of the lesser Q of the actions that the policy learns from (ArCHer)",
    "near the mean reward to come from there on. Far above it: the critic overestimates",
)
define(
    "critic_v",
    "reward",
    "critic",
    "mean of the lesser V of the observations where those actions were sampled (ArCHer)",
    "near critic_q: it is what actions of the policy are worth on average",
)
define(
    "branches",
    "episodes",
    "completions",
    "episodes that began with turns of another one",
    "up to the method's number. 0: no episode takes a second turn, or no turn is unsure",
)
define("reviews", "reviews", "completions", "episodes that the policy is to review", "as many as are sampled")
define(
    "reviews_no_room",
    "reviews",
    "completions",
    "episodes that are too long to be reviewed: transcript and review do not fit the model's positions",
    "0. Otherwise give the model more positions, or a form of reviews with shorter prompts",
)
define(
    "reviews_unread",
    "reviews",
    "completions",
    "reviews that cannot be read: neither a verdict nor an existing turn",
    "falls to a few. Many: the policy was never shown the form (warm-up), or the budget `tokens` cuts reviews off",
)
define(
    "reviews_content",
    "share",
    "completions",
    "share of the reviews that find nothing wrong",
    "grows with the share of right episodes. 1 from the start: nothing is ever retried",
)
define(
    "retries", "episodes", "completions", "episodes begun again because of a review", "some, while many episodes fail"
)
define(
    "retries_good",
    "episodes",
    "completions",
    "second attempts that train reviewing and acting on reviews",
    "> 0",
)
define(
    "actor_reward",
    "reward",
    "completions",
    "mean reward of the frozen actor's first trials, without any review",
    "as before training: it never learns",
)
define(
    "retry_gain",
    "reward",
    "completions",
    "mean reward of further attempts minus that of the attempts before them",
    "rises above 0: reviews help",
)
define(
    "review_model_error",
    "reward²",
    "completions",
    "mean squared error of the reward model of reviews on those just followed by a trial, before training on them",
    "falls well below the variance of what reviews gain (0.25 where half of them bring 1). Otherwise it guesses",
)
define(
    "rows_doubled",
    "rows",
    "completions",
    "rows of called agents that count twice, so that every episode has equally many",
    "few: episodes call about as often as the method expects",
)
define(
    "rows_surplus",
    "rows",
    "completions",
    "rows of called agents beyond the number that every episode has",
    "few: episodes call about as often as the method expects",
)
define(
    "exam_accuracy",
    "share",
    "completions",
    "share of the exam's held-out prompts that the player solves after its update",
    "rises. Where it stands still, the coach earns nothing",
)
define(
    "coach_reward",
    "points",
    "update",
    "the gain of the player's accuracy in this step, times the method's scale: the coach's advantage",
    "around 0, more often above it while the player learns",
)
define(
    "exchange_lag",
    "steps",
    "completions",
    "steps that the weights of a called agent lack, the step at hand included",
    "small. At the method's limit: the caller waits for the called agent's trainer",
)
define(
    "seconds_exchange",
    "s",
    "speed",
    "seconds spent on the rows and weights that trainers exchange, waiting included",
    "small. Large: this trainer is faster than the other",
)
define(
    "player_restored",
    "count",
    "update",
    "1 in a step that restored the player's best weights",
    "rare: the accuracy fell too often before",
)
define(
    "horizon",
    "turns",
    "completions",
    "turns that an episode of this step could take",
    "the method's schedule",
)
define(
    "successes_replayed",
    "completions",
    "update",
    "stored successes that replaced a completion of a failed group",
    "falls as fewer groups fail. Always 0: no prompt that fails now was solved before",
)
define(
    "update_ratio",
    "ratio",
    "update",
    "size of the last optimiser step against that of the weights, both as norms (weight decay left out)",
    "1e-3 to 1e-2 for a small model, 1e-5 to 1e-4 for a large pretrained one; 0.1 overturns the policy",
)
define(
    "update_ratio/*",
    "ratio",
    "update",
    "the same of one kind of weights: embeddings, attention, mlp, norms, head, adapters, value_head or other",
    "within fifty times of each other. 0: these weights get no gradient. Above 0.1: the rate is too high for them",
)
define(
    "advantage_positive",
    "share",
    "update",
    "share of advantage above 0 in |advantage|, each token with its weight in the loss",
    "around 0.5 with centred advantages. Near 0 or 1: few tokens stand against many, as when lengths differ greatly",
)
define(
    "gradient_signal",
    "number",
    "update",
    "squared norm of the expected gradient of a group, without bias, from the minibatches of a rollout",
    "above 0 on average over some steps; a single value may be negative",
)
define(
    "gradient_noise",
    "number",
    "update",
    "variance of the gradient of a single group around it, summed over the weights",
    "divided by gradient_signal: the number of groups at which signal and noise of an update are equal",
)
