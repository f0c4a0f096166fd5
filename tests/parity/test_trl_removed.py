"""What TRL 1.13.0 was the last release to have: GSPO-token, and the loss and the data of process reward models.

MiniLLM was still in 1.14.2, with the code of 1.13.0.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.loss.loss_utils import ForTokenClassification

import grouprl
from batches import random_case
from grouprl.tasks.adapters.preferences.step_labels import StepLabels
from grouprl.tasks.rows import Example

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")

from test_trl import agreed  # noqa: E402
from trl_oracle import TRAINERS, Oracle, _model_folder, _tokenizer  # noqa: E402

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


class Answers:
    """A model that gives the logits [4,5,V] of four answers to prompts of one token."""

    def __init__(self, logits_btv: torch.Tensor) -> None:
        self.logits = torch.cat([logits_btv, torch.zeros_like(logits_btv[:, :1])], 1)

    def eval(self) -> None:
        """Nothing is to be switched off."""

    def __call__(self, **_: Any) -> Answers:
        return self


class MiniLLM:
    """MiniLLMTrainer, asked for the loss of four answers of five tokens, which have no padding."""

    def __init__(self, **options: Any) -> None:
        peer = pytest.importorskip("trl.experimental.minillm", reason="MiniLLM is in TRL until 1.14.2")
        TRAINERS["minillm"] = (peer.MiniLLMConfig, partial(peer.MiniLLMTrainer, teacher_model=_model_folder()))
        self.trainer = Oracle("minillm", 4, 5, loss_type="grpo", beta=0.0, **options).trainer

    def loss(
        self, own_btv: torch.Tensor, other_btv: torch.Tensor, token_bt: torch.Tensor, old_bt: torch.Tensor
    ) -> torch.Tensor:
        """Return its loss, by its own `compute_loss`."""
        temperature = self.trainer.kd_temperature
        logp_bt = (own_btv / temperature).log_softmax(-1).gather(2, token_bt[..., None])[..., 0]
        self.trainer.teacher_model = Answers(other_btv)
        self.trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp_bt, torch.zeros_like(logp_bt), None)
        asked = {"prompt_ids": token_bt[:, :1], "completion_ids": token_bt, "old_per_token_logps": old_bt}
        masks = {"prompt_mask": torch.ones(4, 1).long(), "completion_mask": torch.ones(4, 5).long()}
        found: torch.Tensor = self.trainer.compute_loss(
            Answers(own_btv), {**asked, **masks, "advantages": torch.zeros(4, dtype=torch.float64)}
        )
        return found

    def through_advantages(self, logp_bt: torch.Tensor, ref_bt: torch.Tensor, old_bt: torch.Tensor) -> torch.Tensor:
        """Return 0 with the gradient that passes through its advantages, which it does not detach."""
        adv_bt = self.trainer._compute_advantage(logp_bt, ref_bt)
        ratio_bt = (logp_bt - old_bt).exp().detach()
        factor_bt = torch.where(adv_bt > 0, ratio_bt.clamp(max=1.2), ratio_bt.clamp(min=0.8))
        value = -(factor_bt * adv_bt).mean()
        return value - value.detach()


@pytest.mark.parametrize("temperature", [1.0, 1.7])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.6, 1.0])
def test_minillm(gamma: float, normalized: bool, temperature: float) -> None:
    """Loss and gradient are those of MiniLLMTrainer, but for two things that its card tells of.

    Its gradient also passes through the advantages; without normalisation these are smaller by γ^t. It judges tokens by
    the current policy, and not by the one before the update.
    """
    peer = MiniLLM(gamma=gamma, length_normalization=normalized, kd_temperature=temperature)
    method = grouprl.method("minillm", gamma=gamma, normalized=normalized, single_step="both")
    for seed in range(3):
        drawn = torch.Generator().manual_seed(seed)
        own_btv, other_btv, drift_btv = (torch.randn(4, 5, 7, generator=drawn).double() for _ in range(3))
        token_bt = torch.randint(0, 7, (4, 5), generator=drawn)
        theirs_btv, ours_btv = own_btv.clone().requires_grad_(), own_btv.clone().requires_grad_()
        own, other, old = ((x / temperature).log_softmax(-1) for x in (ours_btv, other_btv, own_btv + 0.3 * drift_btv))
        logp_bt, ref_bt, old_bt = (x.gather(2, token_bt[..., None])[..., 0] for x in (own, other, old))
        ready = method.prepare(
            grouprl.Batch(
                mask_bt=torch.ones(4, 5, dtype=torch.bool),
                group_b=torch.zeros(4, dtype=torch.int64),
                reward_b=torch.zeros(4, dtype=torch.float64),
                old_bt=logp_bt.detach(),
                ref_bt=ref_bt,
            )
        ).replace(old_bt=old_bt)
        if gamma and not normalized:
            ready = ready.replace(advantage_bt=ready.advantage_bt * gamma ** torch.arange(5).double())
        kl_bt = (own.exp() * (own - other)).sum(-1)
        found = method.loss(logp_bt, ready, outputs={"teacher_kl": kl_bt}).value
        loss = peer.loss(theirs_btv, other_btv, token_bt, old_bt)
        torch.testing.assert_close(found, loss, rtol=1e-6, atol=1e-6)
        (found + peer.through_advantages(logp_bt, ref_bt, old_bt)).backward()
        loss.backward()
        torch.testing.assert_close(ours_btv.grad, theirs_btv.grad, rtol=1e-5, atol=1e-6)
