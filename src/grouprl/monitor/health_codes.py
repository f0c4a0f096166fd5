"""The kinds of findings of a health report."""

from __future__ import annotations

from functools import partial

from grouprl.core.finding import declare

_health = partial(declare, "health")

NON_FINITE = _health(
    "non_finite",
    "alarm",
    "The loss, the gradient, the reward or the entropy is not a finite number.",
    "Resume from the last checkpoint with a lower learning rate or float32.",
    "loss",
)
ZERO_LEARNING_RATE = _health(
    "zero_learning_rate",
    "alarm",
    "The learning rate has been 0 for several steps, so that the policy does not change.",
    "Check optim.lr, optim.min_lr_ratio and optim.warmup_steps.",
    "optim.lr",
)
NO_SIGNAL = _health(
    "no_signal",
    ("alarm", "note"),
    "No completion of several steps taught anything: all groups have equal rewards, or a filter removes all rows.",
    "Check the reward on known completions, take easier prompts, warm up longer, or look at the filters.",
    "groups_zero_variance",
)
COLLAPSE = _health(
    "collapse",
    "alarm",
    "Success or reward has fallen to half of its best.",
    "Go back to an earlier checkpoint; lower or decay the learning rate; look at the samples of the fall.",
    "reward_mean",
)
REWARD_ERRORS = _health(
    "reward_errors",
    ("warning", "alarm"),
    "Completions could not be scored and were left out.",
    "Read the column `problem` of the stored rollouts: the reason, the traceback and what the reward printed.",
    "reward_errors",
)
DEAD_GROUPS = _health(
    "dead_groups",
    ("note", "warning"),
    "Many groups have equal rewards, which teaches nothing.",
    "Take prompts of another difficulty, sample more completions per prompt, or drop and refill such groups.",
    "groups_zero_variance",
)
TRUNCATION = _health(
    "truncation",
    ("warning", "alarm", "note"),
    "Many completions or episodes are cut off by a limit before they end.",
    "Raise the limit of tokens or turns, or shape rewards against overlong completions.",
    "truncated_fraction",
)
SAMPLER_GAP = _health(
    "sampler_gap",
    ("warning", "alarm"),
    "Sampler and trainer disagree about the probability of the same tokens.",
    "Check that the sampler has the latest weights, precision and temperature; add an importance cap.",
    "logp_gap_mean",
)
GRAD_SPIKE = _health(
    "grad_spike",
    "warning",
    "The gradient norm jumped to many times its usual size.",
    "Once is harmless with gradient clipping; if it recurs, lower the learning rate.",
    "grad_norm",
)
STANDS_STILL = _health(
    "stands_still",
    "warning",
    "Updates are made, but the policy hardly moves.",
    "Raise optim.lr: grouprl plan names the usual one for this kind of model. Or train for more steps.",
    "update_ratio",
)
MOVES_TOO_FAST = _health(
    "moves_too_fast",
    "warning",
    "One optimiser step changes the policy too much.",
    "Lower optim.lr (a third, say), or warm it up: optim.warmup_steps.",
    "update_ratio",
)
NO_GAIN = _health(
    "no_gain",
    ("note", "warning"),
    "Evaluation shows no gain over the first one, or a loss.",
    "Train longer, raise optim.lr, sample more completions per prompt; look at the reward of known completions.",
    "eval/reward",
)
WEAK_START = _health(
    "weak_start",
    "warning",
    "No verifier decides what is rewarded, and the model was rarely right before training.",
    "Reward what a verifier finds right, warm up longer, or take easier prompts.",
    "eval/pass@1",
)
OVEROPTIMISATION = _health(
    "overoptimisation",
    ("warning", "alarm"),
    "The learned reward rises while the true one falls: the policy has found what the reward model scores too high.",
    "Take an earlier checkpoint; raise kl_coef, train fewer steps, or pay the worst of several reward models.",
    "reward/gold",
)
LIKELIHOOD_DISPLACEMENT = _health(
    "likelihood_displacement",
    "warning",
    "Chosen completions lose likelihood while their margins over rejected ones rise: the gain goes to other texts.",
    "Add chosen_nll, which holds them up; leave out near-duplicate pairs; take a mean over tokens (simpo).",
    "chosen_logp",
)
LENGTH_EXPLOITATION = _health(
    "length_exploitation",
    ("note", "warning"),
    "Sampled completions grow, and the pairs prefer longer ones: length may stand for quality.",
    "Take a mean over tokens (simpo), ld_dpo, or pairs of equal lengths; judge the samples by another measure.",
    "eval/length_mean",
)
REFERENCE_DRIFT = _health(
    "reference_drift",
    "warning",
    "Log-probs of the pairs have moved far from the reference's.",
    "Raise beta, lower optim.lr or train for fewer steps; ipo bounds the margin.",
    "rejected_drift",
)
LARGE_UPDATE = _health(
    "large_update",
    "warning",
    "Updates leave their trust region.",
    "Lower the learning rate or the number of epochs per rollout.",
    "kl_old",
)
ENTROPY_COLLAPSE = _health(
    "entropy_collapse",
    ("warning", "note"),
    "The policy explores hardly any more.",
    "Explore more: higher clip_high (dapo), an entropy or KL term, a lower learning rate.",
    "entropy",
)
ENTROPY_EXPLOSION = _health(
    "entropy_explosion",
    "warning",
    "Completions become more and more random.",
    "Look at the samples; lower the learning rate or add a KL term.",
    "entropy",
)
LENGTH_GROWTH = _health(
    "length_growth",
    ("warning", "note"),
    "Completions have become several times as long.",
    "Look at the samples; check the reward for a length bias; prefer token_mean or constant_length.",
    "length_mean",
)
LENGTH_SHRINKING = _health(
    "length_shrinking",
    "warning",
    "Completions shrink without getting better.",
    "Look at the samples; check whether the reward can be had without a solution.",
    "length_mean",
)
FEWER_TURNS = _health(
    "fewer_turns",
    "warning",
    "Episodes have far fewer turns than at the start, and the policy did not get better.",
    "Read a few episodes: the policy may end them early, or answer without acting. Check what an early end earns.",
    "turns_mean",
)
TOOLS_UNUSED = _health(
    "tools_unused",
    "warning",
    "Tools are announced, and episodes hardly call any.",
    "Read a few episodes: check the syntax of calls (sampling.tool_calls), warm up on calls, or pay for using tools.",
    "calls_mean",
)
REPEATED_CALLS = _health(
    "repeated_calls",
    "warning",
    "Many calls of tools repeat an earlier call of the same episode.",
    "Read a few episodes: a result may be cut off, or say nothing on errors; let calls cost something.",
    "repeated_calls",
)
BELOW_DEMONSTRATIONS = _health(
    "below_demonstrations",
    "warning",
    "Right after the warm-up, episodes have far fewer turns than its demonstrations.",
    "Warm up longer (warmup.steps), and compare an episode with a demonstration: an action may be misread and end it.",
    "demonstrated_turns",
)
INERT_CLIP = _health(
    "inert_clip",
    "note",
    "The clip or cap of a ratio never acted, although the policy takes several updates per rollout.",
    "Harmless. A higher learning rate or a tighter clip would make it act.",
    "clip_fraction",
)
BUSY_CLIP = _health(
    "busy_clip",
    "note",
    "The clip acts all the time: it takes the gradient from half of what it can reach, or more.",
    "Harmless where the policy gets better. Else lower optim.lr, take fewer optimiser steps per rollout "
    "(batch.minibatches, batch.epochs), or widen the clip.",
    "clip_fraction",
)
FAR_FROM_REFERENCE = _health(
    "far_from_reference",
    "warning",
    "The policy has moved far from the reference without getting better.",
    "Raise the weight of the KL term, or lower optim.lr; go back to an earlier checkpoint, and read its completions.",
    "kl_ref",
)
REPETITION_LOOPS = _health(
    "repetition_loops",
    ("note", "warning"),
    "Completions end in loops: they write the same tokens over and over.",
    "Read a few: the reward may pay length or single words, or the policy be damaged; lower optim.lr, warm up longer.",
    "loop_fraction",
)
INERT_KL = _health(
    "inert_kl",
    ("note", "warning"),
    "The KL term cannot act, or measures nothing.",
    "Give it a weight or leave it out; check that the reference is frozen and that the policy moves.",
    "kl_ref",
)
REFILL = _health(
    "refill",
    ("note", "warning"),
    "The refill never fires, or always uses up its rounds.",
    "Change the difficulty of the prompts or the number of completions, where its rounds are used up.",
    "refill_rounds",
)
INERT_FILTER = _health(
    "inert_filter",
    "note",
    "The filters have not dropped a single completion.",
    "Harmless; the method acts as it would without them.",
    "rows_dropped",
)
POOR_CRITIC = _health(
    "poor_critic",
    "warning",
    "The critic predicts returns worse than a constant would.",
    "Raise the critic's learning rate, pre-train it, or use a method without one.",
    "explained_variance",
)
SUCCESS_TRADED = _health(
    "success_traded",
    "warning",
    "The reward rises while fewer completions are right: what is paid is not what is meant.",
    "Read completions of high reward; weigh the verdict more, or pay the component that rose only where it is right.",
    "reward_mean",
)
LEARNT_BY_HEART = _health(
    "learnt_by_heart",
    "warning",
    "Training prompts are solved far more often than held-out ones: they are learnt by heart, or are easier.",
    "Train on more prompts and repeat them less often; where a curriculum chooses easy ones, this is expected.",
    "pass@1",
)
UNEARNED_COMPONENT = _health(
    "unearned_component",
    "note",
    "A component of the reward has been 0 on every completion, so that it has taught nothing.",
    "Check it on known completions (grouprl check-reward), or leave it out. A penalty that never applies is harmless.",
    "reward",
)
UNRELIABLE_JUDGE = _health(
    "unreliable_judge",
    "warning",
    "The verdicts of the judge depend on the order of a pair, or are often missing.",
    "Average more replies (reward.judge.samples), state a clearer rubric, or take a larger judge.",
    "judge_flips",
)
DRIFTING_JUDGE = _health(
    "drifting_judge",
    "warning",
    "The judge's scores of the same kept completions have moved since they were first asked for.",
    "See whether its endpoint serves another model or other settings now: rewards before and after cannot be compared.",
    "judge_drift",
)
TEMPLATE_VARIABLES = _health(
    "template_variables",
    ("warning", "note"),
    "Variables of the chat template, such as enable_thinking, differ between training and evaluation, or between rows.",
    "Set them alike in the rows of both splits (chat_template_kwargs), or once for all: model.chat_template_kwargs.",
    "template",
)
SILENT_AGENT = _health(
    "silent_agent",
    "warning",
    "An agent of a team hardly writes anything any more: the others do without it, or it has learnt to keep out.",
    "Read a few episodes; reward the agent for its own part (credit among agents), or leave it out.",
    "agent_tokens",
)
PART_TOO_FAST = _health(
    "part_too_fast",
    "warning",
    "One kind of weights, such as the attention or the norms, changes too much with each optimiser step.",
    "Lower optim.lr, or look at these weights: after a bad initialisation or conversion they may be far too small.",
    "update_ratio",
)
PART_STANDS_STILL = _health(
    "part_stands_still",
    "warning",
    "One kind of weights hardly moves while the others do.",
    "Look at these weights and at eps of optim.settings: where the gradient is 0 or far below eps, Adam takes no step.",
    "update_ratio",
)
NOISY_GRADIENT = _health(
    "noisy_gradient",
    "note",
    "The batch is too small: gradients of its parts do not agree, and the policy does not get better.",
    "Take more prompts per optimiser step (batch.prompts, or fewer minibatches) or larger groups; check the reward.",
    "gradient_signal",
)
LOPSIDED_ADVANTAGE = _health(
    "lopsided_advantage",
    "warning",
    "Nearly all advantage of the trained tokens has one sign.",
    "Compare lengths of good and bad completions; aggregate by sequence_mean or constant_length; centre the rewards.",
    "advantage_positive",
)
VERIFIER_NOISE = _health(
    "verifier_noise",
    "warning",
    "The same completion of the same prompt is scored differently.",
    "Make the reward a function of its inputs: no random numbers, clocks or shared state; average a judge's replies.",
    "verifier_noise",
)
