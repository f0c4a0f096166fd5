"""Lengths of a run's prompts and completions, and the passes and memory that a step of them needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import Config
from grouprl.core.finding import Finding
from grouprl.core.outputs import TEACHER_KL
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.evaluation.sample_and_score import example_text
from grouprl.orchestrator.on_ray.placed_counts import whole_copies
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan import codes
from grouprl.plan.checks import PromptEncoder, prompt_lengths, prompts_of, room, too_large
from grouprl.plan.codes import told
from grouprl.plan.forward_plan import computed_anew, offloads
from grouprl.plan.memory import (
    BELOW_ADAPTERS,
    Arithmetic,
    Cost,
    acting_reference,
    batch_arithmetic,
    follower_count,
    gathered,
    memory,
    memory_of_kind,
    memory_on_ranks,
)
from grouprl.plan.model_facts import ModelFacts, ReferenceFacts, read_reference
from grouprl.policy.devices import device_name
from grouprl.policy.passes import free_bytes
from grouprl.processes.current_ranks import current_ranks, ranks_here
from grouprl.records.examples import Prompt, Split
from grouprl.rollout.episode_rows import Measured, measured
from grouprl.rollout.template_check import check_template
from grouprl.tasks import Example, Task

LOOKED_AT = 32
"""Training examples whose prompts are measured."""
LONGEST, SURVEYED = 8, 100_000
"""Number of longest prompts measured in each split, and number of prompts whose characters are counted for this."""
EPISODES = 8
"""Number of training prompts of which an episode is played to measure the environment's texts."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of the longest measured prompt (that of the example `which`), and the most tokens after it (`behind`)."""

    longest: int
    behind: int
    which: str
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    idle: tuple[str, ...] = ()
    """Settings that change none of the measured prompts."""


def lengths_of(
    run: ResolvedRun, facts: RunFacts, requested: Sequence[Example], model: ModelFacts | None, tokenizer: object
) -> Lengths:
    """Measure some prompts of a run, or some episodes, and try the chat template on them."""
    looked_at = [] if facts.environment else [*requested, *_longest_prompts(run.task, run.config)]
    prompts = prompts_of(looked_at, run.method, run.task, facts)
    found = _measured_lengths(run, facts, requested, looked_at, prompts, model, tokenizer)
    return replace(found, idle=tuple(_idle_variables(run.config, prompts)))


def _idle_variables(config: Config, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Say if `model.chat_template_kwargs` changes no prompt, as none is shown by a chat template."""
    if config.model.chat_template_kwargs and prompts and all(isinstance(prompt, str) for prompt in prompts):
        yield (
            "model.chat_template_kwargs changes no prompt of this run: all that were looked at are plain text, and a "
            "chat template shows messages. It only changes the template that is saved with the model"
        )


def _measured_lengths(
    run: ResolvedRun,
    facts: RunFacts,
    requested: Sequence[Example],
    looked_at: Sequence[Example],
    prompts: Sequence[Prompt],
    model: ModelFacts | None,
    tokenizer: object,
) -> Lengths:
    task = run.task
    lengths, complaints = prompt_lengths(tokenizer, prompts) if tokenizer is not None else ([], [])
    if facts.environment:
        found = _episodes(run, requested, tokenizer)
        cut_off = _cut_off_episodes(model, found.prompt, found.behind, task.max_turns)
        said, notes = (*complaints, *found.complaints), (*found.notes, *cut_off)
        return Lengths(found.prompt, found.behind, "", said, notes)
    if tokenizer is not None and not run.row_kind.samples:
        positions = None if model is None else model.positions
        stored = run.row_kind.survey(task, PromptEncoder(tokenizer), positions)
        assert stored is not None
        told = check_template(PromptEncoder(tokenizer), prompts, task=task)
        refused = (*complaints, *stored.refusals, *told.refusals)
        return Lengths(stored.prompt, stored.behind, "", refused, (*told.notes, *stored.notes))
    longest = max(lengths, default=0)
    which = next((q.id for q, length in zip(looked_at, lengths, strict=False) if length == longest), "")
    if tokenizer is None:
        return Lengths(longest, run.max_new_tokens, which, tuple(complaints), ())
    told = check_template(PromptEncoder(tokenizer), prompts, task=task)
    return Lengths(longest, run.max_new_tokens, which, (*complaints, *told.refusals), tuple(told.notes))


def _episodes(run: ResolvedRun, requested: Sequence[Example], tokenizer: object) -> Measured:
    """Play a few episodes with a trivial policy, and measure their texts."""
    # Arrays have no texts to measure: a language model is refused there anyway, and for that reason alone.
    encoder = PromptEncoder(tokenizer) if tokenizer is not None and run.row_kind.text else None
    acting = run.config.environment
    workers = acting.workers if acting.workers == "auto" else min(1, acting.workers)
    stage, _ = open_stage(run.task, workers, most=1, timeout=acting.timeout, memory_gb=acting.memory_gb)
    with closing(stage):
        history = run.config.sampling.history
        return measured(encoder, run.task, requested[:EPISODES], run.max_new_tokens, history, stage)


@dataclass(frozen=True)
class Needed:
    """The batch arithmetic of a step, its memory costs, and refusals for what does not fit."""

    batch: Arithmetic
    costs: tuple[Cost, ...]
    refusals: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    gathered: int = 0
    """Numbers of layers that a process gathers at a time where several divide the model; 0 for an unknown model."""


def needed_by(
    run: ResolvedRun, facts: RunFacts, lengths: Lengths, model: ModelFacts | None, *, described: bool = False
) -> Needed:
    """Work out what a step of a run needs, in passes and memory; models that are `described` need no weights here."""
    config, method = run.config, run.method
    rounds = getattr(method.refill, "max_rounds", 1)
    apart = run.updates_per_rollout if method.cuts_rows else None
    batch = batch_arithmetic(config, lengths.longest, lengths.behind, rounds, method.phases, model, apart)
    second = sum(part.second_models() for part in data_parts(method.parts()))
    samplers = config.run.samplers if config.run.samples_apart else 0
    reference = None if model is None else read_reference(run, model, described=described)
    if model is None:
        no_room: list[str] = []
        costs = memory_of_kind(run)
    else:
        anew = computed_anew(config, model, batch)
        followers = follower_count(method)
        costs = memory(
            model,
            batch,
            reference=0 if reference is None else reference.parameters,
            followers=followers,
            anew=anew,
            offloads=offloads(config, model),
            second_models=second,
            samplers=samplers,
            steps_at_once=config.run.steps_at_once,
            scores=run.scores,
            turns=run.task.max_turns > 1,
        )
        costs = (*costs, *([BELOW_ADAPTERS] if reference is not None and not reference.parameters else []))
        more = max((part.behind(run.task, facts) for part in data_parts(method.parts())), default=0)
        no_room = (
            room(model.positions, lengths.longest, run.max_new_tokens, more, lengths.which)
            if run.row_kind.samples
            else []  # rows that are stored are cut to the model's positions
        )
    device = device_name(config.model.device)
    of_layers = () if model is None else (gathered(model, reference, teaches=TEACHER_KL in method.outputs),)
    numbers = 0 if model is None else sum(cost.bytes for cost in of_layers) // model.bytes_each
    if (ranks := current_ranks()) is not None:
        here = ranks_here() if device == "cpu" else 1
        acting = () if model is None or reference is None else _acting(method, model, reference)
        costs = memory_on_ranks((*costs, *of_layers, *acting), ranks.count, here, whole_copies(run, here))
    too_much = too_large(costs, free_bytes(device), device)
    refusals = tuple(told(codes.NO_POSITIONS, no_room))
    if config.run.memory_check:
        tried = (f"{said}. run.memory_check: false tries it all the same" for said in too_much)
        return Needed(batch, costs, (*refusals, *told(codes.MEMORY, tried)), (), numbers)
    notes = (f"{said}. It is tried anyway: run.memory_check is false" for said in too_much)
    return Needed(batch, costs, refusals, tuple(told(codes.MEMORY, notes, "note")), numbers)


def _acting(method: Method, model: ModelFacts, reference: ReferenceFacts) -> tuple[Cost, ...]:
    """Return the cost of a rank's whole copy of the reference, if parts of the method sample from it."""
    acts = any(part.reference_acts() for part in data_parts(method.parts()))
    return (acting_reference(model, reference),) if acts else ()


def first_examples(task: Task) -> list[Example]:
    """Return the training examples whose prompts are measured."""
    size = task.size("train")
    return [task.example("train", i) for i in range(LOOKED_AT if size is None else min(LOOKED_AT, size))]


def _longest_prompts(task: Task, config: Config) -> list[Example]:
    """Return the longest prompts that a run may sample, by characters, if the prompts can be counted.

    Otherwise a prompt that leaves no room would end the run only when it is sampled.
    """
    evaluation = max(config.eval.prompts, config.eval.final_prompts)
    most: dict[Split, int | None] = {"train": config.data.prompts, "eval": evaluation}
    found: list[Example] = []
    for split, limit in most.items():
        size = task.size(split)
        if size is not None:
            counted = range(min(size, SURVEYED, size if limit is None else limit))
            requested = (task.example(split, i) for i in counted)
            found += heapq.nlargest(LONGEST, requested, key=lambda example: len(example_text(example)))
    return found


def _cut_off_episodes(model: ModelFacts | None, prompt: int, completion: int, turns: int) -> list[str]:
    """Say that long episodes are cut off if the model has no room for all their turns."""
    if model is None or model.positions is None or prompt + completion <= model.positions:
        return []
    return [
        f"{turns} turns can take {prompt + completion} positions and the model has {model.positions}: episodes that "
        "reach them end there, as cut off"
    ]
