"""Settings of every test: one thread (two collapse as soon as anything else uses a core), and no network."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
NOT_OF_TESTS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
"""What pytest and, when it is first imported, a part of torch set."""


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A test that leaves a changed environment fails itself, instead of the ones that come after it."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - NOT_OF_TESTS
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not changed, f"the test left other values of {sorted(changed)} in the environment"
