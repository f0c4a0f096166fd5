"""Checks of a method without a run: whether its parts keep the rules that the trainer relies on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.algorithms.stage_checks import BrokenContract, called, is_own, written
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, raised
from grouprl.core.finding import Finding, declare
from grouprl.core.outputs import ENTROPY
from grouprl.core.timeout import MAKING, TooLong, alarm
from grouprl.methods.compose import as_data, compose
from grouprl.methods.diff import EXAMPLES, ContrastExample, blank_outputs, example_batch
from grouprl.methods.registry import Entry

if TYPE_CHECKING:
    from torch import Tensor

OPTIONAL = (
    *("old_bt", "behavior_bt", "ref_bt", "entropy_bt", "value_bt", "greedy_reward_b", "token_bt", "turn_bt"),
    *("truncated_b", "correct_b"),
)
"""Batch fields that a run may lack; a part that reads one must name it in `needs`."""
TOLERANCE = 1e-9
DEAD = ContrastExample(
    "a group without spread beside a mixed one",
    (1, 1, 1, 0),
    (2, 1, 2, 1),
    ((0.1, -0.2), (0.3,), (-0.1, 0.2), (0.05,)),
    (0, 0, 1, 1),
)
KNOWN = (DEAD, *EXAMPLES)  # first a batch with B unlike T, so that a message tells rows from tokens
Tried = TypeVar("Tried")
METHOD_RULE = declare(
    "check",
    "method_rule",
    "alarm",
    "A method breaks a rule that the trainer relies on.",
    "Change the part that is named: docs/extend has a template of each kind.",
)


@dataclass(frozen=True)
class RuleFinding:
    """One rule and whether the method follows it; `words` say what is wrong, '' if nothing is."""

    rule: str
    words: str = ""

    @property
    def passed(self) -> bool:
        """True if the method follows the rule."""
        return not self.words

    def finding(self) -> Finding:
        """Return a broken rule as a finding."""
        return METHOD_RULE.said(self.words, key=self.rule)


def check_method(entry: Entry) -> list[RuleFinding]:
    """Check a method at its defaults against every rule, on small known batches, without training.

    If the method cannot be composed, that is the only finding; if it cannot compute, rules about its numbers are left
    out.
    """
    composed, method = _tried("it can be composed", entry.build)
    if method is None:
        return [composed]
    findings = [composed, *_described(method)]
    acts, _ = _tried("its parts return finite numbers of the right shapes", lambda: _on_examples(method))
    findings.append(acts)
    return [*findings, *(_numbers(method) if acts.passed else [])]


def fault_of_own_parts(method: Method) -> InputError | None:
    """Return what a user's part does wrong on small known batches; None if nothing is found or all parts are built in.

    A BrokenContract is wrong on every batch; any other error may come from these batches alone.
    """
    if not any(map(is_own, method.parts())):
        return None
    try:
        with alarm(MAKING):
            _on_examples(copy.deepcopy(method))
            _only_needs(copy.deepcopy(method))
    except InputError as error:
        return error
    except (Exception, TooLong):  # of a part of grouprl's own, which wants more than these batches hold
        return None
    return None


def _tried(rule: str, act: Callable[[], Tried]) -> tuple[RuleFinding, Tried | None]:
    try:
        return RuleFinding(rule), act()
    except InputError as error:
        return RuleFinding(rule, str(error)), None
    except Exception as error:
        return RuleFinding(rule, raised(error)), None


def _described(method: Method) -> Iterator[RuleFinding]:
    """Return the rules that parts describe themselves, and can be written down and read again."""
    own = [part for part in method.parts() if is_own(part)]
    silent = [f"{called(part)} {words}" for part in own if (words := _silent(part))]
    yield RuleFinding("its parts say what they do, and what they read", "; ".join(silent))

    def again() -> None:
        data = as_data(method)
        if as_data(compose(data).method) != data:
            raise InputError("the settings of its parts change when they are written and read again")

    yield _tried("it can be written into a configuration and read from it", again)[0]


def _silent(part: Part) -> str:
    """Return what a part fails to say about itself; '' if nothing is missing."""
    try:
        if not isinstance(part.words(), str) or not part.words().strip():
            return "has no words"
        if not isinstance(part.formula(), str):
            return "has a formula that is not a text"
        needs = part.needs()
        if isinstance(needs, str) or not all(isinstance(name, str) for name in needs):
            return "has needs that are not names of batch fields"
    except InputError as error:
        return f"cannot be described: {error}"
    except Exception as error:
        return f"cannot be described: {raised(error)}"
    return ""


def _on_examples(method: Method) -> None:
    for example in KNOWN:
        batch, logp_bt = example_batch(example)
        _gradient(method, method.compute_loss_weights(method.compute_advantages(batch)), logp_bt)


def _gradient(method: Method, ready: Batch, logp_bt: Tensor) -> Tensor:
    """Return dLoss/dlogp [B,T] of a step, or of some of its rows."""
    logp_bt = logp_bt.detach().clone().requires_grad_()
    value = method.loss(logp_bt, ready, ready.entropy_bt, outputs=blank_outputs(method, logp_bt, ready.mask_bt)).value
    if not value.requires_grad and bool(method.zero_rows(ready).all()):  # such as groups whose rewards are all equal
        return torch.zeros_like(logp_bt)
    if not value.requires_grad:
        own = is_own(method.objective)
        whose = f"{called(method.objective)}{written(method.objective)}" if own else f"the method '{method.name}'"
        raise (BrokenContract if own else InputError)(
            f"the loss of {whose} does not depend on the log-probs",
            "the loss must be differentiable in them",
            "Leave out .detach(), .item(), torch.no_grad() and conversions to whole numbers",
        )
    (gradient_bt,) = torch.autograd.grad(value, logp_bt)
    return gradient_bt


def _numbers(method: Method) -> Iterator[RuleFinding]:
    yield _tried("it reads no batch field that its parts do not name in `needs`", lambda: _only_needs(method))[0]
    for rule, hold in (
        ("micro-batches add up to the whole step", _split),
        ("padding changes nothing", _padding),
        ("rows that are said to have no gradient have none", _zero_rows),
    ):
        yield _tried(rule, lambda hold=hold: [hold(method, example) for example in KNOWN])[0]  # type: ignore[misc]


def _only_needs(method: Method) -> None:
    batch, logp_bt = example_batch(EXAMPLES[1])
    unneeded = {name: None for name in OPTIONAL if name not in method.needs()}
    if method.critic is not None or ENTROPY in method.outputs:
        unneeded = {k: v for k, v in unneeded.items() if k not in ("value_bt", "entropy_bt")}
    bare = batch.replace(**unneeded)
    try:
        _gradient(method, method.compute_loss_weights(method.compute_advantages(bare)), logp_bt)
    except InputError as error:
        without = ", ".join(unneeded)
        raise InputError(
            f"on a batch that has no {without}, {error.what}",
            "a run has only the fields that a part names",
            'Name what the formula reads on the class: reads = ("ref_bt",), for instance',
        ) from error


def _ready(method: Method, example: ContrastExample) -> tuple[Batch, Tensor]:
    batch, logp_bt = example_batch(example)
    return method.compute_loss_weights(method.compute_advantages(batch)), logp_bt


def _split(method: Method, example: ContrastExample) -> None:
    if method.couples == "batch":
        return
    ready, logp_bt = _ready(method, example)
    id_b = ready.group_b if method.couples == "group" else torch.arange(len(ready.group_b))
    whole_bt, pieces_bt = _gradient(method, ready, logp_bt), torch.zeros_like(logp_bt)
    for number in torch.unique(id_b):
        rows = (id_b == number).nonzero()[:, 0]
        pieces_bt[rows] = _gradient(method, ready.rows(rows), logp_bt[rows])
    _same(whole_bt, pieces_bt, f"each {method.couples} by itself; set `couples` where the formula compares rows")


def _padding(method: Method, example: ContrastExample) -> None:
    batch, logp_bt = example_batch(example)
    ready = method.compute_loss_weights(method.compute_advantages(batch))
    wide = _padded(batch)
    wide_logp_bt = torch.nn.functional.pad(logp_bt, (0, 2), value=-7.0)
    wide_ready = method.compute_loss_weights(method.compute_advantages(wide))
    narrow_bt = _gradient(method, ready, logp_bt)
    _same(narrow_bt, _gradient(method, wide_ready, wide_logp_bt)[:, :-2], "two columns of padding; use batch.active_bt")


def _padded(batch: Batch) -> Batch:
    """Return the batch with two more columns, which hold no meaningful values."""

    def pad(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.shape == batch.mask_bt.shape:
            return torch.nn.functional.pad(value, (0, 2))
        return value

    changes: dict[str, Any] = {}
    for each in fields(batch):
        value = getattr(batch, each.name)
        changes[each.name] = {k: pad(v) for k, v in value.items()} if isinstance(value, dict) else pad(value)
    if batch.turn_bt is not None:
        changes["turn_bt"] = torch.nn.functional.pad(batch.turn_bt, (0, 2), value=-1)
    return Batch(**changes)


def _zero_rows(method: Method, example: ContrastExample) -> None:
    ready, logp_bt = _ready(method, example)
    zero_b = method.zero_rows(ready)
    if zero_b.shape != ready.group_b.shape or zero_b.dtype != torch.bool:
        raise InputError("zero_rows returned " + str(list(zero_b.shape)), "it must be one true or false per row")
    gradient_bt = _gradient(method, ready, logp_bt)
    wrong = (zero_b & (gradient_bt != 0).any(1)).nonzero()[:, 0].tolist()
    if wrong:
        raise InputError(
            f"rows {wrong} have a gradient",
            "the trainer leaves such rows out",
            "Override zero_rows if a row without advantage can still have a gradient",
        )


def _same(a_bt: Tensor, b_bt: Tensor, what: str) -> None:
    far = float((a_bt - b_bt).abs().max())
    if not far <= TOLERANCE * max(1.0, float(a_bt.abs().max())):
        raise InputError(f"gradients differ by {far:.3g} with {what}")
