"""The sections on a step: its prompts, its samples, its update, and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from grouprl.config.sections.section import (
    Float,
    Section,
    WrittenCount,
    WrittenNonNegative,
    WrittenPositive,
    WrittenShare,
    WrittenWhole,
    as_number,
)
from grouprl.config.sections.servers import Sglang, Vllm
from grouprl.core.json_types import JsonObject


class BatchPlan(Section):
    """The number of completions per rollout, and their division into optimiser steps."""

    prompts: WrittenCount = 32
    """Prompts per rollout."""
    group_size: WrittenCount = 16
    """Completions per prompt."""
    minibatches: WrittenCount = 1
    """Optimiser steps that share one pass over a rollout; groups are kept whole, and if their number does not divide
    evenly, some steps have one more, each with denominators of its own rows."""
    epochs: WrittenCount = 1
    """Passes over each rollout."""
    tokens_per_microbatch: WrittenCount = 16384
    """Upper limit of tokens (prompt and completion) that go through the model at once; changes memory, not results."""


class Data(Section):
    """The choice among the task's training prompts."""

    prompts: WrittenCount | None = None
    """Number of training prompts to use, from the first on; None: all. Curricula that return to prompts need one."""


class Sampling(Section):
    """The sampling of completions in training."""

    temperature: WrittenPositive = 1.0
    """Logits are divided by it, in sampling and in every log-prob."""
    max_new_tokens: WrittenCount | None = None
    """Largest number of tokens of a completion, or of a turn; None: the task's own budget."""
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens that hold this much probability; 1: from all."""
    top_k: WrittenWhole = 0
    """Sample from this many most likely tokens; 0: from all."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a completion, or a turn, as an end token does, besides those of the task; they stay in it."""
    history: Literal["refuse", "append", "split"] = "refuse"
    """If the chat template rewrites earlier turns, for each episode: count the episode as failed, keep what was
    written, or continue in a new row with the rewritten history as its prompt."""
    tool_calls: str = "auto"
    """The syntax of tool calls: auto (that of the model's chat template), a name of the table in chat_templates.md, or
    your own (file.py:name)."""
    engine: str = "local"
    """The sampler: `local`, the decoder of this process; `vllm`, servers of vLLM; `sglang`, servers of SGLang; a name
    that a plugin registers; or a class or function of yours, as `pkg.module:Class` or `file.py:Class`, that is called
    with the policy."""
    engine_settings: JsonObject = {}
    """Further arguments of an engine of yours."""
    vllm: Vllm = Vllm()
    """The addresses of vLLM's servers, and the way in which they are started."""
    sglang: Sglang = Sglang()
    """The addresses of SGLang's servers, and the way in which they are started."""

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the engine besides the policy."""
        servers: dict[str, JsonObject] = {"vllm": {"vllm": self.vllm}, "sglang": {"sglang": self.sglang}}
        return {**self.engine_settings, **servers.get(self.engine, {})}


class Optim(Section):
    """The optimiser and its schedule."""

    name: str = "adamw"
    """Any optimiser of torch, in lower case: adamw, sgd, rmsprop, muon …"""
    settings: JsonObject = {}
    """Further arguments of that optimiser, for instance {momentum: 0.9} of sgd."""
    lr: WrittenPositive = 1e-6
    """Not given: 1e-3 for `tiny`, 1e-6 for full training of another model, 1e-5 for adapters."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """The course of the learning rate after `warmup_steps`."""
    min_lr_ratio: WrittenShare = 0.05
    """Learning rate at the end, as a share of `lr` (linear and cosine)."""
    warmup_steps: WrittenWhole = 0
    """Steps over which the learning rate rises linearly from 0."""
    betas: tuple[WrittenShare, WrittenShare] = (0.9, 0.95)
    """The betas of optimisers that have them."""
    weight_decay: WrittenNonNegative = 0.0
    """Decoupled weight decay, of optimisers that have it."""
    grad_clip: WrittenNonNegative = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""

    @pydantic.field_validator("settings")
    @classmethod
    def _numbers(cls, settings: JsonObject) -> JsonObject:
        """Read texts such as 1e-5 as the numbers that optimisers need, as all settings of ours are read."""
        return {name: as_number(value) for name, value in settings.items()}


class Eval(Section):
    """Evaluation on held-out prompts, before, during and after training."""

    every: WrittenWhole = 20
    """Steps between evaluations; 0: only before and after."""
    prompts: WrittenCount = 256
    """Held-out prompts used while training."""
    final_prompts: WrittenCount = 1024
    """Held-out prompts used before and after training."""
    samples: WrittenCount = 1
    """Sampled completions per prompt."""
    k: Annotated[tuple[WrittenCount, ...], Field(min_length=1)] = (1,)
    """pass@k for these k; each at most `samples`."""
    metrics: tuple[str, ...] = ()
    """Yardsticks besides the reward, which train nothing: functions of a reward's form, by a built-in name or as
    `file.py:function`; recorded as `eval/metric/NAME` with interval and gain."""
    best: str = ""
    """The measure by which the best checkpoint is kept besides the newest: a name of `metrics`, or `pass@1`, `reward` …
    as in `eval/NAME` of the record; the largest mean is the best, over those of the first held-out prompts that have a
    value. Empty: none."""
