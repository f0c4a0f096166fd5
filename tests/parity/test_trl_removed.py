"""What TRL 1.13.0 was the last release to have: GSPO-token, and the loss and the data of process reward models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.loss.loss_utils import ForTokenClassification

import grouprl
from batches import random_case
from grouprl.tasks.adapters.step_labels import StepLabels
from grouprl.tasks.rows import Example

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")

from test_trl import agreed  # noqa: E402
from trl_oracle import TRAINERS, Oracle, _tokenizer  # noqa: E402

WITHOUT = f"TRL {trl.__version__} has no such trainer any more: 1.13.0 is the last that has it"
CLIPS = {"of the paper": (3e-4, 4e-4), "wide": (0.2, 0.2)}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("drift", [0.0, 0.05, 0.4])
def test_gspo_token(clip: str, beta: float, drift: float) -> None:
    peer = pytest.importorskip("trl.experimental.gspo_token", reason=WITHOUT)
    TRAINERS["gspo_token"] = (trl.GRPOConfig, peer.GRPOTrainer)
    low, high = CLIPS[clip]
    options = {"importance_sampling_level": "sequence_token", "loss_type": "grpo", "beta": beta}
    oracle = Oracle("gspo_token", 12, 9, epsilon=low, epsilon_high=high, **options)
    method = grouprl.method("gspo_token", clip_low=low, clip_high=high, kl_coef=beta, kl_estimator="k3", eps=1e-4)
    for seed in range(3):
        case = random_case(seed, (4, 4, 4), holes=False, drift=drift)
        agreed(method, case, oracle.request(case))


def labelled(seed: int) -> dict[str, Any]:
    """An answer of one to four steps of one to five words, each step labelled."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 6, (int(torch.randint(1, 5, (), generator=generator)),), generator=generator)
    labels = torch.randint(0, 2, (len(counts),), generator=generator).bool()
    steps = [" ".join(["w"] * count) for count in counts.tolist()]
    return {"prompt": "w w", "completions": steps, "labels": labels.tolist()}


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_steps_of_a_process_reward_model_end_where_those_of_trl_do(seed: int, last_only: bool, tmp_path: Path) -> None:
    peer = pytest.importorskip("trl.experimental.prm", reason=WITHOUT).PRMTrainer
    row, tokenizer = labelled(seed), _tokenizer()
    theirs = peer.tokenize_row(row, tokenizer, " w", None, None, last_only, is_eval=False)
    ends = {at: label for at, label in enumerate(theirs["labels"]) if label != -100}
    file = tmp_path / "answers.jsonl"
    other = labelled(seed) | {"prompt": "another prompt, which is held out"}
    file.write_text(f"{json.dumps(row)}\n{json.dumps(other)}\n", encoding="utf-8")
    task = StepLabels(path=str(file), separator=" w", last_only=last_only)
    rows = task.stored_rows(Example("0", row["prompt"], row))
    read = {
        len(tokenizer(f"{row['prompt']} {stored.completion}")["input_ids"]) - 1: int(stored.reward) for stored in rows
    }
    assert read == ends


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_process_reward_model_has_the_loss_of_trl(scale: float) -> None:
    """TRL has two logits a step, ours one score: their difference."""
    drawn = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale
    label_b = torch.tensor([1, 0, 0, 1, 1, 0, 1])
    theirs_b2 = drawn.clone().requires_grad_()
    loss = ForTokenClassification(theirs_b2, label_b, config=type("Config", (), {"num_labels": 2}))
    loss.backward()
    ours_b2 = drawn.clone().requires_grad_()
    batch = grouprl.Batch(
        mask_bt=torch.ones(7, 2, dtype=torch.bool),
        group_b=torch.tensor([0, 0, 0, 1, 1, 2, 2]),
        reward_b=label_b.double(),
    )
    method = grouprl.method("process_reward")
    found = method.loss(None, method.prepare(batch), outputs={"score": ours_b2[:, 1] - ours_b2[:, 0]})
    found.value.backward()
    torch.testing.assert_close(found.value, loss, rtol=1e-6, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(ours_b2.grad, theirs_b2.grad, rtol=1e-6, atol=1e-6)
