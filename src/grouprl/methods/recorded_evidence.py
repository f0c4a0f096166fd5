"""Evidence on a method from recorded runs, read from a file that scripts/generate_docs.py makes of the records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Verdict = Literal["learned", "mixed", "not shown", "no record"]
OWN = "A method of yours: no run of it is recorded with this package."


@dataclass(frozen=True)
class Evidence:
    """The verdict of the recorded runs on a method, and the sentence that states it with its numbers.

    `learned` says in how many of the places it learned: "12 of 13"; "" without a record.
    """

    verdict: Verdict
    words: str
    learned: str = ""

    @property
    def doubtful(self) -> bool:
        """True if the runs give reason for doubt, which a reader should learn first."""
        return self.verdict in ("mixed", "not shown")


def shown(name: str) -> Evidence:
    """Return what the records show about a method; nothing for one that is not in the catalogue."""
    return _stored().get(name, Evidence("no record", OWN))


def forget() -> None:
    """Clear the cache, so that the file is read again."""
    _stored.cache_clear()


@cache
def _stored() -> dict[str, Evidence]:
    text = (files("grouprl") / "methods" / "shown.json").read_text(encoding="utf-8")
    return {name: Evidence(**found) for name, found in json.loads(text).items()}
