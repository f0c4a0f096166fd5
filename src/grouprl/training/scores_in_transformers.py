"""Scores of a saved reward model by `transformers`, in a process of its own that reads and writes JSON.

Nothing of grouprl reads the model: users who only have the folder call it like this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch

from grouprl.processes.limits import die_with
from grouprl.training.answer_in_transformers import Prompt, prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Asked(TypedDict):
    """A prompt as given to the saved model (see `answer_in_transformers`), the text after it, and where that ends."""

    prompt: Prompt
    rendered: bool
    text: str
    closing: str


class RowScores(TypedDict):
    """Token ids of each row, and its scores (one for each label) alone and in one padded batch."""

    ids: list[list[int]]
    alone: list[list[float]]
    together: list[list[float]]


def row_ids(tokenizer: PreTrainedTokenizerBase, asked: Asked) -> list[int]:
    """Return the token ids of a prompt, and of the text after it with its end token."""
    ids, end = list(tokenizer(asked["text"], add_special_tokens=False).input_ids), tokenizer.eos_token_id
    if asked["closing"] == "up_to_end" and end in ids:
        ids = ids[: len(ids) - ids[::-1].index(end)]
    missing = [end] if asked["closing"] != "whole" and ids[-1:] != [end] else []
    return [*prompt_ids(tokenizer, asked["prompt"], asked["rendered"]), *ids, *missing]


@torch.no_grad()
def scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[list[int]], together: bool
) -> list[list[float]]:
    """Return the scores of each row, one for each label, alone or in one batch that the tokenizer pads."""
    found: list[list[float]] = []
    for batch in [rows] if together else [[row] for row in rows]:
        padded = tokenizer.pad({"input_ids": batch}, return_tensors="pt")
        inputs = {name: padded[name] for name in ("input_ids", "attention_mask")}
        found += model(**inputs).logits.tolist()
    return found


def main(lifeline: str, questions: str, answers: str) -> None:
    """Read the file {folder, dtype, rows: [{prompt, rendered, text, closing}]}, and write the file of scores."""
    die_with(int(lifeline))
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    asked = json.loads(Path(questions).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
    dtype = getattr(torch, asked["dtype"])
    model, told = AutoModelForSequenceClassification.from_pretrained(
        asked["folder"], dtype=dtype, output_loading_info=True
    )
    if told["missing_keys"]:
        raise SystemExit(f"the folder lacks {', '.join(sorted(told['missing_keys']))}")
    ids = [row_ids(tokenizer, row) for row in asked["rows"]]
    alone, together = (scores(model.eval(), tokenizer, ids, batched) for batched in (False, True))
    found = RowScores(ids=ids, alone=alone, together=together)
    Path(answers).write_text(json.dumps(found), encoding="utf-8")
