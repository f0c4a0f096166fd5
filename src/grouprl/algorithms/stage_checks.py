"""Checks of what parts return, against the rule of each stage of a method; errors name the part at fault.

An exception of a user's part is reported with the part's name; one of a built-in part is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import torch

from grouprl.algorithms.losses import Losses, level_of, size_of, value_of
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import KINDS, RULES, Part
from grouprl.algorithms.part_checks import place_of
from grouprl.core.batch import Batch
from grouprl.core.batch_rules import WrongField, sums_up
from grouprl.core.errors import InputError, raised, shortened, suggest
from grouprl.core.metric import GLOSSARY, Level

if TYPE_CHECKING:
    from torch import Tensor

CHECK = "Try it alone: grouprl methods check FILE.py:FUNCTION"
METRICS = "metrics must be finite numbers by name"
YIELD = "Take the steps and yield the metrics of each: yield learner.take(step)"
T = TypeVar("T")


class BrokenContract(InputError):
    """A part breaks its contract on every batch: it returns another type or shape, has another signature, lacks its
    formula, or changes its arguments.
    """


def is_own(part: object) -> bool:
    """Return whether a part is not built into grouprl."""
    return not type(part).__module__.startswith("grouprl.")


def called(part: Part) -> str:
    """Return the name of a part as messages show it."""
    return f"the {part.kind} part '{part.name}'"


def written(part: Part) -> str:
    """Return where a part of the user's is written, in brackets, as messages show it; '' if unknown."""
    return place_of(type(part)) if is_own(part) else ""


def check_part(stage: str, part: Part, method: str) -> None:
    """Raise InputError if `part` is not a part of the kind that `stage` expects.

    Raises:
        InputError: naming the method, the stage and the value found there.
    """
    if isinstance(part, Part) and part.kind == stage:
        return
    if isinstance(part, type) and issubclass(part, Part):
        what, remedy = f"the class {part.__name__}, not a part made from it", f"Write {part.__name__}()"
    elif isinstance(part, Part):
        what = called(part) if part.kind else f"a {type(part).__name__} that is not registered"
        remedy = "Put it in its own stage" if part.kind else f'Decorate the class with @grouprl.part("{stage}")'
    else:
        what, remedy = repr(part), f"See: grouprl parts --kind {stage}"
    raise InputError(f"method '{method}': {stage} holds {what}", f"{stage} is {KINDS[stage]}", remedy)


def call(part: Part, act: Callable[..., T], *args: object) -> T:
    """Return `act(*args)`; errors of user code, and changes that it makes to `args`, are reported with
    the part's name.
    """
    if not is_own(part):
        return act(*args)
    before = {name: (value, value._version) for name, value in _tensors(args)}
    try:
        made = act(*args)
    except (MemoryError, torch.OutOfMemoryError):  # they come from the machine, not from the part
        raise
    except InputError as error:
        broken = BrokenContract if isinstance(error, WrongField) else InputError
        raise broken(f"{called(part)}: {error.what}{_line(error)}", error.rule, error.remedy) from error
    except (Exception, SystemExit) as error:
        of_grouprl = type(error).__module__.startswith("grouprl.")  # a run that fails or is stopped in the part's call
        if of_grouprl or (isinstance(error, RuntimeError) and "memory" in str(error)):
            raise
        raise _fault(part, error) from error
    changed = [name for name, (value, version) in before.items() if value._version != version]
    if changed:
        raise BrokenContract(
            f"{called(part)} changed {changed[0]} in place{written(part)}",
            "other parts read the same tensors",
            "Make a new tensor: x = x * 2, not x *= 2 or x.mul_(2); torch.where(…), not batch.reward_b[…] = …",
        )
    return made


def _tensors(args: Sequence[object]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a part is given, with the names used in messages; tensors of inference mode have no
    version.
    """
    for number, given in enumerate(args):
        if isinstance(given, torch.Tensor):
            yield ("its first tensor", "its second tensor", "its third tensor")[min(number, 2)], given
        elif isinstance(given, Batch):
            for each in fields(given):
                value = getattr(given, each.name)
                inner = value.items() if isinstance(value, Mapping) else ()
                whole = [(f"batch.{each.name}", value), *((f"batch.{each.name}['{key}']", x) for key, x in inner)]
                yield from ((name, x) for name, x in whole if isinstance(x, torch.Tensor) and not x.is_inference())


def _line(error: BaseException) -> str:
    """Return " at FILE:LINE" where the user's code raised `error`, as messages show it."""
    place = raised(error).rpartition(" at ")[2]
    return f" at {place}" if ".py:" in place and " " not in place else ""


def _fault(part: Part, error: BaseException) -> InputError:
    """Return the error that reports an exception in a part's call: BrokenContract if every batch would raise it."""
    alone = error.__traceback__ is None or error.__traceback__.tb_next is None  # raised by the call, not in it
    if isinstance(error, NotImplementedError) and not str(error):
        return BrokenContract(f"{called(part)} lacks its formula{written(part)}", _rule(part), CHECK)
    if isinstance(error, TypeError) and alone:
        return BrokenContract(f"{called(part)} cannot be called: {error}{written(part)}", _rule(part), CHECK)
    of_ours = isinstance(error, AttributeError) and isinstance(getattr(error, "obj", None), Batch | Losses)
    always = of_ours or type(error) is NameError
    remedy = suggest(str(error.name), _public(error.obj)) if of_ours else CHECK  # type: ignore[attr-defined]
    return (BrokenContract if always else InputError)(f"{called(part)} raised {raised(error)}", _rule(part), remedy)


def _public(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def changed_batch(part: Part, batch: Batch) -> Batch:
    """Return the batch that `part` makes of `batch`: of the same rows and tokens."""
    made: object = call(part, part, batch)  # type: ignore[arg-type]
    if not isinstance(made, Batch):
        what = f"{called(part)} returned {type(made).__name__}{written(part)}"
        raise BrokenContract(what, _rule(part), "Return batch.replace(…)")
    if made.mask_bt.shape != batch.mask_bt.shape:
        shapes = f"{list(made.mask_bt.shape)} rows and tokens of {list(batch.mask_bt.shape)}"
        raise BrokenContract(
            f"{called(part)} returned {shapes}{written(part)}",
            "a stage keeps every row and column; rows and tokens leave the loss by a mask",
            "Change loss_mask_bt or stat_b instead",
        )
    if made.mask_bt is not batch.mask_bt and not torch.equal(made.mask_bt, batch.mask_bt):
        raise BrokenContract(
            f"{called(part)} returned another mask_bt{written(part)}",
            "mask_bt says which tokens the policy wrote, whether or not they count in the loss",
            "Change loss_mask_bt instead",
        )
    return made


def all_of(part: Part, wanted: type[T], act: Callable[..., object], *args: object) -> list[T]:
    """Return `act(*args)` of a data part, checked to be a sequence of `wanted`."""
    made = call(part, act, *args)
    if not isinstance(made, Sequence) or not all(isinstance(each, wanted) for each in made):
        what = f"{called(part)} returned {shortened(made)}{written(part)}"
        raise InputError(what, f"it must return a list of {wanted.__name__}", _others(part))
    return list(made)


def one_of(part: Part, wanted: type[T], act: Callable[..., object], *args: object) -> T:
    """Return `act(*args)` of a data part, checked to be a `wanted`."""
    return of_type(part, wanted, call(part, act, *args))


def of_type(part: Part, wanted: type[T], made: object) -> T:
    """Return the value that a data part made, checked to be a `wanted`."""
    if not isinstance(made, wanted):
        what = f"{called(part)} returned {shortened(made)}{written(part)}"
        raise InputError(what, f"it must return {wanted.__name__}", _others(part))
    return made


def rows_of(part: Part, batch: Batch, act: Callable[..., object], *args: object) -> Tensor:
    """Return `act(*args)`, checked to be [B] bool: one true or false per row of `batch`."""
    made = call(part, act, *args)
    if not (isinstance(made, torch.Tensor) and made.dtype == torch.bool and made.shape == batch.group_b.shape):
        what = f"type {made.dtype} and shape {list(made.shape)}" if isinstance(made, torch.Tensor) else shortened(made)
        rule = f"it must return a bool tensor [B] = {list(batch.group_b.shape)}, one true or false per row"
        raise BrokenContract(f"{called(part)} returned {what}{written(part)}", rule, _others(part))
    return made


def numbers_of(part: Part, made: object) -> dict[str, float]:
    """Return metrics that a part made, checked to be finite numbers by name unless the part is built in."""
    if not isinstance(made, Mapping):
        raise InputError(f"{called(part)} returned {shortened(made)}{written(part)}", METRICS, _others(part))
    for name, value in made.items() if is_own(part) else ():
        number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if not isinstance(name, str) or not isinstance(number, int | float) or not math.isfinite(number):
            what = f"{called(part)} returned {shortened(value)} as its metric {name!r}{written(part)}"
            raise InputError(what, METRICS, "Leave out a metric that has no value in a step")
    return dict(made)


def each_of(part: Part, act: Callable[..., Iterable[object]], *args: object) -> Iterator[dict[str, float]]:
    """Yield the metrics of each optimiser step that `act(*args)` of an update part takes."""
    made = call(part, act, *args)
    if not isinstance(made, Iterable):
        raise InputError(f"{called(part)} returned {shortened(made)}{written(part)}", _rule(part), YIELD)
    steps, end = iter(made), object()
    while (record := call(part, next, steps, end)) is not end:
        yield numbers_of(part, record)


def pairs_found(part: Objective, batch: Batch) -> Tensor | None:
    """Return the pairs ([E,2] int64) that an objective compares in a step; None where it compares none."""
    index_e2 = call(part, part.pairs, batch)
    if index_e2 is None:
        return None
    if not (isinstance(index_e2, torch.Tensor) and index_e2.dtype == torch.int64 and index_e2.shape[1:] == (2,)):
        what = f"{called(part)} returned {shortened(index_e2)} as its pairs{written(part)}"
        raise BrokenContract(what, "pairs must be a tensor [E,2] of rows, int64", "Return better_bb.nonzero()")
    group_e2 = batch.group_b[index_e2]
    if part.couples != "batch" and bool((group_e2[:, 0] != group_e2[:, 1]).any()):
        rule = f"couples = '{part.couples}' lets a micro-batch hold only one row of a pair"
        what = f"{called(part)} compares rows of different groups{written(part)}"
        raise BrokenContract(what, rule, 'Set couples = "batch" on the class')
    return index_e2


def chosen_pairs(part: Part, batch: Batch, index_e2: Tensor) -> Tensor:
    """Return which of the pairs `index_e2` a part of kind `pairing` keeps, checked to be [E] bool."""
    kept_e: object = call(part, part, batch, index_e2)  # type: ignore[arg-type]
    if not (isinstance(kept_e, torch.Tensor) and kept_e.dtype == torch.bool and kept_e.shape == index_e2.shape[:1]):
        what = f"{called(part)} returned {shortened(kept_e)}{written(part)}"
        rule = f"it must return a bool tensor [E] = [{len(index_e2)}], one true or false per pair"
        raise BrokenContract(what, rule, "Return a comparison of two values of each pair")
    return kept_e


def pair_values(part: Part, act: Callable[..., Tensor], index_e2: Tensor, *args: object, each: int = 0) -> Tensor:
    """Return `act(*args)` of a part that a pairwise objective holds, checked to be floats [E], one per pair, or [E,n]
    with `each` n.
    """
    value = call(part, act, *args)
    check_shape(part, value, index_e2, "values", (len(index_e2), each) if each else (len(index_e2),), "pair")
    return value


def token_values(part: Part, where_bt: Tensor, act: Callable[..., Tensor], *args: object) -> Tensor:
    """Return `act(*args)`, checked to be floats [B,T], finite where `where_bt` is true."""
    value_bt = call(part, act, *args)
    check_shape(part, value_bt, where_bt)
    if sums_up(value_bt):
        return value_bt
    finite_bt = torch.isfinite(value_bt) | ~where_bt
    if not bool(finite_bt.all()):
        row, column = (int(x) for x in (~finite_bt).nonzero()[0])
        raise InputError(
            f"{called(part)} returned {float(value_bt[row, column])} in row {row}, token {column}{written(part)}",
            "it must be finite at every token that counts",
            "Guard divisions and logarithms, for instance where a group has no spread",
        )
    return value_bt


def losses_of(part: Part, batch: Batch, act: Callable[..., object], input_bt: Tensor, *args: object) -> Losses:
    """Return `act(*args)`, checked to be losses and metrics, each of the shape of its level.

    The losses of a user's part must be finite at the tokens in the loss where the log-probs are, and the glossary must
    know every metric.
    """
    made = call(part, act, input_bt, *args)
    if not isinstance(made, Losses):
        what = f"{called(part)} returned {type(made).__name__}{written(part)}"
        raise BrokenContract(what, _rule(part), "Return grouprl.TokenLoss(loss_bt, {})")
    _check_level(part, made.level, batch, value_of(made), "losses")
    if not isinstance(made.metrics, Mapping):
        what = f"{called(part)} returned metrics that are {type(made.metrics).__name__}{written(part)}"
        raise BrokenContract(what, "metrics must be tensors by name", "Return grouprl.TokenLoss(loss_bt, {})")
    for name, value in made.metrics.items():
        _check_level(part, level_of(name, made), batch, value, f"metric '{name}'")
    if is_own(part):
        _check_own(part, made, batch, input_bt)
    return made


def _check_level(part: Part, level: Level, batch: Batch, value: object, what: str) -> None:
    """Raise InputError if losses or metrics do not have the shape of their level, or if the part does not couple that
    level.
    """
    if level in ("pair", "group") and part.couples == "sequence":
        raise BrokenContract(
            f"{called(part)} returned {what} of level {level}{written(part)}",
            f"a {level} is within one micro-batch only if the part says so",
            'Set couples = "group" on the class',
        )
    check_shape(part, value, batch.mask_bt, what, size_of(level, batch), level)


LETTERS: dict[Level, str] = {"token": "B,T", "row": "B", "pair": "E", "group": "G"}


def check_shape(
    part: Part,
    value: object,
    mask_bt: Tensor,
    what: str = "values",
    shape: tuple[int, ...] | None = None,
    level: Level = "token",
) -> None:
    """Raise InputError unless `value` is a tensor of the `shape` of its level; a smaller one would be broadcast
    silently.
    """
    here, shape = written(part), shape or tuple(mask_bt.shape)
    letters = LETTERS[level] if level != "pair" else ",".join(["E", *map(str, shape[1:])])
    axes = f"[{letters}] = {list(shape)}"
    if not isinstance(value, torch.Tensor):
        returned = f"{called(part)} returned {type(value).__name__} as its {what}{here}"
        raise BrokenContract(returned, f"it must be a tensor {axes}", _rule(part))
    if tuple(value.shape) != shape:
        rows = level == "token" and list(value.shape) in ([len(mask_bt)], [len(mask_bt), 1])
        spread = "value_b[:, None].expand_as(batch.mask_bt)" if value.ndim == 1 else "value_b1.expand_as(batch.mask_bt)"
        remedy = f"Spread one value per row over its tokens: {spread}"
        remedy = "Return one loss per row as grouprl.RowLoss(loss_b)" if what == "losses" else remedy
        returned = f"{called(part)} returned {what} of shape {list(value.shape)}{here}"
        raise BrokenContract(returned, f"it must be {axes}, one number per {level}", remedy if rows else CHECK)
    if not value.is_floating_point() and (what in ("values", "losses") or value.is_complex()):
        raise BrokenContract(
            f"{called(part)} returned {what} of type {value.dtype}{here}",
            "they must be floating point",
            "Convert them: .to(batch.dtype)",
        )
    if value.layout != mask_bt.layout or value.device != mask_bt.device:
        kind = f"of {value.layout}" if value.layout != mask_bt.layout else f"on the device {value.device}"
        raise BrokenContract(
            f"{called(part)} returned {what} {kind}{here}",
            f"they must be an ordinary tensor on the batch's device, {mask_bt.device}",
            "Make tensors on batch.mask_bt.device; .to_dense() where they are sparse",
        )


def _check_own(part: Part, made: Losses, batch: Batch, input_bt: Tensor) -> None:
    """Check what a user's part returns in cheap ways only: values and names of metrics."""
    unknown = [name for name in made.metrics if name not in GLOSSARY]
    if unknown:
        raise BrokenContract(
            f"{called(part)} logs '{unknown[0]}', which has no line in the glossary{written(part)}",
            "a metric must be declared before it is logged",
            f'Declare it on the class: metrics = {{"{unknown[0]}": grouprl.Metric(unit="share", words="…")}}',
        )
    sound = bool(torch.isfinite(input_bt[batch.mask_bt]).all())
    if sound:
        found = {"losses": value_of(made), **{f"metric '{name}'": x for name, x in made.metrics.items()}}
        for what, value in found.items():
            counts = batch.active_bt if value.ndim == 2 else ...
            if not bool(torch.isfinite(value[counts]).all()):
                raise InputError(
                    f"{called(part)} returned {what} that are not finite{written(part)}",
                    f"they must be finite at every {made.level}",
                    "Guard divisions, logarithms and exponentials",
                )


def _others(part: Part) -> str:
    return f"See how others do it: grouprl parts --kind {part.kind}, and docs/extend/{part.kind}.md"


def _rule(part: Part) -> str:
    return f"a part of kind {part.kind} is {RULES[part.kind]}"
