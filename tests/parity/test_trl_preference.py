"""Our `dpo@trl`, `cpo@trl` and `orpo@trl` against TRL's own losses: values and gradients on random pairs."""

from __future__ import annotations

import functools
import random
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import grouprl
from batches import random_case

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")

from datasets import Dataset  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402
from trl.experimental.cpo import CPOConfig, CPOTrainer  # noqa: E402
from trl.experimental.orpo import ORPOConfig, ORPOTrainer  # noqa: E402
from trl_oracle import _model_folder, _tokenizer  # noqa: E402

VERSION = "1.16.0"
LOSSES = (
    *("sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down"),
    *("discopop", "sft", "sigmoid_norm"),
)
TRANSFORMED = ("sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "discopop")
CASES: dict[str, dict[str, Any]] = {
    **{loss: {"loss_type": [loss]} for loss in LOSSES},
    "exo_pair": {"loss_type": ["exo_pair"], "label_smoothing": 1e-3},
    "robust": {"loss_type": ["robust"], "label_smoothing": 0.1},
    "robust of clean labels": {"loss_type": ["robust"]},
    "smoothing that sigmoid ignores": {"label_smoothing": 0.2},
    "aot smoothed": {"loss_type": ["aot"], "label_smoothing": 0.1},
    "aot_unpaired smoothed": {"loss_type": ["aot_unpaired"], "label_smoothing": 0.1},
    "discopop sharper": {"loss_type": ["discopop"], "discopop_tau": 0.2, "beta": 0.5},
    "MPO": {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    "iterative RPO": {"loss_type": ["sigmoid", "sft"]},
    "one with a weight": {"loss_type": ["hinge"], "loss_weights": [0.3]},
    "four": {"loss_type": ["sigmoid", "ipo", "apo_zero", "aot"], "loss_weights": [0.5, 0.01, 2.0, 1.0]},
    "weighted": {"use_weighting": True},
    "weighted list": {"use_weighting": True, "loss_type": ["ipo", "nca_pair"], "loss_weights": [0.1, 1.0]},
    **{f"LD {loss}": {"loss_type": [loss], "ld_alpha": 0.3} for loss in (*LOSSES, "robust")},
    **{
        f"{kind} {loss}": {"loss_type": [loss], "f_divergence_type": kind}
        for kind in ("forward_kl", "js_divergence", "alpha_divergence")
        for loss in TRANSFORMED
    },
    "alpha 1": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 1.0},
    "alpha 2, LD": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 2.0, "ld_alpha": 0.5},
    "js LD ipo": {"f_divergence_type": "js_divergence", "ld_alpha": 0.5, "loss_type": ["ipo"]},
}
CPO: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "sigmoid smoothed": {"label_smoothing": 0.1},
    "hinge": {"loss_type": "hinge", "cpo_alpha": 0.5},
    "ipo": {"loss_type": "ipo"},
    "CPO-SimPO": {"loss_type": "simpo"},
    "SimPO": {"loss_type": "simpo", "beta": 2.0, "cpo_alpha": 0.0, "simpo_gamma": 1.0},
    "SimPO smoothed": {"loss_type": "simpo", "beta": 2.0, "cpo_alpha": 0.0, "label_smoothing": 0.2},
    "AlphaPO": {"loss_type": "alphapo", "beta": 2.0, "alpha": 0.25},
    "AlphaPO below 0": {"loss_type": "alphapo", "beta": 2.0, "alpha": -0.5, "cpo_alpha": 0.7},
    "ipo with a power": {"loss_type": "ipo", "alpha": 0.5},
    "sigmoid with a power": {"alpha": 0.1},
}


def pairs_case(seed: int, drift: float = 0.4) -> tuple[grouprl.Batch, Tensor]:
    """Six pairs in random order of rows, in float64."""
    case = random_case(seed, (2,) * 6, rewards="mixed", drift=drift, holes=False)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    case = case.rows(order)
    collision_bt = 0.2 + 0.5 * torch.sin(case.logp_bt).square()
    return case.batch.replace(stat_b=None, stats={"collision": collision_bt}), case.logp_bt


def both(batch: grouprl.Batch) -> tuple[Tensor, Tensor]:
    """The rows of the chosen and of the rejected completions, pair by pair."""
    return tuple(
        torch.stack([((batch.group_b == g) & (batch.reward_b == reward)).nonzero()[0, 0] for g in range(6)])
        for reward in (1, 0)
    )


def ours(name: str, batch: grouprl.Batch, logp_bt: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    method = grouprl.method(name, **settings)
    leaf_bt = logp_bt.clone().requires_grad_()
    value = method.loss(leaf_bt, method.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, leaf_bt)[0]


@functools.cache
def trainer(case: str) -> DPOTrainer:
    columns = {"prompt": ["w"] * 2, "chosen": ["w w"] * 2, "rejected": ["w w w"] * 2}
    config = DPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], **CASES[case])
    made = DPOTrainer(
        model=_model_folder(), args=config, train_dataset=Dataset.from_dict(columns), processing_class=_tokenizer()
    )
    made.model.train()
    return made


def answering(logp_bt: Tensor, collision_bt: Tensor) -> Any:
    """A model that gives these log-probs whatever it is asked."""
    rest = dict.fromkeys(("entropy", "mean_logits"), torch.zeros_like(logp_bt))
    given = {"log_probs": logp_bt, "log_sum_sq_probs": collision_bt.log(), "is_top1": logp_bt > 0, **rest}
    return lambda **_: SimpleNamespace(**given)


def theirs(case: str, batch: grouprl.Batch, logp_bt: Tensor) -> tuple[Tensor, Tensor]:
    """TRL's loss and its gradient: its own `_compute_loss` on these log-probs."""
    made, rows = trainer(case), torch.cat(both(batch))
    leaf_bt = logp_bt.clone().requires_grad_()
    mask_bt = batch.mask_bt[rows]
    inputs = {
        "completion_mask": torch.nn.functional.pad(mask_bt.long(), (1, 0)),
        "input_ids": torch.zeros(12, mask_bt.shape[1] + 1, dtype=torch.int64),
        "attention_mask": torch.ones(12, mask_bt.shape[1] + 1, dtype=torch.int64),
    }
    collision_bt = batch.stats["collision"][rows]
    single = case.startswith("alpha")  # TRL bounds the exponent by a table of the half and single precisions
    read_bt = (leaf_bt.float() if single else leaf_bt)[rows]
    made.ref_model = answering(torch.where(mask_bt, batch.ref_bt[rows].to(read_bt.dtype), 0), collision_bt)
    value = made._compute_loss(answering(torch.where(mask_bt, read_bt, 0), collision_bt), inputs, False)
    return value.detach(), torch.autograd.grad(value, leaf_bt)[0]


def test_the_version_the_cards_name():
    assert trl.__version__ == VERSION


@pytest.mark.parametrize("case", CASES)
def test_dpo(case):
    settings = CASES[case]
    for seed, drift in ((0, 0.4), (1, 0.05), (2, 3.0)):
        batch, logp_bt = pairs_case(seed, drift)
        expected, got = theirs(case, batch, logp_bt), ours("dpo@trl", batch, logp_bt, **settings)
        loose = case.startswith("alpha") or "exo" in case  # parts of these are in float32 there
        for mine, other in zip(got, expected, strict=True):
            torch.testing.assert_close(
                mine, other.to(mine.dtype), rtol=1e-5 if loose else 1e-9, atol=1e-6 if loose else 1e-9
            )


def drawn(seed: int) -> dict[str, Any]:
    """Settings of DPOTrainer that go together, at random; weighted, hinge and sft fail in TRL itself."""
    choose = random.Random(seed).choice
    divergence = choose(["reverse_kl"] * 3 + ["forward_kl", "js_divergence", "alpha_divergence"])
    weighting = choose([False, False, True])
    allowed = [*LOSSES, "exo_pair", "robust"] if divergence == "reverse_kl" else [*TRANSFORMED, "exo_pair", "sft"]
    allowed = [each for each in allowed if not weighting or each not in ("aot", "aot_unpaired", "sft", "hinge")]
    losses = random.Random(seed + 1000).sample(allowed, choose([1, 2, 3, 4]))
    return {
        "loss_type": losses,
        "loss_weights": choose([None, [choose([0.0, 0.1, 1.0, 3.0]) for _ in losses]]),
        "beta": choose([0.01, 0.1, 0.5, 2.0, 5.0]),
        "label_smoothing": choose([1e-3, 0.1, 0.45]),
        "f_divergence_type": divergence,
        "f_alpha_divergence_coef": choose([0.0, 0.3, 0.99, 1.0, 2.0]),
        "ld_alpha": choose([None, None, 0.0, 0.3, 1.0]),
        "use_weighting": weighting,
        "discopop_tau": choose([0.01, 0.05, 1.0]),
    }


@pytest.mark.parametrize("seed", range(40))
def test_settings_at_random(seed):
    """Also with log-ratios of hundreds of nats, but for the divergences whose exponents are held here."""
    settings = drawn(seed)
    alpha = settings["f_divergence_type"] == "alpha_divergence"
    name = f"{'alpha' if alpha else ''} drawn {seed}"
    CASES[name] = settings
    loose = (
        {"rtol": 1e-4, "atol": 1e-5} if alpha or "exo_pair" in settings["loss_type"] else {"rtol": 1e-8, "atol": 1e-9}
    )
    held = settings["f_divergence_type"] in ("forward_kl", "alpha_divergence")
    for drift, scale in ((0.4, 1.0), (3.0, 1.0), (1.0, 1.0 if held else 60.0)):
        batch, logp_bt = pairs_case(seed, drift)
        far_bt = torch.minimum(batch.ref_bt + scale * (logp_bt - batch.ref_bt), torch.tensor(-1e-4).double())
        logp_bt = torch.where(batch.mask_bt, far_bt, logp_bt)
        expected, got = theirs(name, batch, logp_bt), ours("dpo@trl", batch, logp_bt, **settings)
        for mine, other in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, other.to(mine.dtype), **loose)


@pytest.mark.parametrize("options", CPO.values(), ids=CPO)
def test_cpo(options):
    config = CPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], **options)
    read = {key: getattr(config, key) for key in ("alpha", "beta", "loss_type", "simpo_gamma", "label_smoothing")}
    stand_in = SimpleNamespace(**read, accelerator=SimpleNamespace(device="cpu"))
    for seed in range(3):
        batch, logp_bt = pairs_case(seed)
        leaf_bt = logp_bt.clone().requires_grad_()
        sum_b, length_b = torch.where(batch.mask_bt, leaf_bt, 0).sum(1), batch.mask_bt.sum(1)
        score_b = sum_b / length_b if config.loss_type in ("ipo", "simpo") else sum_b
        chosen, rejected = both(batch)
        losses, _, _ = CPOTrainer.cpo_loss(stand_in, score_b[chosen], score_b[rejected])
        value = losses.mean() - config.cpo_alpha * sum_b[chosen].sum() / length_b[chosen].sum()
        got = ours("cpo@trl", batch, logp_bt, **options)
        torch.testing.assert_close(got[0], value.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got[1], torch.autograd.grad(value, leaf_bt)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_orpo(beta):
    config = ORPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], beta=beta)
    stand_in = SimpleNamespace(beta=config.beta, accelerator=SimpleNamespace(device="cpu"))
    for seed in range(3):
        batch, logp_bt = pairs_case(seed)
        leaf_bt = logp_bt.clone().requires_grad_()
        sum_b, length_b = torch.where(batch.mask_bt, leaf_bt, 0).sum(1), batch.mask_bt.sum(1)
        chosen, rejected = both(batch)
        losses = ORPOTrainer.odds_ratio_loss(stand_in, *((sum_b / length_b)[rows] for rows in (chosen, rejected)))[0]
        value = -sum_b[chosen].sum() / length_b[chosen].sum() - losses.mean()
        got = ours("orpo@trl", batch, logp_bt, beta=beta)
        torch.testing.assert_close(got[0], value.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(got[1], torch.autograd.grad(value, leaf_bt)[0], rtol=1e-5, atol=1e-6)


REFUSED = (
    {"loss_type": "exo_pair"},
    {"loss_type": "nca_pair", "f_divergence_type": "forward_kl"},
    {"loss_type": "aot", "use_weighting": True},
    {"loss_type": ["sigmoid", "hinge"], "loss_weights": [1.0]},
)


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_both_refuse(options):
    with pytest.raises(grouprl.InputError):
        grouprl.method("dpo@trl", **options)
    with pytest.raises((ValueError, NotImplementedError)):
        columns = {"prompt": ["w"], "chosen": ["w w"], "rejected": ["w"]}
        DPOTrainer(
            model=_model_folder(),
            args=DPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], **options),
            train_dataset=Dataset.from_dict(columns),
            processing_class=_tokenizer(),
        )
