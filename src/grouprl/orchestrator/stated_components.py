"""The components of the reward that a method reads, and what is said where nothing states them."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

PREFIX = "rewards."
"""Beginning of the names of Batch fields that are components of the reward."""
STATED_BY = "an environment by score(), one of gymnasium by info['cost'] ('#cost'); a reward returns {name: number, …}"
"""Ways in which a component is stated."""


def components_read(method: Method) -> Iterator[str]:
    """Yield the components that a method reads and none of its parts fills."""
    filled = {name for part in data_parts(method.parts()) for name in part.supplies()}
    for name in method.needs():
        if name.startswith(PREFIX) and name not in filled:
            yield name.removeprefix(PREFIX)


def need_components(method: Method, batch: Batch) -> None:
    """Refuse rows of which none has a component that the method reads.

    Raises:
        InputError: there is no such component.
    """
    for name in components_read(method):
        if name not in batch.rewards:
            raise InputError(
                f"{method.name} reads the component '{name}' of the reward, and no row of this step states it",
                f"they state {', '.join(batch.rewards) or 'none'}",
                f"State it: {STATED_BY}. Or name another component, or take a method that reads none",
            )
