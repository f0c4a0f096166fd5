"""The catalogue of methods: compositions of parts, each with a card; one folder for each family.

`grouprl.methods` is this package, `grouprl.methods()` the whole catalogue by name, and `grouprl.methods.show("grpo")`
a card.
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import CATALOGUE, Entry, entry, find, method, methods

if TYPE_CHECKING:
    from grouprl.methods.as_html import ShownCard

__all__ = ["CATALOGUE", "Card", "Entry", "Golden", "Paper", "Reduction", "entry", "find", "method", "methods"]


class _Catalogue(ModuleType):
    """This package, made callable."""

    def __call__(self) -> Mapping[str, Entry]:
        """Return the whole catalogue by name."""
        return methods()

    def show(self, name: str) -> "ShownCard":
        """Return the card of the entry `name`, which a notebook shows as a page.

        Raises:
            InputError: there is no such entry.
        """
        from grouprl.methods.as_html import ShownCard

        return ShownCard(find(name))


sys.modules[__name__].__class__ = _Catalogue
