"""The way rows pass through the model, and the reason: engine, packing, shared prompts, recomputed layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.orchestrator.pass_settings import pass_settings
from grouprl.plan.memory import Arithmetic, activations, human
from grouprl.plan.model_facts import ModelFacts
from grouprl.policy.engine_names import AUTO_LIMIT, engine_name, other_engine
from grouprl.policy.passes import MEMORY_SHARE, PACKING_PAYS, SHARING_PAYS, checkpointing_threshold, free_bytes
from grouprl.policy.precision import PrecisionChoice, choose_precision, told
from grouprl.processes.current_ranks import current_ranks, launched


@dataclass(frozen=True)
class PassChoice:
    """One choice: its name, its value, and the reason."""

    name: str
    value: str
    why: str


def pass_choices(config: Config, model: ModelFacts | None, batch: Arithmetic) -> tuple[PassChoice, ...]:
    """Return every choice; empty for an unknown model, or one that cannot be run as requested."""
    if model is None or list(pass_refusals(config, model)):
        return ()
    engine = _engine(config, model)
    found = [PassChoice("engine", engine, _engine_why(config, model, engine)), _packing(config, engine)]
    found += [_sharing(config, engine, batch), _checkpointing(config, model, batch)]
    if batch.context > 1:
        found.append(_context(batch))
    if config.model.compile:
        found.append(PassChoice("compiled", "on", "requested; tried on three rows when the model is loaded"))
    return tuple(found)


def pass_refusals(config: Config, model: ModelFacts | None) -> Iterator[str]:
    """Say why the model cannot be run as requested, as far as its configuration shows."""
    if model is None:
        return
    settings = pass_settings(config.model)
    try:
        engine = _engine(config, model)
        precision_of(config, model)
    except InputError as error:
        yield str(error)
        return
    anew = settings.checkpointing in ("on", "offload")
    if engine == "transformers" and settings.shared_prefix == "on" and anew:
        yield (
            f"model.shared_prefix = on and model.checkpointing = {settings.checkpointing}: through transformers, "
            "shared prompts live in a cache, which must not be written twice. Switch one of them off"
        )


def precision_of(config: Config, model: ModelFacts) -> PrecisionChoice:
    """Return the precision of the model's products, and the reason.

    Raises:
        InputError: the requested precision is not available.
    """
    if _on_ranks(config):
        mixed = config.model.precision == "mixed"
        return PrecisionChoice("mixed" if mixed else "float32", "requested" if mixed else "ranks keep float32 weights")
    engine = _engine(config, model)
    sizes = (model.device, model.hidden, model.intermediate)
    return choose_precision(config.model.precision, model.dtype, *sizes, other_engine(engine))


def precision_notes(config: Config, model: ModelFacts, requested: str) -> Iterator[str]:
    """Say what the precision of products costs or would gain on this machine, if that is worth knowing."""
    if list(pass_refusals(config, model)):
        return
    engine = _engine(config, model)
    mixed = other_engine(engine) is None
    yield from told(requested, model.dtype, model.device, model.hidden, model.intermediate, mixed)


def _on_ranks(config: Config) -> bool:
    """Return whether several processes share the model: those running, or learners that the run will start."""
    return current_ranks() is not None or (config.cluster.learners > 1 and not launched())


def _engine(config: Config, model: ModelFacts) -> str:
    """Return the name of the engine that runs the model in training."""
    if _on_ranks(config) and config.model.engine == "auto":
        return "transformers"  # sharding needs the modules of transformers
    return engine_name(config.model.engine, model.lean or None, model.parameters, pass_settings(config.model))


def computed_anew(config: Config, model: ModelFacts, batch: Arithmetic) -> bool:
    """Return whether layers are recomputed in the backward pass."""
    per_token = activations(model, batch) // batch.tokens_per_pass
    threshold = checkpointing_threshold(config.model.checkpointing, per_token, free_bytes(model.device))
    return batch.tokens_per_pass > threshold


def offloads(config: Config, model: ModelFacts) -> bool:
    """Return whether the inputs of layers leave a GPU's memory until the backward pass."""
    return config.model.checkpointing == "offload" and not model.device.startswith("cpu")


def _engine_why(config: Config, model: ModelFacts, engine: str) -> str:
    if engine == "lean":
        return "Llama-like: own forward pass, same numbers, fewer operations"
    if config.model.engine == "transformers":
        return "requested"
    if model.lean:
        return f"no own forward pass: {model.lean}"
    if config.model.checkpointing == "offload":
        return "the lean engine keeps the inputs of its layers where they are"
    if config.model.packing == "off":
        return "packing is off, and the lean engine always packs"
    return f"more than {AUTO_LIMIT // 10**6} million parameters: large products dominate"


def _packing(config: Config, engine: str) -> PassChoice:
    choice = config.model.packing
    if engine == "lean":
        return PassChoice("packing", "on", "nothing is padded outside attention")
    if choice != "auto":
        why = "requested" if choice == "off" else "requested; tried on three rows when the model is loaded"
        return PassChoice("packing", choice, why)
    return PassChoice(
        "packing",
        "where it pays",
        f"for passes that padding makes at least {PACKING_PAYS - 1:.0%} longer, if the model takes it (tried on three "
        "rows when it is loaded)",
    )


def _sharing(config: Config, engine: str, batch: Arithmetic) -> PassChoice:
    choice, prompt, completion = config.model.shared_prefix, batch.prompt_tokens, batch.max_new_tokens
    if choice == "off" or config.model.compile:
        return PassChoice("shared prompts", "off", "requested" if choice == "off" else "layers are compiled")
    repeated, shared = batch.group_size * (prompt + completion), prompt + batch.group_size * completion
    ratio = (
        f"{batch.group_size} × ({prompt} + {completion}) / ({prompt} + {batch.group_size} × {completion}) = "
        f"{repeated / shared:.2f}"
    )
    if choice == "on":
        return PassChoice("shared prompts", "on", f"requested; at full length {ratio} times fewer tokens")
    rule = f"{ratio} times fewer tokens at full length, more with shorter completions; pays from {SHARING_PAYS}"
    lean = "; so is any other beginning that completions share, when they are sampled and when they are trained on"
    tried = "; tried on three rows when the model is loaded"
    return PassChoice("shared prompts", "where it pays", rule + (lean if engine == "lean" else tried))


def _context(batch: Arithmetic) -> PassChoice:
    each = math.ceil(batch.row / batch.context)
    why = f"requested; each runs {each:,} of a row's {batch.row:,} tokens, and gathers the keys of all layer by layer"
    return PassChoice("rows", f"shared by {batch.context} processes", why)


def _checkpointing(config: Config, model: ModelFacts, batch: Arithmetic) -> PassChoice:
    needed, free = activations(model, batch), free_bytes(model.device)
    chosen = computed_anew(config, model, batch)
    if offloads(config, model):
        waits = f"requested; {human(model.layers * model.hidden * batch.tokens_per_pass * model.bytes_each)} of inputs"
        return PassChoice("checkpointing", "offload", f"{waits} of layers wait in main memory for the backward pass")
    if config.model.checkpointing == "offload":
        why = "the model is on a CPU, where what layers keep is in main memory already"
        return PassChoice("checkpointing", "on", f"offload was requested; {why}")
    if config.model.checkpointing != "auto":
        return PassChoice(
            "checkpointing", config.model.checkpointing, f"requested; without it, a pass takes {human(needed)}"
        )
    of = "unknown free memory" if free is None else f"{human(free)} free"
    return PassChoice(
        "checkpointing",
        "on" if chosen else "off",
        f"activations of a pass take {human(needed)}, {of}; layers are computed anew above {MEMORY_SHARE:.0%} of it",
    )
