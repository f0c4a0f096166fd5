"""What every policy and its inputs must do (`grouprl.protocols.Policy`, `PolicyInputs`), whoever wrote them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from grouprl.protocols import Policy, PolicyInputs, PolicyOutput
from grouprl.testing.rules import hold, refuses

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Largest difference, beside a part of it relative to the number, between two ways of computing the same."""


def check_inputs(inputs: PolicyInputs) -> None:
    """Hold rows of a policy's inputs against the protocol. Three rows or more of different lengths test most.

    Raises:
        AssertionError: saying what does not hold.
    """
    hold(isinstance(inputs, PolicyInputs), f"{type(inputs).__name__} lacks something of PolicyInputs")
    rows, present_bt = len(inputs), inputs.present_bt()
    hold(tuple(present_bt.shape) == (rows, inputs.width), "present_bt() is [B, width]")
    hold(present_bt.dtype == torch.bool and present_bt.device.type == "cpu", "present_bt() is bool, on the CPU")
    length_b = present_bt.sum(1)
    hold(torch.equal(present_bt, torch.arange(inputs.width) < length_b[:, None]), "rows begin at 0, without gaps")
    hold(inputs.width == max(length_b.tolist(), default=0), "width is the longest row's")
    for index in ([rows - 1], list(range(rows))[::-1], [0, 0]):
        part = inputs.rows(index)
        hold(len(part) == len(index), "rows(index) has one row for each of index")
        hold(part.width == int(length_b[index].max()), "rows(index) is cut to its own longest row")
        hold(torch.equal(part.present_bt().sum(1), length_b[index]), "rows(index) keeps its order and lengths")
    both = inputs.rows([0]).joined([inputs])
    hold(len(both) == rows + 1 and both.width == inputs.width, "joined() concatenates rows")
    hold(torch.equal(both.present_bt().sum(1), length_b[[0, *range(rows)]]), "joined() keeps order and lengths")


def check_policy(policy: Policy, inputs: PolicyInputs, *, values: bool = False) -> None:
    """Hold a policy against the protocol; its weights are unchanged in the end.

    Args:
        policy: any implementation, on any device.
        inputs: rows that it scores; three or more of different lengths test most.
        values: whether it has a critic.

    Raises:
        AssertionError: saying what does not hold.
    """
    hold(isinstance(policy, Policy), f"{type(policy).__name__} lacks something of Policy")
    check_inputs(inputs)
    before = policy.trainable_state()
    _check_parameters(policy)
    _check_scores(policy, inputs, values)
    _check_passes(policy, inputs)
    _check_backward(policy, inputs, values)
    _check_state(policy, inputs)
    _check_copies(policy, inputs, values)
    _check_saving(policy)
    policy.load_trainable_state(before)


def _check_parameters(policy: Policy) -> None:
    names, parameters = zip(*policy.named_parameters(), strict=True)
    hold(len(set(names)) == len(names), "named_parameters() has each name once")
    hold([id(p) for p in policy.parameters()] == [id(p) for p in parameters], "parameters() are the named ones")
    owned = [id(p) for owner in policy.owners() for p in owner]
    hold(sorted(owned) == sorted(id(p) for p in parameters), "every parameter has one owner")
    hold(all(p.requires_grad for p in parameters), "trainable parameters require gradients")


def _check_scores(policy: Policy, inputs: PolicyInputs, values: bool) -> None:
    out = policy.logp(inputs)
    shape, kind = (len(inputs), inputs.width), policy.score_dtype
    hold(tuple(out.logp_bt.shape) == shape, f"logp_bt is [B,T] = {shape}, not {tuple(out.logp_bt.shape)}")
    hold(out.logp_bt.dtype == kind, f"logp_bt is {kind}, as score_dtype says")
    hold(not out.logp_bt.requires_grad, "without grad=True there is no graph")
    hold(policy.logp(inputs, grad=True).logp_bt.requires_grad, "with grad=True there is a graph")
    hold(out.entropy_bt is None and out.value_bt is None and out.cross_bt is None, "what was not requested is None")
    more = policy.logp(inputs, entropy=True, values=values)
    hold(torch.equal(more.logp_bt, out.logp_bt), "requesting more changes no log-prob")
    for x in (more.logp_bt, more.entropy_bt, more.value_bt if values else more.logp_bt):
        hold(x is not None and tuple(x.shape) == shape, "what is requested is [B,T]")
        assert x is not None
        hold(bool(torch.isfinite(x).all()), "log-probs, entropies and values are finite")
        hold(not bool(x.cpu()[~inputs.present_bt()].any()), "beyond a row's length everything is exactly 0")
    for row in range(len(inputs)):
        alone = policy.logp(inputs.rows([row])).logp_bt[0]
        _same(policy, alone, out.logp_bt[row, : len(alone)], "a row's log-probs depend on that row alone")
    order = list(range(len(inputs)))[::-1]
    turned = policy.logp(inputs.rows(order)).logp_bt
    _same(policy, turned, out.logp_bt[order], "log-probs follow the order of the rows")
    hold(len(policy.logp(inputs.rows([])).logp_bt) == 0, "no rows have no log-probs")
    if not values:
        refuses(lambda: policy.logp(inputs, values=True), "a policy without critic refuses to give values")


def _check_passes(policy: Policy, inputs: PolicyInputs) -> None:
    for rows in (list(range(len(inputs))), [len(inputs) - 1, 0], []):
        found = [row for part in policy.passes(inputs, rows) for row in part]
        hold(sorted(found) == sorted(rows), "passes() puts each of the rows into exactly one pass")


def _check_backward(policy: Policy, inputs: PolicyInputs, values: bool) -> None:
    luck = torch.Generator().manual_seed(0)
    shape = (len(inputs), inputs.width)
    cotangents = [torch.randn(shape, generator=luck, dtype=policy.score_dtype) for _ in range(3)]
    given: list[Tensor | None] = [x.to(policy.device) for x in cotangents]
    if not values:
        given[2] = None
    whole = _gradients(policy, [(inputs, given)])
    out = policy.logp(inputs, grad=True, entropy=True, values=values)
    through = _through(policy, out, given)
    _same(policy, whole, through, "backward() is the gradient of sum(cotangent * output)")
    half = len(inputs) // 2
    parts = [list(range(half)), list(range(half, len(inputs)))]
    split = [(inputs.rows(rows), _cut(given, rows, inputs.rows(rows).width)) for rows in parts if rows]
    _same(policy, _gradients(policy, split), whole, "gradients add up, however the rows are cut")
    none: list[Tensor | None] = [None if x is None else torch.zeros_like(x) for x in given]
    hold(not bool(_gradients(policy, [(inputs, none)]).any()), "cotangents of 0 add nothing")
    beyond: list[Tensor | None] = [torch.where(inputs.present_bt().to(policy.device), 0.0, 1e6).to(out.logp_bt)]
    hold(not bool(_gradients(policy, [(inputs, [*beyond, None, None])]).any()), "what lies beyond a row is ignored")
    wrong = torch.zeros(len(inputs), inputs.width + 1, dtype=policy.score_dtype, device=policy.device)
    refuses(lambda: policy.backward(inputs, wrong), "a cotangent of another shape is refused")


def _check_state(policy: Policy, inputs: PolicyInputs) -> None:
    state, logp_bt = policy.trainable_state(), policy.logp(inputs).logp_bt
    hold(list(state) == [name for name, _ in policy.named_parameters()], "trainable_state() has the parameters' names")
    _disturb(policy)
    hold(not torch.equal(policy.logp(inputs).logp_bt, logp_bt), "log-probs depend on the trainable parameters")
    policy.load_trainable_state(state)
    hold(torch.equal(policy.logp(inputs).logp_bt, logp_bt), "a state loaded again gives the same log-probs")
    refuses(lambda: policy.load_trainable_state({}), "a state without the policy's parameters is refused")
    first = next(iter(state))
    bent = {**state, first: torch.zeros(*state[first].shape, 2)}
    refuses(lambda: policy.load_trainable_state(bent), "a state of another shape is refused")


def _check_copies(policy: Policy, inputs: PolicyInputs, values: bool) -> None:
    state, logp_bt = policy.trainable_state(), policy.logp(inputs).logp_bt
    frozen = policy.copied(trainable=False)
    hold(not frozen.parameters(), "a copy that is not trainable has no trainable parameters")
    reference, copy = policy.reference(), policy.copied(value_head=values)
    _same(policy, copy.logp(inputs).logp_bt, logp_bt, "a copy scores as the policy does")
    _disturb(policy)
    for other, words in ((frozen, "a frozen copy"), (copy, "a copy"), (reference, "the reference")):
        _same(policy, other.logp(inputs).logp_bt, logp_bt, f"{words} stays as it was when the policy moves")
    policy.load_trainable_state(state)
    _disturb(copy)
    hold(torch.equal(policy.logp(inputs).logp_bt, logp_bt), "the policy stays as it was when a copy moves")


def _check_saving(policy: Policy) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        policy.save(folder)
        hold(folder.is_dir() and any(folder.iterdir()), "save() leaves files in a folder that it makes")


def _gradients(policy: Policy, parts: Iterable[tuple[object, list[Tensor | None]]]) -> Tensor:
    """Return all gradients in one line, as `backward` adds them up; the parameters' own are left empty."""
    for parameter in policy.parameters():
        parameter.grad = None
    for inputs, given in parts:
        logp, *more = given
        assert logp is not None
        policy.backward(inputs, logp, *more)
    return _taken(policy)


def _through(policy: Policy, out: PolicyOutput, given: list[Tensor | None]) -> Tensor:
    for parameter in policy.parameters():
        parameter.grad = None
    outputs = (out.logp_bt, out.entropy_bt, out.value_bt)
    pairs = [(x, c) for x, c in zip(outputs, given, strict=True) if x is not None and c is not None]
    with_graph = [(x, c) for x, c in pairs if x.requires_grad]
    torch.autograd.backward([x for x, _ in with_graph], [c for _, c in with_graph])
    return _taken(policy)


def _taken(policy: Policy) -> Tensor:
    found = [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten().cpu() for p in policy.parameters()]
    for parameter in policy.parameters():
        parameter.grad = None
    return torch.cat(found)


def _cut(given: list[Tensor | None], rows: list[int], width: int) -> list[Tensor | None]:
    return [None if x is None else x[rows][:, :width] for x in given]


@torch.no_grad()
def _disturb(policy: Policy) -> None:
    luck = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=luck).to(parameter) * 0.1)


def _same(policy: Policy, one: Tensor, other: Tensor, words: str) -> None:
    near = TOLERANCE.get(policy.score_dtype, 1e-4)
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    width = min(one.shape[-1], other.shape[-1])
    one, other = one[..., :width], other[..., :width]
    hold(torch.allclose(one, other, rtol=near, atol=near), f"{words} (largest difference {_gap(one, other):.3g})")


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.numel() else 0.0
