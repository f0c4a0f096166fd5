"""Checks that a model's tokenizer exists, is complete and fits the model, and that all weights are finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedTokenizerBase

VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "*.tiktoken", "*.gguf"),
)
"""Files of which a tokenizer needs one, for its vocabulary."""
SETTINGS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
LOOKED_THROUGH = 2**32
"""Bytes of weights that a plan searches for NaN and infinity; larger models are checked when they are loaded."""


def check_tokenizer_files(folder: Path) -> None:
    """Check that a model folder holds a tokenizer, and that its files can be read.

    Raises:
        InputError: no tokenizer file was found, or one is damaged; the message names it.
    """
    if not any(found for name in VOCABULARIES for found in folder.glob(name)):
        raise InputError(
            f"{folder} has no tokenizer",
            f"a model folder needs one of {', '.join(VOCABULARIES)}",
            "Copy the tokenizer that the model was trained with: tokenizer.save_pretrained(folder)",
        )
    for path in (folder / name for name in SETTINGS):
        try:
            if path.is_file():
                json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{path} is truncated or damaged ({error})", "the tokenizer's file must be valid JSON", "Copy it again"
            ) from error


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, spec: str) -> None:
    """Check that a model with `rows` embeddings has one for every token that texts can hold.

    Raises:
        InputError: a token of plain text, of a completion's end or of the chat template has no embedding; the message
            names it.
    """
    added, template = tokenizer.get_added_vocab(), str(tokenizer.chat_template or "")
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda each: each[1]):
        end = token == tokenizer.eos_token
        if number >= rows and (token not in added or end or token in template):
            raise InputError(
                f"the tokenizer of {spec} has the {'end ' * end}token {token!r} as number {number}",
                f"the model has embeddings only for the {rows} tokens 0 to {rows - 1}",
                "Use the tokenizer that the model was trained with, or call resize_token_embeddings and train it",
            )


def unused_ids(tokenizer: object, rows: int) -> list[str]:
    """Return a sentence on tokens that no text of a run needs and that have no embedding; an empty list if there are
    none.
    """
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    beyond = [token for token, number in added.items() if number >= rows]
    if not beyond:
        return []
    many = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
    return [f"the model has no embedding of the added tokens {', '.join(beyond[:3])}{many}: no prompt may hold them"]


def check_finite_files(folder: Path) -> None:
    """Check that all weights in the files of a folder are finite, unless they are too large to be searched.

    Raises:
        InputError: a weight is not finite; the message names the tensor.
    """
    from safetensors import safe_open

    paths = sorted(folder.glob("model*.safetensors"))
    if sum(path.stat().st_size for path in paths) > LOOKED_THROUGH:
        return
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                check_tensor(name, file.get_tensor(name), str(folder))


def check_finite(model: Module, spec: str) -> None:
    """Check that all weights of a loaded model are finite; if not, raise InputError with the name of the tensor."""
    for name, weight in model.named_parameters():
        check_tensor(name, weight.detach(), spec)


def check_tensor(name: str, weight: torch.Tensor, spec: str) -> None:
    """Check that all numbers of a weight are finite; if not, raise InputError with its name."""
    if not weight.is_floating_point() or weight.dtype.itemsize < 2 or bool(torch.isfinite(weight).all()):
        return
    wrong = ~torch.isfinite(weight)
    raise InputError(
        f"{spec}: {name} holds {float(weight[wrong][0])} ({int(wrong.sum())} of {weight.numel()} numbers)",
        "every weight must be a finite number",
        "Copy or download the model again, or take an earlier checkpoint: a training run may have diverged",
    )
