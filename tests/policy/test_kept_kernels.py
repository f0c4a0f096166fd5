"""A limited number of kernels is kept: memory does not grow with the shapes of a run's products."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from grouprl.policy.products import CACHES, KEPT_KERNELS, has_onednn

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
PRODUCTS = """
import sys
import torch
from grouprl.policy.products import times

for rows in map(int, sys.argv[1:]):
    times(torch.ones(rows, 8), torch.ones(8, 4), "onednn")
"""
IN_USE = """
import ctypes
import torch
from grouprl.policy.products import times

class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Facts
taken = []
for first in (1, 201):
    for rows in range(first, first + 200):
        times(torch.ones(rows, 8), torch.ones(8, 4), "onednn")
    taken.append(library.mallinfo2().h / 2**20)
print(taken[1] - taken[0])
"""


def told(program: str, *arguments: str, **environment: str) -> list[str]:
    """Return the lines that a program prints in a process with a clean environment."""
    own = {name for names in CACHES for name in names}
    clean = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-c", program, *arguments]
    given = {**clean, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.splitlines()


def made(rows: list[int], **environment: str) -> list[bool]:
    """Return for each product of so many rows whether oneDNN made a kernel."""
    lines = told(PRODUCTS, *map(str, rows), ONEDNN_VERBOSE="2", **environment)
    return ["create:cache_miss" in line for line in lines if ",create:" in line]


SHAPES = list(range(1, KEPT_KERNELS + 2))


def test_the_oldest_kernel_is_dropped_and_the_newest_is_kept() -> None:
    assert made([*SHAPES, SHAPES[-1], SHAPES[0]]) == [True] * len(SHAPES) + [False, True]


@pytest.mark.parametrize("name", CACHES[0])
def test_a_number_of_the_users_own_counts(name: str) -> None:
    assert made([*SHAPES, SHAPES[0]], **{name: "1000"}) == [True] * len(SHAPES) + [False]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="mallinfo2 is glibc's")
def test_two_hundred_further_shapes_take_no_memory() -> None:
    """Beyond those that are kept; two caches hold about 0.3 MiB each of a shape."""
    assert float(told(IN_USE)[-1]) < 10
    kept = {names[0]: "1000" for names in CACHES}
    assert all(float(told(IN_USE, **{name: "1000"})[-1]) > 30 for name in kept)
