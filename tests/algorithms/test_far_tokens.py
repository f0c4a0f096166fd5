"""Tokens whose log-probs are far apart: every entry has a finite loss and gradient, and still pulls where it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import grouprl
from batches import outcome, random_case
from grouprl.core.batch import Batch
from grouprl.methods import CATALOGUE, Entry

GAPS = (25.0, 100.0, 500.0)
FADES = "the weight of a completion or token fades to 0 far from the old policy: that is the method"
PEERS_K3 = "the library clamps k3 to ±10 with torch.clamp, which has no slope beyond"
FLAT = "the loss of a completion is a sigmoid of its score, which is flat at both ends"
ZERO = {
    "apo_zero": FLAT,
    "d_ppo": "the tokens whose score is lowest are dropped, and the distance decides which these are",
    "gspo@verl": "verl clamps the log of the ratio at 10, without slope",
    "kto": FLAT,
    "kto@trl": FLAT,
    "nft": "the authors' code clamps log ρ at 10, and log(1 + o(1 - ρ)) is flat where ρ vanishes",
    "stable_reinforce": "the authors' code clamps log ρ at ±log 1000 before everything else",
    "vespo": FADES,
    "vespo@trl": FADES,
}
"""Entries whose gradient is rightly zero beyond a distance of more than 5 nats, by name; a clip acts before that."""


def variants() -> list[tuple[str, tuple[tuple[str, object], ...]]]:
    """Each entry as it is, and with its KL term turned on."""
    found: list[tuple[str, tuple[tuple[str, object], ...]]] = []
    for name, entry in sorted(CATALOGUE.items()):
        found += [(name, ()), *([(name, kl)] if (kl := kl_settings(entry)) else [])]
    return found


def kl_settings(entry: Entry) -> tuple[tuple[str, object], ...]:
    """Settings that give an entry a KL term in its loss."""
    if "use_kl_loss" in entry.settings:
        return (("use_kl_loss", True), ("kl_loss_coef", 1.0))
    switch = "beta" if entry.dialect_of == "trl" else "kl_coef"
    return ((switch, 1.0),) if switch in entry.settings else ()


def apart(batch: Batch, field: str, gap: float) -> Batch:
    """Lower the first token's log-prob under the old policy and the sampler, or under the reference, by `gap`."""
    first_bt = batch.mask_bt & (torch.arange(batch.mask_bt.shape[1]) == 0)
    fields = ("old_bt", "behavior_bt") if field == "old_bt" else (field,)
    return batch.replace(**{name: lowered(batch.need(name, "a test"), first_bt, gap) for name in fields})


def lowered(value_bt: Tensor, at_bt: Tensor, gap: float) -> Tensor:
    return torch.where(at_bt, value_bt - gap, value_bt)


@pytest.mark.parametrize("field", ["old_bt", "ref_bt"])
@pytest.mark.parametrize(("name", "settings"), variants())
@pytest.mark.filterwarnings("ignore:the method")
def test_far_tokens_have_finite_losses_and_keep_their_gradient(name, settings, field):
    method, case = grouprl.method(name, **dict(settings)), random_case(5, rewards="mixed")
    prepared = method.prepare(case.batch)
    for sign in (1, -1):
        near = outcome(method, case, apart(prepared, field, sign * 5.0)).grad_bt[:, 0] != 0
        for gap in GAPS:
            far = outcome(method, case, apart(prepared, field, sign * gap))
            assert torch.isfinite(far.value)
            assert torch.isfinite(far.grad_bt).all()
            dead = near & (far.grad_bt[:, 0] == 0)
            assert not dead.any() or expected_zero(name, settings, field), f"{name} at {sign * gap:g} nats"


def expected_zero(name: str, settings: tuple[tuple[str, object], ...], field: str) -> str:
    """Why an entry may have no gradient at the distance, or ''."""
    peers = ("use_kl_loss", True) in settings or name == "grpo@nemo_rl"
    return PEERS_K3 if peers and field == "ref_bt" else ZERO.get(name, "")


@pytest.mark.parametrize("name", sorted(CATALOGUE))
@pytest.mark.filterwarnings("ignore:the method")
def test_a_rollout_with_far_tokens_is_prepared_in_single_precision(name):
    method = grouprl.method(name, **dict(kl_settings(CATALOGUE[name])))
    case = random_case(5, rewards="mixed", dtype=torch.float32)
    for field in ("old_bt", "ref_bt", "behavior_bt"):
        for gap in (5.0, *GAPS):
            made = outcome(method, replace(case, batch=apart(case.batch, field, gap)))
            for value in (made.value, made.grad_bt, made.entropy_grad_bt, made.value_grad_bt):
                assert torch.isfinite(value).all(), f"{name} with {field} lowered by {gap:g} nats"
