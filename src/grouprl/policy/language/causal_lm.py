"""A causal language model as a policy: it computes outputs by name and takes their cotangents."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.utils import skip_init

from grouprl.core.errors import InputError
from grouprl.core.outputs import LANGUAGE_OUTPUTS, TEACHER_KL, VALUE
from grouprl.core.spans import note, spanned
from grouprl.policy.engine import Readout
from grouprl.policy.generation import generation_settings
from grouprl.policy.language import completion_gradients, statistics
from grouprl.policy.language.influence import influence
from grouprl.policy.language.reference import FrozenPolicy
from grouprl.policy.language.transformer_model import TransformerModel
from grouprl.policy.lora import dropping, is_adapted
from grouprl.policy.microbatch import join_passes
from grouprl.policy.passes import (
    AUTO,
    PassSettings,
)
from grouprl.policy.state import LogProbs, check_cotangents, check_outputs, live_rows, pull_back
from grouprl.policy.teacher_kl import kl_to_teacher
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VALUE_HEAD_FILE = "value_head.safetensors"


class CausalPolicy(TransformerModel, LogProbs):
    """A transformers causal LM with its tokenizer.

    The model's dropout is off in every pass, so that a log-prob is a function of the weights alone; only the dropout
    of LoRA adapters, if it was requested, acts in passes that take gradients.

    Args:
        model: any transformers causal LM, plain or wrapped by peft.
        tokenizer: its tokenizer.
        temperature: log-probs are those of softmax(logits / temperature).
        engine: "lean" (this package's fast forward for Llama-like models), "transformers", or "auto".
        passes: whether rows are packed, prompts shared, layers recomputed; results do not depend on it.
        value_head: add a scalar head on the last hidden state, initialised to zero, sharing the trunk.
        token_budget: tokens per pass; results do not depend on it.
        precision: "float32" (products in the type of the weights), "onednn" (float32 products by oneDNN) or "mixed" (in
            bfloat16, of float32 weights), both only with the lean engine, or "auto" (the fastest as measured on this
            machine).
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
            raise InputError(f"temperature={temperature}", "A policy's temperature must be positive", "Use 1.0")
        super().__init__(model, tokenizer, engine=engine, passes=passes, token_budget=token_budget, precision=precision)
        self.temperature = temperature
        self.value_head = self._build_value_head() if value_head else None
        self.teacher: CausalPolicy | None = None
        """The model with the same tokenizer whose distributions `teacher_kl` compares with; it is not copied along."""

    def language_models(self) -> dict[str, CausalPolicy]:
        """Return this model, which is saved as it is."""
        return {"": self}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: log-probs, entropies, cross-entropies, values if there is a value head, the KL to a
        teacher if there is one, and statistics.
        """
        beside = {VALUE: self.value_head, TEACHER_KL: self.teacher}
        return tuple(name for name in LANGUAGE_OUTPUTS if name not in beside or beside[name] is not None)

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, torch.Tensor]:
        """Return the outputs `names` of the responses of `tokens` at the policy's temperature, [B,T].

        Args:
            tokens: B rows.
            names: see `outputs`. "cross@κ" is the cross-entropy Σ_a sg(softmax(z/κ))_a log π(a), z the model's own
                logits; statistics (see `statistics.READINGS`) are read in a pass of their own and have no gradient.
            grad: keep the graph (of all rows at once; `backward` bounds memory by recomputing pass by pass).

        Raises:
            InputError: a name that is not an output.
        """
        check_outputs(self, names)
        own = [name for name in names if not statistics.is_reading(name)]
        found = statistics.readings(self, tokens, [name for name in names if statistics.is_reading(name)])
        if own:
            with torch.set_grad_enabled(grad):
                passes = self.passes(tokens, range(len(tokens)))
                parts = [self._run(tokens.rows(rows), own) for rows in passes]
                found |= {name: join_passes(tokens, passes, [part[name] for part in parts]) for name in own}
        return {name: found[name] for name in names}

    def backward(self, tokens: Tokens, cotangents: Mapping[str, torch.Tensor], /) -> None:
        """Add the parameter gradients of sum(cotangent * output) to `.grad`, one pass at a time.

        Rows whose cotangents are all exactly zero are never run. Cotangents beyond a row's length are ignored.

        Raises:
            InputError: a cotangent that is not [B,T] of `tokens`, a name that is not an output, or a statistic, which
                has no gradient.
        """
        check_cotangents(self, tokens, cotangents)
        statistics.refuse_readings(cotangents)
        for rows in self.passes(tokens, live_rows(tokens, cotangents)):
            self._backward_pass(tokens.rows(rows), {name: c[rows] for name, c in cotangents.items()})

    @torch.no_grad()
    def read(self, tokens: Tokens) -> Readout:
        """Run all rows in one pass, without a graph and with the adapters' dropout off."""
        return self._engine.read(tokens)

    def readouts(self, tokens: Tokens, rows: Sequence[int] | None = None) -> Iterator[tuple[list[int], Readout]]:
        """Run `rows` (None: all) with the adapters' dropout off; yield the rows of each pass with its readout."""
        for own in self.passes(tokens, range(len(tokens)) if rows is None else rows):
            yield own, self._engine.read(tokens.rows(own))

    def influence(
        self, tokens: Tokens, group_b: torch.Tensor, correct_b: torch.Tensor, mask_bt: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return each token's influence on the correct completions of its group, [B,T]; see `influence.influence`."""
        return influence(self, tokens, group_b, correct_b, mask_bt)

    def hidden(self, tokens: Tokens) -> list[torch.Tensor]:
        """Return each row's last hidden states, [T_b,H]; see `statistics.hidden`."""
        return statistics.hidden(self, tokens)

    def top(self, tokens: Tokens, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and log-probs of the `k` likeliest tokens, [B,T,k]; see `statistics.top`."""
        return statistics.top(self, tokens, k)

    def gradient_norms(
        self, tokens: Tokens, block: Literal["embedding", "head", "trainable"] = "embedding"
    ) -> torch.Tensor:
        """Return the gradient norm of each completion's log-prob, [B]; see `completion_gradients.gradient_norms`."""
        return completion_gradients.gradient_norms(self, tokens, block)

    def head_gradients(self, tokens: Tokens, size: int, mask_bt: torch.Tensor | None = None) -> torch.Tensor:
        """Return sketched gradients of the output layer, [B,size]; see `completion_gradients.head_gradients`."""
        return completion_gradients.head_gradients(self, tokens, size, mask_bt)

    def _backward_pass(self, tokens: Tokens, cotangents: Mapping[str, torch.Tensor]) -> None:
        with torch.enable_grad():
            found = self._run(tokens, tuple(cotangents))
        lengths = tokens.response_lengths
        pull_back(found, {name: torch.cat([c[i, :n] for i, n in enumerate(lengths)]) for name, c in cotangents.items()})

    @spanned("forward")
    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the outputs of one pass, [M] each."""
        with dropping(self.model) if torch.is_grad_enabled() else nullcontext():
            note("read", tokens)
            read = self._engine.read(tokens)
        found = read.score(names, temperature=self.temperature)
        if VALUE in names:
            found[VALUE] = read.each(self._value(read.hidden_nd))
        if TEACHER_KL in names:
            assert self.teacher is not None, "`outputs` says so"
            found[TEACHER_KL] = kl_to_teacher(read, self.teacher.read(tokens), self.temperature)
        return found

    def _value(self, hidden_nd: torch.Tensor) -> torch.Tensor:
        assert self.value_head is not None, "`outputs` says so"
        return self.value_head(hidden_nd.to(self.value_head.weight.dtype))[:, 0]

    def value_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of the value head, [1,H] and its bias [1]."""
        assert self.value_head is not None
        return self.value_head.weight, self.value_head.bias

    @torch.no_grad()
    def set_value_weights(self, weight_1d: torch.Tensor, bias_1: torch.Tensor) -> None:
        """Give the value head these weights, [1,H], and this bias, [1]."""
        assert self.value_head is not None
        self.value_head.weight.copy_(weight_1d)
        self.value_head.bias.copy_(bias_1)

    def load_value_head(self, folder: Path) -> None:
        """Load the value head that `save` wrote to `folder`, if there is one."""
        from safetensors.torch import load_file

        if self.value_head is not None and (folder / VALUE_HEAD_FILE).is_file():
            self.value_head.load_state_dict(load_file(folder / VALUE_HEAD_FILE))

    def _build_value_head(self) -> nn.Linear:
        size = self.model.config.get_text_config().hidden_size
        # nn.Linear would draw random initial weights; a resumed run, which builds its head again, must not advance the
        # generator.
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

        A value head is written next to the model as value_head.safetensors, which transformers ignores.
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

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters alone, as peft does."""
        self.model.save_pretrained(str(folder))

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> CausalPolicy:
        """Return a copy of the policy as it is now, adapters included; only the tokenizer is shared.

        Args:
            trainable: whether the copy can be trained, if this policy can.
            value_head: whether the copy gets a fresh value head.
        """
        model = copy.deepcopy(self.model)
        if not trainable:
            model.requires_grad_(False)
        return self.around(model, value_head=value_head)

    def around(self, model: PreTrainedModel, *, value_head: bool = False) -> CausalPolicy:
        """Return a policy with another model of the same kind, this one's tokenizer and settings."""
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

    def whole(self) -> CausalPolicy:
        """Return the policy itself, which has weights of its own to sample with."""
        return self

    def reference(self) -> FrozenPolicy:
        """Return a frozen policy for KL terms: the base model if there are adapters, else a copy of the current
        model.
        """
        return FrozenPolicy(self)


def save_value_head(state: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write a value head next to the model in `folder`."""
    from safetensors.torch import save_file

    save_file(dict(state), folder / VALUE_HEAD_FILE)
