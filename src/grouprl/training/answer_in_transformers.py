"""Answers of a saved model by `transformers`: `python -m grouprl.training.answer_in_transformers`, JSON in and out.

Nothing else of grouprl is imported: users who only have the folder call the model like this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | list[dict[str, str]]
"""Text or chat messages of a prompt."""


class Answer(TypedDict):
    """A greedy answer; `gap` is the log-prob in nats by which its first differing token exceeds the expected one."""

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
    same = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    gap = 0.0
    if same is not None:
        logp_v = model(input_ids=made[:, : len(ids) + same]).logits[0, -1].double().log_softmax(-1)
        gap = float(logp_v[found[same]] - logp_v[expected[same]])
    return {"prompt_ids": ids, "ids": found, "text": tokenizer.decode(found, skip_special_tokens=True), "gap": gap}


def main() -> None:
    """Read {folder, dtype, questions: [{prompt, expected, rendered}]} and write the list of answers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    asked = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
    model = AutoModelForCausalLM.from_pretrained(asked["folder"], dtype=getattr(torch, asked["dtype"])).eval()
    json.dump([answer(model, tokenizer, **question) for question in asked["questions"]], sys.stdout)


if __name__ == "__main__":
    main()
