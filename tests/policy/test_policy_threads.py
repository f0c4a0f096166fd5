"""How many threads a run computes with."""

import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.policy import choose_threads, set_threads
from grouprl.policy import threads as module


@pytest.fixture
def machine(monkeypatch):
    def make(cores, load, omp=None):
        monkeypatch.setattr(module, "core_count", lambda: cores)
        monkeypatch.setattr(module, "_load", lambda: load)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if omp is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", omp)

    return make


@pytest.mark.parametrize(
    ("cores", "load", "expected"),
    [(2, 0.0, 1), (2, 3.0, 1), (3, 0.0, 1), (4, 0.0, 4), (8, 1.5, 6), (8, 4.5, 1), (64, 0.0, 16), (1, 0.0, 1)],
)
def test_auto_is_one_unless_cores_are_idle(machine, cores, load, expected):
    machine(cores, load)
    assert choose_threads("auto") == expected


def test_the_users_environment_is_honoured(machine):
    machine(64, 0.0, omp="3")
    assert choose_threads("auto") == 3
    machine(64, 0.0, omp="many")
    assert choose_threads() == 16


def test_a_number_is_taken_as_it_is(machine):
    machine(2, 9.0, omp="1")
    assert choose_threads(7) == 7


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "two"])
def test_anything_else_is_refused(bad):
    with pytest.raises(InputError, match="positive integer or 'auto'"):
        choose_threads(bad)


def test_torch_is_told():
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
