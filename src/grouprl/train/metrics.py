"""The glossary: what every logged number means, its unit, and how a healthy run looks.

A metric has an entry here before it is logged; `check_names` enforces it for each record of `metrics.jsonl`.
Names with a `*` are families: `reward/*` stands for every reward component.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from grouprl.errors import InputError, suggest

GROUPS = ("outcome", "answers", "groups", "policy", "update", "critic", "speed", "evaluation", "record")
"""Sections of the glossary, in the order in which they are shown."""


@dataclass(frozen=True)
class Metric:
    """One entry: `words` says what is measured, `good` how a healthy run looks and what is a bad sign."""

    name: str
    unit: str
    words: str
    good: str
    group: str

    @property
    def family(self) -> bool:
        """Whether the name is a pattern that stands for several metrics."""
        return "*" in self.name


GLOSSARY: dict[str, Metric] = {}


def define(name: str, unit: str, group: str, words: str, good: str) -> Metric:
    """Add an entry, for example for a part of your own. Raises InputError on a name that is taken or a wrong group."""
    if name in GLOSSARY:
        raise InputError(f"metric '{name}' is defined twice", "a metric has one meaning", "Choose another name")
    if group not in GROUPS:
        raise InputError(f"metric '{name}' is in group '{group}'", f"groups are {', '.join(GROUPS)}", "Choose one")
    GLOSSARY[name] = Metric(name, unit, words, good, group)
    return GLOSSARY[name]


def lookup(name: str) -> Metric:
    """Return the entry of `name`, or of the family it belongs to. Raises InputError when there is none."""
    if name in GLOSSARY:
        return GLOSSARY[name]
    families = [m for m in GLOSSARY.values() if m.family and fnmatchcase(name, m.name)]
    if not families:
        raise InputError(f"'{name}' is not a known metric", remedy=suggest(name, GLOSSARY))
    return max(families, key=lambda m: (not m.name.endswith("*"), len(m.name)))


def check_names(record: Iterable[str]) -> None:
    """Raise InputError if a key of `record` has no glossary entry."""
    for name in record:
        try:
            lookup(name)
        except InputError as unknown:
            raise InputError(
                f"metric '{name}' has no glossary entry",
                "a metric is defined before it is logged",
                f"Add it with grouprl.train.metrics.define. {suggest(name, GLOSSARY)}",
            ) from unknown


# ── the record itself ────────────────────────────────────────────────────────────────────────────────────────────
define("phase", "name", "record", "which part of the run wrote the record", "warmup, prelude, train or eval")
define("step", "count", "record", "optimiser steps (warm-up) or rollout batches (train) done so far", "counts up")
define("seconds", "s", "record", "wall-clock time since the run began, pauses before a resume left out", "counts up")

# ── outcome ──────────────────────────────────────────────────────────────────────────────────────────────────────
define(
    "reward_mean",
    "reward",
    "outcome",
    "mean reward of all sampled answers of the step, as the reward functions gave it (before any shaping)",
    "rises, then levels off. A sudden fall is a collapse. The loss says nothing about progress; this does",
)
define(
    "reward_std",
    "reward",
    "outcome",
    "standard deviation of the reward over all sampled answers of the step",
    "clearly above 0: with no spread there is nothing to compare. 0 means every answer was judged alike",
)
define(
    "reward/*",
    "reward",
    "outcome",
    "mean of one component of the reward over the answers it applies to",
    "the component that states the goal rises. If only a format or length component rises, the reward is being gamed",
)
define(
    "pass@1",
    "share",
    "outcome",
    "share of the answers sampled for training that are correct (raw correctness, before any shaping)",
    "rises towards 1. It is measured on training questions with exploration on: judge by the eval numbers",
)
define(
    "reward_errors",
    "answers",
    "outcome",
    "answers of the step whose reward or environment raised, timed out or returned nonsense (never counted as 0)",
    "0. Anything else means that the scorer, not the model, needs attention",
)
define(
    "reward_timeouts",
    "answers",
    "outcome",
    "answers of the step whose reward took longer than reward.timeout, or whose environment took longer than "
    "environment.timeout (they are among reward_errors)",
    "0. A few: the verifier never ends on some texts. Many: the time is too short, or the machine overloaded",
)
define(
    "demonstrations_failed",
    "questions",
    "outcome",
    "questions of a warm-up step that had no demonstration, as it raised or its environment failed",
    "0. The warm-up imitates the others; reward.on_error and reward.max_failed_fraction say when a run stops",
)
define(
    "environment_errors",
    "rows",
    "outcome",
    "rows of the step whose environment raised, hung, or returned nonsense (they are among reward_errors)",
    "0. Anything else means that the environment needs attention: the column `problem` of the rollouts names episodes",
)

# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────
define(
    "length_mean",
    "tokens",
    "answers",
    "mean number of tokens the policy wrote per answer",
    "steady, or growing together with pass@1. Bad: growing without it, or shrinking to almost nothing",
)
define("length_max", "tokens", "answers", "tokens of the longest answer of the step", "below the limit of the run")
define(
    "truncated_fraction",
    "share",
    "answers",
    "share of answers cut off by the token limit before they ended by themselves",
    "below 0.05. Above 0.10 is a known sign of coming instability (ScaleRL, arXiv:2510.13786)",
)
define(
    "tokens",
    "tokens",
    "answers",
    "tokens the policy wrote in this step, answers that were later dropped included",
    "the budget really spent; compare methods by this, not by steps",
)

# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
define(
    "groups_dead",
    "share",
    "groups",
    "share of groups whose answers all got the same reward: their group-relative advantage is 0",
    "below 0.3 while learning. They cost sampling time and teach nothing; a loss of 0.0 usually has this cause",
)
define(
    "groups_dead_right",
    "share",
    "groups",
    "share of groups that are dead because every answer is right",
    "grows when the questions become too easy: at the end of a good run it is high",
)
define(
    "groups_dead_wrong",
    "share",
    "groups",
    "share of groups that are dead because every answer is wrong",
    "small. Near 1 the questions are too hard and nothing can be learnt",
)
define(
    "rows_trained",
    "share",
    "groups",
    "share of the sampled answers that have a gradient (not dead, not filtered, not dropped)",
    "close to 1 - groups_dead",
)
define(
    "rows_dropped",
    "answers",
    "groups",
    "answers removed before training, by a selection rule or because they could not be scored",
    "0, or what the method's filter is meant to remove",
)
define(
    "questions_asked",
    "questions",
    "groups",
    "training questions asked in this step; each is trained on or lost for one reason, so that the account closes",
    "batch.prompts, more where questions are probed or drawn again",
)
define("questions_trained", "questions", "groups", "those of them with an answer in the loss", "near questions_asked")
define(
    "questions_lost/*",
    "questions",
    "groups",
    "questions asked and not trained on, by what took away the last of their answers (reasons as in rows_lost/*; "
    "not_answered: only probed, or passed over by curriculum or allocation)",
    "what the method's filters are meant to remove. error, timeout, bad_value: look at the reward",
)
define("rows_drawn", "answers", "groups", "answers drawn in this step for training", "batch.prompts x batch.group")
define("rows_stored", "answers", "groups", "stored answers that joined them", "0 without replay")
define(
    "rows_used", "answers", "groups", "answers with a token in the loss", "rows_drawn + rows_stored, less rows_lost/*"
)
define(
    "rows_lost/*",
    "answers",
    "groups",
    "answers not used, by reason: error, bad_value, timeout, not_applicable, group (a failed answer in the same "
    "group), no_action, baseline, late, exploration, refill, replay, masked",
    "see questions_lost/*",
)
define(
    "refill_rounds",
    "rounds",
    "groups",
    "sampling rounds of this step, the first included; further ones replace dead groups (dynamic sampling)",
    "a few. Always 1: the refill does nothing. Always the limit: the questions are far too easy or too hard",
)

define(
    "answers_probed",
    "answers",
    "groups",
    "answers drawn in this step only to measure questions; they are not trained on and not counted in tokens",
    "small beside the answers trained on: it is the price of choosing",
)
define(
    "answers_least",
    "answers",
    "groups",
    "answers to the question that got fewest in this step",
    "at least 2 where answers are compared with each other. Equal to answers_most: nothing was allotted",
)
define("answers_most", "answers", "groups", "answers to the question that got most in this step", "see answers_least")
define(
    "questions_skipped",
    "share",
    "groups",
    "share of the questions chosen that were left out before answers were drawn, because they are solved",
    "rises slowly. Near 1 there is hardly anything left to learn",
)
define(
    "questions_open",
    "share",
    "groups",
    "share of the training questions that the curriculum still deals out",
    "falls slowly as questions are solved. 0: every question is solved, and no more is asked",
)
define(
    "levels_open",
    "levels",
    "groups",
    "levels of difficulty from which the curriculum draws",
    "rises to the number of levels. Stuck at 1: the mastery threshold is never reached",
)
define(
    "length_budget",
    "tokens",
    "answers",
    "mean token budget of the questions of this step",
    "falls while questions stay solved, and jumps back where they do not",
)

define(
    "groups_guided",
    "groups",
    "groups",
    "groups without a right answer that got rows drawn with a hint or behind solved examples",
    "falls as the policy learns",
)
define(
    "guidance_rounds",
    "rounds",
    "groups",
    "how often dead groups were drawn again in this step, each time with a longer hint",
    "falls as the policy learns. Always the number of levels: even the longest hint is not enough",
)
define(
    "groups_demonstrated",
    "groups",
    "groups",
    "groups that got the task's right solution because the policy's answers were too weak",
    "falls as the policy learns. All groups all along: this is supervised learning",
)
define("continuations", "answers", "answers", "continuations drawn to judge how answers begin", "as many as asked for")
define(
    "plans",
    "answers",
    "answers",
    "answers that hold a plan (the sign that ends one) and were carried out several times",
    "near the number of answers asked for. 0: the policy does not write plans, and nothing branches",
)
define("restarts", "questions", "groups", "questions answered from a beginning of the solution", "as asked for")
define(
    "cut_answers", "answers", "answers", "answers drawn where thoughts were cut", "thoughts x budgets x answers each"
)
define(
    "extra_rows",
    "answers",
    "answers",
    "good answers drawn at another temperature that joined the step",
    "above 0. Always 0: no good answer was found at that temperature",
)
define(
    "verification_rows",
    "rows",
    "answers",
    "rows that ask whether an answer of this step is right",
    "above 0. Always 0: no group has right and wrong answers",
)

define(
    "turns_mean",
    "turns",
    "answers",
    "mean number of turns of an episode",
    "what the task needs. Growing towards the limit without more pass@1: the policy wanders",
)
define(
    "invalid_fraction",
    "share",
    "answers",
    "share of actions that the environment did not understand or did not allow",
    "falls early in training and stays near 0. Staying high: the form of an action is not learnt",
)
define(
    "rows_per_episode",
    "rows",
    "answers",
    "rows that an episode has on average: one for each agent, and one for each time one begins afresh",
    "what the task needs. Growing without more reward: a planner calls its helpers more often than it has to",
)
define(
    "agent_reward/*",
    "reward",
    "outcome",
    "mean reward of the rows of one agent, where a task has several",
    "all rise where agents work together; where they play against each other, one's gain is another's loss",
)

# ── policy ───────────────────────────────────────────────────────────────────────────────────────────────────────
define(
    "entropy",
    "nats/token",
    "policy",
    "mean entropy of the next-token distribution at the sampled positions, when they were sampled",
    "falls slowly. Near 0 early: exploration is over. Rising far above its start: the policy turns to noise",
)
define(
    "kl_old",
    "nats/token",
    "policy",
    "how far the policy has moved from the start of this update, KL(old || new) by the k3 estimator",
    "0.0001 to 0.05. Above 0.2 the update is too large for its own trust region",
)
define(
    "kl_ref",
    "nats/token",
    "policy",
    "distance of the policy to the frozen reference model: estimated on the sampled tokens (k1 or k3)",
    "grows slowly from 0. Exactly 0 after many steps: the reference moves with the policy",
)
define(
    "kl_behavior",
    "nats/token",
    "policy",
    "distance between the sampler's distribution and the trainer's for the same weights",
    "0 up to rounding. Above 0.01 the training data is not from the policy that is being trained",
)
define(
    "logp_gap_mean",
    "nats",
    "policy",
    "mean |log-prob by the sampler - log-prob by the trainer| of the sampled tokens, before the update",
    "below 0.001 for the built-in sampler, below 0.02 for a half-precision engine. A jump means stale weights",
)
define(
    "logp_gap_max",
    "nats",
    "policy",
    "largest such gap of a single token in the step",
    "below 1. Single tokens with a large gap are what importance caps are for",
)

# ── update ───────────────────────────────────────────────────────────────────────────────────────────────────────
define(
    "loss",
    "nats",
    "update",
    "value that the optimiser minimised, summed over all its terms (warm-up: cross-entropy per token)",
    "in RL it is no measure of progress: it stands near 0 by construction. In the warm-up it falls",
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
define("clip_fraction_high", "share", "update", "the part of it clipped above (good answers)", "see clip_fraction")
define("clip_fraction_low", "share", "update", "the part of it clipped below (bad answers)", "see clip_fraction")
define(
    "clip_fraction_dual",
    "share",
    "update",
    "share of trained tokens of bad answers whose loss the dual clip bounded",
    "near 0. Above 0.01: bad answers became much more likely within one rollout",
)
define(
    "clip_bound_low",
    "ratio",
    "update",
    "lower bound of the ratio that the balanced clip has found",
    "its start. At its end: the upper bound is exhausted and good answers still carry too little of the loss",
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
    "share of trained tokens of good answers that became less likely and are held up",
    "below 0.5. Always 0: one update per rollout. Near 1: the policy drifts away from its good answers",
)
define(
    "dropped_fraction",
    "share",
    "update",
    "share of tokens that sample dropout leaves out of this update (D-PPO)",
    "near the share that was asked for. 0: the scores are equal, as when nothing has moved yet",
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
    "pair_accuracy",
    "share",
    "policy",
    "share of the pairs of episodes in which the better one has gained more probability against the reference",
    "rises above 0.5. Near 1 nothing is left to learn from the pairs",
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
    "1 most of the time. Often 0: the sampled Fisher matrix misjudges the KL; raise damping or the number of answers",
)
define(
    "step_kl",
    "nats/token",
    "update",
    "KL(old || new) of the natural step that was taken, by the k3 estimator on the sampled tokens",
    "just below delta. Far below: damping decides the size of the step",
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
    "share of the initial policy's answers that are right, over the questions of this piece",
    "between 0.1 and 0.9: there is something to learn, and something to start from",
)
define(
    "initial_solved",
    "share",
    "outcome",
    "share of the questions of this piece to which the initial policy has a right answer",
    "above initial_rate",
)
define(
    "reference_rows",
    "answers",
    "update",
    "answers of the initial policy that joined the step",
    "the method's number. 0: the initial policy solved no question well enough",
)
define(
    "replayed_fraction",
    "share",
    "update",
    "share of the rows of the step that were drawn in earlier steps",
    "0 while the store fills, then the method's share",
)
define(
    "replay_age",
    "steps",
    "update",
    "mean number of steps since the replayed rows were drawn",
    "small. Large: the rows come from a policy that is long gone",
)
define(
    "turns_stored",
    "turns",
    "critic",
    "turns that the critic of utterances may learn from (ArCHer)",
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
    "near the mean reward to come from there on. Far above it: the critic overrates",
)
define(
    "critic_v",
    "reward",
    "critic",
    "mean of the lesser V of the observations where those actions were drawn (ArCHer)",
    "near critic_q: it is what actions of the policy are worth on average",
)
define(
    "branches",
    "episodes",
    "answers",
    "episodes that began with turns of another one",
    "up to the method's number. 0: no episode takes a second turn, or no turn is unsure",
)
define("reviews", "reviews", "answers", "episodes that the policy was asked to review", "as many as are drawn")
define(
    "reviews_no_room",
    "reviews",
    "answers",
    "episodes that are too long to be reviewed: transcript and review do not fit the model's positions",
    "0. Otherwise give the model more positions, or a form of reviews with shorter prompts",
)
define(
    "reviews_unread",
    "reviews",
    "answers",
    "reviews that cannot be read: neither a verdict nor a turn that there was",
    "falls to few. Many: the policy was never shown the form (warm-up), or the budget `tokens` cuts reviews off",
)
define(
    "reviews_content",
    "share",
    "answers",
    "share of the reviews that find nothing wrong",
    "grows with the share of right episodes. 1 from the start: nothing is ever tried again",
)
define(
    "retries", "episodes", "answers", "episodes begun again because of a review", "some, while there is much to mend"
)
define(
    "retries_good",
    "episodes",
    "answers",
    "second attempts from which is learnt how to review and how to act on it",
    "> 0",
)
define(
    "actor_reward",
    "reward",
    "answers",
    "mean reward of the frozen actor's first trials, without any review",
    "as before training: it never learns",
)
define(
    "retry_gain",
    "reward",
    "answers",
    "mean reward of further attempts minus that of the attempts before them",
    "rises above 0: reviews help",
)
define(
    "rows_doubled",
    "rows",
    "answers",
    "rows of called agents that count twice, so that every episode has equally many",
    "few: episodes call about as often as the method expects",
)
define(
    "rows_left_out",
    "rows",
    "answers",
    "rows of called agents beyond the number that every episode has",
    "few: episodes call about as often as the method expects",
)
define(
    "exam_accuracy",
    "share",
    "answers",
    "share of the exam's held-out questions that the player answers rightly after its update",
    "rises. Where it stands still, the coach is paid nothing",
)
define(
    "coach_reward",
    "points",
    "update",
    "what the player's accuracy gained in this step, times the method's scale: the coach's advantage",
    "around 0, more often above it while the player learns",
)
define(
    "exchange_lag",
    "steps",
    "answers",
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
    "1 in a step that gave the player back its best weights",
    "rare: the accuracy fell too often before",
)
define(
    "horizon",
    "turns",
    "answers",
    "turns that an episode of this step could take",
    "the method's schedule",
)
define(
    "successes_replayed",
    "answers",
    "update",
    "stored successes that took a place in a group that failed",
    "falls as fewer groups fail. Always 0: no question that fails now was solved before",
)


# ── critic ───────────────────────────────────────────────────────────────────────────────────────────────────────
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
    "1 - Var(return - value) / Var(return): how much of the outcome the critic foresees",
    "rises towards 1. Below 0 the critic is worse than a constant and adds noise",
)

define(
    "preference_loss",
    "nats",
    "critic",
    "loss of the preference model on pairs it has not seen yet (DPO)",
    "falls below 0.69, that of a coin",
)
define(
    "preference_accuracy",
    "share",
    "critic",
    "share of unseen pairs in which the preference model prefers the right answer",
    "rises above 0.5",
)
define(
    "pairs",
    "pairs",
    "critic",
    "pairs of a right and a wrong answer that a second model learnt from",
    "many. 0: no question of the rollout had both, so nothing was learnt",
)


# ── speed ────────────────────────────────────────────────────────────────────────────────────────────────────────
define("tokens_per_second", "tokens/s", "speed", "tokens of the step divided by its wall-clock time", "steady")
define("seconds_rollout", "s", "speed", "time spent drawing answers", "usually the largest share")
define("seconds_score", "s", "speed", "time spent in reward functions", "small; if not, verify in parallel")
define("seconds_update", "s", "speed", "time spent on log-probs, gradients and the optimiser", "steady")
define(
    "seconds_wait",
    "s",
    "speed",
    "time the trainer waited for the sampler's process (asynchronous runs)",
    "near 0 when drawing is the faster half; else the sampler is what to make faster",
)
define(
    "seconds_sampler_idle",
    "s",
    "speed",
    "time the sampler's process waited for questions that it may draw (asynchronous runs)",
    "near 0 when training is the faster half; else the trainer is what to make faster, or async_steps to raise",
)
define("seconds_sync", "s", "speed", "time spent on handing weights to the sampler's process", "small")
define(
    "staleness_mean",
    "steps",
    "speed",
    "mean number of steps by which the policy that drew a token was behind the one trained on it (asynchronous runs)",
    "at most run.async_steps; smaller is better for learning, larger hides more waiting",
)
define("staleness_max", "steps", "speed", "the oldest token of the step, in steps", "never above run.async_steps")
define("staleness/*", "share", "speed", "share of the step's tokens that are so many steps old", "adds up to 1")
define(
    "spanning_fraction",
    "share",
    "speed",
    "share of answers that were drawn by more than one version of the policy",
    "0 with run.partial false; with it as many as were in the making when weights changed",
)
define(
    "groups_ahead",
    "groups",
    "speed",
    "questions under way: asked, and not yet trained on",
    "below what the rule allows",
)
define(
    "canary_gap",
    "nats",
    "speed",
    "largest difference between the sampler's and the trainer's log-probs of fixed sequences after the last exchange "
    "of weights",
    "rounding: 1e-6 to 1e-4 in float32. Larger ones stop the run",
)
define("memory_mb", "MiB", "speed", "peak memory of the process (GPU: of the device) so far", "levels off")

# ── evaluation ───────────────────────────────────────────────────────────────────────────────────────────────────
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
define("eval/*_low", "share", "evaluation", "lower end of the 95 % interval of that number", "compare intervals")
define("eval/*_high", "share", "evaluation", "upper end of the 95 % interval of that number", "compare intervals")
define("eval/length_mean", "tokens", "evaluation", "mean tokens of a sampled held-out answer", "see length_mean")
define("eval/questions", "questions", "evaluation", "held-out questions behind these numbers", "200 or more")
define("eval/samples", "answers", "evaluation", "answers sampled for each held-out question", "at least k")
define(
    "eval/truncated", "share", "evaluation", "share of held-out answers cut off by the limit", "see truncated_fraction"
)
