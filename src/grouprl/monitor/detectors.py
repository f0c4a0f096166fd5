"""The conditions behind the findings: each looks at the history of a run and describes what it finds.

A detector is a pure function `(History, HealthFacts) -> Finding | None`. Thresholds are constants with their reason.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from statistics import median

from grouprl.core.finding import Finding, Severity
from grouprl.monitor import health_codes as codes
from grouprl.monitor.alignment import weak_start
from grouprl.monitor.degeneration_detectors import busy_clip, far_from_reference, repetition_loops
from grouprl.monitor.history import START, HealthFacts, History, percent
from grouprl.monitor.length_detectors import length_change, truncation
from grouprl.monitor.movement import moves_too_fast, no_gain, stands_still
from grouprl.monitor.overoptimisation import overoptimisation
from grouprl.monitor.pair_detectors import length_exploitation, likelihood_displacement, reference_drift
from grouprl.monitor.reward_detectors import (
    drifting_judge,
    learnt_by_heart,
    success_traded,
    unearned_component,
    unreliable_judge,
    verifier_noise,
)
from grouprl.monitor.template_detectors import template_variables
from grouprl.monitor.turn_detectors import below_demonstrations, fewer_turns, repeated_calls, silent_agent, tools_unused
from grouprl.monitor.update_detectors import lopsided_advantage, noisy_gradient, part_stands_still, part_too_fast

DEAD_NOTE, DEAD_WARNING = 0.3, 0.6
"""A third of the batch without gradient is worth knowing; beyond 60 % most of the sampling is wasted."""
UNFINISHED = 0.9
"""Share of completions that are cut off, from which an answer at their end is not seen."""
KNOWN = 0.1
"""Share of right completions before training that can be lost: of 32 prompts three, which luck alone rarely gives."""
ALL_DEAD, ALL_DEAD_STEPS = 0.999, 5
"""Five rollout batches in a row without a mixed group: no update happened, and none is likely."""
SOLVED = 0.9
"""Sampled pass@1 from which zero-variance groups and low entropy are signs of success."""
INERT_STEPS = 20
"""Number of records after which a finding may say 'never': the first, largest updates have shown by then."""
KL_STILL = 1e-7
"""KL below which the reference and the policy are the same up to float32 rounding."""
KL_OLD_LARGE = 0.2
"""Ten times the KL at which PPO implementations stop an update early (0.015 to 0.03)."""
ENTROPY_LEFT, ENTROPY_LOW = 0.1, 0.05
"""Share of the initial entropy, and a level in nats per token at which 19 of 20 tokens are practically certain."""
DENSITY_LOST = 4.0
"""Fall of the entropy of a density, in nats per action, at which its deviation is 50 times smaller in one dimension."""
ENTROPY_GROWN, ENTROPY_HIGH = 2.5, 1.0
"""Growth and level (nats per token) at which text typically turns into noise."""
GAP_EXACT, GAP_WARNING, GAP_ALARM = 0.002, 0.02, 0.1
"""Mean |log-prob gap| per token: rounding of one engine; of two half-precision engines; stale weights (0.2 seen)."""
KL_BEHAVIOR_LARGE = 0.01
"""KL between sampler and trainer above which training data is no longer the policy's own."""
ERROR_ALARM = 0.05
"""Share of completions without a score above which the scorer is broken rather than unlucky."""
COLLAPSE = 0.5
"""A quantity that has lost half of its best window mean (or of its progress) has collapsed, not fluctuated."""
COLLAPSE_FROM = 0.15
"""Sampled pass@1 below which a fall cannot be distinguished from noise."""
GRAD_SPIKE = 10.0
"""Factor over the median of the window; heavy-tailed gradients reach 3 to 5 in good runs."""
LR_ZERO_STEPS = 3
"""Number of steps at rate 0; a schedule may reach 0 at its first and last step, but not for three steps."""


def dead_groups(past: History, facts: HealthFacts) -> Finding | None:
    """Report many groups whose completions all got the same reward, unless all have: `no_signal` says so."""
    dead = past.mean("groups_zero_variance") if facts.grouped else None
    if dead is None or dead < DEAD_NOTE or _all_dead(past, facts):
        return None
    effective = (
        f": effective batch {round(facts.completions * (1 - dead))} of {facts.completions} completions"
        if facts.completions
        else ""
    )
    severity: Severity = "warning" if dead >= DEAD_WARNING else "note"
    if past.graded:
        words = f"{percent(dead)} of the groups are dead (all rewards of a group equal){effective}."
        remedy = "Take prompts of another difficulty, a reward with finer grades, or more completions per prompt."
        return codes.DEAD_GROUPS(words, remedy, severity=severity)
    right, wrong = past.mean("groups_all_right") or 0.0, past.mean("groups_all_wrong") or 0.0
    words = (
        f"{percent(dead)} of the groups are dead ({percent(right)} all right, {percent(wrong)} all wrong){effective}."
    )
    if right >= wrong and (past.mean("pass@1") or 0.0) >= SOLVED:
        return codes.DEAD_GROUPS(words, "The task is nearly solved: stop, or move on to harder prompts.")
    easy = "Take harder prompts, or let the method drop and refill zero-variance groups (dapo)."
    hard = "Take easier prompts, sample more completions per prompt, or warm up longer."
    return codes.DEAD_GROUPS(words, easy if right >= wrong else hard, severity=severity)


def _all_dead(past: History, facts: HealthFacts) -> bool:
    """Return whether every group of several consecutive steps is dead, of those in which the policy is trained."""
    dead = past.values("groups_zero_variance")[-ALL_DEAD_STEPS:]
    return facts.grouped and not _waiting(past, facts) and len(dead) == ALL_DEAD_STEPS and min(dead) >= ALL_DEAD


def _waiting(past: History, facts: HealthFacts) -> bool:
    return bool(facts.waits) and past.recent[-1]["step"] < facts.waits + ALL_DEAD_STEPS


def no_signal(past: History, facts: HealthFacts) -> Finding | None:
    """Report several consecutive steps without signal: every group is dead, or no row is left to train on."""
    if _waiting(past, facts):
        return None
    dead, rows = past.values("groups_zero_variance")[-ALL_DEAD_STEPS:], past.values("rows_trained")[-ALL_DEAD_STEPS:]
    if len(rows) == ALL_DEAD_STEPS and max(rows) == 0 and dead and min(dead) < ALL_DEAD:
        words = f"No completion was trained on in the last {ALL_DEAD_STEPS} steps although groups are mixed."
        if not facts.filters and min(past.values("reward_errors")[-ALL_DEAD_STEPS:], default=0.0) > 0:
            remedy = "Repair the reward: by reward.on_error a completion without a score takes its whole group along."
            return codes.NO_SIGNAL(words, remedy)
        return codes.NO_SIGNAL(words, "A selection rule removes everything: look at rows_dropped.")
    if not _all_dead(past, facts):
        return None
    right = past.values("groups_all_right")[-ALL_DEAD_STEPS:]
    if right and min(right) >= SOLVED:
        if (past.untrained("pass@1") or 0.0) >= ALL_DEAD:
            words = f"Every completion has been right for {ALL_DEAD_STEPS} steps, and was before training."
            remedy = "See whether the reward accepts anything (grouprl check-reward). Else take harder prompts."
            return codes.NO_SIGNAL(words, remedy)
        words = f"Every completion has been right for {ALL_DEAD_STEPS} steps: there is nothing left to learn here."
        return codes.NO_SIGNAL(words, "Stop, or move on to harder prompts.", severity="note")
    words = f"Every group has been dead for {ALL_DEAD_STEPS} steps: the policy gets no gradient at all."
    known = past.untrained("pass@1") or 0.0
    if known >= KNOWN and max(past.values("pass@1")[-ALL_DEAD_STEPS:], default=1.0) == 0:
        words += f" Nothing is right any more, where {percent(known)} were before: the policy has lost what it knew."
        return codes.NO_SIGNAL(words, "Go back to an earlier checkpoint; lower optim.lr (a third, say).")
    cut = 0.0 if facts.segments or past.mean("turns_mean") is not None else past.mean("truncated_fraction") or 0.0
    if cut >= UNFINISHED:
        words += f" {percent(cut)} of the completions are cut off before they end."
        remedy = "Raise the token limit, where an answer does not fit; if the model ends nothing, warm up longer."
        return codes.NO_SIGNAL(words, remedy)
    remedy = "Check the reward on known completions, take easier prompts, or warm up longer."
    return codes.NO_SIGNAL(words, remedy)


def inert_clip(past: History, facts: HealthFacts) -> Finding | None:
    """Report a clip or cap that never acted although it could; the plan says where it cannot."""
    names = ("clip_fraction", "pair_clip_fraction", "capped_fraction")
    name = next((n for n in names if past.seen(n) >= INERT_STEPS), None)
    cannot = facts.updates_per_rollout == 1 and facts.exact_sampler  # the ratio is always 1
    if not facts.clips or cannot or name is None or past.peak(name) > 0:
        return None
    what = "cap" if name == "capped_fraction" else "clip"
    words = f"The {what} has not acted once in {past.seen(name)} steps"
    words += f": the policy moves too little within an update (largest kl_old {past.peak('kl_old'):.1g})."
    return codes.INERT_CLIP(words, "Harmless. A higher learning rate or a tighter clip would make it act.")


def kl_term(past: History, facts: HealthFacts) -> Finding | None:
    """Report a KL term that cannot act or measures nothing."""
    if facts.kl_weight == 0:
        words = "The weight of the KL term is 0: the distance to the reference does not influence the training."
        return codes.INERT_KL(words, "Leave the term out (saves the reference model) or give it a weight.")
    if past.seen("kl_ref") >= INERT_STEPS and past.peak("kl_ref") < KL_STILL and past.peak("lr") > 0:
        words = f"kl_ref has stayed 0 for {past.seen('kl_ref')} steps: policy and reference are the same model."
        return codes.INERT_KL(
            words, "Check that the reference is frozen and that the policy moves.", severity="warning"
        )
    return None


def large_update(past: History, facts: HealthFacts) -> Finding | None:
    """Report updates that leave their trust region."""
    kl = past.mean("kl_old")
    if kl is None or kl < KL_OLD_LARGE:
        return None
    words = f"An update moves the policy by {kl:.2f} nats per token (kl_old); 0.05 is already large."
    return codes.LARGE_UPDATE(words)


def entropy_level(past: History, facts: HealthFacts) -> Finding | None:
    """Report entropy so low that exploration has ended, or so high that text turns into noise."""
    now, start = past.mean("entropy"), past.start("entropy")
    if now is None or start is None:
        return None
    if min(now, start) <= 0:
        return _density_entropy(past, now, start)
    words = f"Entropy is {now:.3f} nats per token, {percent(now / start)} of its start."
    if now < ENTROPY_LOW and now < ENTROPY_LEFT * start:
        if (past.mean("pass@1") or 0.0) >= SOLVED:
            return codes.ENTROPY_COLLAPSE(words, "Expected once the task is solved.", severity="note")
        remedy = "Explore more: higher clip_high (dapo), an entropy or KL term, a lower learning rate."
        return codes.ENTROPY_COLLAPSE(f"Exploration is over: {words[0].lower()}{words[1:]}", remedy)
    if now > ENTROPY_HIGH and now > ENTROPY_GROWN * start > 0:
        remedy = "Look at the samples; lower the learning rate or add a KL term."
        return codes.ENTROPY_EXPLOSION(f"The completions become more random: {words}", remedy)
    return None


def _density_entropy(past: History, now: float, start: float) -> Finding | None:
    """Report the entropy of a density, which may be negative, once it has fallen far: shares of it mean nothing."""
    if start - now < DENSITY_LOST:
        return None
    words = f"Entropy fell from {start:.2f} to {now:.2f} nats per token (that of a density may be negative)."
    if (past.mean("pass@1") or 0.0) >= SOLVED:
        return codes.ENTROPY_COLLAPSE(words, "Expected once the task is solved.", severity="note")
    remedy = "Explore more: an entropy term, a higher log_std at the start, a lower learning rate."
    return codes.ENTROPY_COLLAPSE(f"Exploration is over: {words[0].lower()}{words[1:]}", remedy)


def sampler_gap(past: History, facts: HealthFacts) -> Finding | None:
    """Report that sampler and trainer disagree about the probability of the same tokens."""
    gap, kl = past.mean("logp_gap_mean"), past.mean("kl_behavior") or 0.0
    if (
        gap is None or facts.async_steps
    ):  # completions by earlier weights are expected to differ; the canary checks the sampler then
        return None
    limit = GAP_EXACT if facts.exact_sampler else GAP_WARNING
    if gap < limit and kl < KL_BEHAVIOR_LARGE:
        return None
    words = (
        f"Sampler and trainer disagree by {gap:.3g} nats per token (largest {past.peak('logp_gap_max'):.2g}); "
        f"up to {limit:g} is rounding."
    )
    remedy = "Check that the sampler has the latest weights, precision and temperature; add an importance cap."
    return codes.SAMPLER_GAP(words, remedy, severity="alarm" if gap >= GAP_ALARM else "warning")


def reward_errors(past: History, facts: HealthFacts) -> Finding | None:
    """Report completions that could not be scored."""
    errors = past.values("reward_errors")
    total = sum(errors)
    if total == 0:
        return None
    sampled = facts.completions * len(errors)
    share = f" ({percent(total / sampled)})" if sampled else ""
    words = f"{total:.0f} completions{share} of the last {len(errors)} steps could not be scored and were left out."
    severity: Severity = "alarm" if sampled and total / sampled >= ERROR_ALARM else "warning"
    late, fallen = sum(past.values("reward_timeouts")), sum(past.values("environment_errors"))
    if fallen:
        words += f" The environment failed on {fallen:.0f} of them."
    if late:
        clock = "environment.timeout" if fallen >= late else "reward.timeout"
        words += f" {late:.0f} of them took longer than {clock}."
    remedy = "Read the column `problem` of the stored rollouts: the reason, the traceback and what the reward printed."
    return codes.REWARD_ERRORS(words, remedy, severity=severity)


def collapse(past: History, facts: HealthFacts) -> Finding | None:
    """Report success that has been lost again."""
    now, best = past.mean("pass@1"), past.best("pass@1")
    remedy = "Go back to an earlier checkpoint; lower or decay the learning rate; look at the samples of the fall."
    if now is not None and best is not None:
        if best < COLLAPSE_FROM or now > COLLAPSE * best:
            return None
        return codes.COLLAPSE(f"pass@1 has fallen to {now:.2f} from {best:.2f} at its best.", remedy)
    now, best, start = past.mean("reward_mean"), past.best("reward_mean"), past.start("reward_mean")
    if now is None or best is None or start is None:
        return None
    if best - now <= max(COLLAPSE * (best - start), past.peak("reward_std")):
        return None
    return codes.COLLAPSE(f"The reward has fallen to {now:.3g} from {best:.3g} at its best.", remedy)


def gradient(past: History, facts: HealthFacts) -> Finding | None:
    """Report a gradient far larger than those before it."""
    *before, last = past.values("grad_norm") or [0.0]
    moving = [g for g in before if g > 0]
    if len(moving) < START or last <= GRAD_SPIKE * median(moving):
        return None
    words = f"The gradient norm jumped to {last:.3g}, {last / median(moving):.0f} times its usual size."
    return codes.GRAD_SPIKE(words)


def non_finite(past: History, facts: HealthFacts) -> Finding | None:
    """Report NaN or infinity in the inputs of the update."""
    names = ("loss", "grad_norm", "reward_mean", "entropy")
    broken = [n for n in names if isinstance(v := past.last(n), float) and not isfinite(v)]
    if not broken:
        return None
    words = f"Not a finite number: {', '.join(f'{n} = {past.last(n)}' for n in broken)}."
    return codes.NON_FINITE(words)


def idle_refill(past: History, facts: HealthFacts) -> Finding | None:
    """Report a refill that never acts or always runs out of rounds."""
    rounds = past.values("refill_rounds")
    if not facts.refill or past.seen("refill_rounds") < START:
        return None
    if past.seen("refill_rounds") >= INERT_STEPS and past.peak("refill_rounds") <= 1:
        words = f"The refill has not fired once in {past.seen('refill_rounds')} steps: no group was dead."
        return codes.REFILL(words, "Harmless; the method acts as it would without a refill.")
    spent = sum(r >= facts.refill_max_rounds for r in rounds) / len(rounds) if facts.refill_max_rounds else 0.0
    if len(rounds) < START or spent < 0.5:
        return None
    words = f"The refill used up all its {facts.refill_max_rounds} rounds in {percent(spent)} of the last steps."
    return codes.REFILL(
        words,
        "Too few prompts give mixed groups: change their difficulty or the number of completions.",
        severity="warning",
    )


def idle_filter(past: History, facts: HealthFacts) -> Finding | None:
    """Report selection rules that never dropped anything."""
    steps = past.seen("rows_trained")
    if not facts.filters or steps < INERT_STEPS or past.peak("rows_dropped") > 0 or past.low("rows_trained") != 1:
        return None
    names = ", ".join(facts.filters)
    words = f"The selection ({names}) has not dropped a completion in {steps} steps."
    return codes.INERT_FILTER(words, "Harmless; the method acts as it would without it.")


def zero_rate(past: History, facts: HealthFacts) -> Finding | None:
    """Report a learning rate of 0 for several steps."""
    rates = past.values("lr")[-LR_ZERO_STEPS:]
    if len(rates) < LR_ZERO_STEPS or max(rates) > 0:
        return None
    words = f"The learning rate has been 0 for {LR_ZERO_STEPS} steps: the policy does not change."
    return codes.ZERO_LEARNING_RATE(words)


def poor_critic(past: History, facts: HealthFacts) -> Finding | None:
    """Report a critic that predicts worse than a constant."""
    explained = past.mean("explained_variance")
    if explained is None or explained >= 0 or past.seen("explained_variance") < INERT_STEPS:
        return None
    words = f"The critic explains {percent(explained)} of the returns' variance: worse than a constant guess."
    return codes.POOR_CRITIC(words)


DETECTORS: tuple[Callable[[History, HealthFacts], Finding | None], ...] = (
    non_finite,
    zero_rate,
    no_signal,
    collapse,
    reward_errors,
    dead_groups,
    truncation,
    sampler_gap,
    gradient,
    stands_still,
    moves_too_fast,
    part_too_fast,
    part_stands_still,
    no_gain,
    noisy_gradient,
    lopsided_advantage,
    weak_start,
    template_variables,
    overoptimisation,
    success_traded,
    learnt_by_heart,
    unearned_component,
    unreliable_judge,
    drifting_judge,
    verifier_noise,
    likelihood_displacement,
    length_exploitation,
    reference_drift,
    large_update,
    busy_clip,
    far_from_reference,
    repetition_loops,
    entropy_level,
    length_change,
    fewer_turns,
    below_demonstrations,
    tools_unused,
    repeated_calls,
    silent_agent,
    inert_clip,
    kl_term,
    idle_refill,
    idle_filter,
    poor_critic,
)
