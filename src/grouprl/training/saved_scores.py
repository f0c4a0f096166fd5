"""Check that a saved reward model scores in `transformers` like the model from which it was saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from grouprl.core.errors import RunError
from grouprl.policy.language.columns.several_scores import ColumnsModel
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.language.users.user_reward_model import UserRewardModel
from grouprl.records.examples import Prompt
from grouprl.records.tokens import Tokens
from grouprl.rollout.offline_rows import stored_texts
from grouprl.tasks import Task
from grouprl.training.asked_process import answered, form_of
from grouprl.training.scores_in_transformers import main

GROUPS = 4
"""Number of held-out prompts whose completions are compared."""
NEAR = {torch.float32: 1e-5, torch.float64: 1e-6}
HALF_NEAR = 0.05
"""Largest difference of two scores relative to the largest one, and to 1: two ways to compute round differently."""
Text = tuple[Prompt, str]
"""A prompt and its completion."""


def held_out_texts(task: Task) -> list[Text]:
    """Return some prompts of the split `eval` with their stored completions."""
    size = task.size("eval")
    examples = [task.example("eval", index) for index in range(GROUPS if size is None else min(GROUPS, size))]
    return stored_texts(task, examples)


def check_scores(model: RewardModel, folder: Path, texts: Sequence[Text]) -> None:
    """Load `folder` in a fresh process with `transformers` alone, and compare its scores of `texts` with the model's.

    Raises:
        RunError: a text has other token ids, a score differs alone or in a padded batch, or the folder cannot be
            loaded.
    """
    tokens = model.tokens_of([prompt for prompt, _ in texts], [text for _, text in texts])
    with model.full_precision():
        expected_bn = _scores(model, tokens).double().cpu()
        limit = near(model) * max(1.0, float(expected_bn.abs().max()))
    found = answered(
        main,
        {
            "folder": str(folder),
            "dtype": str(model.dtype).removeprefix("torch."),
            "rows": [_asked(model, *text) for text in texts],
        },
        f"transformers cannot use the saved reward model in {folder}",
    )
    for row, (_, text) in enumerate(texts):
        if found["ids"][row] != [*tokens.prompt_ids[row], *tokens.response_ids[row]]:
            raise RunError(f"the saved tokenizer reads {text!r} as other tokens than training did")
        for way in ("alone", "together"):
            for score, expected in zip(found[way][row], expected_bn[row].tolist(), strict=True):
                if not abs(score - expected) <= limit:
                    raise RunError(
                        f"the saved reward model scores {text!r} with {score:.6g} in transformers ({way}), the trained "
                        f"one with {expected:.6g} (rounding explains a difference of {limit:.2g})"
                    )


def near(model: RewardModel) -> float:
    """Return by how much two scores of a model may differ, relative to the largest one; products in bfloat16 allow more
    than the type of the weights.
    """
    return HALF_NEAR if model.precision == "mixed" else NEAR.get(model.dtype, HALF_NEAR)


def _scores(model: RewardModel, tokens: Tokens) -> Tensor:
    """Return the numbers that the model's layer gives of each row, [B,N]."""
    return model.column_values(tokens) if isinstance(model, ColumnsModel) else model.scores(tokens)[:, None]


def check_reloaded(model: UserRewardModel, folder: Path, texts: Sequence[Text]) -> None:
    """Load `folder` as a reward model of users, which transformers has no class for, and compare scores of `texts`.

    Raises:
        RunError: a score differs from the model's.
    """
    again = load_reward_model(folder, device=str(model.device), dtype=str(model.dtype).split(".")[1], trained=True)
    prompts, completions = [prompt for prompt, _ in texts], [text for _, text in texts]
    expected_b, found_b = (x.scores(x.tokens_of(prompts, completions)).double().cpu() for x in (model, again))
    limit = near(model) * max(1.0, float(expected_b.abs().max()))
    if not bool(((expected_b - found_b).abs() <= limit).all()):
        raise RunError(f"the saved reward model scores {found_b.tolist()}, the trained one {expected_b.tolist()}")


def _asked(model: RewardModel, prompt: Prompt, completion: str) -> dict[str, object]:
    shown, rendered = form_of(model.tokenizer, prompt)
    ((text, closing),) = model.read_texts([prompt], [completion])
    return {"prompt": shown, "rendered": rendered, "text": text, "closing": closing}
