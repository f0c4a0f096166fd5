"""A loss that couples rows refuses a group or a step that is not whole; the others take any piece."""

from __future__ import annotations

import pytest
import torch

import grouprl
from batches import named_outputs, outcome, random_case
from grouprl.core.errors import InputError
from grouprl.methods import CATALOGUE

COUPLED = [name for name in CATALOGUE if grouprl.method(name).couples != "sequence"]


def prepared(name, seed=0):
    method = grouprl.method(name)
    case = random_case(seed=seed)
    return method, case, method.prepare(case.batch)


def loss_of(method, case, batch, rows):
    entropy_bt = None if case.entropy_bt is None else case.entropy_bt[rows]
    outputs = named_outputs(method, case.cross_bt[rows], case.logp_bt[rows], batch.rows(rows))
    return method.loss(case.logp_bt[rows], batch.rows(rows), entropy_bt, outputs=outputs).value


def test_there_are_coupled_methods_of_both_kinds():
    kinds = {grouprl.method(name).couples for name in COUPLED}
    assert kinds == {"group", "batch"}
    assert len(COUPLED) >= 18


@pytest.mark.parametrize("name", COUPLED)
def test_a_piece_of_a_group_is_refused(name):
    method, case, batch = prepared(name)
    rows = torch.arange(batch.size[0] - 1)
    with pytest.raises(InputError, match=f"couples = '{method.couples}'") as caught:
        loss_of(method, case, batch, rows)
    assert name in str(caught.value)
    with pytest.raises(InputError, match="couples"):
        loss_of(method, case, batch, torch.tensor([0]))


@pytest.mark.parametrize("name", COUPLED)
def test_rows_that_stand_there_twice_are_refused(name):
    method, case, batch = prepared(name)
    rows = torch.arange(batch.size[0])
    rows[-1] = rows[0]
    with pytest.raises(InputError, match="more than once"):
        loss_of(method, case, batch, rows)


@pytest.mark.parametrize("name", COUPLED)
def test_whole_groups_or_the_whole_step_are_taken_in_any_order(name):
    method, case, batch = prepared(name)
    whole = loss_of(method, case, batch, torch.arange(batch.size[0]))
    turned = loss_of(method, case, batch, torch.arange(batch.size[0]).flip(0))
    assert turned == pytest.approx(float(whole), rel=1e-9, abs=1e-12)
    groups = [(batch.group_b == group).nonzero()[:, 0] for group in batch.group_b.unique()]
    assert len(groups) > 1
    if method.couples == "group":
        pieces = sum(loss_of(method, case, batch, rows) for rows in groups)
        assert float(pieces) == pytest.approx(float(whole), rel=1e-9, abs=1e-12)
    else:
        with pytest.raises(InputError, match="of the step are here"):
            loss_of(method, case, batch, groups[0])


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])
def test_methods_of_single_sequences_take_any_piece(name):
    method, case, batch = prepared(name)
    assert method.couples == "sequence"
    pieces = sum(loss_of(method, case, batch, torch.tensor([row])) for row in range(batch.size[0]))
    assert float(pieces) == pytest.approx(float(outcome(method, case).value), rel=1e-9, abs=1e-12)


def test_a_step_that_was_never_weighed_is_refused():
    method, case, batch = prepared(COUPLED[0])
    with pytest.raises(InputError, match="prepare"):
        loss_of(method, case, batch.replace(step_row_b=None), torch.arange(batch.size[0]))
