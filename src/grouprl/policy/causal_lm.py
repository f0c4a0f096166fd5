"""A causal language model as a policy: log-probabilities out, cotangents in."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.utils import skip_init

from grouprl.core.errors import InputError
from grouprl.core.spans import note, span, spanned
from grouprl.policy import gradient_norms, statistics
from grouprl.policy.choose_engine import choose_engine
from grouprl.policy.engine import ModelEngine, Readout
from grouprl.policy.frozen import FrozenPolicy
from grouprl.policy.generation import generation_settings
from grouprl.policy.lean import LeanEngine, LeanModel
from grouprl.policy.lora import dropping, is_adapted
from grouprl.policy.microbatch import join_passes
from grouprl.policy.passes import (
    AUTO,
    PassSettings,
    bytes_per_token,
    cached_tokens,
    checkpointing_threshold,
    free_bytes,
)
from grouprl.policy.precision import Precision
from grouprl.policy.text import TextPolicy
from grouprl.policy.trainable import check_cotangents
from grouprl.protocols import PolicyOutput
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VALUE_HEAD_FILE = "value_head.safetensors"
TOKEN_BUDGET = {"cpu": 4096, "cuda": 32768}
"""Tokens of one pass through the model: on a CPU what its cache holds, on a GPU what keeps it busy."""


class CausalPolicy(TextPolicy):
    """A transformers causal LM with its tokenizer.

    The model's dropout is off in every pass, so that a log-prob is a function of the weights alone; only the dropout
    of LoRA adapters, if it was requested, acts in passes that take gradients.

    Args:
        model: any transformers causal LM, plain or wrapped by peft.
        tokenizer: its tokenizer.
        temperature: log-probs are those of softmax(logits / temperature).
        engine: "lean" (this package's fast forward for Llama-like models), "transformers", or "auto".
        passes: whether rows are packed, prompts shared, layers computed anew; results do not depend on it.
        value_head: add a scalar head on the last hidden state, initialised to zero, sharing the trunk.
        token_budget: tokens per pass; results do not depend on it.
        precision: "float32" (products in the type of the weights), "onednn" (float32 products by oneDNN) or "mixed" (in
            bfloat16, of float32 weights), both where the engine is lean, or "auto" (what is measured to be fastest on
            this machine).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float = 1.0,
        engine: str = "auto",
        passes: PassSettings = AUTO,
        value_head: bool = False,
        token_budget: int | None = None,
        precision: str = "float32",
    ) -> None:
        if not temperature > 0:
            raise InputError(f"temperature={temperature}", "A policy's temperature is positive", "Use 1.0")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.token_budget = token_budget or TOKEN_BUDGET.get(self.device.type, TOKEN_BUDGET["cuda"])
        self.pass_settings = passes
        text = model.config.get_text_config()
        per_token = bytes_per_token(text, self.dtype.itemsize)
        checkpoint_above = checkpointing_threshold(passes.checkpointing, per_token, free_bytes(self.device))
        self._engine: ModelEngine = choose_engine(model, engine, passes, checkpoint_above, precision)
        mixed = self.lean is not None and self.lean.precision == "mixed"
        self._cached_tokens = cached_tokens(text, self.device, mixed=mixed)
        self.value_head = self._build_value_head() if value_head else None

    @property
    def engine(self) -> str:
        """The engine in use: "lean" or "transformers"."""
        return self._engine.name

    @property
    def precision(self) -> Precision:
        """How products are computed: "float32" is in the type of the weights, "onednn" so by oneDNN, "mixed" in
        bfloat16."""
        return "float32" if self.lean is None else self.lean.precision

    @property
    def lean(self) -> LeanModel | None:
        """The lean view of the model, where that engine is in use."""
        return self._engine.lean if isinstance(self._engine, LeanEngine) else None

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Within it, products are computed in the type of the weights, also by a policy of mixed precision."""
        lean = self.lean
        if lean is None:
            yield
            return
        before, lean.precision = lean.precision, "float32"
        try:
            yield
        finally:
            lean.precision = before

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights."""
        return next(self.model.parameters()).dtype

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values: float32, or float64 for a float64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: the tokenizer's and the model's own generation settings'."""
        config = getattr(self.model, "generation_config", None)
        stated = getattr(config, "eos_token_id", None)
        listed = stated if isinstance(stated, list) else [stated]
        return tuple(sorted({int(i) for i in [self.tokenizer.eos_token_id, *listed] if i is not None}))

    @property
    def max_positions(self) -> int | None:
        """Longest sequence the model was built for, if it says so."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def logp(
        self,
        tokens: Tokens,
        *,
        grad: bool = False,
        entropy: bool = False,
        values: bool = False,
        cross: float | None = None,
    ) -> PolicyOutput:
        """Score the responses of `tokens` at the policy's temperature.

        Args:
            tokens: B rows.
            grad: keep the graph (of all rows at once; `backward` bounds memory by recomputing pass by pass).
            entropy: also the entropy of each position's distribution, in nats.
            values: also the value of the state before each token, from the value head.
            cross: also the cross-entropy Σ_a sg(softmax(z/cross))_a log π(a), z the model's own logits.
        """
        with torch.set_grad_enabled(grad):
            passes = self.passes(tokens, range(len(tokens)))
            parts = [self._run(tokens.rows(rows), entropy, values, cross) for rows in passes]
            columns = zip(*parts, strict=True) if parts else iter([()] * 4)
            found = ([x for x in column if x is not None] for column in columns)
            logp_bt, entropy_bt, value_bt, cross_bt = (join_passes(tokens, passes, column) for column in found)
        return PolicyOutput(
            logp_bt,
            entropy_bt if entropy else None,
            value_bt if values else None,
            cross_bt if cross is not None else None,
        )

    def backward(
        self,
        tokens: Tokens,
        grad_logp_bt: torch.Tensor,
        grad_entropy_bt: torch.Tensor | None = None,
        grad_value_bt: torch.Tensor | None = None,
        grad_cross_bt: torch.Tensor | None = None,
        *,
        cross: float | None = None,
    ) -> None:
        """Add the parameter gradients of sum(cotangent * output) to `.grad`, one pass at a time.

        Rows whose cotangents are all exactly zero are never run. Cotangents beyond a row's length are ignored.
        `cross` is the temperature that `logp` was given for the cross-entropies of `grad_cross_bt`.

        Raises:
            InputError: a cotangent that is not [B,T] of `tokens`, one for values without a value head, or one for
                cross-entropies without their temperature.
        """
        if grad_cross_bt is not None and cross is None:
            raise InputError("cross=None with grad_cross_bt", "Cross-entropies have a temperature", "Pass cross=…")
        given = [grad_logp_bt, grad_entropy_bt, grad_value_bt, grad_cross_bt]
        check_cotangents(tokens, given)
        present_bt = tokens.present_bt().to(grad_logp_bt.device)
        live_b = torch.stack([((c != 0) & present_bt).any(-1) for c in given if c is not None]).any(0)
        for rows in self.passes(tokens, live_b.nonzero()[:, 0].tolist()):
            self._backward_pass(tokens.rows(rows), [None if c is None else c[rows] for c in given], cross)

    @property
    def pass_tokens(self) -> int:
        """Most tokens of a pass: the budget, or on a CPU what its cache holds."""
        return min(self.token_budget, self._cached_tokens)

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Cut `rows` of `tokens` into passes that fit the token budget."""
        return self._engine.split(tokens, rows, self.pass_tokens)

    def readouts(self, tokens: Tokens, rows: Sequence[int] | None = None) -> Iterator[tuple[list[int], Readout]]:
        """Run `rows` (None: all) and yield the rows of each pass with its states; adapters' dropout is off."""
        for own in self.passes(tokens, range(len(tokens)) if rows is None else rows):
            yield own, self._engine.read(tokens.rows(own))

    def statistics(
        self,
        tokens: Tokens,
        names: Sequence[str],
        *,
        group_b: torch.Tensor | None = None,
        correct_b: torch.Tensor | None = None,
        mask_bt: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return statistics of the response tokens by name, [B,T]; see `statistics.statistics`."""
        return statistics.statistics(self, tokens, names, group_b=group_b, correct_b=correct_b, mask_bt=mask_bt)

    def hidden(self, tokens: Tokens) -> list[torch.Tensor]:
        """Return each row's last hidden states, [T_b,H]; see `statistics.hidden`."""
        return statistics.hidden(self, tokens)

    def top(self, tokens: Tokens, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and log-probs of the `k` likeliest tokens, [B,T,k]; see `statistics.top`."""
        return statistics.top(self, tokens, k)

    def cross_logp(self, tokens: Tokens, prompts: Sequence[Sequence[int]]) -> PolicyOutput:
        """Score the responses of `tokens` as completions to other prompts, one for each row.

        Raises InputError where there is not one prompt of at least one token for each row.
        """
        return self.logp(Tokens.of(prompts, tokens.response_ids))

    def gradient_norms(
        self, tokens: Tokens, block: Literal["embedding", "head", "trainable"] = "embedding"
    ) -> torch.Tensor:
        """Return the gradient norm of each completion's log-prob, [B]; see `gradient_norms.gradient_norms`."""
        return gradient_norms.gradient_norms(self, tokens, block)

    def _backward_pass(self, tokens: Tokens, cotangents_bt: list[torch.Tensor | None], cross: float | None) -> None:
        wanted = [cotangent is not None for cotangent in cotangents_bt]
        with torch.enable_grad():
            outputs = self._run(tokens, wanted[1], wanted[2], cross if wanted[3] else None)
        lengths = tokens.response_lengths
        pairs = [
            (out, torch.cat([c[row, :n] for row, n in enumerate(lengths)]).to(out))
            for out, c in zip(outputs, cotangents_bt, strict=True)
            if out is not None and c is not None
        ]
        with span("backward"):
            torch.autograd.backward([out for out, _ in pairs], [c for _, c in pairs])

    @spanned("forward")
    def _run(
        self, tokens: Tokens, entropy: bool, values: bool, cross: float | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        with dropping(self.model) if torch.is_grad_enabled() else nullcontext():
            note("read", tokens)
            read = self._engine.read(tokens)
        scores = read.score(temperature=self.temperature, entropy=entropy, cross=cross)
        value_m = read.each(self._value(read.hidden_nd)) if values else None
        return scores.logp_m, scores.entropy_m, value_m, scores.cross_m

    def _value(self, hidden_nd: torch.Tensor) -> torch.Tensor:
        if self.value_head is None:
            raise InputError(
                "The policy has no value head", "Values come from a value head", "Load it with value_head=True"
            )
        return self.value_head(hidden_nd.to(self.value_head.weight.dtype))[:, 0]

    def load_value_head(self, folder: Path) -> None:
        """Read the value head that `save` left in `folder`, if there is one."""
        from safetensors.torch import load_file

        if self.value_head is not None and (folder / VALUE_HEAD_FILE).is_file():
            self.value_head.load_state_dict(load_file(folder / VALUE_HEAD_FILE))

    def _build_value_head(self) -> nn.Linear:
        size = self.model.config.get_text_config().hidden_size
        # nn.Linear would draw its initial weights, and a resumed run that builds a head again must not draw once more.
        head = skip_init(nn.Linear, size, 1, device=self.device, dtype=self.score_dtype)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of the value head begin with `value_head.`."""
        yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        if self.value_head is not None:
            yield from ((f"value_head.{name}", p) for name, p in self.value_head.named_parameters())

    def save(self, folder: str | Path, *, adapter_only: bool = False) -> None:
        """Write an ordinary Hugging Face folder: model and tokenizer, LoRA adapters merged into the weights.

        Args:
            folder: made if it does not exist; files in it are overwritten.
            adapter_only: write the adapters alone, as peft does (only for a policy with adapters).

        A value head goes beside the model as value_head.safetensors, which transformers ignores.
        """
        adapted = is_adapted(self.model)
        if adapter_only and not adapted:
            raise InputError("adapter_only=True", "The policy has no LoRA adapters", "Save the whole model")
        model = copy.deepcopy(self.model).merge_and_unload() if adapted and not adapter_only else self.model
        model.save_pretrained(folder)
        if not adapter_only:
            generation_settings(model, self.eos_ids).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.value_head is not None:
            save_value_head(self.value_head.state_dict(), Path(folder))

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> CausalPolicy:
        """Return a copy as it is now, adapters included; it shares nothing but the tokenizer.

        Args:
            trainable: whether it can be trained, where this policy can.
            value_head: whether it has a fresh value head.
        """
        model = copy.deepcopy(self.model)
        if not trainable:
            model.requires_grad_(False)
        return type(self)(
            model,
            self.tokenizer,
            temperature=self.temperature,
            engine=self.engine,
            passes=self.pass_settings,
            value_head=value_head,
            token_budget=self.token_budget,
            precision=self.precision,
        )

    def reference(self) -> FrozenPolicy:
        """Return a frozen policy for KL terms: the base model where there are adapters, else a copy as it is now."""
        return FrozenPolicy(self)


def save_value_head(state: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write a value head beside the model in `folder`."""
    from safetensors.torch import save_file

    save_file(dict(state), folder / VALUE_HEAD_FILE)
