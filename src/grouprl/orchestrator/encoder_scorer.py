"""Reward models of others that are encoders (BERT, RoBERTa, DeBERTa): they score texts, and are not trained here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.core.errors import InputError
from grouprl.policy.language.load import resolve_device, resolve_dtype, told_of_model
from grouprl.policy.language.load_reward import check_labels
from grouprl.policy.language.model_checks import check_files, check_missing, check_present
from grouprl.policy.language.tokenizer_checks import check_finite, check_tokenizer_files, check_vocabulary
from grouprl.records.examples import Prompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

AT_ONCE = 32
"""Texts of one pass through the model."""


class EncoderScorer:
    """A model for sequence classification with one label that reads a prompt and its completion as a pair of texts.

    The score is the one that transformers gives to `tokenizer(prompt, completion)`; the mask hides padding, so that it
    is the same in any batch. A prompt of messages is read if it is a single one of the user's.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.most = most_tokens(model, tokenizer)

    def scores_of(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> Tensor:
        """Return the score of each completion after its prompt, [B].

        Raises:
            InputError: a prompt of several messages, or a pair with more tokens than the model reads.
        """
        rows = [self._row(*each) for each in zip(prompts, completions, strict=True)]
        parts = [self._pass(rows[start : start + AT_ONCE]) for start in range(0, len(rows), AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0)

    def _row(self, prompt: Prompt, completion: str) -> dict[str, list[int]]:
        row = dict(self.tokenizer(_text(prompt), completion, verbose=False))
        if len(row["input_ids"]) > self.most:
            raise InputError(
                f"a prompt and its completion have {len(row['input_ids'])} tokens",
                f"this reward model reads at most {self.most}",
                "Shorten them, or take a model that reads more",
            )
        return row

    @torch.no_grad()
    def _pass(self, rows: Sequence[dict[str, list[int]]]) -> Tensor:
        padded = padded_rows(rows, self._padding)
        scores_b: Tensor = self.model(**{name: x.to(self.model.device) for name, x in padded.items()}).logits[:, 0]
        return scores_b.float()

    @property
    def _padding(self) -> int:
        """The token that pads shorter rows: the model's own, by which some count positions, or any, as it is hidden."""
        known = (self.model.config.pad_token_id, self.tokenizer.pad_token_id)
        return next((int(x) for x in known if x is not None), 0)


def padded_rows(rows: Sequence[dict[str, list[int]]], padding: int) -> dict[str, Tensor]:
    """Return rows of a tokenizer as tensors of one length, [B,L] each, with hidden padding on the right.

    On the left it would move the positions of an encoder's tokens, and with them the score.
    """
    longest = max(len(row["input_ids"]) for row in rows)
    masked = [{**row, "attention_mask": row.get("attention_mask", [1] * len(row["input_ids"]))} for row in rows]
    fill = {"input_ids": padding}
    return {
        name: torch.tensor([row[name] + [fill.get(name, 0)] * (longest - len(row[name])) for row in masked])
        for name in masked[0]
    }


def is_encoder(spec: str) -> bool:
    """Return whether a folder holds a model that reads texts in both directions."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if not (Path(spec).expanduser() / "config.json").is_file():
        return False
    with told_of_model(spec):
        config = AutoConfig.from_pretrained(Path(spec).expanduser())
    causal = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not (causal or config.is_encoder_decoder)


def load_encoder(spec: str, *, device: str = "auto", dtype: str = "auto") -> EncoderScorer:
    """Load the encoder in a folder, with its head for one label.

    Raises:
        InputError: weights are missing or not finite, the head has several labels, or the tokenizer does not fit.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = Path(spec).expanduser()
    check_tokenizer_files(folder)
    check_files(folder)
    check_present(folder)
    place = resolve_device(device)
    with told_of_model(spec):
        check_labels(AutoConfig.from_pretrained(folder), spec)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, told = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=resolve_dtype(dtype, place, "float32", pretrained=True), output_loading_info=True
        )
    check_missing(sorted(told["missing_keys"]), spec)
    check_finite(model, spec)
    check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0], spec)
    return EncoderScorer(model.to(place), tokenizer)


def most_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens a model can read; RoBERTa and its relatives number positions from after the padding
    token's id.
    """
    places = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    first = getattr(places, "padding_idx", None)
    return min(tokenizer.model_max_length, model.config.max_position_embeddings - (0 if first is None else first + 1))


def _text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and prompt[0].get("role") == "user" and isinstance(prompt[0].get("content"), str):
        return str(prompt[0]["content"])
    raise InputError(
        f"a prompt has {len(prompt)} messages",
        "a reward model that is an encoder reads a prompt and a completion as two texts",
        "Take a reward model with a chat template, or call this one in a reward function of your own (reward.function)",
    )
