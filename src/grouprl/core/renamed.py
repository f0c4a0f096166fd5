"""Old names, understood for one version with a note."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    import pydantic


class RenamedWarning(FutureWarning):
    """Something was given under its name of the version before."""


def note_renamed(old: str, new: str) -> None:
    """Warn once for each place that `old` is now called `new`."""
    warnings.warn(f"'{old}' is now called '{new}'; the next version knows only the new name", RenamedWarning, 3)


def with_new_names(given: Mapping[str, object], old_to_new: Mapping[str, str], where: str = "") -> dict[str, object]:
    """Return `given` under the current names, in the order given, with a note for each old one.

    Raises InputError where both the old and the new name of a key are given.
    """
    data: dict[str, object] = {}
    for key, value in given.items():
        new = old_to_new.get(key, key)
        if new in data or (new != key and new in given):
            raise InputError(
                f"{where}{key} and {where}{new} are both given",
                "they are the old and the new name of one setting",
                f"Keep {where}{new}",
            )
        if new != key:
            note_renamed(f"{where}{key}", f"{where}{new}")
        data[new] = value
    return data


def old_values(**old_to_new: str) -> pydantic.BeforeValidator:
    """Annotate a setting so that values of the version before are read as the present ones, with a note."""

    def present(value: object) -> object:
        if not isinstance(value, str) or value not in old_to_new:
            return value
        note_renamed(value, old_to_new[value])
        return old_to_new[value]

    from pydantic import BeforeValidator  # 0.1 s, which listings need not wait for

    return BeforeValidator(present)
