"""Protection against user code that forks: a forked child that returned from it would run the rest again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_forks(what: str, call: str = "it") -> Iterator[None]:
    """End any process that is forked within the block and leaves it; a line on stderr names `what` forked it, and in
    which `call`.
    """
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            os.write(2, f"a process that {what} forked came back from {call}; it is ended\n".encode())
            os._exit(1)
