"""The sections on servers that sample."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import Field

from grouprl.config.sections.section import Int, Section, WrittenCount, WrittenPositive, WrittenWhole


class Servers(Section):
    """Servers that sample: the run's own, or running ones."""

    kind: ClassVar[str] = ""
    """The name of the program whose servers they are."""
    key: ClassVar[str] = ""
    """The name of the section in YAML."""

    addresses: tuple[str, ...] = ()
    """Running servers, such as http://10.0.0.5:8000, one model on all; none: the run starts its own, and ends them."""
    servers: WrittenCount = 1
    """Number of servers that a run starts of its own."""
    command: tuple[str, ...]
    """The command that starts a server of its own, before `serve`."""
    args: tuple[str, ...] = ()
    """Further arguments of `serve`, such as ["--tensor-parallel-size", "2"]; they come last, so they win."""
    env: dict[str, str] = {}
    """Environment variables of own servers, besides those of the run."""
    port: Annotated[Int, Field(ge=1, le=65535)] | None = None
    """Port of the first of its own servers, the others follow; none: free ones."""
    weights: str
    """The way in which new weights reach a server."""
    folder: str | None = None
    """Folder in which weights are written for `disk`; servers see it under the same path. None: a temporary folder."""
    key_env: str
    """Environment variable that holds the key of servers that want one (their `--api-key`)."""
    canary: WrittenPositive | None = None
    """Nats by which a server's log-probs of fixed sequences may differ from the trainer's after an exchange of weights.
    None: 0.01 where both compute in float32, else 0.5."""
    at_once: WrittenCount = 256
    """Requests that one server is sent at the same time."""
    timeout: WrittenPositive = 600.0
    """Seconds within which a request is answered; a server that takes longer hangs: it is replaced or set aside."""
    start_timeout: WrittenPositive = 900.0
    """Seconds within which a server of its own is up, or a running one answers."""
    tries: WrittenCount = 3
    """Largest number of times that a request is sent, always with the same seed."""
    restarts: WrittenWhole = 3
    """Times that a server of its own is replaced before the run ends."""

    @property
    def engine(self) -> str:
        """The name of the engine that uses them."""
        return self.key.rpartition(".")[2]

    @property
    def shares_gpu(self) -> bool:
        """True if own servers are on the trainer's GPUs and free their memory while it computes."""
        return False

    @pydantic.field_validator("addresses", "command", "args", mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _own_or_running(self) -> Self:
        names, fields = ("args", "command", "env", "port", "restarts", "servers"), type(self).model_fields
        own = [name for name in names if getattr(self, name) != fields[name].default]
        if self.addresses and own:
            raise ValueError(f"addresses are those of running servers, and {own[0]} is about servers that a run starts")
        if wrong := [each for each in self.addresses if not each.startswith(("http://", "https://"))]:
            raise ValueError(f"the address {wrong[0]!r} begins with neither http:// nor https://")
        plain = [each.rstrip("/") for each in self.addresses]
        if twice := [each for each in plain if plain.count(each) > 1]:
            raise ValueError(f"the address {twice[0]} is listed twice")
        if not self.command:
            raise ValueError(f"command is empty: name the program of {self.kind}")
        if self.weights == "disk" and not self.addresses:
            raise ValueError("weights: disk is for running servers; servers of its own get weights through memory")
        return self


class Vllm(Servers):
    """Servers of vLLM that sample (`sampling.engine: vllm`): the run's own, or running ones; see vllm.md."""

    key: ClassVar[str] = "sampling.vllm"
    kind: ClassVar[str] = "vLLM"

    command: tuple[str, ...] = ("vllm",)
    """The command in place of `vllm`: the program of the environment that vLLM is installed in, such as
    /opt/vllm/bin/vllm; in several words where it needs words before `serve`."""
    weights: Literal["auto", "shared_memory", "broadcast", "disk"] = "auto"
    """The way in which new weights reach a server: by vLLM's weight transfer, through memory of this machine or over
    the network to all servers at once (gloo, between GPUs NCCL); or from a folder that it reads again. `auto`: own
    servers through memory; running ones that were started for it through memory on this machine, else by broadcast;
    others from a folder."""
    key_env: str = "VLLM_API_KEY"
    """Environment variable that holds the key of servers that want one (`vllm serve --api-key`)."""
    master_address: str | None = None
    """Address of this machine at which servers meet it for `broadcast`. None: the one from which it reaches them."""
    master_port: Annotated[Int, Field(ge=1, le=65535)] | None = None
    """Port of that meeting; none: a free one. The weights themselves go over connections on further, free ports."""
    sleep: bool = False
    """Let servers free their accelerator's memory while the trainer computes (vLLM's sleep mode), for a server on the
    trainer's own GPU; each exchange of weights wakes them."""
    adapters: Literal["merged", "loaded"] = "merged"
    """The way in which LoRA adapters reach a server: merged into the weights, or loaded by the server from a folder,
    each version under a name of its own (vLLM's dynamic LoRA); unfinished completions are then finished with theirs."""
    in_flight: Literal["continue", "finish"] = "continue"
    """The fate of unfinished completions when new weights come (`run.async_steps`): they continue with the new weights
    (their tokens so far are read anew, and each token keeps its version), or they are finished first."""

    @property
    def shares_gpu(self) -> bool:
        """True if own servers are on the trainer's GPUs and free their memory while it computes."""
        return self.sleep

    @pydantic.model_validator(mode="after")
    def _one_way_for_weights(self) -> Vllm:
        meeting = [name for name in ("master_address", "master_port") if getattr(self, name) is not None]
        if meeting and self.weights not in ("auto", "broadcast"):
            raise ValueError(f"{meeting[0]} has no effect with weights: {self.weights}; it is about weights: broadcast")
        if meeting and self.weights == "auto" and not self.addresses:
            raise ValueError(
                f"{meeting[0]} has no effect: own servers get weights through memory. Set weights: broadcast"
            )
        if self.sleep and (self.weights == "broadcast" or self.adapters == "loaded"):
            other = "weights: broadcast" if self.weights == "broadcast" else "adapters: loaded"
            raise ValueError(f"sleep is for a server on the trainer's own machine that gets all weights, not {other}")
        if self.weights != "auto" and self.adapters == "loaded":
            raise ValueError(
                f"weights: {self.weights} has no effect with adapters: loaded, which are read from a folder"
            )
        return self


class Sglang(Servers):
    """Servers of SGLang that sample (`sampling.engine: sglang`): the run's own, or running ones; see sglang.md."""

    key: ClassVar[str] = "sampling.sglang"
    kind: ClassVar[str] = "SGLang"

    command: tuple[str, ...] = ("sglang",)
    """The command in place of `sglang`: the program of the environment that SGLang is installed in, such as
    /opt/sglang/bin/sglang; in several words where it needs words before `serve`."""
    weights: Literal["auto", "shared_memory", "disk"] = "auto"
    """The way in which new weights reach a server: through memory of this machine, or from a folder that it reads
    again. `auto`: own servers through memory, running ones too if they were started for it."""
    key_env: str = "SGLANG_API_KEY"
    """Environment variable that holds the key of servers that want one (`sglang serve --api-key`)."""

    @pydantic.model_validator(mode="after")
    def _one_way_for_weights(self) -> Sglang:
        if self.weights == "shared_memory" and self.folder is not None:
            raise ValueError("folder has no effect with weights: shared_memory")
        return self
