"""Errors as one line of plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Capitalise the first letter, unless the first word is a name (`batch.group_size`, `eval_x`), this program's, or a
    quotation.
    """
    first = text.split(maxsplit=1)[0].rstrip(",:;")
    return text[0].upper() + text[1:] if first.isalpha() and first != "grouprl" else text


def in_ranges(steps: Sequence[int]) -> str:
    """Return the numbers of steps in words: "step 3", "steps 1-5 and 9"."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"step{'s' * (len(steps) > 1)} {', '.join(said[:-1])}{' and ' if said[1:] else ''}{said[-1]}"
