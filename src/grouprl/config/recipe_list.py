"""The embedded recipes, to choose from: the purpose of each, and the results of its recorded runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from grouprl.config.run import recipe_names, recipes_folder


@dataclass(frozen=True)
class Recipe:
    """A recipe's description and its record: the number of seeds run, and of those that gained on held-out prompts."""

    name: str
    words: str
    gained: int
    seeds: int

    @property
    def record(self) -> str:
        """The seeds that gained, as in "2 of 3", or words for a missing record."""
        return f"{self.gained} of {self.seeds}" if self.seeds else "no record"

    @property
    def sure(self) -> bool:
        """True if there is a record in which every seed gained."""
        return 0 < self.seeds == self.gained

    def note(self) -> str:
        """Say what the record shows; empty if every seed gained."""
        if self.sure:
            return ""
        if not self.seeds:
            return f"the recipe {self.name} has no run in the record (docs/recipes.md): nothing shows that it learns"
        known = f"{self.record} recorded seeds have a significant gain on held-out prompts (docs/recipes.md)"
        return f"the recipe {self.name} is {'not' if not self.gained else 'not always'} shown to learn: {known}"


@cache
def recipe(name: str) -> Recipe:
    """Return the description and the record of the embedded recipe `name`."""
    lines = (recipes_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("#").strip() for line in lines[: _first_setting(lines)]]
    found = json.loads((recipes_folder() / "shown.json").read_text(encoding="utf-8"))
    return Recipe(name, " ".join(comments), **found.get(name, {"gained": 0, "seeds": 0}))


def _first_setting(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if not line.startswith("#"))


def note_on(source: str) -> str:
    """Return what to know before running `source`; empty if it is not a recipe, or one that learned in all seeds."""
    return recipe(source).note() if source in recipe_names() else ""
