"""The sections on processes: environments, workers placed by Ray, the run and its records."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from grouprl.config.sections.section import (
    SWITCH,
    Int,
    Section,
    Workers,
    WrittenCount,
    WrittenNonNegative,
    WrittenPositive,
    WrittenWhole,
)
from grouprl.core.json_types import JsonObject


class Acting(Section):
    """The place where the environments of a task act, and their time limits."""

    workers: Workers | Literal["auto"] = "auto"
    """Processes in which environments act, killed and replaced when they hang; 0: in the trainer's own, without a
    clock. `auto`: one per core for environments of yours and of other packages, more while they wait instead of
    computing, and none for this package's, which always return. Where each starts a browser or the like: one per core,
    and no more than fit into memory."""
    timeout: WrittenPositive = 60.0
    """Seconds that one call of an environment may take, in workers; one that takes longer has failed, and its prompt is
    set aside."""
    memory_gb: WrittenPositive = 4.0
    """Memory of a worker, in GiB."""


class Placing(Section):
    """The place where completions are sampled and scored and environments act: here, or placed by Ray; see ray.md."""

    ray: Annotated[str, pydantic.BeforeValidator(lambda x: SWITCH[x] if x is False else x)] = "off"
    """The scheduler of workers: `off`, none, everything stays with the trainer; `auto`, the Ray that runs on this
    machine or that RAY_ADDRESS names; or its address, such as 10.0.0.5:6379."""
    samplers: Workers = 1
    """Shares that the requests of a call are dealt into, each completed by a sampler with a copy of the model. Without
    Ray the shares are completed here, one after the other, with the same results. 0: requests are not placed."""
    rewards: Workers = 1
    """Workers that score completions, each with `reward.workers` processes of its own. 0: scored by the trainer."""
    environments: Workers = 1
    """Workers in which environments act, each with `environment.workers` processes of its own. 0: with the trainer."""
    learners: Workers = 0
    """Processes that share the model and train it, on the nodes of the cluster; the process that is started only places
    and watches them. Without Ray they are processes of this machine, as with `grouprl launch`, with the same results.
    0: the process that is started trains by itself."""
    cpus: WrittenPositive = 1.0
    """Processors that each worker reserves."""
    gpus: WrittenNonNegative = 0.0
    """GPUs that each sampler reserves."""
    learner_cpus: WrittenPositive = 1.0
    """Processors that each learner reserves."""
    learner_gpus: WrittenNonNegative = 0.0
    """GPUs that each learner reserves."""
    strategy: Literal["spread", "pack"] = "spread"
    """Workers of one kind are spread over the nodes, or packed onto few."""
    timeout: WrittenPositive = 3600.0
    """Seconds within which a worker answers; one that takes longer hangs, and is replaced."""
    start_timeout: WrittenPositive = 300.0
    """Seconds that a worker may take besides to be placed and to start."""
    restarts: WrittenWhole = 3
    """Times in a row that a worker is replaced without having answered, or that the learners are started again without
    a further checkpoint, before the run ends."""

    @pydantic.field_validator("ray")
    @classmethod
    def _address(cls, value: str) -> str:
        if value in ("off", "auto") or re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):\d{1,5}", value):
            return value
        if value.startswith("ray://"):
            raise ValueError(f"{value} is an address of Ray's client; give the cluster's own, such as host:6379")
        raise ValueError(f"{value!r} is neither off nor auto nor an address host:port")


def _as_items(value: object) -> object:
    """Take one tracker for a list of one."""
    return (value,) if isinstance(value, (str, dict)) else value


class Run(Section):
    """The run folder, checkpoints and records."""

    folder: str | None = None
    """None: `runs/<task>-<method>-s<seed>` (a number is appended when it exists)."""
    checkpoint_every: WrittenCount = 20
    """Steps between checkpoints."""
    keep: WrittenCount = 2
    """Checkpoints kept."""
    rollouts_every: WrittenWhole = 1
    """Store rollouts every this many steps; 0: never."""
    record_updates: Literal["none", "tokens", "gradients"] = "none"
    """Numbers of the update that stored rollouts keep. `tokens`: of each token π/π_old at its first optimiser step, its
    weight, and the derivative of the loss by its log-prob. `gradients`: also the share of each row in the gradient,
    which takes a further pass per row: for small models. Both change nothing else."""
    memory_check: bool = True
    """Whether a run is refused whose estimated memory is not free. Switched off, the estimate is a note of the plan:
    for machines whose free memory cannot be read correctly, or where the estimate is known to be too high."""
    check_model: bool = True
    """Whether the final model is loaded in a fresh process, by `transformers` alone, and has to answer there as the
    policy does. It takes some seconds, and the memory of the model once more."""
    threads: Annotated[Int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads of torch; with `async_steps` of the trainer and of each sampler."""
    async_steps: WrittenWhole = 0
    """Steps that completions may be sampled ahead of their update. 0: every completion is the current policy's."""
    samplers: WrittenWhole = 1
    """With `async_steps`: how many processes sample while the trainer computes; the prompts of a step go to one of
    them. 0: the trainer samples itself, between updates, and what is unfinished when a step has its own completions
    continues in the next step."""
    partial: bool = True
    """With `async_steps`: whether completions that are being sampled continue with new weights as soon as there are
    some, episodes at their next turn."""
    proximal: Literal["recompute", "sampler"] = "recompute"
    """With `async_steps`: where the old log-probs of completions sampled by earlier weights come from. `recompute`:
    from the policy at the start of the update, one more pass. `sampler`: they stay those that the tokens were sampled
    with."""
    trackers: Annotated[tuple[str | JsonObject, ...], pydantic.BeforeValidator(_as_items)] = ()
    """Programs that get a copy of the metrics: `tensorboard`, `wandb`, `trackio`, `mlflow`, or a function of yours as
    `pkg.module:function` or `file.py:function`; with settings as {name: wandb, project: …}."""
    rank_timeout: WrittenPositive = 1800.0
    """Seconds that the processes of `grouprl launch` or torchrun wait for one that is slow, before it counts as
    hung."""

    @property
    def samples_apart(self) -> bool:
        """True if other processes sample while the trainer computes."""
        return self.async_steps > 0 and self.samplers > 0

    @property
    def steps_at_once(self) -> int:
        """The number of steps whose completions the trainer samples at the same time."""
        return 1 if self.samples_apart else self.async_steps + 1

    @pydantic.model_validator(mode="after")
    def _recorded(self) -> Self:
        if self.record_updates != "none" and not self.rollouts_every:
            raise ValueError("record_updates adds to stored rollouts, and rollouts_every = 0 stores none: set it to 1")
        return self
