"""The rule of each stage of a method, held against what its parts return: the part at fault is named.

What a part of yours raises is said with its name; an exception of a part of grouprl's own is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from grouprl.algorithms.part import KINDS, Part, TokenLoss
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, raised, shortened
from grouprl.core.metric import GLOSSARY

CHECK = "Try it alone: grouprl methods check FILE.py:FUNCTION"
T = TypeVar("T")
RESOURCES = (MemoryError, torch.OutOfMemoryError)
"""Errors that are the machine's, not the part's."""


class BrokenContract(InputError):
    """A part returned what no batch can make right: another type or shape, a metric that is not declared."""


def is_own(part: object) -> bool:
    """Whether a part is not one of grouprl's."""
    return not type(part).__module__.startswith("grouprl.")


def called(part: Part) -> str:
    """Return a part as messages call it."""
    return f"the {part.kind} part '{part.name}'"


def check_part(stage: str, part: Part, method: str) -> None:
    """Refuse what is no part, or a part of another kind, where `stage` expects one.

    Raises:
        InputError: naming the method, the stage and what stands there.
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
    """Return `act(*args)`; what code of the user's raises there is said with the part's name."""
    if not is_own(part):
        return act(*args)
    try:
        return act(*args)
    except RESOURCES:
        raise
    except InputError as error:
        raise InputError(f"{called(part)}: {error.what}", error.rule, error.remedy) from error
    except Exception as error:
        of_grouprl = type(error).__module__.startswith("grouprl.")  # a run that fails or is stopped in the part's call
        if of_grouprl or (isinstance(error, RuntimeError) and "memory" in str(error)):
            raise
        raise InputError(f"{called(part)} raised {raised(error)}", _rule(part), CHECK) from error


def changed_batch(part: Part, batch: Batch) -> Batch:
    """Return the batch that `part` makes of `batch`: of the same rows and tokens."""
    made: object = call(part, part, batch)  # type: ignore[arg-type]
    if not isinstance(made, Batch):
        raise BrokenContract(f"{called(part)} returned {type(made).__name__}", _rule(part), "Return batch.replace(…)")
    if made.mask_bt.shape != batch.mask_bt.shape:
        raise BrokenContract(
            f"{called(part)} returned {list(made.mask_bt.shape)} rows and tokens of {list(batch.mask_bt.shape)}",
            "a stage keeps every row and column; what is out of the loss is masked",
            "Change loss_mask_bt or stat_b instead",
        )
    return made


def all_of(part: Part, wanted: type[T], act: Callable[..., object], *args: object) -> list[T]:
    """Return `act(*args)` of a data part, which must be a sequence of `wanted`."""
    made = call(part, act, *args)
    if not isinstance(made, Sequence) or not all(isinstance(each, wanted) for each in made):
        raise InputError(f"{called(part)} returned {shortened(made)}", f"it must return a list of {wanted.__name__}")
    return list(made)


def one_of(part: Part, wanted: type[T], act: Callable[..., object], *args: object) -> T:
    """Return `act(*args)` of a data part, which must be a `wanted`."""
    made = call(part, act, *args)
    if not isinstance(made, wanted):
        raise InputError(f"{called(part)} returned {shortened(made)}", f"it must return {wanted.__name__}")
    return made


def token_values(part: Part, where_bt: Tensor, act: Callable[..., Tensor], *args: object) -> Tensor:
    """Return `act(*args)`, which must be floats [B,T], finite where `where_bt` holds."""
    value_bt = call(part, act, *args)
    check_shape(part, value_bt, where_bt)
    finite_bt = torch.isfinite(value_bt) | ~where_bt
    if not bool(finite_bt.all()):
        row, column = (int(x) for x in (~finite_bt).nonzero()[0])
        raise InputError(
            f"{called(part)} returned {float(value_bt[row, column])} in row {row}, token {column}",
            "it must be finite at every token that counts",
            "Guard divisions and logarithms, for instance where a group has no spread",
        )
    return value_bt


def token_loss(part: Part, batch: Batch, act: Callable[..., object], input_bt: Tensor, *args: object) -> TokenLoss:
    """Return `act(*args)`, which must be a TokenLoss whose losses and metrics are [B,T].

    Of a part of the user's they must be finite at the tokens in the loss where the log-probs are, and every metric must
    be known to the glossary.
    """
    made = call(part, act, input_bt, *args)
    if not isinstance(made, TokenLoss):
        what = f"{called(part)} returned {type(made).__name__}"
        raise BrokenContract(what, _rule(part), "Return grouprl.TokenLoss(loss_bt, {})")
    check_shape(part, made.loss_bt, batch.mask_bt, "losses")
    for name, value_bt in made.metrics.items():
        check_shape(part, value_bt, batch.mask_bt, f"metric '{name}'")
    if is_own(part):
        _check_own(part, made, batch, input_bt)
    return made


def check_shape(part: Part, value: object, mask_bt: Tensor, what: str = "values") -> None:
    """Refuse what is not a tensor of numbers [B,T]: a smaller one would be spread over rows or tokens silently."""
    if not isinstance(value, Tensor):
        raise BrokenContract(f"{called(part)} returned {type(value).__name__} as its {what}", _rule(part))
    if value.shape != mask_bt.shape:
        rows = list(value.shape) == [len(mask_bt)]
        raise BrokenContract(
            f"{called(part)} returned {what} of shape {list(value.shape)}",
            f"it must be [B,T] = {list(mask_bt.shape)}",
            "Spread one value per row over its tokens: value_b[:, None].expand_as(batch.mask_bt)" if rows else CHECK,
        )
    if what == "values" and not value.is_floating_point():
        raise BrokenContract(f"{called(part)} returned {what} of type {value.dtype}", "they must be floating point")


def _check_own(part: Part, made: TokenLoss, batch: Batch, input_bt: Tensor) -> None:
    """Check what is cheap only where it is needed: values and names that a part of the user's returns."""
    unknown = [name for name in made.metrics if name not in GLOSSARY]
    if unknown:
        raise BrokenContract(
            f"{called(part)} logs '{unknown[0]}', which has no line in the glossary",
            "a metric is declared before it is logged",
            f'Declare it on the class: metrics = {{"{unknown[0]}": grouprl.Metric(unit="share", words="…")}}',
        )
    sound = bool(torch.isfinite(input_bt[batch.mask_bt]).all())
    if sound:
        at_active = {"losses": made.loss_bt, **{f"metric '{name}'": x for name, x in made.metrics.items()}}
        for what, value_bt in at_active.items():
            if not bool(torch.isfinite(value_bt[batch.active_bt]).all()):
                raise InputError(f"{called(part)} returned {what} that are not finite", "they must be, at every token")


def _rule(part: Part) -> str:
    return f"a part of kind {part.kind} is {KINDS[part.kind]}"
