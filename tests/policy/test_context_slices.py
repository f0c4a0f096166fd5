"""How the columns of a pass are divided among ranks that share its rows, and what each column then sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grouprl.policy import Tokens
from grouprl.policy.language.transformers_engine import PassLayout, pack_sequences, pad_sequences
from grouprl.policy.sharded import context_attention
from grouprl.policy.sharded.context_attention import SliceMask, context_mask
from grouprl.policy.sharded.context_attention import context_attention as attend
from grouprl.policy.sharded.context_slices import Slices, slice_of

ROWS = Tokens.of([[3, 4], [5, 6, 7], [8]], [[5] * 9, [6, 7], [9, 3, 4]])


def test_each_rank_has_an_early_and_a_late_chunk() -> None:
    slices = Slices(14, 2)
    assert (slices.width, slices.length) == (4, 16)
    assert slices.columns_of(0).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert slices.columns_of(1).tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert slices.cut(torch.arange(1, 15)[None], 0).tolist() == [[1, 2, 3, 4, 13, 14, 0, 0]]
    seen = [int((slices.columns_of(rank) + 1).sum()) for rank in range(2)]
    assert seen[0] == seen[1], "all ranks attend to as many keys"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("columns", [1, 5, 24])
def test_every_column_has_one_place_on_one_rank(count: int, columns: int) -> None:
    slices = Slices(columns, count)
    each = torch.arange(slices.length)
    for rank in range(count):
        own = slices.columns_of(rank)
        assert (slices.owner(own) == rank).all()
        assert slices.place(own).tolist() == list(range(2 * slices.width))
    whole = torch.randn(2, 3, slices.length, 5)
    parts = slices.divided(whole)
    assert torch.equal(slices.joined(parts), whole)
    assert torch.equal(parts[0][:, :, slices.place(each)[slices.owner(each) == 0]], parts[0])


@pytest.mark.parametrize("lay_out", [pad_sequences, pack_sequences])
def test_slices_have_every_response_once_and_see_their_own_sequence(lay_out) -> None:
    whole = lay_out(ROWS)
    slices = Slices(whole.ids_bl.shape[1], 2)
    owners = []
    for rank in range(2):
        own = slice_of(whole, slices, rank)
        columns = slices.columns_of(rank)
        mine = whole.at_m[own.owner_m == rank]
        assert torch.equal(own.layout.ids_bl.flatten()[own.layout.at_m], whole.ids_bl.flatten()[mine])
        assert (own.first_bl <= columns).all()
        assert torch.equal(columns - own.first_bl, own.layout.position_bl), "a sequence begins at position 0"
        owners.append(own.owner_m)
    assert torch.equal(*owners)
    assert set(owners[0].tolist()) == {0, 1}


def mask_of(whole: PassLayout, rank: int, group: object) -> SliceMask:
    slices = Slices(whole.ids_bl.shape[1], 2)
    return SliceMask(group, slices, slice_of(whole, slices, rank).first_bl, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("masked", [2**21, 12])
def test_two_slices_attend_as_the_whole_pass_does(window, masked, monkeypatch) -> None:
    """The exchange is stood in for by both ranks' tensors; the whole pass has a mask of its square."""
    monkeypatch.setitem(context_attention.MASKED, "cpu", masked)
    whole = pack_sequences(ROWS)
    rows, length = whole.ids_bl.shape[0], Slices(whole.ids_bl.shape[1], 2).length
    torch.manual_seed(0)
    query = torch.randn(rows, 4, length, 6, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(rows, 2, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found, both = [], []
    for rank in range(2):
        parts = [Slices(whole.ids_bl.shape[1], 2).divided(x) for x in (query, key, value)]
        group = SimpleNamespace(rank=rank, gathered=lambda _, k=parts[1], v=parts[2]: torch.cat([k, v], -1).detach())
        mask = mask_of(whole, rank, group)
        mask = mask if window is None else mask.within(window)
        assert (len(mask.blocks) > 2) == (masked == 12)
        found.append(attend(nn.Module(), *(x[rank] for x in parts), mask)[0].transpose(1, 2))
        both.append(mask)
    out = Slices(whole.ids_bl.shape[1], 2).joined(torch.stack(found))
    first_bl = Slices(whole.ids_bl.shape[1], 2).joined(torch.stack([m.first_bl[:, None, :, None] for m in both]))
    each = torch.arange(length)
    seen = (each >= first_bl[:, 0]) & (each <= each[:, None])
    scores = (query @ key.repeat_interleave(2, 1).mT / 6**0.5).masked_fill(~seen[:, None], -torch.inf)
    plain = scores.softmax(-1) @ value.repeat_interleave(2, 1)
    assert (out - plain).abs().max() < 1e-12


def test_what_changes_masks_or_scores_is_not_carried() -> None:
    with pytest.raises(NotImplementedError, match="changes the causal mask"):
        context_mask(use_vmap=True)
    mask = mask_of(pad_sequences(ROWS), 0, SimpleNamespace(rank=0))
    ones = torch.ones(1, 1, 2, 2)
    with pytest.raises(NotImplementedError, match="its attention has softcap"):
        attend(nn.Module(), ones, ones, ones, mask, softcap=30.0)
    with pytest.raises(NotImplementedError, match="a mask or dropout of its own"):
        attend(nn.Module(), ones, ones, ones, None)  # type: ignore[arg-type]
