"""The sections of a configuration: what can be set, the defaults, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import Field
from typing_extensions import Self

from grouprl.config.yaml_files import check_plain
from grouprl.core.json_types import JsonObject

POWER_OF_TEN = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""Numbers such as 1e-3 and 1.5e3, which YAML 1.1 reads as text."""


def _number(value: object) -> object:
    """Refuse true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} stands where a number is expected")
    return value


Int = Annotated[int, pydantic.BeforeValidator(_number)]
Float = Annotated[float, pydantic.BeforeValidator(_number)]
WrittenCount = Annotated[Int, Field(ge=1, le=10**9)]
WrittenWhole = Annotated[Int, Field(ge=0, le=10**9)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]
Workers = Annotated[Int, Field(ge=0, le=1024)]
"""Processes; more would only crowd a machine out."""
WrittenName = Annotated[str, Field(min_length=1)]
WrittenPositive = Annotated[Float, Field(gt=0)]
WrittenNonNegative = Annotated[Float, Field(ge=0)]
WrittenShare = Annotated[Float, Field(ge=0, le=1)]
SWITCH = {True: "on", False: "off"}
"""YAML reads on and off as true and false."""
Switch = Annotated[
    Literal["auto", "on", "off"], pydantic.BeforeValidator(lambda x: SWITCH[x] if isinstance(x, bool) else x)
]


def as_number(value: object) -> object:
    """Return a text that is a number by `POWER_OF_TEN` as that number; anything else as it is."""
    return float(value) if isinstance(value, str) and POWER_OF_TEN.fullmatch(value) else value


class Section(pydantic.BaseModel):
    """A closed, frozen group of settings."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        """Refuse what config.yaml could not hold unchanged."""
        if isinstance(value, str | Mapping | list):
            check_plain(value)
        return value


class Tiny(Section):
    """Size of the model that `model: tiny` builds from scratch."""

    hidden: WrittenCount = 64
    """Width of the residual stream."""
    layers: WrittenCount = 3
    """Transformer layers."""
    heads: WrittenCount = 4
    """Attention heads; they divide `hidden`."""
    kv_heads: WrittenCount | None = None
    """Heads of keys and values; none: as many as `heads`."""
    intermediate: WrittenCount = 176
    """Width of the feed-forward layers."""
    max_positions: WrittenCount = 512
    """Largest number of tokens of prompt and completion together."""


class Lora(Section):
    """Low-rank adapters instead of full training (extra `lora`)."""

    r: WrittenCount = 16
    """Rank of the adapters."""
    alpha: WrittenPositive = 32.0
    """The adapters' output is scaled by alpha / r."""
    dropout: WrittenShare = 0.0
    """Dropout before the adapters, in training passes."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the modules that get adapters, a regular expression, or `all-linear`."""


class Model(Section):
    """The model to train: `tiny`, a folder or the id of any causal language model of `transformers`, a GGUF file (extra
    `gguf`), or another policy.

    Policies over vectors: `mlp`, or a class of yours as `pkg.module:Class` or `file.py:Class`.
    """

    name: WrittenName = "tiny"
    """As above; `tiny` is built from scratch with the characters of the task."""
    settings: JsonObject = {}
    """Arguments of a policy that is not a language model, for instance {hidden: [32, 32]} of mlp."""
    tiny: Tiny = Tiny()
    """The size of `tiny`."""
    lora: Lora | None = None
    """Adapters in place of training every weight; none: every weight."""
    device: str = "auto"
    """`auto`: a GPU where torch sees one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Type of the weights; `auto`: bfloat16 on a GPU that has it, else float32."""
    precision: Literal["auto", "float32", "onednn", "mixed"] = "float32"
    """The precision of products. `mixed`: in bfloat16 with float32 sums; weights, optimiser, norms, softmax, log-probs
    and losses stay float32. `onednn`: in float32 by oneDNN, on some CPUs twice as fast, with other last bits. Both are
    the lean engine's. `auto`: mixed, else onednn, where a probe finds that at least 1.25 times as fast; the run then
    keeps it. `float32`: in the type of the weights."""
    engine: Literal["auto", "lean", "transformers"] = "auto"
    """The code that runs the model: `lean` is this package's own for Llama-like models; `auto` takes it where it
    fits."""
    packing: Switch = "auto"
    """Sequences of an update are concatenated without padding, without attending to each other; changes no result."""
    shared_prefix: Switch = "auto"
    """A prompt goes through the model once for all its completions in a pass, and so does any beginning that they share
    where the engine is lean; changes no result."""
    checkpointing: Switch = "auto"
    """Layers are computed anew in the backward pass: less memory, a third more computation; changes no result."""
    compile: bool = False
    """Layers of the engine transformers are compiled by `torch.compile` for passes of the trainer, which takes minutes
    as a run begins; prompts are then not shared. The numbers are the same but for the last bits. Refused where the lean
    engine runs the model, whose operations are fused already, and where torch cannot compile it."""
    tensor_parallel: WrittenCount = 1
    """Over how many of the processes of `grouprl launch` or torchrun each matrix is cut, by the plan that transformers
    has for the model; the others share rows, as without it. Changes no result."""
    offload: bool = False
    """Each process of several keeps its part of weights, gradients and optimiser in main memory, and brings a layer to
    its GPU as a pass reaches it; changes no result."""
    agents: Literal["shared", "separate"] | dict[str, str] = "shared"
    """Tasks with several agents: one policy for all; weights of their own that begin as `name`; or a model by agent."""
    chat_template_kwargs: JsonObject = {}
    """Values of the chat template's variables, such as {enable_thinking: false}: for training, evaluation, serving and
    every engine alike, and for the exported model. A conversation that sets one itself has its own value."""
    reference: WrittenName | dict[WrittenName, WrittenPositive] = "auto"
    """The frozen reference policy. `auto`: the policy as reinforcement begins, if the method reads one; `initial`:
    that, read or not; `none`; the folder of a model of the same architecture and tokenizer; or several such folders
    with shares that add up to 1, whose weights are averaged: {initial: 0.5, runs/other/model: 0.5}."""

    @pydantic.field_validator("reference")
    @classmethod
    def _shares_add_up(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        """Refuse an average of models whose shares are not those of one model, or of none."""
        if isinstance(value, dict) and ({"auto", "none"} & value.keys() or abs(sum(value.values()) - 1) > 1e-6):
            raise ValueError(
                f"{value} is no average of models: shares add up to 1, and belong to folders or to `initial`"
            )
        return value


class Warmup(Section):
    """Supervised steps on the task's demonstrations before reinforcement begins; 0 steps: none."""

    steps: WrittenWhole = 0
    """Supervised steps; 0: none."""
    batch: WrittenCount = 128
    """Demonstrations per step."""
    lr: WrittenPositive = 3e-3
    """Largest learning rate of the warm-up."""
    warmup_steps: WrittenWhole = 30
    """Steps over which the learning rate rises linearly; then it falls linearly to a tenth."""


class BatchPlan(Section):
    """The number of completions per rollout, and their division into optimiser steps."""

    prompts: WrittenCount = 32
    """Prompts per rollout."""
    group_size: WrittenCount = 16
    """Completions per prompt."""
    minibatches: WrittenCount = 1
    """Optimiser steps that share one pass over a rollout; groups are kept whole, and where they do not divide some
    steps have one more, each with denominators of its own rows."""
    epochs: WrittenCount = 1
    """Passes over each rollout."""
    tokens_per_microbatch: WrittenCount = 16384
    """Upper limit of tokens (prompt and completion) that go through the model at once; changes memory, not results."""


class Data(Section):
    """The choice among the task's training prompts."""

    prompts: WrittenCount | None = None
    """Use only this many training prompts, the first; None: all. Curricula that come back to prompts need an end."""


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
    """Times that a request is sent at most, always with the same seed."""
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
    """The fate of unfinished completions when new weights come (`run.async_steps`): they continue with them, what was
    read computed anew, each token with its version; or they are finished first."""

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
    again. `auto`: own servers through memory, running ones so where they were started for it."""
    key_env: str = "SGLANG_API_KEY"
    """Environment variable that holds the key of servers that want one (`sglang serve --api-key`)."""

    @pydantic.model_validator(mode="after")
    def _one_way_for_weights(self) -> Sglang:
        if self.weights == "shared_memory" and self.folder is not None:
            raise ValueError("folder has no effect with weights: shared_memory")
        return self


class Sampling(Section):
    """The sampling of completions in training."""

    temperature: WrittenPositive = 1.0
    """Logits are divided by it, in sampling and in every log-prob."""
    max_new_tokens: WrittenCount | None = None
    """None: the task's own budget."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens that hold this much probability; 1: from all."""
    top_k: WrittenWhole = 0
    """Sample from this many most likely tokens; 0: from all."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a completion, or a turn, as an end token does, besides those of the task; they stay in it."""
    history: Literal["refuse", "append", "split"] = "refuse"
    """If the chat template rewrites earlier turns, for each episode: count the episode as failed, keep what was
    written, or continue in a new row with the rewritten history as its prompt."""
    tool_calls: str = "auto"
    """The syntax of tool calls: auto (as its chat template does), a name of the table in chat_templates.md, or
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
    """Of optimisers that have betas."""
    weight_decay: WrittenNonNegative = 0.0
    """Decoupled weight decay, of optimisers that have it."""
    grad_clip: WrittenNonNegative = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""

    @pydantic.field_validator("settings")
    @classmethod
    def _numbers(cls, settings: JsonObject) -> JsonObject:
        """Read numbers such as 1e-5, which no optimiser takes as a text, as in every setting of our own."""
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
    as in `eval/NAME` of the record; the largest mean on the first held-out prompts is the best. Empty: none is."""


class Judge(Section):
    """A model behind an OpenAI-compatible endpoint that ranks the trajectories of each group, from 0 to 1, or compares
    every two (`compare`)."""

    url: str
    """Address of the endpoint with its version, such as http://127.0.0.1:8000/v1 of `grouprl serve`."""
    model: str = ""
    """The model's name there; empty: none is sent, for endpoints that serve one."""
    rubric: str = ""
    """The criteria of the judge, in words; empty: to reach the goal in fewer steps
    (`grouprl.rewards.judging.judge_text.RUBRIC`)."""
    key_env: str = "OPENAI_API_KEY"
    """Environment variable with the API key; one that is not set: no key is sent."""
    tokens: WrittenCount = 2048
    """Tokens of a reply at most."""
    temperature: WrittenNonNegative = 0.0
    """At which the judge samples."""
    json_schema: bool = False
    """Whether the endpoint is asked to hold the reply to its JSON schema (`response_format`)."""
    timeout: WrittenPositive = 60.0
    """Seconds of one request."""
    tries: WrittenCount = 3
    """Requests per group at most, where the endpoint does not answer or its reply cannot be used."""
    at_once: WrittenCount = 4
    """Groups that are judged at the same time."""
    characters: WrittenCount = 20_000
    """Characters of a trajectory; a longer one is shown without its middle."""
    seed: Seed = 0
    """Of the order in which trajectories are shown, and of the judge's sampling."""
    compare: bool = False
    """Whether two completions are compared at a time, and a completion's reward is how often it is preferred in its
    group; methods with `by: judge` read the comparisons themselves."""
    samples: WrittenCount = 1
    """Replies per pair and order, with `compare`; the judge's seed counts up."""
    both_orders: bool = True
    """Whether each pair is shown in both orders, with `compare`: a judge may prefer what it reads first."""
    per_minute: WrittenCount | None = None
    """Requests in a minute at most, with `compare`; null: no limit."""
    cache: bool = True
    """Whether verdicts are kept in the run's folder, so that equal groups score alike and a resumed run pays what it
    paid before; false: the judge is asked again."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_line(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class ScoringModels(Section):
    """A trained reward model, or several whose scores become one reward."""

    name: str | tuple[str, ...]
    """The folder of a run that trained one, or any folder for `AutoModelForSequenceClassification` with one label; a
    list of such folders for an ensemble."""
    combine: Literal["mean", "worst", "uncertainty"] = "mean"
    """How the scores of several become one: their mean, the worst (WCO), or mean - spread·variance (UWO)."""
    spread: WrittenNonNegative = 1.0
    """The weight of the variance where `combine` is uncertainty."""
    chat: bool = False
    """Whether prompts of plain text are shown as a user's message in the reward model's chat template."""
    steps: Literal["least", "last", "mean", "product"] | None = None
    """For a process reward model: what is paid of the chances σ(score) at the ends of the steps."""
    separator: str = "\n"
    """What ends a step, with `steps`."""
    after: WrittenName | None = None
    """What ends a thought, such as `</think>`: the model scores what stands behind the last one alone (RLMT)."""
    strict: bool = False
    """With `after`: a completion without it is scored as an empty answer, not as a whole."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _names_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, (str, list, tuple)) else value

    @property
    def names(self) -> tuple[str, ...]:
        """The folders, one or several."""
        return (self.name,) if isinstance(self.name, str) else self.name


class Reward(Section):
    """The source of the reward, and the treatment of its failures."""

    function: str | JsonObject | list[str | JsonObject] | None = None
    """A built-in name, `pkg.module:function` or `file.py:function`; None: the task's own reward. Or a mapping of one of
    these as `name` and the function's own parameters, or a list of both, each with a `weight`, for a weighted sum."""
    judge: Judge | None = None
    """A model that ranks the trajectories of each group relative to each other, in place of a function: its
    endpoint's address, or a mapping with these keys. What an environment pays is added, as to a function's reward."""
    model: ScoringModels | None = None
    """A trained reward model whose score is the reward: the folder of its run or of a model, a list of them, or a
    mapping with these keys."""
    gold: str | JsonObject | None = None
    """A reward that is measured and not paid, beside a judge or a reward model, which may err: `task` for the task's
    own, or a function as above. It is logged as the component `gold`, and says which completions are right."""
    correct_at: Float = 1.0
    """A completion counts as correct from this total reward on, unless the reward says `correct` itself."""
    on_error: Literal["drop_row", "drop_group", "zero", "raise"] = "drop_group"
    """The fate of a completion whose reward or environment failed: it is left out, or its whole group, or it is worth
    0, or the run stops. A demonstration that failed is left out of the warm-up, unless the run stops."""
    max_failed_fraction: WrittenShare = 0.1
    """More failures than this share of 1024 completions (demonstrations of the warm-up count among them) stop the
    run. Prompts whose environment hung, ended its process or failed on every episode are set aside and do not count,
    unless this is 0; most of the last 64 prompts failing so stop the run."""
    workers: Workers | Literal["auto"] = "auto"
    """Processes in which the reward runs, killed and replaced when they hang; 0: in the trainer's own, without a clock.
    `auto`: one per core, but none for built-in rewards that always end within microseconds. Each imports the reward
    once; what it prints is shown only when it fails."""
    timeout: WrittenPositive = 10.0
    """Seconds per completion, in workers; a reward that takes the whole batch in one call has the sum."""
    memory_gb: WrittenPositive = 4.0
    """Memory of a worker, in GiB."""
    self_test: bool = True
    """Whether the reward is tested on its known correct and known wrong completions before the run, and one of yours on
    a few completions of the first prompts: it is refused where it fails on all of them."""

    @property
    def replaced(self) -> str:
        """The key that names another reward than the task's own; '' where there is none."""
        given = {"function": self.function, "judge": self.judge, "model": self.model}
        return next((key for key, value in given.items() if value is not None), "")

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Reward:
        given = {"function": self.function, "judge": self.judge, "model": self.model}
        named = [key for key, value in given.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} both say what a completion is worth: leave one of them out")
        if self.gold is not None and self.judge is None and self.model is None:
            raise ValueError("gold is measured beside a judge or a model: add a function of weight 0 beside a function")
        if self.function is not None and not self.function:
            raise ValueError("an empty function names no reward: leave it out for the task's own, or name one")
        return self


class Acting(Section):
    """The place where the environments of a task act, and their time limits."""

    workers: Workers | Literal["auto"] = "auto"
    """Processes in which environments act, killed and replaced when they hang; 0: in the trainer's own, without a
    clock. `auto`: one per core for environments of yours and of other packages, more while they wait instead of
    computing, and none for this package's, which always return."""
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
            raise ValueError(f"{value} is that of Ray's client; workers are placed by the cluster itself: host:6379")
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
    memory_check: bool = True
    """Whether a run is refused whose estimated memory is not free. Switched off, the estimate is a note of the plan:
    for machines whose free memory cannot be read aright, or where the estimate is known to be too high."""
    check_model: bool = True
    """Whether the final model is loaded in a fresh process, by `transformers` alone, and has to answer there as the
    policy does. It takes some seconds, and the memory of the model once more."""
    threads: Annotated[Int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads of torch; with `async_steps` of the trainer and of each sampler."""
    async_steps: WrittenWhole = 0
    """Steps that completions may be sampled ahead of their update, in a process of their own. 0: sampling and
    training take turns, and every completion is the current policy's."""
    samplers: WrittenCount = 1
    """With `async_steps`: how many processes sample; the prompts of a step go to one of them."""
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
