"""Answers of a saved model by `transformers`, in a process of its own that reads and writes JSON.

Nothing of grouprl reads the model: users who only have the folder call it like this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch

from grouprl.processes.limits import die_with

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | list[dict[str, str]]
"""Text or chat messages of a prompt."""


class Answer(TypedDict):
    """A greedy answer; `gap` is the log-prob in nats by which its first differing token exceeds the expected one.

    It is infinite if the answer ends before the expected one does.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    gap: float


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, rendered: bool) -> list[int]:
    """Return the token ids of a prompt by the tokenizer alone; a rendered chat already has its special tokens."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt, add_special_tokens=not rendered).input_ids)
    made = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    return list(made["input_ids"])


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    expected: Sequence[int],
    rendered: bool = False,
) -> Answer:
    """Return the greedy answer to a prompt, compared with the `expected` ids."""
    ids = prompt_ids(tokenizer, prompt, rendered)
    row = torch.tensor([ids])
    made = model.generate(row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=len(expected))
    found = made[0, len(ids) :].tolist()
    other = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    gap = 0.0 if len(found) == len(expected) else math.inf
    if other is not None:
        logp_v = model(input_ids=made[:, : len(ids) + other]).logits[0, -1].double().log_softmax(-1)
        gap = float(logp_v[found[other]] - logp_v[expected[other]])
    return {"prompt_ids": ids, "ids": found, "text": tokenizer.decode(found, skip_special_tokens=True), "gap": gap}


def main(lifeline: str, questions: str, answers: str) -> None:
    """Read the file {folder, dtype, questions: [{prompt, expected, rendered}]}, and write the file of answers."""
    die_with(int(lifeline))
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    asked = json.loads(Path(questions).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
    model = AutoModelForCausalLM.from_pretrained(asked["folder"], dtype=getattr(torch, asked["dtype"])).eval()
    found = [answer(model, tokenizer, **question) for question in asked["questions"]]
    Path(answers).write_text(json.dumps(found), encoding="utf-8")
