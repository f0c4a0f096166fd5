"""The catalogue of methods: compositions of parts, each with a card; one folder for each family.

`grouprl.methods` is this package, and `grouprl.methods()` the whole catalogue by name.
"""

import sys
from collections.abc import Mapping
from types import ModuleType

from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import CATALOGUE, Entry, entry, find, method, methods

__all__ = ["CATALOGUE", "Card", "Entry", "Golden", "Paper", "Reduction", "entry", "find", "method", "methods"]


class _Catalogue(ModuleType):
    """This package, made callable."""

    def __call__(self) -> Mapping[str, Entry]:
        """Return the whole catalogue by name."""
        return methods()


sys.modules[__name__].__class__ = _Catalogue
