"""Our `kto@trl`, `bco@trl` and `tpo@trl` against TRL's own losses: values and gradients on random rows.

KTO and TPO are TRL 1.16.0's; BCO is that of 1.13.0, the last version that has it, and is skipped elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import grouprl
from batches import random_case
from grouprl.algorithms.pretrain.papers.prompt_density import balanced_fit, density_ratio

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")
NO_BCO = "this TRL has no BCO: it is in 1.13.0"


def rows_case(seed: int, sizes: tuple[int, ...]) -> tuple[grouprl.Batch, Tensor]:
    case = random_case(seed, sizes, rewards="mixed", holes=False)
    return case.batch.replace(stat_b=None, source_b=None), case.logp_bt


def ours(name: str, batch: grouprl.Batch, logp_bt: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    method = grouprl.method(name, **settings)
    leaf_bt = logp_bt.clone().requires_grad_()
    value = method.loss(leaf_bt, method.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, leaf_bt)[0]


def sums(logp_bt: Tensor, batch: grouprl.Batch) -> Tensor:
    return torch.where(batch.mask_bt, logp_bt, 0).sum(1)


@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize("seed", range(4))
def test_bco(seed: int, beta: float) -> None:
    bco = pytest.importorskip("trl.experimental.bco.bco_trainer", reason=NO_BCO)
    batch, logp_bt = rows_case(seed, (1,) * 9)
    liked_b = batch.reward_b > 0.5
    gathering = SimpleNamespace(use_distributed=False)
    made = SimpleNamespace(beta=beta, running=bco.RunningMoments(gathering), match_underlying_distribution=False)
    leaf_bt = logp_bt.clone().requires_grad_()
    policy_b, ref_b = sums(leaf_bt, batch), sums(batch.ref_bt, batch)
    given = (policy_b[liked_b], policy_b[~liked_b], ref_b[liked_b], ref_b[~liked_b], None, None)
    losses, _, _, delta = bco.BCOTrainer.bco_loss(made, *given)
    value = losses.nanmean()
    past = {**batch.past, "score_mean": torch.full_like(batch.reward_b, float(delta) / beta)}
    found, grad_bt = ours("bco@trl", batch.replace(past=past), logp_bt, beta=beta)
    assert float(delta) / beta == pytest.approx(float((policy_b - ref_b).mean().detach()), abs=1e-6)
    torch.testing.assert_close(found, value.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(grad_bt, torch.autograd.grad(value, leaf_bt)[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_bco_of_matched_prompts(seed: int, exact: bool) -> None:
    """Disliked rows weigh by the classifier that TRL fits: scikit-learn's, whose tolerance in float32 leaves up to a
    thousandth, or the same in float64 to the end.
    """
    bco = pytest.importorskip("trl.experimental.bco.bco_trainer", reason=NO_BCO)
    linear = pytest.importorskip("sklearn.linear_model", reason="TRL's classifier is scikit-learn's")
    batch, logp_bt = rows_case(seed, (1,) * 9)
    batch = batch.replace(reward_b=torch.tensor([1.0, 0.0, 0.0] * 3, dtype=torch.float64))
    liked_b, drawn = batch.reward_b > 0.5, torch.Generator().manual_seed(seed)
    embedding_bd, sample_nd = (torch.randn(n, 4, generator=drawn).double() + 1.5 for n in (9, 80))
    liked_n = torch.rand(80, generator=drawn) < (2 * sample_nd[:, 0] - 3).sigmoid() * 0.7
    settings = {"tol": 1e-10, "max_iter": 10000} if exact else {}
    classifier = linear.LogisticRegression(class_weight="balanced", **settings)
    alone = {"process_index": 0, "pad_across_processes": lambda x, pad_index: x, "gather": lambda x: x}
    made = SimpleNamespace(
        beta=0.1,
        running=bco.RunningMoments(SimpleNamespace(use_distributed=False)),
        match_underlying_distribution=True,
        accelerator=SimpleNamespace(reduce=lambda x, reduction: x, **alone),
        embedding_tokenizer=SimpleNamespace(pad_token_id=0),
        clf=classifier.fit((sample_nd if exact else sample_nd.float()).numpy(), liked_n.float().numpy()),
        args=bco.BCOConfig(output_dir=str(seed), use_cpu=True, bf16=False, report_to=[]),
    )
    for name in ("_get_chosen_prob", "_get_udm_weight"):
        setattr(made, name, MethodType(getattr(bco.BCOTrainer, name), made))
    leaf_bt = logp_bt.clone().requires_grad_()
    policy_b, ref_b = sums(leaf_bt, batch), sums(batch.ref_bt, batch)
    given = (policy_b[liked_b], policy_b[~liked_b], ref_b[liked_b], ref_b[~liked_b])
    losses, *_ = bco.BCOTrainer.bco_loss(made, *given, embedding_bd[liked_b], embedding_bd[~liked_b])
    value = losses.nanmean()
    weight_d, bias = balanced_fit(sample_nd, liked_n)
    ratio_b = density_ratio((embedding_bd @ weight_d + bias).sigmoid(), 0.5, 10.0)
    past = {name: x for name, x in batch.past.items() if name != "score_mean"} | {"density_ratio": ratio_b}
    found, grad_bt = ours("bco@trl", batch.replace(past=past), logp_bt, encoder="policy")
    near = {"rtol": 1e-5 if exact else 5e-3, "atol": 1e-6}
    assert ratio_b[~liked_b].std() > 0.05
    torch.testing.assert_close(found, value.detach(), **near)
    torch.testing.assert_close(grad_bt, torch.autograd.grad(value, leaf_bt)[0], **near)


class Answering(torch.nn.Module):
    """A model whose logits give these log-probs to token 1, whatever it is asked."""

    def __init__(self, logp_bt: Tensor) -> None:
        super().__init__()
        self.logp_bt = logp_bt

    def forward(self, **_: Any) -> Any:
        rest_bt = torch.log(-torch.expm1(self.logp_bt))
        logits_btv = torch.stack([rest_bt, self.logp_bt], 2)
        return SimpleNamespace(logits=torch.nn.functional.pad(logits_btv, (0, 0, 0, 1)))


def bare(**own: Any) -> Any:
    """A stand-in for a trainer, as far as TRL's loss looks at it."""
    same = SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x, device=torch.device("cpu"))
    metrics = {"train": defaultdict(list)}
    return SimpleNamespace(model=SimpleNamespace(training=True), accelerator=same, _metrics=metrics, **own)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_type": "hinge", "beta": 0.3},
        {"loss_type": "ipo", "beta": 0.2},
        {"loss_type": "tpo-l", "beta": 2.0, "tpo_l_gamma": 0.7},
        {"label_smoothing": 0.2, "tpo_alpha": 0.4, "beta": 0.5},
        {"tpo_alpha": 0.0},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_tpo(seed: int, settings: dict[str, Any]) -> None:
    tpo = pytest.importorskip("trl.experimental.tpo.tpo_trainer", reason="this TRL has no TPO")
    batch, logp_bt = rows_case(seed, (3,) * 4)
    batch = batch.replace(reward_b=torch.tensor([1.0, 0.0, 2.0] * 4, dtype=torch.float64))
    gold = settings.get("tpo_alpha", 1.0) != 0
    rows = torch.arange(12).view(4, 3).T[: 3 if gold else 2].flatten()
    leaf_bt = logp_bt.clone().requires_grad_()
    full = {
        "loss_type": "sigmoid",
        "beta": 0.01,
        "label_smoothing": 0.0,
        "tpo_alpha": 1.0,
        "tpo_l_gamma": 0.5,
    } | settings
    mask_bt = torch.nn.functional.pad(batch.mask_bt[rows].long(), (1, 0))
    inputs = {"input_ids": torch.ones_like(mask_bt), "completion_mask": mask_bt, "attention_mask": mask_bt}
    made = bare(**full, _total_train_tokens=0, _tp_size=1, aux_loss_enabled=False, args=SimpleNamespace())
    value = tpo.TPOTrainer._compute_loss(made, Answering(leaf_bt[rows]), inputs, False)
    found, grad_bt = ours("tpo@trl", batch, logp_bt, **settings)
    torch.testing.assert_close(found, value.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(grad_bt, torch.autograd.grad(value, leaf_bt)[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 0.5, "desirable_weight": 1.3, "undesirable_weight": 0.6},
        {"loss_type": "apo_zero_unpaired", "undesirable_weight": 2.0},
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_kto(seed: int, settings: dict[str, Any]) -> None:
    """Rows of the last four prompts are mismatched: TRL scores them apart."""
    kto = pytest.importorskip("trl.trainer.kto_trainer", reason="this TRL has no stable KTO")
    if "fused_lm_head" not in Path(kto.__file__).read_text(encoding="utf-8"):
        pytest.skip("this test calls the loss as TRL 1.16.0 does")
    batch, logp_bt = rows_case(seed, (1,) * 12)
    own = torch.arange(8)
    if settings.get("loss_type") == "apo_zero_unpaired":
        batch, logp_bt = batch.rows(own), logp_bt[own]
    batch = batch.replace(keys={**batch.keys, "mismatched": (torch.arange(len(logp_bt)) >= 8).long()})
    leaf_bt = logp_bt.clone().requires_grad_()
    policy_b, ref_b = sums(leaf_bt, batch), sums(batch.ref_bt, batch)
    full = {"loss_type": "kto", "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0} | settings
    made = bare(
        **full,
        precompute_ref_logps=True,
        calculate_KL=full["loss_type"] == "kto",
        aux_loss_enabled=False,
        _total_train_tokens=0,
        _tp_size=1,
        _compute_kl_logps=lambda *_: policy_b[8:].detach(),
    )
    mask_bt = torch.nn.functional.pad(batch.mask_bt[own].long(), (1, 0))
    rest = dict.fromkeys(("entropy", "mean_logits"), torch.zeros_like(logp_bt[own]))
    logs_bt = torch.where(batch.mask_bt, leaf_bt, 0)[own]
    inputs = {
        "label": batch.reward_b[own] > 0.5,
        "input_ids": torch.ones_like(mask_bt),
        "attention_mask": mask_bt,
        "completion_mask": mask_bt,
        "ref_logps": ref_b[own],
        "ref_KL_logps": ref_b[8:],
    }
    answer = SimpleNamespace(log_probs=logs_bt, is_top1=logs_bt > 0, **rest)
    value = kto.KTOTrainer._compute_loss(made, lambda **_: answer, inputs, False)
    found, grad_bt = ours("kto@trl", batch, logp_bt, **settings)
    torch.testing.assert_close(found, value.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(grad_bt, torch.autograd.grad(value, leaf_bt)[0], rtol=1e-6, atol=1e-8)
