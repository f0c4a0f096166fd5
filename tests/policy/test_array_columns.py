"""Rows of numbers become tensors alike, whether they are converted together or one by one."""

import numpy as np
import pytest
import torch

from grouprl.policy.vectors.array_columns import tensor, tensors

ROWS = {
    "of different lengths": [np.zeros((3, 2)), np.ones((1, 2)), np.full((2, 2), 0.1)],
    "of whole numbers": [np.array([1, 2], dtype=np.int32), np.array([3], dtype=np.int32)],
    "of different types": [np.array([1, 2]), np.array([0.5])],
    "of different shapes": [np.zeros((2, 3)), np.zeros((2, 4))],
    "single numbers": [np.int64(3), np.int64(4)],
    "truth values": [np.array([True, False]), np.array([True])],
    "lists": [[1.5, 2.5], [3.5]],
    "none": [],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_are_converted_as_each_alone(rows: list[object]) -> None:
    found, alone = tensors(rows), [tensor(row) for row in rows]
    assert [x.dtype for x in found] == [x.dtype for x in alone]
    assert all(torch.equal(x, y) for x, y in zip(found, alone, strict=True))
