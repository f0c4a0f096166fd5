"""A transformer that gives one score for a prompt and its completion."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import SCORE
from grouprl.core.spans import note, spanned
from grouprl.policy.engine import Readout
from grouprl.policy.language.text import Message, encode_after, render_kept, up_to_end, with_end
from grouprl.policy.language.transformer_model import TransformerModel
from grouprl.policy.lora import base_model, dropping, is_adapted
from grouprl.policy.state import check_cotangents, check_outputs, live_rows, pull_back
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig


SCORED_AT, END_OF_TURN = "scored_at", "end_of_turn"
"""Name and value of the entry in config.json that says where a model trained here reads its scores of conversations."""
Closing = Literal["with_end", "up_to_end", "whole"]
"""The end of an answer's tokens: with an end token added unless they end with one; the same after a cut at their last
end token; or as they are.
"""


class RewardModel(TransformerModel):
    """A model of `transformers` for sequence classification with one label, and its tokenizer.

    Its only output is `score`, one number for each row: its linear layer `score` on the last hidden state of the last
    token that is not the padding token of its configuration, or of the last token if that has none. That is where the
    classes of transformers read it, too, so that a score does not depend on padding or on other rows. The arguments are
    those of `CausalPolicy`.
    """

    outputs: tuple[str, ...] = (SCORE,)

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` [B] of `tokens`, prompts and responses; `grad` keeps the graph.

        Raises:
            InputError: a name that is not an output.
        """
        check_outputs(self, names)
        with torch.set_grad_enabled(grad):
            passes = self.passes(tokens, range(len(tokens)))
            parts = [self._run(tokens.rows(rows), names) for rows in passes]
        if not parts:
            return {name: torch.zeros(len(tokens), dtype=self.score_dtype, device=self.device) for name in names}
        place_b = torch.tensor([row for rows in passes for row in rows], device=self.device).argsort()
        return {name: torch.cat([part[name] for part in parts])[place_b] for name in names}

    def backward(self, tokens: Tokens, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output) to `.grad`, pass by pass; rows whose cotangent is 0 are not run.

        Raises:
            InputError: a cotangent that is not [B], or a name that is not an output.
        """
        check_cotangents(self, tokens, cotangents)
        for rows in self.passes(tokens, live_rows(tokens, cotangents)):
            self._backward_pass(tokens.rows(rows), {name: c[rows] for name, c in cotangents.items()})

    def _backward_pass(self, tokens: Tokens, cotangents: Mapping[str, Tensor]) -> None:
        with torch.enable_grad():
            found = self._run(tokens, tuple(cotangents))
        pull_back(found, cotangents)

    def scores(self, tokens: Tokens) -> Tensor:
        """Return the score of each row, [B], without a graph."""
        return self.evaluate(tokens, (SCORE,))[SCORE]

    def scores_of(self, prompts: Sequence[str | Sequence[Message]], completions: Sequence[str]) -> Tensor:
        """Return the score of each completion after its prompt, [B]; raises InputError as `tokens_of` does."""
        return self.scores(self.tokens_of(prompts, completions))

    def tokens_of(self, prompts: Sequence[str | Sequence[Message]], completions: Sequence[str]) -> Tokens:
        """Return prompts and their completions as training reads them: see `read_texts`.

        Raises:
            InputError: a pair has more tokens than the model reads.
        """
        texts, closings = zip(*self.read_texts(prompts, completions), strict=True) if completions else ((), ())
        shown = self.encode_prompts(prompts)
        answers = zip(encode_after(self, shown, texts), closings, strict=True)
        rows = Tokens.of(shown, [closed(ids, self.eos_ids, each) for ids, each in answers])
        longest, most = max(rows.lengths, default=0), self.max_positions
        if most is not None and longest > most:
            raise InputError(
                f"a prompt and its completion have {longest} tokens",
                f"this reward model reads at most {most}",
                "Shorten them, or take a model that reads more",
            )
        return rows

    def read_texts(
        self, prompts: Sequence[str | Sequence[Message]], completions: Sequence[str]
    ) -> list[tuple[str, Closing]]:
        """Return the text that is read after each prompt, and where it ends.

        After a prompt of text that is the completion with an end token. After messages it is what the chat template
        writes for the completion, up to the end of the turn; to the last character for a model that was not trained
        here, which transformers' users show the whole conversation. A completion that the template changes is read
        as it is.
        """
        return [self._read_text(*each) for each in zip(prompts, completions, strict=True)]

    def _read_text(self, prompt: str | Sequence[Message], completion: str) -> tuple[str, Closing]:
        if isinstance(prompt, str):
            return completion, "with_end"
        kept = render_kept(self.tokenizer, prompt, (), {"role": "assistant", "content": completion})
        if kept is None:
            return completion, "with_end"
        begun, whole = kept
        return whole[len(begun) :], "up_to_end" if ends_with_turn(self.model.config) else "whole"

    def make_sampler(self) -> SilentSampler:
        """Return the sampler of a model that writes nothing."""
        return SilentSampler()

    @property
    def head(self) -> nn.Linear:
        """The linear layer that makes a score of a hidden state."""
        return cast("nn.Linear", base_model(self.model).score)

    @spanned("forward")
    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs `names` of one pass, [B]."""
        return dict.fromkeys(names, self._values(tokens)[:, 0].to(self.score_dtype))

    def _values(self, tokens: Tokens) -> Tensor:
        """Return the numbers of the layer of each row's last token that is not padding, [B,N]."""
        found: Tensor = self.head(self._states(tokens))
        return found

    def _states(self, tokens: Tokens) -> Tensor:
        """Return the state of each row's last token that is not padding, [B,H]."""
        read, last_b = self._read_last(tokens)
        return read.hidden_md[last_b]

    def _read_last(self, tokens: Tokens) -> tuple[Readout, Tensor]:
        """Run one pass; return its readout and the places of each row's last token that is not padding, [B]."""
        beyond = self._beyond(tokens)
        with dropping(self.model) if torch.is_grad_enabled() else nullcontext():
            note("read", tokens)
            read = self._engine.read(beyond)
        return read, torch.tensor(beyond.response_lengths, device=self.device).cumsum(0) - 1

    def _beyond(self, tokens: Tokens) -> Tokens:
        """Return the rows with one more token, which the state of the last real token would predict."""
        pad, beyond = self.model.config.get_text_config().pad_token_id, self.eos_ids[0]
        ends = [_without_end(ids, pad) for ids in tokens.response_ids]
        prompts = [
            prompt if end else _without_end(prompt, pad) or prompt
            for prompt, end in zip(tokens.prompt_ids, ends, strict=True)
        ]
        return Tokens(tuple(prompts), tuple((*end, beyond) for end in ends))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name."""
        yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def save(self, folder: str | Path) -> None:
        """Write a folder for `AutoModelForSequenceClassification`: model with its head, and tokenizer; adapters are
        merged into the weights.
        """
        adapted = is_adapted(self.model)
        model = copy.deepcopy(self.model).merge_and_unload() if adapted else self.model
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def copied(self, *, trainable: bool = True) -> RewardModel:
        """Return a copy of the model as it is now; only the tokenizer is shared. `trainable` as in `CausalPolicy`."""
        model = copy.deepcopy(self.model)
        if not trainable:
            model.requires_grad_(False)
        return type(self)(
            model,
            self.tokenizer,
            engine=self.engine,
            passes=self.pass_settings,
            token_budget=self.token_budget,
            precision=self.precision,
        )


class SilentSampler:
    """The sampler of a model that scores texts and writes none."""

    exact, version = True, 0

    def publish(self, version: int, policy: object) -> None:
        """Accept the model's weights under the number `version`; nothing is sampled with them."""
        self.version = version

    def sample(self, requests: object, **options: object) -> object:
        """Refuse to sample; raises InputError."""
        raise InputError(
            "a reward model is asked for completions", "it scores texts and writes none", "Sample from a language model"
        )

    def session(self, *settings: object, **options: object) -> object:
        """Refuse to sample; raises InputError."""
        return self.sample(())


def read_to_end_of_turn(config: PretrainedConfig) -> None:
    """Write into a model's configuration that its scores of conversations are read where the last turn ends."""
    setattr(config, SCORED_AT, END_OF_TURN)


def ends_with_turn(config: PretrainedConfig) -> bool:
    """Return whether scores of conversations are read where the last turn ends, not at the template's last token."""
    return getattr(config, SCORED_AT, None) == END_OF_TURN


def closed(ids: Sequence[int], eos_ids: Sequence[int], closing: Closing) -> list[int]:
    """Return the tokens of an answer with their end."""
    if closing == "whole":
        return [*ids]
    return with_end(up_to_end(ids, eos_ids) if closing == "up_to_end" else ids, eos_ids)


def _without_end(ids: tuple[int, ...], pad: int | None) -> tuple[int, ...]:
    """Return `ids` up to the last one that is not `pad`; all of them if there is no padding token."""
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return ids[:end]
