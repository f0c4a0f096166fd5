"""Conformance tests of policies, other trainable models, and their inputs (`grouprl.protocols`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE, has_output
from grouprl.protocols import FinalInputs, Policy, PolicyInputs, Trainable, ValueLearner
from grouprl.testing.rules import hold, refuses

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Largest difference between two ways of computing the same number, plus the same relative to the number."""
VALUES = ("action_value", "best_after")
"""Outputs of a value learner: of the action taken, with a gradient, and of the best one after it, without."""


def check_inputs(inputs: PolicyInputs) -> None:
    """Check rows of a policy's inputs against the protocol. Three rows or more of different lengths test most.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    hold(isinstance(inputs, PolicyInputs), f"{type(inputs).__name__} lacks a member of PolicyInputs")
    rows, present_bt = len(inputs), inputs.present_bt()
    hold(tuple(present_bt.shape) == (rows, inputs.width), "present_bt() is [B, width]")
    hold(present_bt.dtype == torch.bool and present_bt.device.type == "cpu", "present_bt() is bool, on the CPU")
    length_b = present_bt.sum(1)
    hold(torch.equal(present_bt, torch.arange(inputs.width) < length_b[:, None]), "rows begin at 0, without gaps")
    hold(inputs.width == max(length_b.tolist(), default=0), "width is the longest row's")
    for index in ([rows - 1], list(range(rows))[::-1], [0, 0]):
        part = inputs.rows(index)
        hold(len(part) == len(index), "rows(index) has one row for each number in index")
        hold(part.width == int(length_b[index].max()), "rows(index) is cut to its own longest row")
        hold(torch.equal(part.present_bt().sum(1), length_b[index]), "rows(index) keeps its order and lengths")
    prints = inputs.fingerprints()
    hold(len(prints) == rows and all(isinstance(x, bytes) for x in prints), "fingerprints() has bytes for each row")
    hold(inputs.rows([rows - 1, 0]).fingerprints() == [prints[-1], prints[0]], "a fingerprint depends on its row alone")
    both = inputs.rows([0]).joined([inputs])
    hold(both.fingerprints() == [prints[0], *prints], "joined() keeps the rows' fingerprints")
    hold(len(both) == rows + 1 and both.width == inputs.width, "joined() concatenates rows")
    hold(torch.equal(both.present_bt().sum(1), length_b[[0, *range(rows)]]), "joined() keeps order and lengths")
    if isinstance(inputs, FinalInputs) and (finals := inputs.finals()) is not None:
        hold(bool(finals.present_bt().all()) and finals.width == 1, "finals() has one position for each row")
        hold(len(finals) == rows, "finals() has the rows of the inputs")


def check_trainable(model: Trainable, inputs: PolicyInputs, names: Sequence[str] = ()) -> None:
    """Check a trainable model against the protocol, with log-probs or without; its weights are unchanged in the end.

    Args:
        model: any implementation, on any device: a policy, a reward model, a value learner.
        inputs: rows that it scores; three or more of different lengths test most.
        names: outputs to test; empty: all that have no parameter.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    hold(isinstance(model, Trainable), f"{type(model).__name__} lacks a member of Trainable")
    check_inputs(inputs)
    tested = tuple(names) or tuple(name for name in model.outputs if not name.endswith("@"))
    hold(bool(tested), "outputs names at least one output")
    before = model.trainable_state()
    _check_parameters(model)
    _check_outputs(model, inputs, tested)
    _check_passes(model, inputs)
    _check_backward(model, inputs, tested)
    _check_state(model, inputs, tested)
    _check_copies(model, inputs, tested)
    _check_saving(model)
    model.load_trainable_state(before)


def check_policy(policy: Policy, inputs: PolicyInputs, *, values: bool = False) -> None:
    """Check a policy against the protocol; its weights are unchanged in the end.

    Args:
        policy: any implementation, on any device.
        inputs: rows that it scores; three or more of different lengths test most.
        values: whether it has a critic.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    hold(isinstance(policy, Policy), f"{type(policy).__name__} lacks a member of Policy")
    names = (LOG_PROB, ENTROPY, *((VALUE,) if values else ()))
    hold(all(has_output(policy.outputs, name) for name in names), f"outputs has {', '.join(names)}")
    check_trainable(policy, inputs, names)
    before, logp_bt = policy.trainable_state(), policy.logp(inputs)
    hold(torch.equal(logp_bt, policy.evaluate(inputs, names)[LOG_PROB]), "logp() is the output log_prob")
    hold(tuple(logp_bt.shape) == (len(inputs), inputs.width), "log-probs are [B,T]")
    if not values:
        refuses(lambda: policy.evaluate(inputs, (VALUE,)), "a policy without critic refuses to give values")
    reference, copy = policy.reference(), policy.copied(value_head=values)
    hold((VALUE in copy.outputs) == values, "a copy has a critic where one is requested")
    _disturb(policy)
    _same(policy, reference.logp(inputs), logp_bt, "the reference stays as it was when the policy moves")
    policy.load_trainable_state(before)


def check_value_learner(model: ValueLearner[PolicyInputs], inputs: PolicyInputs) -> None:
    """Check a policy that acts by values against the protocol; its weights are unchanged in the end.

    Args:
        model: any implementation, on any device.
        inputs: rows that it scores, with observations after their last actions; three or more of different lengths
            test most.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    hold(isinstance(model, ValueLearner), f"{type(model).__name__} lacks a member of ValueLearner")
    hold({*VALUES} <= set(model.outputs), f"outputs has {', '.join(VALUES)}")
    check_trainable(model, inputs)
    graphs = model.evaluate(inputs, VALUES, grad=True)
    hold(graphs[VALUES[0]].requires_grad, f"{VALUES[0]} has a gradient")
    hold(not graphs[VALUES[1]].requires_grad, f"{VALUES[1]} has none")
    before, state = model.evaluate(inputs, VALUES), model.trainable_state()
    _disturb(model)
    moved = model.evaluate(inputs, VALUES)
    hold(torch.equal(moved[VALUES[1]], before[VALUES[1]]), "targets stay as they are while the values move")
    hold(not torch.equal(moved[VALUES[0]], before[VALUES[0]]), "values move with the parameters")
    model.follow()
    followed = model.evaluate(inputs, VALUES)
    hold(torch.equal(followed[VALUES[0]], moved[VALUES[0]]), "follow() leaves the values as they are")
    hold(not torch.equal(followed[VALUES[1]], before[VALUES[1]]), "follow() renews the targets")
    model.load_trainable_state(state)
    hold(_equal(model.evaluate(inputs, VALUES), before), "the state holds what targets are made of")
    _check_exploring(model, inputs)
    model.load_trainable_state(state)


def _check_exploring(model: ValueLearner[PolicyInputs], inputs: PolicyInputs) -> None:
    """Check the share of random actions: it is in the state, and changes probabilities, not values."""
    before, entropies = model.evaluate(inputs, VALUES), []
    for share in (0.1, 1.0):
        model.explore(share)
        state = model.trainable_state()
        entropies.append(model.evaluate(inputs, (ENTROPY,))[ENTROPY])
        hold(_equal(model.evaluate(inputs, VALUES), before), "exploring changes no value")
        model.explore(0.5)
        model.load_trainable_state(state)
        hold(torch.equal(model.evaluate(inputs, (ENTROPY,))[ENTROPY], entropies[-1]), "the state holds the share")
    hold(bool((entropies[0] <= entropies[1]).all()), "more random actions have a larger entropy")
    hold(not torch.equal(*entropies), "the share of random actions counts")


def _check_parameters(model: Trainable) -> None:
    names, parameters = zip(*model.named_parameters(), strict=True)
    hold(len(set(names)) == len(names), "named_parameters() has each name once")
    hold([id(p) for p in model.parameters()] == [id(p) for p in parameters], "parameters() are the named ones")
    owned = [id(p) for owner in model.owners() for p in owner]
    hold(sorted(owned) == sorted(id(p) for p in parameters), "every parameter has one owner")
    hold(all(p.requires_grad for p in parameters), "trainable parameters require gradients")


def _check_outputs(model: Trainable, inputs: PolicyInputs, names: Sequence[str]) -> None:
    found, shape = model.evaluate(inputs, names), (len(inputs), inputs.width)
    hold(set(found) == set(names), "evaluate() gives what is requested, and nothing else")
    for name, x in found.items():
        hold(tuple(x.shape) in (shape, shape[:1]), f"{name} is [B,T] = {shape} or [B], not {tuple(x.shape)}")
        hold(x.dtype == model.score_dtype, f"{name} is {model.score_dtype}, as score_dtype says")
        hold(not x.requires_grad, "without grad=True there is no graph")
        hold(bool(torch.isfinite(x).all()), f"{name} is finite")
        if x.dim() == 2:
            hold(not bool(x.cpu()[~inputs.present_bt()].any()), "beyond a row's length everything is exactly 0")
        hold(torch.equal(model.evaluate(inputs, (name,))[name], x), f"requesting more does not change {name}")
    graphs = model.evaluate(inputs, names, grad=True).values()
    hold(any(x.requires_grad for x in graphs), "with grad=True there is a graph")
    order = list(range(len(inputs)))[::-1]
    turned, empty = model.evaluate(inputs.rows(order), names), model.evaluate(inputs.rows([]), names)
    for name, x in found.items():
        for row in range(len(inputs)):
            alone = model.evaluate(inputs.rows([row]), (name,))[name][0]
            own = x[row, : len(alone)] if x.dim() == 2 else x[row]
            _same(model, alone, own, f"{name} of a row depends on that row alone")
        _same(model, turned[name], x[order], f"{name} follows the order of the rows")
        hold(len(empty[name]) == 0, "no rows have no outputs")
    refuses(lambda: model.evaluate(inputs, ("no_such_output",)), "an output that does not exist is refused")


def _check_passes(model: Trainable, inputs: PolicyInputs) -> None:
    for rows in (list(range(len(inputs))), [len(inputs) - 1, 0], []):
        found = [row for part in model.passes(inputs, rows) for row in part]
        hold(sorted(found) == sorted(rows), "passes() puts each of the rows into exactly one pass")


def _check_backward(model: Trainable, inputs: PolicyInputs, names: Sequence[str]) -> None:
    luck = torch.Generator().manual_seed(0)
    out = {name: x for name, x in model.evaluate(inputs, names, grad=True).items() if x.requires_grad}
    given = {name: torch.randn(x.shape, generator=luck, dtype=x.dtype).to(model.device) for name, x in out.items()}
    whole = _gradients(model, [(inputs, given)])
    torch.autograd.backward(list(out.values()), [given[name] for name in out])
    _same(model, whole, _taken(model), "backward() is the gradient of sum(cotangent * output)")
    each = sum(_gradients(model, [(inputs, {name: c})]) for name, c in given.items())
    _same(model, torch.as_tensor(each), whole, "the gradient of several outputs is the sum of those of each")
    half = len(inputs) // 2
    parts = [list(range(half)), list(range(half, len(inputs)))]
    split = [(inputs.rows(rows), _cut(given, rows, inputs.rows(rows).width)) for rows in parts if rows]
    _same(model, _gradients(model, split), whole, "gradients add up, however the rows are cut")
    none = {name: torch.zeros_like(x) for name, x in given.items()}
    hold(not bool(_gradients(model, [(inputs, none)]).any()), "cotangents of 0 add nothing")
    absent_bt = ~inputs.present_bt().to(model.device)
    beyond = {name: torch.where(absent_bt, 1e6, 0.0).to(x) for name, x in given.items() if x.dim() == 2}
    hold(not bool(_gradients(model, [(inputs, beyond)]).any()), "cotangents beyond the end of a row are ignored")
    wrong = torch.zeros(len(inputs), inputs.width + 1, dtype=model.score_dtype, device=model.device)
    for name in out:
        refuses(partial(model.backward, inputs, {name: wrong}), "a cotangent of another shape is refused")
    refuses(
        lambda: model.backward(inputs, {"no_such_output": wrong}),
        "a cotangent of an output that does not exist is refused",
    )


def _check_state(model: Trainable, inputs: PolicyInputs, names: Sequence[str]) -> None:
    state, found = model.trainable_state(), model.evaluate(inputs, names)
    names_first = list(state)[: len(model.parameters())]
    hold(names_first == [n for n, _ in model.named_parameters()], "trainable_state() begins with the parameters' names")
    _disturb(model)
    hold(not _equal(model.evaluate(inputs, names), found), "outputs depend on the trainable parameters")
    model.load_trainable_state(state)
    hold(_equal(model.evaluate(inputs, names), found), "a state loaded again gives the same outputs")
    refuses(lambda: model.load_trainable_state({}), "a state without the model's parameters is refused")
    first = next(iter(state))
    bent = {**state, first: torch.zeros(*state[first].shape, 2)}
    refuses(lambda: model.load_trainable_state(bent), "a state of another shape is refused")


def _check_copies(model: Trainable, inputs: PolicyInputs, names: Sequence[str]) -> None:
    state = model.trainable_state()
    frozen, copy = model.copied(trainable=False), model.copied()
    hold(not frozen.parameters(), "a copy that is not trainable has no trainable parameters")
    kept = [name for name in names if has_output(copy.outputs, name)]  # all but those of a fresh critic
    found = model.evaluate(inputs, kept)
    before = {name: copy.evaluate(inputs, (name,))[name] for name in kept}
    for name in kept:
        _same(model, before[name], found[name], f"a copy gives the same {name}")
    _disturb(model)
    hold(_equal(frozen.evaluate(inputs, kept), before), "a frozen copy stays as it was when the model moves")
    hold(_equal(copy.evaluate(inputs, kept), before), "a copy stays as it was when the model moves")
    model.load_trainable_state(state)
    _disturb(copy)
    hold(_equal(model.evaluate(inputs, kept), found), "the model stays as it was when a copy moves")


def _check_saving(model: Trainable) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        model.save(folder)
        hold(folder.is_dir() and any(folder.iterdir()), "save() leaves files in a folder that it makes")


def _gradients(model: Trainable, parts: Iterable[tuple[object, Mapping[str, Tensor]]]) -> Tensor:
    """Return all gradients as one vector, as `backward` adds them up; the parameters' own gradients are cleared."""
    for parameter in model.parameters():
        parameter.grad = None
    for inputs, given in parts:
        model.backward(inputs, given)
    return _taken(model)


def _taken(model: Trainable) -> Tensor:
    found = [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten().cpu() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return torch.cat(found)


def _cut(given: Mapping[str, Tensor], rows: list[int], width: int) -> dict[str, Tensor]:
    return {name: x[rows] if x.dim() == 1 else x[rows][:, :width] for name, x in given.items()}


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


@torch.no_grad()
def _disturb(model: Trainable) -> None:
    luck = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=luck).to(parameter) * 0.1)


def _same(model: Trainable, one: Tensor, other: Tensor, words: str) -> None:
    near = TOLERANCE.get(model.score_dtype, 1e-4)
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    if one.dim() == 2:
        width = min(one.shape[1], other.shape[1])
        one, other = one[:, :width], other[:, :width]
    hold(torch.allclose(one, other, rtol=near, atol=near), f"{words} (largest difference {_gap(one, other):.3g})")


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.numel() else 0.0
