"""Prompts from a JSON-lines file."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from grouprl.core.errors import InputError, shortened, unreadable
from grouprl.core.json_types import JsonObject
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import RowTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import without_folder

DEEPEST = 500
"""Levels of lists and objects within each other."""
LONGEST_LINE = 64 * 2**20
"""Bytes of a line; a prompt may have at most a 64th of that."""
BLANK = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may stand before the first character of a file: UTF-8's byte order mark, blanks, ends of lines."""
ONE_EACH = "each line is one JSON object"
OTHER_BYTES = (
    (b"\x1f\x8b", "compressed by gzip", "Unpack it with gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "Unpack it with unzstd"),
    (b"PK\x03\x04", "a ZIP archive", "Unpack it"),
    (b"PAR1", "a Parquet file", "Name it hf:FILE.parquet (extra 'data'), or write its rows as JSON, one a line"),
    (b"\xff\xfe", "text in UTF-16", "Save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "Save it as UTF-8"),
)
"""First bytes of files that are not JSON lines, the kinds of these files, and the remedies."""


@register_task("jsonl", argument="path")
class Jsonl(RowTask):
    """Your own prompts: a file with one JSON object per line, a prompt column, and columns for the reward."""

    path: str = Field(description="the file")
    eval_path: str | None = Field(None, alias="eval", description="a file of held-out prompts")

    @property
    def name(self) -> str:
        """The path after "jsonl:"."""
        return f"jsonl:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence that names the file."""
        return f"Prompts from the file {self.path}."

    def read(self) -> tuple[Table, Table | None]:
        """Return the files' lines."""
        return read_lines(self.path), read_lines(self.eval_path) if self.eval_path is not None else None


def read_lines(path: str) -> Table:
    """Return the objects of a JSON-lines file; blank lines are skipped.

    Raises:
        InputError: if there is no such file, or a line is not a JSON object in UTF-8 or would not be read as it is
            written (a repeated key, NaN, numbers beyond any float, halves of characters); the message names the line.
    """
    found = list(each_line(path))
    return Table(path, [row for _, row in found], [number for number, _ in found], "line")


def array_in(path: str) -> Table | None:
    """Return the objects of a file that is one JSON array; None for a file that does not begin as one.

    Raises:
        InputError: it is not JSON, or holds a value that is not an object; the message names the first.
    """
    first = next((line for line in _lines(path) if line.strip(BLANK)), b"")
    if not first.lstrip(BLANK).startswith(b"["):
        return None
    try:
        rows = parse_strictly(Path(path).read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {reason_of(error)}", "a file that begins with [ is one array") from error
    assert isinstance(rows, list)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"Object {number} of {path} is a JSON {type(row).__name__}", "a row is one JSON object")
    return Table(path, rows, range(1, len(rows) + 1), "object")


def each_line(path: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield the objects of a JSON-lines file with the numbers of their lines. Raises as `read_lines`."""
    first = True
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = parse_strictly(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            what = f"Line {number} of {path} is not JSON: {reason_of(error)}"
            raise InputError(what, ONE_EACH, _other_form(path, line) if first else "") from error
        if not isinstance(row, dict):
            what = f"Line {number} of {path} is a JSON {type(row).__name__}"
            raise InputError(what, ONE_EACH, _other_form(path, line) if first else "")
        first = False
        yield number, row


def _other_form(path: str, first: bytes) -> str:
    """Return how a file in another form is read, judged by its name and its first line; "" if it has none of them."""
    if path.lower().endswith(".csv"):
        return f"A CSV file is named hf:{path} (extra 'data')"
    if first.lstrip(BLANK).startswith(b"["):
        return "It is one JSON array: write its objects without the brackets and commas between them, one a line"
    return ""


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file one at a time, so that reading needs no more memory than the rows."""
    try:
        _refuse_pipe(path)
        with Path(path).open("rb") as file:
            _refuse_other_bytes(path, file.peek(4)[:4])
            while line := file.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"A line of {path} is longer than {LONGEST_LINE // 2**20} MiB",
                        "each line is one JSON object, with a prompt and its columns",
                        "A file that is one JSON list has to be written with a line for each of its objects",
                    )
                yield from line.splitlines()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"The file {shortened(path)} cannot be read: {reason}",
            remedy="" if Path(path).is_absolute() else f"Looked in {Path.cwd()}.",
        ) from error


def _refuse_pipe(path: str) -> None:
    """Raise InputError for a pipe: without a writer reading would wait forever, and a resumed run reads again."""
    if stat.S_ISFIFO(Path(path).stat().st_mode):
        raise InputError(
            f"{path} is a pipe", "prompts must be in a file, which is read more than once", "Write them to one"
        )


def _refuse_other_bytes(path: str, first: bytes) -> None:
    """Raise InputError for a file that is not UTF-8 text from its first byte on, naming its kind."""
    for start, what, remedy in OTHER_BYTES:
        if first.startswith(start):
            raise InputError(f"{shortened(path)} is {what}", "prompts are lines of text in UTF-8", remedy)


def reason_of(error: Exception) -> str:
    """Return the reason why a text was not read as JSON."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        half = error.object[error.start]
        return f"it holds half a character ({half!a}), which no text in UTF-8 can"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:].removesuffix(' at')} at character {error.pos + 1}"
    return unreadable(error)


def parse_strictly(text: str) -> object:
    """Return the JSON value that a text holds.

    Raises:
        ValueError: text that is not JSON, or that Python would accept and other programs would not.
        RecursionError: text that is nested too deeply.
    """
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_float)
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(value)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # fails on half a character, which cannot be written to any file
    return value


def _check_depth(value: object) -> None:
    """Raise RecursionError for a value of more than `DEEPEST` levels, which some releases of Python read."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise RecursionError


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: JsonObject = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object holds '{key}' twice")
        found[key] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
