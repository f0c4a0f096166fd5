"""Code of others that forks: a child of this process that returns from it would go on with the run, a second time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_forks(what: str, call: str = "it") -> Iterator[None]:
    """End a process that was forked within and comes back; `what` forked it, in `call`, says a line."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            os.write(2, f"a process that {what} forked came back from {call}; it is ended\n".encode())
            os._exit(1)
