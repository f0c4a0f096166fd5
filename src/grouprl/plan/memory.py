"""The size of a run before it begins: the batch arithmetic and an estimate of the memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grouprl.algorithms.method import Method
from grouprl.algorithms.references import Iterates
from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import numbers
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.model_facts import ModelFacts, ReferenceFacts
from grouprl.policy.devices import BYTES
from grouprl.policy.kinds import policy_kind
from grouprl.policy.passes import chunk_rows, numbers_per_token, tokens_in_cache
from grouprl.processes.current_ranks import current_ranks

SAMPLER = "sampler's copy"
"""Name of the cost of a second process that samples."""


@dataclass(frozen=True)
class Arithmetic:
    """The size of a rollout and its division into optimiser steps. Tokens are upper bounds unless stated otherwise."""

    steps: int
    prompts: int
    group_size: int
    completions: int
    minibatches: int
    epochs: int
    phases: int
    updates_per_rollout: int
    updates: int
    whole_rows: bool
    """Whether an optimiser step takes whole rows; if not, it takes single actions, and there may be fewer steps."""
    rows_per_update: int
    """Completions of an optimiser step, of the largest one if prompts do not divide evenly."""
    prompt_tokens: int
    """Longest prompt among the first training prompts."""
    max_new_tokens: int
    tokens_per_rollout: int
    tokens_per_update: int
    tokens_per_pass: int
    """Tokens in a pass of one process: of a longer row all of its own, of a row that processes share one slice."""
    passes_per_update: int
    refill_rounds: int
    mixed: bool = False
    """Whether products are in bfloat16, and their inputs are kept in it."""
    context: int = 1
    """How many processes share each row."""

    @property
    def row(self) -> int:
        """The largest number of tokens in a row."""
        return self.prompt_tokens + self.max_new_tokens


@dataclass(frozen=True)
class Cost:
    """One entry of the memory estimate, in bytes, with its arithmetic."""

    what: str
    bytes: int
    how: str


def batch_arithmetic(
    config: Config,
    prompt_tokens: int,
    max_new_tokens: int,
    refill_rounds: int,
    phases: int = 1,
    model: ModelFacts | None = None,
    updates: int | None = None,
) -> Arithmetic:
    """Work out the size of a rollout and its division into steps and passes; `model` limits the size of a pass.

    `updates` is the largest number of optimiser steps of a rollout where they take single actions; None: whole rows.
    """
    plan, mixed = config.batch, config.model.precision == "mixed" and current_ranks() is None
    limit = plan.tokens_per_microbatch if model is None else min(plan.tokens_per_microbatch, _cached(model, mixed))
    completions = plan.prompts * plan.group_size
    rows, row = math.ceil(plan.prompts / plan.minibatches) * plan.group_size, prompt_tokens + max_new_tokens
    context = config.model.context_parallel
    each = config.updates_per_rollout * phases if updates is None else updates
    return Arithmetic(
        steps=config.steps,
        prompts=plan.prompts,
        group_size=plan.group_size,
        completions=completions,
        minibatches=plan.minibatches,
        epochs=plan.epochs,
        phases=phases,
        updates_per_rollout=each,
        updates=each * config.steps,
        whole_rows=updates is None,
        rows_per_update=rows,
        prompt_tokens=prompt_tokens,
        max_new_tokens=max_new_tokens,
        tokens_per_rollout=completions * row,
        tokens_per_update=rows * row,
        tokens_per_pass=min(max(limit, math.ceil(row / context)), math.ceil(rows * row / context)),
        passes_per_update=math.ceil(rows / max(1, limit * context // row)),
        refill_rounds=refill_rounds,
        mixed=mixed,
        context=context,
    )


def _cached(model: ModelFacts, mixed: bool) -> int:
    return tokens_in_cache(_per_token(model), model.device, mixed=mixed)


def _per_token(model: ModelFacts) -> int:
    return numbers_per_token(model.hidden, model.intermediate, model.kv_width)


def activations(model: ModelFacts, batch: Arithmetic) -> int:
    """Return the bytes that a forward pass keeps for its backward pass."""
    return batch.tokens_per_pass * model.layers * _per_token(model) * _kept_bytes(model, batch)


def _kept_bytes(model: ModelFacts, batch: Arithmetic) -> int:
    return BYTES["bfloat16"] if batch.mixed else model.bytes_each


ACTIVATIONS = "activations of a pass"
"""Name of the cost of what a forward pass keeps for its backward pass."""
KEYS = "keys of shared rows"
"""Name of the cost of keys and values that a layer gathers from the processes that share rows with this one."""
KEYS_HELD = 3
"""How often a layer's gathered keys and values are held: beside their gradients, in the order of the row and of
ranks.
"""


def _gathered_keys(model: ModelFacts, batch: Arithmetic) -> Cost:
    numbers = batch.tokens_per_pass * batch.context * 2 * model.kv_width
    how = f"{KEYS_HELD} × {batch.tokens_per_pass * batch.context:,} tokens × 2 × {model.kv_width} × "
    return Cost(KEYS, KEYS_HELD * numbers * model.bytes_each, f"{how}{model.bytes_each} bytes, for one layer at a time")


REFERENCE = "reference copy"
"""Name of the cost of a frozen reference."""
BELOW_ADAPTERS = Cost(REFERENCE, 0, "the model below the adapters, which the policy has")
"""The cost of a reference that shares its weights with the policy."""
FOLLOWERS = "references that follow"
"""Name of the cost of copies that follow the policy."""


def follower_count(method: Method) -> int:
    """Return the number of a method's references that follow the policy."""
    return sum(isinstance(rule, Iterates) for rule in method.references().values())


def memory(
    model: ModelFacts,
    batch: Arithmetic,
    *,
    reference: int,
    followers: int = 0,
    second_models: int = 0,
    samplers: int = 0,
    steps_at_once: int = 1,
    anew: bool = False,
    offloads: bool = False,
    scores: bool = False,
    turns: bool = False,
) -> tuple[Cost, ...]:
    """Estimate the memory of weights, optimiser, an update and a rollout, each with its arithmetic.

    `reference` is the number of parameters of the frozen reference, 0 without one; `followers` is the number of
    references that follow the policy; `second_models` that of models kept by parts of the method, whose weights are
    stored once more for checkpoints. With `samplers`, other processes sample, and weights are sent through shared
    memory with room for two versions; a process that samples holds the completions of `steps_at_once` steps.

    A model that `scores` texts has no log-probs of tokens, and samples none. Rows of several `turns` are continued
    from what is kept of them, of which windows of attention then drop nothing.

    With `anew`, a pass keeps the inputs of its layers and the activations of one layer; with `offloads` too, the input
    of one layer.

    Activations are those of a Llama-like layer with fused attention, 8 hidden + 4 intermediate + 2 key-value numbers
    per token; measurements of transformers without shared prompts are within 10 % of this. The lean engine keeps up to
    20 % less.
    """
    copies = _copies(model, reference=reference, followers=followers, second_models=second_models)
    sampling = _of_samplers(model, samplers) if samplers else ()
    update = _of_update(model, batch, anew=anew, offloads=offloads)
    tokens = (_log_probs(model), _rollout_cache(model, batch, max(1, samplers) * steps_at_once, turns=turns))
    return (*_trained(model), *copies, *sampling, *update, *(() if scores else tokens))


def _trained(model: ModelFacts) -> Iterator[Cost]:
    """Yield the costs of the policy and its optimiser."""
    size, train = model.bytes_each, model.trainable
    wide = max(size, 4)  # the optimiser computes in float32 or better
    yield Cost("weights", model.parameters * size, f"{model.parameters:,} parameters × {size} bytes")
    yield Cost("gradients", train * size, f"{train:,} trainable × {size} bytes")
    yield Cost("Adam moments", 2 * train * wide, f"2 × {train:,} × {wide} bytes")
    if wide > size:
        yield Cost("float32 copies", train * wide, f"{train:,} × {wide} bytes: what the optimiser steps")


def _copies(model: ModelFacts, *, reference: int, followers: int, second_models: int) -> Iterator[Cost]:
    """Yield the costs of further models in this process."""
    each, size = model.parameters, model.bytes_each
    if reference:
        yield Cost(REFERENCE, reference * size, f"{reference:,} × {size} bytes")
    if followers:
        yield Cost(FOLLOWERS, followers * each * size, f"{followers} × {each:,} × {size} bytes")
    if second_models:
        how = f"{second_models} × ({each:,} + {model.trainable:,} stored) × {size} bytes"
        yield Cost("second models", second_models * (each + model.trainable) * size, how)


def _of_samplers(model: ModelFacts, samplers: int) -> Iterator[Cost]:
    """Yield the costs of processes that sample, and of sending them weights."""
    size, train = model.bytes_each, model.trainable
    each = f"{model.parameters:,} × {size} bytes, in its own process"
    yield Cost(SAMPLER, samplers * model.parameters * size, each if samplers == 1 else f"{samplers} × {each}")
    yield Cost("shared weights", 2 * train * size, f"2 versions × {train:,} × {size} bytes")


def _of_update(model: ModelFacts, batch: Arithmetic, *, anew: bool, offloads: bool) -> Iterator[Cost]:
    """Yield the costs of a forward and a backward pass."""
    yield _layers_anew(model, batch, 1 if offloads else model.layers) if anew else _layers_kept(model, batch)
    if batch.context > 1:
        yield _gathered_keys(model, batch)


def _log_probs(model: ModelFacts) -> Cost:
    """Return the cost of the logits of which log-probs of tokens are made."""
    chunk = model.vocabulary * chunk_rows(model.device.split(":")[0], model.vocabulary)
    return Cost("log-prob chunk", 3 * 4 * chunk, f"3 × {chunk:,} logits × 4 bytes, however many positions there are")


def _layers_kept(model: ModelFacts, batch: Arithmetic) -> Cost:
    how = f"{batch.tokens_per_pass:,} tokens × {model.layers} layers × {_per_token(model):,} numbers × "
    return Cost(ACTIVATIONS, activations(model, batch), f"{how}{_kept_bytes(model, batch)} bytes")


def _layers_anew(model: ModelFacts, batch: Arithmetic, inputs: int) -> Cost:
    """Return the cost of keeping the inputs of `inputs` layers and the activations of one."""
    per_token, size, word = _per_token(model), model.bytes_each, "layer" if inputs == 1 else "layers"
    how = f"{batch.tokens_per_pass:,} tokens × ({inputs} {word} × {model.hidden} + {per_token:,}) numbers × "
    kept = batch.tokens_per_pass * (inputs * model.hidden + per_token) * size
    return Cost(ACTIVATIONS, kept, f"{how}{size} bytes")


def _rollout_cache(model: ModelFacts, batch: Arithmetic, count: int, *, turns: bool) -> Cost:
    """Return the cost of what is kept of the rows of `count` rollouts."""
    size, kept = model.bytes_each, model.kept.whole if turns else model.kept
    held = round(batch.completions * kept.numbers(batch.row))
    times = f"{count} × " if count > 1 else ""
    how = f"{times}{batch.completions:,} completions × {kept.said(batch.row)} × {size} bytes"
    return Cost("rollout cache", count * held * size, how)


PARTS_OF_RANKS = ("gradients", "Adam moments", "float32 copies", REFERENCE, "rollout cache")
"""Costs that ranks divide among themselves. They also divide weights, but sampling ranks keep a whole copy, too."""
GATHERED = "layers gathered"
"""Name of the cost of the two largest layers: what is used, and what comes next or is a gradient."""
COPIES = 2
"""How often a gathered layer is held: in the buffer in which it arrives, and copied out of it."""


def gathered_numbers(parameters: int, layers: int, embedding: int, *, tied: bool) -> int:
    """Return how many numbers a rank gathers at a time: the two largest layers, the embedding included, twice."""
    block = (parameters - embedding * (1 if tied else 2)) // max(layers, 1)
    return COPIES * sum(sorted([embedding, *[block] * min(layers, 2)])[-2:])


def gathered(model: ModelFacts, reference: ReferenceFacts | None = None, *, teaches: bool = False) -> Cost:
    """Return the cost of what a rank gathers in a pass: of the policy or of its reference, whichever is more, and of
    both where the reference `teaches`, since it then runs within the policy's passes.
    """
    embedding = model.vocabulary * model.hidden
    own = gathered_numbers(model.parameters, model.layers, embedding, tied=model.tied)
    other = 0
    if reference is not None and reference.parameters:
        other = gathered_numbers(reference.parameters, reference.layers, reference.embedding, tied=reference.tied)
    count = own + other if teaches else max(own, other)
    whose = "two layers of the policy and two of its teacher" if teaches else "two layers"
    how = f"{COPIES} × {count // COPIES:,} × {model.bytes_each} bytes: {whose}, as they arrive and as they are used"
    return Cost(GATHERED, count * model.bytes_each, how)


def acting_reference(model: ModelFacts, reference: ReferenceFacts) -> Cost:
    """Return the cost of the whole copy of the frozen reference that each rank samples from."""
    how = f"{reference.parameters:,} parameters × {model.bytes_each} bytes, whole, to be sampled from"
    return Cost("acting reference", reference.parameters * model.bytes_each, how)


def memory_on_ranks(costs: Iterable[Cost], ranks: int, here: int, copies: int) -> tuple[Cost, ...]:
    """Convert the costs of one process to those of `here` ranks on this device, out of `ranks` in all.

    `copies` is the number of whole copies of the weights on the device: where servers sample there is none.
    """
    found = []
    for cost in costs:
        share = here / ranks if cost.what in PARTS_OF_RANKS else float(here)
        if cost.what == "weights":
            share = here / ranks + copies
        elif cost.what == SAMPLER:
            share = 1.0  # only rank 0 has a second process
        found.append(Cost(cost.what, round(cost.bytes * share), f"{cost.how}, on {ranks} ranks, {here} here"))
    return tuple(found)


def memory_of_kind(run: ResolvedRun) -> tuple[Cost, ...]:
    """Estimate the memory of a policy over arrays and of its rollout; () for a language model, or if no policy fits.

    The memory that a pass keeps depends on the policy's own code and is unknown here; it is similar to the weights'.
    """
    config, observed = run.config, _numbers_of_episode(run)
    if policy_kind(config.model.name) is None or not observed:
        return ()
    from grouprl.orchestrator.make_policy import build_kind

    try:
        policy = build_kind(run)
    except InputError:  # reported among the refusals
        return ()
    tensors = list(policy.parameters())
    count, size = sum(p.numel() for p in tensors), sum(p.numel() * p.element_size() for p in tensors)
    said = f"{count:,} trainable parameters"
    rows = config.batch.prompts * config.batch.group_size
    costs = [
        Cost("weights", size, said),
        Cost("gradients", size, said),
        Cost("Adam moments", 2 * size, f"2 × {said}"),
        Cost("rollout cache", rows * observed * 4, f"observations of {rows:,} episodes × {observed} numbers × 4 bytes"),
    ]
    if run.needs_reference:
        costs.append(Cost(REFERENCE, size, said))
    if followers := follower_count(run.method):
        costs.append(Cost(FOLLOWERS, followers * size, f"{followers} × {said}"))
    return tuple(costs)


def _numbers_of_episode(run: ResolvedRun) -> int:
    """Return how many numbers the observations of one requested episode hold at most, or those of one environment in a
    step of training; 0 if they are not arrays.
    """
    task, spaces = run.task, run.row_kind.spaces_of(run.task)
    if spaces is None:
        return 0
    actions = task.actions_per_step or task.max_turns * spaces.chain
    return actions * numbers(spaces.observation) + numbers(spaces.context)


def peak(costs: Iterable[Cost]) -> int:
    """Return the peak bytes: an update and a rollout only overlap if a second process samples."""
    size = {cost.what: cost.bytes for cost in costs}
    update, cache = (
        sum(size.pop(name, 0) for name in names)
        for names in ((ACTIVATIONS, KEYS, "log-prob chunk"), ("rollout cache",))
    )
    return sum(size.values()) + (update + cache if SAMPLER in size else max(update, cache))


def human(count: float, unit: str = "B") -> str:
    """Write a number of bytes (or of anything else, in thousands) with three digits: 1.5 GiB, 156 k."""
    base, names = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit == "B" else (1000, ("", "k", "M", "G", "T"))
    power = min(int(math.log(count, base)), 4) if count >= 1 else 0
    value = count / base**power
    digits = f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"  # "g" writes 1010 as 1.01e+03
    return f"{digits} {names[power]}{unit}".strip()
