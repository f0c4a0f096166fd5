"""Where results go: to standard output, apart from what the user's code and other libraries print there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Results:
    """The stream of results while other output is kept apart; None: results go where everything goes."""

    stream: TextIO | None = None


def put(text: object) -> None:
    """Print a result."""
    print(text, file=Results.stream or sys.stdout, flush=True)


@contextmanager
def apart(wanted: bool = True) -> Iterator[None]:
    """Let only `put` reach standard output: what is printed in the block, by child processes too, goes to stderr."""
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
    """Let descriptor 1 be stderr and yield a stream to what it was; or `stdout` itself where that is another stream."""
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
