"""The tables of docs/from_trl.md and docs/from_verl.md: the keys of another library, and what each is called here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grouprl.core.foreign.names import LIBRARIES

MARKS = re.compile(r"(<!-- keys: (?P<library>\w+) -->\n).*?(<!-- /keys -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return a page whose tables between marks hold every key that is known of the library that the mark names."""
    return MARKS.sub(lambda found: found[1] + table(LIBRARIES[found["library"]]) + found[3], page)


def table(names: Mapping[str, str]) -> str:
    """Return a table with a row for each key, in the order in which they are known."""
    lines = ["| there | here |", "|---|---|", *(f"| `{theirs}` | {_ours(ours)} |" for theirs, ours in names.items())]
    return "\n".join(lines) + "\n"


def _ours(words: str) -> str:
    key, colon, value = words.partition(": ")
    if re.fullmatch(r"\{.*\}|[\w./:-]+", value):  # a value that is written so
        return f"`{key}: {value}`"
    keys = ", ".join(f"`{each}`" for each in key.split(", "))
    return keys + colon + value.replace("|", "\\|")
