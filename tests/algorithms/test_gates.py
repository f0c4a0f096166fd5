"""Gates: what leaves the policy loss because of where the policy is at an optimiser step (TRL's two switches)."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from batches import random_case
from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.part import PARTS, RunFacts, part
from grouprl.algorithms.token_gate.token_gate import LeftBehind, TokenGate, TopEntropy
from grouprl.core.errors import InputError
from grouprl.methods.compose import compose
from small import f64, near, ragged, small, summed

LOSSES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "bnpo", "luspo", "vespo", "gdpo")
ENTROPY = [[0.1, 0.5], [0.9, 0.3], [0.7]]


def kept(share: float, entropy: list[list[float]] | None = None, **fields) -> torch.Tensor:
    """Gradient of REINFORCE with the reward 1 everywhere behind the gate: -1 where a token is kept."""
    rows = ENTROPY if entropy is None else entropy
    batch = small([1.0] * len(rows), [len(r) for r in rows], **fields)
    method = summed(RawReward(), PolicyGradient(), token_gate=(TopEntropy(share=share),))
    leaf_bt = batch.old_bt.clone().requires_grad_()
    value = method.loss(leaf_bt, method.prepare(batch), ragged(rows)).value
    return torch.autograd.grad(value, leaf_bt)[0]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, [[-1, -1], [-1, -1], [-1, 0]]),
        (0.5, [[0, -1], [-1, 0], [-1, 0]]),  # the median, 0.5, is kept
        (0.3, [[0, 0], [-1, 0], [-1, 0]]),  # quantile 0.7 lies at place 2.8: 0.5 + 0.8 · 0.2 = 0.66
        (0.2, [[0, 0], [-1, 0], [0, 0]]),  # place 3.2: 0.74
        (0.0, [[0, 0], [-1, 0], [0, 0]]),  # the largest alone
    ],
)
def test_top_entropy_has_the_interpolated_quantile_of_the_step(share, expected):
    near(kept(share), [[float(x) for x in row] for row in expected])


def test_ties_at_the_threshold_are_kept():
    near(kept(0.25, [[0.5, 0.5], [0.5, 0.1], [0.2]]), [[-1.0, -1.0], [-1.0, 0.0], [0.0, 0.0]])


def test_padding_and_masked_completions_are_not_ranked():
    near(kept(0.5, [[0.1, 0.5], [0.9, 0.3], [0.7]], old_bt=[[-1, -1], [-1, -1], [-1, 99.0]])[2], [-1.0, 0.0])
    batch = small([1.0, 0.0, 1.0], [2, 2, 1], truncated_b=[False, True, False])
    spec = {"base": "grpo@trl", "filter": ["mask_truncated"], "top_entropy_quantile": 0.5}
    method = compose(spec).method
    leaf_bt = batch.old_bt.clone().requires_grad_()
    value = method.loss(leaf_bt, method.prepare(batch), ragged([[0.1, 0.5], [0.9, 0.8], [0.7]])).value
    (grad_bt,) = torch.autograd.grad(value, leaf_bt)
    assert (grad_bt != 0).tolist() == [[False, True], [False, False], [True, False]], "median of 0.1, 0.5 and 0.7"


def test_without_entropies_the_gate_is_refused():
    method = grouprl.method("grpo@trl", top_entropy_quantile=0.2)
    batch = small([1, 0])
    with pytest.raises(InputError, match="entropies"):
        method.loss(batch.old_bt, method.prepare(batch))


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        ([[-0.9, -0.9], [-0.3]], [0.0, 1.0]),  # a bad completion 0.9 nats a token behind is left out
        ([[-0.2, -0.8], [-0.3]], [1.0, 1.0]),  # exactly 0.5 on average stays
        ([[-1.1, 0.0], [-3.0]], [0.0, 1.0]),  # 0.55 on average; a good completion stays however far
        ([[0.9, 0.9], [0.0]], [1.0, 1.0]),  # it has become likelier
    ],
)
def test_left_behind_looks_at_the_mean_gap_of_bad_completions(moved, expected):
    batch = small([-1.0, 1.0], [2, 1], behavior_bt=[[-1.0, -1.0], [-1.0]])
    gate_bt = LeftBehind(threshold=0.5)(
        batch.old_bt + ragged(moved), batch.replace(advantage_bt=ragged([[-1.0, -1.0], [1.0]]))
    )
    near(gate_bt[:, 0], expected)


def test_left_behind_sees_what_the_update_has_moved():
    """At the start of the update nothing is left behind, so `off_policy_mask` keeps all; after a step the gate acts."""
    batch = small([0.0, 1.0], behavior_bt=[[-1.0], [-1.0]])
    gated, at_start = grouprl.method("grpo@trl", off_policy_mask_threshold=0.5), grouprl.method("grpo@trl")
    leaf_bt = torch.tensor([[-1.6], [-1.0]], dtype=torch.float64, requires_grad=True)
    grads = [torch.autograd.grad(m.loss(leaf_bt, m.prepare(batch)).value, leaf_bt)[0][:, 0] for m in (gated, at_start)]
    good = -(0.5 / (math.sqrt(0.5) + 1e-4)) / 2
    near(grads[0], [0.0, good])
    near(grads[1], [0.0, good])  # the clip has stopped the bad one there too
    cispo = grouprl.method("cispo@trl", off_policy_mask_threshold=0.5), grouprl.method("cispo@trl")
    grads = [torch.autograd.grad(m.loss(leaf_bt, m.prepare(batch)).value, leaf_bt)[0][:, 0] for m in cispo]
    near(grads[0], [0.0, 0.2 * good])
    near(grads[1], [-0.2 * good, 0.2 * good])


@pytest.mark.parametrize("loss", LOSSES)
def test_kl_and_denominators_are_not_gated(loss):
    """Left-out tokens keep their KL; kept ones have the gradient that they had."""
    case = random_case(3)
    settings = {"top_entropy_quantile": 0.4, "off_policy_mask_threshold": 0.05}
    name = f"{loss}@trl"
    gates = [TopEntropy(share=0.4), LeftBehind(threshold=0.05)]

    def slope(**chosen):
        method = grouprl.method(name, **chosen)
        ready, leaf_bt = method.prepare(case.batch), case.logp_bt.clone().requires_grad_()
        return torch.autograd.grad(method.loss(leaf_bt, ready, case.entropy_bt).value, leaf_bt)[0], ready

    both_bt, ready = slope(**settings, beta=0.1)
    policy_bt, _ = slope(**settings)
    kl_bt = slope(beta=0.1)[0] - slope()[0]
    near(both_bt, policy_bt + kl_bt)
    if loss in ("gspo",):
        return  # a sequence's ratio depends on all its tokens
    factor_bt = torch.stack([g(case.logp_bt, ready, case.entropy_bt) for g in gates]).prod(0)
    near(policy_bt, slope()[0] * factor_bt)
    assert 0 < factor_bt[case.batch.mask_bt].mean() < 1


def test_the_bonus_is_a_mean_over_the_kept_tokens():
    batch, entropy_bt = small([1, 0, 1], [2, 2, 1]), ragged(ENTROPY).requires_grad_()
    for share, expected in ((1.0, [[-0.02] * 2, [-0.02] * 2, [-0.02, 0]]), (0.3, [[0, 0], [-0.05, 0], [-0.05, 0]])):
        method = grouprl.method("luspo@trl", entropy_coef=0.1, top_entropy_quantile=share)
        value = method.loss(batch.old_bt, method.prepare(batch), entropy_bt).value
        near(torch.autograd.grad(value, entropy_bt)[0], f64(expected))


def test_the_bonus_leaves_out_completions_without_a_loss():
    batch = small([1, 0, 1], [2, 2, 1], truncated_b=[False, True, False])
    method = compose({"base": "grpo@trl", "filter": ["mask_truncated"], "entropy_coef": 0.3}).method
    entropy_bt = ragged(ENTROPY).requires_grad_()
    value = method.loss(batch.old_bt, method.prepare(batch), entropy_bt).value
    near(torch.autograd.grad(value, entropy_bt)[0], [[-0.1, -0.1], [0.0, 0.0], [-0.1, 0.0]])


@pytest.mark.parametrize("loss", LOSSES)
def test_off_by_default_and_needing_nothing_then(loss):
    method = grouprl.method(f"{loss}@trl")
    assert method.token_gate == ()
    assert method.couples == "sequence"
    assert "entropy" not in method.outputs
    assert "behavior_bt" not in method.needs()
    ranked = grouprl.method(f"{loss}@trl", top_entropy_quantile=0.2)
    assert (ranked.couples, ranked.outputs) == ("batch", ("log_prob", "entropy"))
    assert grouprl.method(f"{loss}@trl", off_policy_mask_threshold=0.5).couples == "sequence"


def test_gates_in_a_specification_and_what_they_say():
    method = compose({"base": "grpo", "token_gate": [{"part": "left_behind", "threshold": 0.3}, "top_entropy"]}).method
    assert [g.name for g in method.token_gate] == ["left_behind", "top_entropy"]
    case = random_case(1)
    metrics = method.loss(case.logp_bt, method.prepare(case.batch), case.entropy_bt).metrics
    assert 0.7 < float(metrics["gated/top_entropy"]) < 0.9
    assert "left_behind cannot act" in LeftBehind().idle(RunFacts())[0]
    assert LeftBehind().idle(RunFacts(updates_per_rollout=2)) == []
    assert TopEntropy(share=1.0).idle(RunFacts())


@pytest.fixture
def own_gate():
    """A part of this file, forgotten again afterwards."""

    @part("token_gate", "gate_for_a_test")
    class OwnGate(TokenGate):
        value: str = "row"
        says = "a gate for a test"

        def __call__(self, logp_bt, batch, entropy_bt=None):
            assert not logp_bt.requires_grad
            made = {"row": batch.reward_b, "nan": logp_bt * torch.nan, "half": torch.full_like(logp_bt, 0.5)}
            return made[self.value]

    yield OwnGate
    del PARTS["token_gate"]["gate_for_a_test"]


def test_a_gate_of_yours_is_checked_and_may_be_any_factor(own_gate):
    batch, grpo = small([1, 0], [2, 2]), grouprl.method("grpo")
    for value, said in (
        ("row", r"token_gate part 'gate_for_a_test' returned values of shape \[2\]"),
        ("nan", "finite"),
    ):
        method = grpo.with_parts(token_gate=(own_gate(value=value),))
        with pytest.raises(InputError, match=said):
            method.loss(batch.old_bt, method.prepare(batch))
    method = grpo.with_parts(token_gate=(own_gate(value="half"),))
    leaf_bt = batch.old_bt.clone().requires_grad_()
    grads = [torch.autograd.grad(m.loss(leaf_bt, m.prepare(batch)).value, leaf_bt)[0] for m in (grpo, method)]
    near(grads[1], grads[0] / 2)
