"""Types of the numbers in settings: the range of each, stated once."""

from typing import Annotated, TypeGuard

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Limit = Positive | None
"""A positive limit; None for no limit."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
