"""What tests on a real Ray have that others have not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Undo the handler of SIGTERM that Ray sets in the process of a driver, and leaves there."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
