"""The sections on the model, and on what it learns before the method begins."""

from __future__ import annotations

from typing import Literal

import pydantic

from grouprl.config.sections.section import (
    Section,
    Switch,
    SwitchOrOffload,
    WrittenCount,
    WrittenName,
    WrittenNonNegative,
    WrittenPositive,
    WrittenShare,
    WrittenWhole,
)
from grouprl.core.json_types import JsonObject


class Tiny(Section):
    """Size of the model that `model: tiny` builds from scratch."""

    hidden: WrittenCount = 64
    """Width of the residual stream."""
    layers: WrittenCount = 3
    """Transformer layers."""
    heads: WrittenCount = 4
    """Attention heads; their number divides `hidden`."""
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


class Users(Section):
    """The layers of a reward model whose score depends on its user (method `vpl`)."""

    latent: WrittenCount = 512
    """Length of a user's vector."""
    hidden: WrittenCount = 512
    """Width of hidden layers."""
    noise: WrittenNonNegative = 1.0
    """The share of the belief's spread with which a user is drawn in training; the authors' code has 0.001."""


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
    users: Users = Users()
    """Sizes of a reward model of users."""
    lora: Lora | None = None
    """Adapters in place of training every weight; none: every weight."""
    device: str = "auto"
    """`auto`: a GPU where torch sees one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Type of the weights; `auto`: bfloat16 for a pretrained language model on a GPU that has it, else
    float32."""
    precision: Literal["auto", "float32", "onednn", "mixed"] = "float32"
    """The precision of products. `mixed`: in bfloat16 with float32 sums; weights, optimiser, norms, softmax, log-probs
    and losses stay float32. `onednn`: in float32 by oneDNN, on some CPUs twice as fast, with other last bits. Both need
    the lean engine. `auto`: mixed, else onednn, where a probe finds that at least 1.25 times as fast; the run then
    keeps it. `float32`: in the type of the weights."""
    engine: Literal["auto", "lean", "transformers"] = "auto"
    """The code that runs the model: `lean` is this package's own for Llama-like models; `auto` takes it where it
    fits."""
    packing: Switch = "auto"
    """Sequences of an update are concatenated without padding, without attending to each other; changes no result."""
    shared_prefix: Switch = "auto"
    """A prompt goes through the model once for all its completions in a pass, and so does any beginning that they share
    where the engine is lean; changes no result."""
    checkpointing: SwitchOrOffload = "auto"
    """Layers are computed anew in the backward pass: less memory, a third more computation. `offload`: on a GPU the
    inputs of layers, which are kept for it, wait in main memory (engine transformers); on a CPU it is `on`. Rows of
    more tokens than a pass has (4,096 on a CPU, 32,768 on a GPU) then go through feed-forward blocks in pieces. Changes
    no result."""
    compile: bool = False
    """Layers of the engine transformers are compiled by `torch.compile` for passes of the trainer, which takes minutes
    as a run begins; prompts are then not shared. The numbers are the same but for the last bits. Refused where the lean
    engine runs the model, whose operations are fused already, and where torch cannot compile it."""
    tensor_parallel: WrittenCount = 1
    """Number of processes of `grouprl launch` or torchrun over which each matrix is cut, by the plan that transformers
    has for the model; the others share rows, as without it. Changes no result."""
    context_parallel: WrittenCount = 1
    """How many of the processes of `grouprl launch` or torchrun share each row in training: each has a slice of its
    tokens, so that the activations of a long row take that many times less memory; the others share rows. Changes no
    result."""
    offload: bool = False
    """Each process of several keeps its part of weights, gradients and optimiser in main memory, and brings a layer to
    its GPU as a pass reaches it; changes no result."""
    agents: Literal["shared", "separate", "heads"] | dict[str, str] = "shared"
    """Tasks with several agents: one policy for all; weights of their own that begin as `name`; output layers of their
    own on one trunk; or a model by agent."""
    chat_template_kwargs: JsonObject = {}
    """Values of the chat template's variables, such as {enable_thinking: false}: for training, evaluation, serving and
    every engine alike, and for the exported model. A conversation that sets one itself has its own value."""
    reference: WrittenName | dict[WrittenName, WrittenPositive] = "auto"
    """The frozen reference policy. `auto`: the policy as reinforcement begins, if the method reads one; `initial`: the
    same, even if the method reads none; `none`; the folder of a model with the same tokenizer, such as a larger
    teacher; or several folders of models of the same architecture with shares that add up to 1, whose weights are
    averaged: {initial: 0.5, runs/other/model: 0.5}."""

    @pydantic.field_validator("reference")
    @classmethod
    def _shares_add_up(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        """Refuse an average whose shares do not add up to 1, or that names `auto` or `none`."""
        if isinstance(value, dict) and ({"auto", "none"} & value.keys() or abs(sum(value.values()) - 1) > 1e-6):
            raise ValueError(
                f"{value} is not an average of models: shares add up to 1, and belong to folders or to `initial`"
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
