"""Output of results to standard output, separate from the prints of user code and libraries."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from grouprl.core.terminal import CONTROL


class Results:
    """The stream of results while other output is separated; None if results go to standard output like all else."""

    stream: TextIO | None = None


def put(text: object) -> None:
    """Print a result."""
    print(text, file=Results.stream or sys.stdout, flush=True)


def put_data(value: object, *, indent: int | None = None, default: Callable[[object], object] | None = None) -> None:
    """Print a result as JSON; characters that would control a terminal are escaped, which changes no text."""
    text = json.dumps(value, indent=indent, default=default, ensure_ascii=False)
    put(CONTROL.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


@contextmanager
def apart(wanted: bool = True) -> Iterator[None]:
    """Let only `put` reach standard output: other prints in the block, also by child processes, go to stderr."""
    if not wanted or Results.stream is not None:
        yield
        return
    with _standard_output_to_stderr(sys.stdout) as Results.stream:
        before, sys.stdout = sys.stdout, sys.stderr
        try:
            yield
        finally:
            sys.stdout, Results.stream = before, None


@contextmanager
def _standard_output_to_stderr(stdout: TextIO) -> Iterator[TextIO]:
    """Redirect descriptor 1 to stderr and yield a stream to its old target, or `stdout` if that is another stream."""
    if stdout is not sys.__stdout__ or sys.__stderr__ is None:
        yield stdout
        return
    stdout.flush()
    kept = os.dup(1)
    with os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors) as results:
        os.dup2(2, 1)
        try:
            yield results
        finally:
            os.dup2(kept, 1)
            os.close(kept)
