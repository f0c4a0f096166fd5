"""The layout of the tokens of a pass: packed for everything that works token by token, padded only for attention.

A pass is a single stream of S tokens without padding. If rows begin alike, a token whose whole history they share is in
the stream once (`histories`): a row's block then holds only its own tokens, and its keys are those of its whole
history. Otherwise the stream holds every row in full. Rows are padded in up to four classes of similar length. The last
token of a response predicts nothing and is left out.

Why a stream: nine tenths of a layer's work are products token by token (projections, feed-forward), which do not depend
on rows, so padding would be wasted work. Only attention needs rows, and gathers them by index. Why a tree: the
completions of a group share their prompt, and the turns of an episode share everything before them, so most tokens of a
pass would be computed several times; sharing them is exact, as a token's state depends on its history alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from grouprl.records.shared_prefixes import Histories, Ids
from grouprl.records.tokens import Tokens, read_rows

WORTH_LEAVING = 0.2
"""Share of tokens that predict nothing from which these are left out of the computation after the last attention."""
WORTH_SPLITTING = 0.2
"""Share of attention's work that a second class of rows must save: it launches as many operations as the first."""


@dataclass(frozen=True)
class Block:
    """Rows of similar length that attend in one operation: indices of their tokens in the stream, padded on the right.

    Attributes:
        token_rl: stream index of the row's own tokens, [R,L]; -1 stands for padding.
        key_rk: stream index of the tokens that they may see, [R,K]; None: their own tokens, each up to itself.
        last_rl: the place among these of the last one that each token may see, [1 or R, L].
        dtype: the type of attention scores.
    """

    token_rl: torch.Tensor
    key_rk: torch.Tensor | None
    last_rl: torch.Tensor
    dtype: torch.dtype

    @cached_property
    def bias(self) -> torch.Tensor:
        """Added to the attention scores, [1 or R, 1, L, K]: 0 where a key may be seen, else -inf."""
        return self.bias_of(slice(None))

    def bias_of(self, part: slice) -> torch.Tensor:
        """Return the bias of some of the tokens' columns."""
        keys = (self.token_rl if self.key_rk is None else self.key_rk).shape[1]
        hidden = torch.arange(keys, device=self.last_rl.device) > self.last_rl[:, None, part, None]
        return torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True)
class PassPlan:
    """The stream of one pass.

    Attributes:
        ids_s: token ids, [S].
        position_s: position of each token in its own sequence, [S].
        needed_u: stream indices of the tokens that are computed after the last layer's attention, [U]; None: all of
            them.
        state_n: index among the tokens `needed_u` of the one that makes each prediction, [N].
        target_n: the tokens predicted, [N].
        place_m: index of each response token's prediction, [M], row after row; None: each token has its own, in order.
        blocks: the rows in classes of similar length; each token of the stream is in one row of one block.
    """

    ids_s: torch.Tensor
    position_s: torch.Tensor
    needed_u: torch.Tensor | None
    state_n: torch.Tensor
    target_n: torch.Tensor
    place_m: torch.Tensor | None
    blocks: tuple[Block, ...]


def plan_pass(tokens: Tokens, dtype: torch.dtype, device: torch.device, *, pays: float = 1.0) -> PassPlan:
    """Arrange the rows of `tokens`; common beginnings are shared if that leaves `pays` times fewer tokens."""
    rows = read_rows(tokens)
    # Gathering keys from other rows costs more than reading contiguous ones; a tree must save more than that.
    if math.isfinite(pays) and tokens.tree.ratio > pays:
        return _plan_tree(tokens, rows, tokens.tree, dtype, device)
    return _plan_whole(tokens, rows, dtype, device)


def _plan_whole(tokens: Tokens, rows: list[Ids], dtype: torch.dtype, device: torch.device) -> PassPlan:
    prompt_b, response_b = _lengths(tokens)
    length_b = prompt_b + np.maximum(response_b - 1, 0)
    start_b = _starts(length_b)
    state_m = np.repeat(start_b + prompt_b - 1, response_b) + _ramps(response_b)
    blocks = [
        Block(_padded(start_b[some], length_b[some], device), None, _own(int(length_b[some].max()), device), dtype)
        for some in _classes(length_b, 0)
    ]
    return PassPlan(
        _flat(rows, device),
        _tensor(_ramps(length_b), device),
        *_needed(state_m, int(length_b.sum()), device),
        tokens.targets().to(device),
        None,
        tuple(blocks),
    )


def _plan_tree(tokens: Tokens, rows: list[Ids], tree: Histories, dtype: torch.dtype, device: torch.device) -> PassPlan:
    path_rk, own_r, known = tree.paths(), tree.length_r - tree.common_r, tree.common_r
    # A row that equals another's beginning has no tokens of its own: it attends to nothing, but its predictions count.
    going = (own_r > 0).nonzero()[0]
    # Rows are divided by the number of their own tokens (these are padded); their cost depends on the longest history.
    chosen = [going[some] for some in _classes(own_r[going], int(tree.length_r.max()))]
    blocks = [_behind(path_rk[some], known[some], tree.length_r[some], dtype, device) for some in chosen]
    state_n, target_n, place_m = _predictions(tokens, path_rk[np.argsort(tree.order)], tree.distinct)
    return PassPlan(
        _flat([rows[b][c:] for b, c in zip(tree.order, known, strict=True)], device),
        _tensor(np.repeat(known, own_r) + _ramps(own_r), device),
        *_needed(state_n, tree.distinct, device),
        _tensor(target_n, device),
        _tensor(place_m, device),
        tuple(blocks),
    )


def _needed(state_n: np.ndarray, stream: int, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the tokens whose last states are needed (None for nearly all) and the index of each prediction's state."""
    # Prompt tokens predict nothing that is scored. After the last attention no token reads them again, so the last
    # feed-forward can skip them; selecting costs a copy, which is not worth it for few of them.
    needed = np.zeros(stream, dtype=bool)
    needed[state_n] = True
    if needed.sum() > (1 - WORTH_LEAVING) * stream:
        return None, _tensor(state_n, device)
    return _tensor(needed.nonzero()[0], device), _tensor((np.cumsum(needed) - 1)[state_n], device)


def _predictions(tokens: Tokens, path_bk: np.ndarray, stream: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return states [N], targets [N] and places [M], where each of the `stream` tokens is predicted once.

    A row's last token is not in the stream: it is a prediction of its own.
    """
    prompt_b, response_b = _lengths(tokens)
    row_m, at_m = np.repeat(np.arange(len(tokens)), response_b), np.repeat(prompt_b, response_b) + _ramps(response_b)
    # Two rows that share a history share the prediction of their next token if that is shared too. A prediction is
    # therefore named by the stream index of the token that it predicts; a last token has none, and gets an index after
    # the stream.
    last_m = at_m == (prompt_b + response_b - 1)[row_m]
    # `where` reads both sides: the index of a last token is beyond its row, and may be beyond the table.
    told_m = np.where(last_m, stream + row_m, path_bk[row_m, np.minimum(at_m, path_bk.shape[1] - 1)])
    first = np.full(stream + len(tokens), -1)
    # Predictions of one name are equal: it does not matter that the last of them is kept.
    first[told_m] = np.arange(len(told_m))
    chosen = first[first >= 0]
    place = np.cumsum(first >= 0) - 1
    return path_bk[row_m, at_m - 1][chosen], tokens.targets().numpy()[chosen], place[told_m]


def _behind(
    path_rk: np.ndarray, common_r: np.ndarray, length_r: np.ndarray, dtype: torch.dtype, device: torch.device
) -> Block:
    """Return the block of rows whose first `common_r` tokens belong to other rows; `path_rk` are the indices of all
    their tokens.
    """
    keys = int(length_r.max())
    key_rk = np.where(np.arange(keys) < length_r[:, None], path_rk[:, :keys], -1)
    at_rl = common_r[:, None] + np.arange((length_r - common_r).max())
    token_rl = np.take_along_axis(key_rk, np.minimum(at_rl, keys - 1), axis=1)
    token_rl[at_rl >= length_r[:, None]] = -1
    # If all rows diverge at the same place (a group after its prompt), one mask serves them all: R times less memory.
    alike = bool((common_r == common_r[0]).all())
    last_rl = _tensor(at_rl[:1] if alike else at_rl, device)
    return Block(_tensor(token_rl, device), _tensor(key_rk, device), last_rl, dtype)


def _classes(length_r: np.ndarray, keys: int) -> Iterator[np.ndarray]:
    """Yield up to four classes of rows with similar length."""
    for some in length_classes(length_r, keys):
        yield from (some[part] for part in length_classes(length_r[some], keys))


def length_classes(length_r: np.ndarray, keys: int) -> list[np.ndarray]:
    """Divide rows into one or two classes of similar length, so that a few long rows do not force padding on all
    others.

    Attention costs rows * longest * (keys + longest) in each class; two classes must save `WORTH_SPLITTING` of it.
    Return the indices of each class; an empty list if there are no rows.
    """
    if not len(length_r):
        return []
    order, longest = np.argsort(length_r, kind="stable"), int(length_r.max())
    sorted_r, count = length_r[order], np.arange(1, len(length_r) + 1)
    whole = len(length_r) * longest * (keys + longest)
    cost = count * sorted_r * (keys + sorted_r) + (len(length_r) - count) * longest * (keys + longest)
    # The last cost is that of a single class, so that an empty second class never passes the test below.
    cut = int(cost.argmin()) + 1
    if cost.min() > (1 - WORTH_SPLITTING) * whole:
        return [np.arange(len(length_r))]
    return [np.sort(order[:cut]), np.sort(order[cut:])]


def _own(width: int, device: torch.device) -> torch.Tensor:
    return torch.arange(width, device=device)[None]


def _padded(start_r: np.ndarray, length_r: np.ndarray, device: torch.device) -> torch.Tensor:
    at_l = np.arange(length_r.max())
    return _tensor(np.where(at_l < length_r[:, None], start_r[:, None] + at_l, -1), device)


def _lengths(tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    return np.array(tokens.prompt_lengths), np.array(tokens.response_lengths)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def _ramps(lengths: np.ndarray) -> np.ndarray:
    """Return 0, 1, ..., n - 1 for each n of `lengths`, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)


def _flat(rows: list[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    return _tensor(np.fromiter(chain.from_iterable(rows), dtype=np.int64), device)


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
