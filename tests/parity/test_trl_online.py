"""Our `online_dpo@trl`, `xpo@trl` and `nash_md@trl` against TRL's own losses: values and gradients.

XPO and Nash-MD need TRL 1.13.0, the last release with them; `make parity` has an environment of its own for it.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import grouprl
from batches import random_case

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")

NEEDS = "TRL's online trainers import what is not installed: pip install requests"
OnlineDPOTrainer = pytest.importorskip(
    "trl.experimental.online_dpo", reason=NEEDS, exc_type=ImportError
).OnlineDPOTrainer

PROMPTS, END = 6, 1
WITHOUT = f"TRL {trl.__version__} has no such trainer any more: install trl==1.13.0, the last that has it"


def removed(name: str) -> Any:
    """A trainer that later releases lack."""
    return pytest.importorskip(f"trl.experimental.{name.lower()}", reason=WITHOUT)


def case(seed: int) -> tuple[grouprl.Batch, Tensor]:
    """Two completions of each of six prompts, the policy's first; no row has holes."""
    found = random_case(seed, (2,) * PROMPTS, holes=False)
    keys = {"opponent": torch.arange(2 * PROMPTS) % 2}
    reward_b = found.batch.reward_b.float().double()  # TRL's rewards may be single
    return found.batch.replace(keys=keys, reward_b=reward_b, stat_b=None), found.logp_bt


def ours(name: str, batch: grouprl.Batch, logp_bt: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    method = grouprl.method(name, **settings)
    leaf_bt = logp_bt.clone().requires_grad_()
    value = method.loss(leaf_bt, method.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, leaf_bt)[0]


def same(got: tuple[Tensor, Tensor], value: Tensor, leaf_bt: Tensor, *, valued: bool = True) -> None:
    (slope_bt,) = torch.autograd.grad(value, leaf_bt)
    torch.testing.assert_close(got[1], slope_bt, rtol=1e-9, atol=1e-12)
    assert slope_bt.abs().max() > 1e-3
    if valued:
        torch.testing.assert_close(got[0], value.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("penalty", [None, 0.7])
@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
@pytest.mark.parametrize("seed", range(3))
def test_online_dpo(seed, loss_type, penalty):
    batch, logp_bt = case(seed)
    rows = torch.cat([torch.arange(0, 2 * PROMPTS, 2), torch.arange(1, 2 * PROMPTS, 2)])  # TRL: all first ones first
    leaf_bt, mask_bt = logp_bt.clone().requires_grad_(), batch.mask_bt[rows]
    ended_b = ~batch.truncated_b[rows]
    ids_bt = torch.where(mask_bt, 2, 0)
    ids_bt[torch.arange(len(rows)), mask_bt.sum(1) - 1] = torch.where(ended_b, END, 2)
    stats: dict[str, list[float]] = defaultdict(list)
    found: list[Tensor] = []
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            use_vllm=True,  # what this path generates has the same form in all releases
            missing_eos_penalty=penalty,
            loss_type=loss_type,
            torch_empty_cache_steps=None,
            optim="adamw_torch",
            n_gpu=1,
            gradient_accumulation_steps=1,
        ),
        beta=0.1,
        eos_token_ids=[END],
        _tokenizer=SimpleNamespace(eos_token_id=END),  # read by TRL 1.13.0
        ref_model="reference",
        is_vision_model=False,
        reward_funcs=[None],
        stats=stats,
        state=SimpleNamespace(global_step=1),
        processing_class=SimpleNamespace(batch_decode=lambda ids, **_: ["w"] * len(ids)),
        accelerator=SimpleNamespace(gather_for_metrics=lambda x: x, backward=lambda loss, **_: found.append(loss)),
        _generate_vllm=lambda *_: (None, None, ids_bt, mask_bt.long()),
        _forward=lambda model, *_: (batch.ref_bt if model == "reference" else leaf_bt)[rows],
        _calculate_rewards_from_functions=lambda **_: batch.reward_b[rows].clone(),
    )
    model = SimpleNamespace(train=lambda: None)
    OnlineDPOTrainer.training_step(trainer, model, {"prompt": ["w"] * PROMPTS})
    got = ours("online_dpo@trl", batch, logp_bt, loss_type=loss_type, missing_eos_penalty=penalty)
    same(got, found[0], leaf_bt)


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
@pytest.mark.parametrize("alpha", [1e-5, 0.3])
def test_xpo(alpha, loss_type):
    trainer_class = removed("XPO").XPOTrainer
    for seed in range(3):
        batch, logp_bt = case(seed)
        leaf_bt = logp_bt.clone().requires_grad_()
        own_bt, ref_bt = (torch.where(batch.mask_bt, x, 0) for x in (leaf_bt, batch.ref_bt))
        trainer = SimpleNamespace(beta=0.2, alpha=alpha, args=SimpleNamespace(loss_type=loss_type))
        won_b = batch.reward_b[0::2] >= batch.reward_b[1::2]
        value = trainer_class._compute_losses(trainer, own_bt[0::2], own_bt[1::2], ref_bt[1::2], ref_bt[0::2], won_b)[0]
        same(ours("xpo@trl", batch, logp_bt, beta=0.2, alpha=alpha, loss_type=loss_type), value, leaf_bt)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_nash_md(beta):
    trainer_class = removed("Nash_MD").NashMDTrainer
    for seed in range(3):
        batch, logp_bt = case(seed)
        leaf_bt = logp_bt.clone().requires_grad_()
        own_bt, ref_bt = (torch.where(batch.mask_bt, x, 0)[0::2] for x in (leaf_bt, batch.ref_bt))
        chance_b = (batch.reward_b[0::2] - batch.reward_b[1::2]).sigmoid()
        value = trainer_class._compute_losses(SimpleNamespace(beta=beta), own_bt, ref_bt, chance_b)[0]
        same(ours("nash_md@trl", batch, logp_bt, beta=beta), value, leaf_bt, valued=False)
