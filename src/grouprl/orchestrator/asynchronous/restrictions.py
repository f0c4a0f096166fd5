"""The limits of asynchronous runs: parts that cannot run ahead, settings without effect, and sentences for the plan."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.data_part import DataPart, Pretraining, SamplingRule, data_parts
from grouprl.algorithms.method import Method
from grouprl.config.run import Config
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.supply import PIECES
from grouprl.processes.current_ranks import current_ranks
from grouprl.rollout.engines import LOCAL, SGLANG, VLLM
from grouprl.rollout.kinds.row_kinds import row_kind
from grouprl.tasks.task import Task

SETTINGS = ("partial", "proximal", "samplers")
_IN_THE_MAKING = "unfinished completions continue with new weights"
ADD = "token_weight: [{part: truncated_importance}]"
"""The addition to a method that makes it correct for the policies that sampled its completions."""


def threads_each(config: Config, found: int) -> int:
    """Return the number of threads for the trainer and each sampler process; `auto` divides the threads that were
    found.
    """
    shared = config.run.samples_apart and config.run.threads == "auto"
    return max(1, found // (1 + config.run.samplers)) if shared else found


def async_refusals(config: Config, method: Method) -> Iterator[str]:
    """Yield the reasons, one sentence each, why this method cannot be trained asynchronously."""
    if not config.run.async_steps:
        return
    if method.on_policy and "behavior_bt" not in method.needs():
        yield (
            f"{method.name} is only correct when every completion comes from the current policy, but "
            f"run.async_steps is {config.run.async_steps}. Set it to 0, or let the method correct: {ADD}"
        )
    for part in data_parts(method.parts()):
        why = _why_not(part)
        if why:
            yield f"{part.kind}: {part.name} {why}. Set run.async_steps to 0, or leave the part out"


def between_refusals(config: Config, task: Task) -> Iterator[str]:
    """Yield the reasons, one sentence each, why the trainer cannot leave completions unfinished (`run.samplers: 0`)."""
    if not config.run.async_steps or config.run.samplers:
        return
    remedy = "Set run.samplers to 1, or run.async_steps to 0"
    if not config.run.partial:
        yield f"run.samplers is 0 and run.partial false: then nothing could continue in a later step. {remedy}"
    kind = row_kind(task)
    if kind.samples and not kind.pauses:  # rows that are not sampled are refused by themselves
        yield (
            f"run.samplers is 0, and rows of the task '{task.name}' are not single completions: an episode cannot be "
            f"left in the middle and be in a checkpoint. {remedy}"
        )
    if stops := (*task.stop, *config.sampling.stop):
        yield (
            f"run.samplers is 0, and {', '.join(map(repr, stops))} ends a completion: a text may span the pause, and "
            f"would not be seen. {remedy}"
        )


def _why_not(part: DataPart) -> str:
    """Return why a part cannot run ahead; '' if it can."""
    if part.async_safe or isinstance(part, Pretraining):
        return ""
    if part.kind == "augment":
        return (
            "samples more within the step, after completions are scored, but the sampler's process only samples "
            "what was requested"
        )
    if part.kind == "buffer":
        return "brings in rows of earlier steps, so run.async_steps would not bound the age of completions"
    if isinstance(part, SamplingRule):
        return "samples by the results of the previous step, which are not yet known when completions are sampled ahead"
    return (
        "chooses by the results of the previous step, or samples in order to choose; sampled ahead, it "
        "would be another method"
    )


def async_idle(config: Config, method: Method) -> Iterator[str]:
    """Yield a sentence for each setting of asynchronous runs that has no effect."""
    run = config.run
    given = [name for name in SETTINGS if name in run.model_fields_set]
    if not run.async_steps:
        yield from (f"run.{name} has no effect: run.async_steps is 0" for name in given)
        return
    if not run.samplers and run.partial and "partial" in given:
        yield "run.partial has no effect: run.samplers is 0, and what is unfinished continues in the next step"
    if run.samplers > run.async_steps + 1:
        idle = run.samplers - run.async_steps - 1
        yield (
            f"{idle} of the {run.samplers} run.samplers {'has' if idle == 1 else 'have'} nothing to sample: a step's "
            f"prompts go to one of them, and run.async_steps {run.async_steps} keeps only {run.async_steps + 1} "
            "steps in flight. Set run.samplers to that number"
        )
    partial = run.partial and "partial" in given and run.samplers > 0
    if config.sampling.engine == LOCAL and partial and samples_elsewhere(config):
        yield "run.partial has no effect: the samplers of a cluster finish what they have begun"
    if config.sampling.engine != LOCAL and partial:
        own = {
            VLLM: "has its own setting, sampling.vllm.in_flight",
            SGLANG: "always continues with new weights",
        }
        does = own.get(config.sampling.engine, "finishes what it has begun")
        yield f"run.partial has no effect: the engine {config.sampling.engine} {does}"
    if "proximal" in given and "old_bt" not in method.needs():
        yield f"run.proximal has no effect: {method.name} reads no old log-probs"


def samples_elsewhere(config: Config) -> bool:
    """Return whether the workers of a cluster do the sampling."""
    return config.cluster.ray != "off" and config.cluster.samplers > 0


def async_explanations(config: Config, method: Method, environment: bool, whole: str = "") -> list[str]:
    """Return sentences that explain the asynchronous settings of a run; `whole` is how rows are sampled that cannot
    continue with new weights.
    """
    run, batch = config.run, config.batch
    if not run.async_steps:
        return []
    room = Admission.resumed(run.async_steps, batch.prompts, 0).capacity
    if not run.samplers:
        return _between_updates(config, room) + _old_log_probs(config, method)
    where = "a separate process (with a second copy of the model)"
    if run.samplers > 1:
        where = f"{run.samplers} separate processes (each with a copy of the model), a step's prompts in one of them"
    found = [
        f"completions are sampled up to {run.async_steps} steps ahead of their update, in {where}: at most "
        f"{room} prompts are in flight, (async_steps + 1)·batch.prompts"
    ]
    if whole:
        found.append(whole)
    elif run.partial and config.sampling.engine == LOCAL and not samples_elsewhere(config):
        what = "unfinished episodes continue with new weights at their next turn" if environment else _IN_THE_MAKING
        found.append(f"{what}; each token records the version that sampled it")
    return found + _old_log_probs(config, method)


def _between_updates(config: Config, room: int) -> list[str]:
    """Say what it means that the trainer samples ahead by itself."""
    steps = config.run.async_steps
    found = [
        f"the trainer samples the completions of {steps + 1} steps side by side, at most {room} prompts; as soon as a "
        "step has its own, the unfinished ones wait for its update and continue with the new weights; each token "
        "records the version that sampled it"
    ]
    if config.sampling.engine != LOCAL or samples_elsewhere(config) or current_ranks() is not None:
        found.append(f"this engine cannot be paused: completions are sampled in {PIECES} pieces")
    return found


def _old_log_probs(config: Config, method: Method) -> list[str]:
    """Say where the old log-probs of older completions come from, if the method reads any."""
    needs = method.needs()
    return [_proximal(config.run.proximal, "behavior_bt" in needs)] if "old_bt" in needs else []


def _proximal(proximal: str, corrects: bool) -> str:
    if proximal == "sampler":
        return "old log-probs are the sampler's own, so the ratio and its clipping compare the policy with the sampler"
    if corrects:
        return "old log-probs are recomputed for older completions; the method corrects for what sampled them"
    return (
        "old log-probs are recomputed for older completions, so the ratio ignores the policy's changes since "
        f"they were sampled, and nothing corrects for it: take decoupled_ppo, or add {ADD} (or masked_importance), "
        "or set run.proximal to sampler"
    )
