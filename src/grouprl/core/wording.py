"""Errors as one line of plain sentences."""

from __future__ import annotations

from grouprl.core.errors import GrouprlError, InputError


def in_one_line(error: GrouprlError) -> str:
    """Return the message as sentences: what is wrong, the rule, the remedy.

    A part that ends in a newline, such as a difference of files, stays on lines of its own.
    """
    if not isinstance(error, InputError):
        return str(error)
    what, *more = [part for part in (error.what, error.rule, error.remedy) if part]
    return "".join(map(_sentence, [what, *map(_capital, more)])).rstrip()


def _sentence(part: str) -> str:
    if part.endswith("\n"):
        return part
    text = part.strip().rstrip(".")
    return f"{text} " if text[-1] in "?!:" else f"{text}. "


def _capital(text: str) -> str:
    """Capitalise the first letter, unless the first word is a name (`batch.group_size`, `eval_x`) or a quotation."""
    first = text.split(maxsplit=1)[0].rstrip(",:;")
    return text[0].upper() + text[1:] if first.isalpha() else text
