"""The one kind of error that tells a user what to change."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable

NOT_THE_USERS = tuple(
    os.path.join(os.path.realpath(place), "")
    for place in {
        os.path.dirname(os.path.dirname(__file__)),
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    }
)
"""Folders of this package, of Python and of packages installed."""
MANY = 60
"""Number of known names from which a message no longer lists them all."""


class GrouprlError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(GrouprlError, ValueError):
    """The user's input breaks a rule.

    The message holds the value (`what`), the `rule` it breaks and the `remedy`, as sentences; a part that ends in a
    newline, such as a difference of files, stays on lines of its own. `begun` says that a run had begun, and left files
    from which it can be resumed.
    """

    def __init__(self, what: str, rule: str = "", remedy: str = "") -> None:
        self.what, self.rule, self.remedy = what, rule, remedy
        self.begun = False
        first, *more = [part for part in (what, rule, remedy) if part] or [""]
        super().__init__("".join(map(_sentence, [first, *(_capital(part, what) for part in more)])).rstrip(" "))


class MissingExtra(GrouprlError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str, whole: str = "grouprl") -> None:
        """Say which `package` is needed for which `purpose`; `whole` is the package that offers the `extra`."""
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: pip install '{whole}[{extra}]'")


class RunError(GrouprlError, RuntimeError):
    """A run cannot continue: a corrupted checkpoint, too many failing rewards, non-finite loss."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a remedy sentence for an unknown `name`: the nearest known names, or all if there are not too many."""
    names = sorted(known)
    if not names:
        return "There are none."
    close = [each for each in names if each.casefold() == name.casefold()]
    close = close or difflib.get_close_matches(name, names, n=max(1, len(names)), cutoff=0.5)
    close.sort(key=lambda known: sorted(known) != sorted(name))  # transposed letters are the most common slip
    if close:
        return "Did you mean " + " or ".join(f"'{c}'" for c in close[:3]) + "?"
    return (
        f"None of the {len(names)} known names is similar to it."
        if len(names) > MANY
        else f"Known: {', '.join(names)}."
    )


def shortened(value: object, limit: int = 200) -> str:
    """Return the repr of a value for a message, shortened in the middle if it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 4 :]}"


def described(error: BaseException) -> str:
    """Return the type and the text of an exception of the user's code.

    Making that text may itself fail, and half a character in it is written as an escape.
    """
    try:
        said = f": {error}"
    except Exception as failure:
        said = f", whose text raises {type(failure).__name__}"
    return writable(f"{type(error).__name__}{said}")


def writable(text: str) -> str:
    """Return a text that every file can hold: with escapes for halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def unreadable(error: Exception) -> str:
    """Return why a text could not be read as data; for an integer that is too long, without Python's advice."""
    long = "integer string conversion" in str(error)
    return f"a number has more than {sys.get_int_max_str_digits():,} digits" if long else str(error)


def raised(error: BaseException) -> str:
    """Return an exception as text for a message, with the line of code that raised it (a SyntaxError names its own).

    The line is the last one in the traceback that belongs to the user, not the one in a library.
    """
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _of_the_user(frame.filename)]
    last = (own or frames)[-1] if len(frames) > 1 else None
    place = f" at {last.filename.rsplit('/', 1)[-1]}:{last.lineno}" if last is not None else ""
    said = f": {_brief(error)}" if str(error) else ""
    return f"{type(error).__name__}{said}{place}"


def _brief(error: BaseException) -> str:
    """Return the text of an exception; of pydantic's long lists, only the first error."""
    listed = getattr(error, "errors", None)
    if type(error).__name__ != "ValidationError" or not callable(listed):
        return str(error)
    first = listed()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _of_the_user(file: str) -> bool:
    """Return whether a file belongs to the user: not to this package, to Python or to an installed package."""
    return os.path.isfile(file) and not os.path.realpath(file).startswith(NOT_THE_USERS)


def _sentence(text: str) -> str:
    """Return a part of a message with a full stop and a space after it; unchanged if it ends with a newline."""
    return text if text[-1:] == "\n" else text + " " if text[-1:] in (*".?!:", "") else text + ". "


def _capital(text: str, what: str) -> str:
    """Capitalise the first letter, unless the first word is a name (`batch.group_size`, `eval_x`, one to which `what`
    gives a value), this program's, or a quotation.
    """
    first = [*text.split(maxsplit=1), ""][0].rstrip(",:;")
    named = first == "grouprl" or not first.isalpha() or re.search(rf"(?<![\w.]){first}'?( ?=|:)", what)
    return text if named else text[0].upper() + text[1:]


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, of torch on a CPU or GPU, or of the system says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error).lower()
    return any(words in said for words in ("can't allocate memory", "not enough memory", "out of memory"))
