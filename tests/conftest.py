"""Settings of every test: one thread (two collapse as soon as anything else uses a core), and no network."""

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
NOT_OF_TESTS = ("PYTEST_", "RAY_")
"""How the names begin that pytest and Ray set as they are used."""


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A test that leaves a changed environment fails itself, instead of the ones that come after it.

    Libraries that it is the first to import may set what they need.
    """
    before, imported = dict(os.environ), len(sys.modules)
    yield
    names = {name for name in before.keys() | os.environ.keys() if not name.startswith(NOT_OF_TESTS)}
    changed = {name for name in names if before.get(name) != os.environ.get(name)}
    if not changed or len(sys.modules) > imported:
        return
    for name in changed:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})
    raise AssertionError(f"the test left other values of {sorted(changed)} in the environment")
