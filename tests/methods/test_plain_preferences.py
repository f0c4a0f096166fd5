"""Preference methods on plain tensors of odd shapes, held against formulas written out pair by pair."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import grouprl
from grouprl import Batch, InputError
from grouprl.methods import CATALOGUE

ls = F.logsigmoid


class Row:
    """A completion: its tokens' log-probs and what is made of them."""

    def __init__(self, logp_t: Tensor, ref_t: Tensor, collision_t: Tensor) -> None:
        self.logp_t, self.ref_t, self.size = logp_t, ref_t, len(logp_t)
        self.logp, self.u = logp_t.sum(), (logp_t - ref_t).sum()
        self.mean = self.logp / self.size
        self.likely = (logp_t.detach() - collision_t.log()).mean().exp()

    def odds(self) -> Tensor:
        return self.mean - torch.log1p(-self.mean.exp())

    def cut(self, most: int, alpha: float) -> Tensor:
        """Log-ratio whose tokens beyond `most` count `alpha`."""
        d_t = self.logp_t - self.ref_t
        return d_t[:most].sum() + alpha * d_t[most:].sum()


Pair = Callable[[Row, Row], Tensor]


def smooth(z: Tensor, e: float) -> Tensor:
    return -(1 - e) * ls(z) - e * ls(-z)


def exo(z: Tensor, e: float = 1e-3) -> Tensor:
    e_ = torch.tensor(e, dtype=torch.float64)
    return z.sigmoid() * (ls(z) - torch.log1p(-e_)) + (-z).sigmoid() * (ls(-z) - e_.log())


def discopop(z: Tensor, tau: float = 0.05) -> Tensor:
    m = (z / tau).sigmoid()
    return (1 - m) * -ls(z) + m * (-z).exp()


def held(x: Tensor) -> Tensor:
    """An exponent that is no more than 80, with its slope."""
    return x + (x.clamp(max=80) - x).detach()


def powered(mean: Tensor, alpha: float) -> Tensor:
    return (1 - (-alpha * mean).exp()) / alpha


PAIRS: dict[str, tuple[str, dict[str, Any], Pair]] = {
    "dpo": ("dpo", {}, lambda w, v: -ls(0.1 * (w.u - v.u))),
    "cdpo": ("cdpo", {"flips": 0.2}, lambda w, v: smooth(0.1 * (w.u - v.u), 0.2)),
    "rdpo": (
        "rdpo",
        {"flips": 0.2},
        lambda w, v: (-0.8 * ls(0.1 * (w.u - v.u)) + 0.2 * ls(0.1 * (v.u - w.u))) / 0.6,
    ),
    "ipo": ("ipo", {}, lambda w, v: (w.u - v.u - 5) ** 2),
    "ipo of means": ("ipo", {"length": "mean"}, lambda w, v: (w.u / w.size - v.u / v.size - 5) ** 2),
    "slic": ("slic", {}, lambda w, v: F.relu(1 - 0.1 * (w.u - v.u))),
    "exo": ("exo", {}, lambda w, v: exo(0.1 * (w.u - v.u))),
    "nca": ("nca", {}, lambda w, v: -ls(0.1 * w.u) - 0.5 * ls(-0.1 * w.u) - 0.5 * ls(-0.1 * v.u)),
    "sppo": ("sppo", {"beta": 0.1}, lambda w, v: (w.u - 5) ** 2 + (v.u + 5) ** 2),
    "apo_zero": ("apo_zero", {}, lambda w, v: 1 - (0.1 * w.u).sigmoid() + (0.1 * v.u).sigmoid()),
    "apo_down": ("apo_down", {}, lambda w, v: (0.1 * w.u).sigmoid() + 1 - (0.1 * (w.u - v.u)).sigmoid()),
    "discopop": ("discopop", {"beta": 0.1}, lambda w, v: discopop(0.1 * (w.u - v.u))),
    "f_dpo, js": ("f_dpo", {"divergence": "js"}, lambda w, v: -ls(0.1 * (ls(w.u) - ls(v.u)))),
    "f_dpo, forward": (
        "f_dpo",
        {"divergence": "forward_kl"},
        lambda w, v: -ls(0.1 * (held(-v.u).exp() - held(-w.u).exp())),
    ),
    "h_dpo": (
        "h_dpo",
        {"alpha": 0.9},
        lambda w, v: -ls(0.1 * (0.9 * (w.logp - v.logp) - w.ref_t.sum() + v.ref_t.sum())),
    ),
    "ld_dpo": (
        "ld_dpo",
        {"alpha": 0.3},
        lambda w, v: -ls(0.1 * (w.cut(min(w.size, v.size), 0.3) - v.cut(min(w.size, v.size), 0.3))),
    ),
    "simpo": ("simpo", {"beta": 2.0, "gamma": 1.0}, lambda w, v: -ls(2 * (w.mean - v.mean) - 1)),
    "cpo": ("cpo", {"nll_coef": 0.0}, lambda w, v: -ls(0.1 * (w.logp - v.logp))),
    "orpo": ("orpo", {"nll_coef": 0.0}, lambda w, v: -0.1 * ls(w.odds() - v.odds())),
    "alphapo": (
        "alphapo",
        {"alpha": 0.25, "beta": 2.0, "gamma": 0.2},
        lambda w, v: -ls(2 * (powered(w.mean, 0.25) - powered(v.mean, 0.25)) - 0.2),
    ),
    "wpo": (
        "wpo",
        {"beta": 0.1},
        lambda w, v: (w.likely * v.likely).clamp(max=1) * -ls(0.1 * (w.u - v.u)),
    ),
}
"""Entry, settings and the loss of a better and a worse completion."""


class Given:
    """Plain tensors of some groups, and the rows that they hold."""

    def __init__(self, groups: Sequence[Sequence[float]], lengths: Sequence[int], **odd: Any) -> None:
        seed, dtype, left, scale = (odd.get(x) for x in ("seed", "dtype", "left", "scale"))
        drawn = torch.Generator().manual_seed(seed or 0)
        group = [n for n, rewards in enumerate(groups) for _ in rewards]
        order = torch.randperm(len(group), generator=drawn) if odd.get("shuffled") else torch.arange(len(group))
        width = max(lengths) + 2
        self.group_b, self.reward_b = torch.tensor(group)[order], torch.tensor([r for g in groups for r in g])[order]
        length_b = torch.tensor(lengths)[order]
        start_b = width - length_b if left else torch.zeros_like(length_b)
        place_t = torch.arange(width)
        self.mask_bt = (place_t >= start_b[:, None]) & (place_t < (start_b + length_b)[:, None])
        shape = self.mask_bt.shape
        rest, self.dtype = torch.rand(3, *shape, generator=drawn).double(), dtype or torch.float64
        self.ref_bt, gap_bt, self.collision_bt = -0.2 - 2 * rest[0], rest[1] - 0.5, 0.2 + 0.7 * rest[2]
        self.logp_bt = torch.minimum(self.ref_bt + (scale or 1.0) * gap_bt, torch.tensor(-0.05).double())
        junk_bt = torch.where(self.mask_bt, 0, torch.nan if odd.get("junk") else -7.0)
        self.logp_bt, self.ref_bt = self.logp_bt + junk_bt, self.ref_bt + junk_bt

    def batch(self, **fields: Any) -> Batch:
        return Batch(
            mask_bt=self.mask_bt,
            group_b=self.group_b,
            reward_b=self.reward_b.to(self.dtype),
            ref_bt=self.ref_bt.to(self.dtype),
            stats={"collision": self.collision_bt.to(self.dtype)},
            **fields,
        )

    def rows(self, logp_bt: Tensor) -> list[Row]:
        return [
            Row(logp_bt[b][m_t], self.ref_bt[b][m_t], self.collision_bt[b][m_t]) for b, m_t in enumerate(self.mask_bt)
        ]

    def pairs(self) -> dict[int, list[tuple[int, int]]]:
        """The pairs of each group: all of different rewards, better first."""
        ids, reward = self.group_b.tolist(), self.reward_b.tolist()
        found: dict[int, list[tuple[int, int]]] = {}
        for i, j in itertools.permutations(range(len(ids)), 2):
            if ids[i] == ids[j] and reward[i] > reward[j]:
                found.setdefault(ids[i], []).append((i, j))
        return found


def of_pairs(given: Given, logp_bt: Tensor, formula: Pair) -> Tensor:
    """Mean over the pairs of a group; groups weigh by how many of their rows are in a pair."""
    rows, total, count = given.rows(logp_bt), torch.zeros((), dtype=torch.float64), 0
    for pairs in given.pairs().values():
        size = len({row for pair in pairs for row in pair})
        total = total + size * torch.stack([formula(rows[i], rows[j]) for i, j in pairs]).mean()
        count += size
    return total / max(count, 1)


SHAPES: dict[str, Given] = {
    "one pair": Given([[1, 0]], [4, 3]),
    "worse first": Given([[0, 1]], [4, 3]),
    "rows of one token": Given([[1, 0], [0, 1]], [1, 1, 1, 1]),
    "padding left": Given([[1, 0], [0, 1]], [4, 1, 2, 5], left=True),
    "padding that is nan": Given([[1, 0], [0, 1]], [4, 1, 2, 5], junk=True),
    "not in order": Given([[1, 0], [0, 1], [1, 0]], [4, 1, 2, 5, 3, 3], shuffled=True, seed=3),
    "several pairs of a prompt": Given([[1, 0, 1, 0], [1, 0]], [4, 1, 2, 5, 3, 3]),
    "lists and pairs": Given([[0.9, 0.1, 0.5], [1, 0], [0.3, 0.2, 0.8, 0.1]], [4, 1, 2, 5, 3, 3, 1, 2, 4]),
    "ties": Given([[1, 1], [1, 0], [0, 0, 1]], [4, 1, 2, 5, 3, 3, 1]),
    "nothing but ties": Given([[1, 1], [0, 0]], [4, 1, 2, 5]),
    "one alone": Given([[1], [1, 0]], [4, 1, 2]),
    "far": Given([[1, 0], [0, 1]], [6, 5, 4, 3], scale=200.0),
    "float32": Given([[1, 0], [0, 1], [0.3, 0.2, 0.8]], [4, 1, 2, 5, 3, 3, 1], dtype=torch.float32),
}


def check(name: str, settings: dict[str, Any], given: Given, expected: Callable[[Tensor], Tensor], **f: Any) -> None:
    """Compare loss and gradient of a method with a formula of the log-probs."""
    method = grouprl.method(name, **settings)
    own_bt = given.logp_bt.to(given.dtype).requires_grad_()
    value = method.loss(own_bt, method.prepare(given.batch(**f))).value
    theirs_bt = given.logp_bt.to(given.dtype).double().requires_grad_()
    wanted = expected(theirs_bt)
    grads = [
        torch.zeros_like(x) if not v.requires_grad else torch.autograd.grad(v, x)[0]
        for v, x in ((value, own_bt), (wanted, theirs_bt))
    ]
    narrow = given.dtype == torch.float32
    close = {"rtol": 1e-4, "atol": 1e-5} if narrow else {"rtol": 1e-9, "atol": 1e-10}
    assert value.dtype == given.dtype
    torch.testing.assert_close(value.double(), wanted, **close)
    torch.testing.assert_close(grads[0].double(), torch.where(given.mask_bt, grads[1], 0), **close)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", PAIRS)
def test_pairs(key: str, shape: str) -> None:
    (name, settings, formula), given = PAIRS[key], SHAPES[shape]
    check(name, settings, given, lambda logp_bt: of_pairs(given, logp_bt, formula))


OF_TWO = [name for name, given in SHAPES.items() if len(given.group_b) == 2 * len(given.pairs())]
"""The shapes with one pair for each prompt."""


def winners(given: Given, logp_bt: Tensor) -> Tensor:
    """Mean log-prob of the tokens of all better completions."""
    rows = given.rows(logp_bt)
    return torch.cat([rows[i].logp_t for pairs in given.pairs().values() for i, _ in pairs]).mean()


@pytest.mark.parametrize("shape", OF_TWO)
@pytest.mark.parametrize(
    ("name", "settings", "key", "coef"), [("cpo", {"nll_coef": 0.7}, "cpo", 0.7), ("orpo", {}, "orpo", 1.0)]
)
def test_the_likelihood_of_winners(name: str, settings: dict[str, Any], key: str, coef: float, shape: str) -> None:
    given = SHAPES[shape]
    check(name, settings, given, lambda x: of_pairs(given, x, PAIRS[key][2]) - coef * winners(given, x))


@pytest.mark.parametrize("shape", OF_TWO)
def test_a_mixture_of_losses(shape: str) -> None:
    given = SHAPES[shape]

    def mixed(w: Row, v: Row) -> Tensor:
        return -0.8 * ls(0.1 * (w.u - v.u)) - 0.2 * (ls(0.1 * w.u) + ls(-0.1 * v.u))

    check("mpo", {}, given, lambda x: of_pairs(given, x, mixed) - winners(given, x))


@pytest.mark.parametrize("shape", OF_TWO)
@pytest.mark.parametrize("name", ["aot", "aot_unpaired"])
def test_sorted_pairs(name: str, shape: str) -> None:
    given = SHAPES[shape]

    def expected(logp_bt: Tensor) -> Tensor:
        rows = given.rows(logp_bt)
        pairs = [(rows[i], rows[j]) for found in given.pairs().values() for i, j in found]
        ref = [(w.ref_t.sum(), v.ref_t.sum()) for w, v in pairs]
        if name == "aot":
            own_n = torch.stack([w.logp - v.logp for w, v in pairs]).sort().values
            gap_n = own_n - torch.stack([w - v for w, v in ref]).sort().values
        else:
            better_n, worse_n = (
                torch.stack(x).sort().values for x in zip(*[(w.u, v.u) for w, v in pairs], strict=True)
            )
            gap_n = better_n - worse_n
        return -ls(0.1 * gap_n).mean()

    check(name, {}, given, expected)


# --- completions alone ----------------------------------------------------------------------------------------------

LABELS: dict[str, Given] = {
    "groups of one": Given([[1], [0], [0], [1], [0]], [4, 1, 2, 5, 3]),
    "rows of one token": Given([[1], [0], [0]], [1, 1, 1]),
    "liked alone": Given([[1], [1]], [3, 2]),
    "disliked alone": Given([[0], [0]], [3, 2]),
    **{name: SHAPES[name] for name in ("one pair", "padding left", "padding that is nan", "not in order", "far")},
    "float32": SHAPES["float32"],
}


def of_labels(given: Given, logp_bt: Tensor, loss: Callable[[Tensor], Tensor], z0: Tensor, worse: float) -> Tensor:
    """Mean of the loss of s - z0 for liked completions, and of z0 - s for others, which weigh `worse`."""
    rows, liked = given.rows(logp_bt), (given.reward_b > 0.5).tolist()
    each = [loss(r.u - z0) if good else worse * loss(z0 - r.u) for r, good in zip(rows, liked, strict=True)]
    return torch.stack(each).mean()


@pytest.mark.parametrize("shape", LABELS)
def test_kto_without_mismatched_rows_has_no_baseline_and_says_so(shape: str) -> None:
    given, zero = LABELS[shape], torch.zeros((), dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"baseline z0 is 0.*keys={'mismatched': …}, \[B\] int64"):
        check("kto", {"undesirable": 1.5}, given, lambda x: of_labels(given, x, chance, zero, 1.5))


def chance(z: Tensor) -> Tensor:
    return 1 - (0.1 * z).sigmoid()


@pytest.mark.parametrize("shape", LABELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_kto(shape: str, sign: int) -> None:
    """The last row stands after another prompt; the baseline is its log-ratio where that is above 0."""
    given = LABELS[shape]
    own_b = torch.arange(len(given.group_b)) < len(given.group_b) - 1
    if not own_b.any():
        pytest.skip("one row alone")

    def expected(logp_bt: Tensor) -> Tensor:
        rows = given.rows(logp_bt)
        liked = (given.reward_b > 0.5).tolist()
        z0 = rows[-1].u.detach().clamp(min=0)
        each = [chance(r.u - z0) if good else chance(z0 - r.u) for r, good in zip(rows, liked, strict=True)]
        return torch.stack(each[:-1]).mean()

    flipped = Given.__new__(Given)
    flipped.__dict__ |= given.__dict__ | {"logp_bt": given.logp_bt, "ref_bt": given.ref_bt}
    if sign < 0:
        flipped.logp_bt, flipped.ref_bt = given.ref_bt, given.logp_bt
    given = flipped
    check("kto", {}, given, expected, keys={"mismatched": (~own_b).long()})


@pytest.mark.parametrize("shape", LABELS)
def test_bco_of_a_first_step_compares_with_its_own_mean(shape: str) -> None:
    """Without gradient: of all completions of the step; a mean that is given takes its place."""
    given = LABELS[shape]

    def expected(logp_bt: Tensor, mean: Tensor | None = None) -> Tensor:
        mean = torch.stack([r.u for r in given.rows(logp_bt)]).mean().detach() if mean is None else mean
        return of_labels(given, logp_bt, lambda z: -ls(0.1 * z), mean, 1.0)

    check("bco", {}, given, expected)
    known = torch.tensor(0.75, dtype=torch.float64)
    past = {"score_mean": known.expand(len(given.group_b)).to(given.dtype)}
    check("bco", {}, given, lambda x: expected(x, known), past=past)


def test_bco_of_a_part_of_a_step_has_no_mean() -> None:
    given = LABELS["groups of one"]
    method = grouprl.method("bco")
    ready = method.prepare(given.batch())
    with pytest.raises(InputError, match="3 of the 5 rows of the step are here"):
        method.loss(given.logp_bt[:3], ready.rows(torch.arange(3)))


# --- lists ----------------------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[str, dict[str, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "infonca": (
        "infonca",
        {"alpha": 0.3},
        lambda s_k, r_k: -((r_k / 0.3).softmax(0) * (0.1 * s_k).log_softmax(0)).sum(),
    ),
    "nca_rewards": (
        "nca_rewards",
        {"alpha": 0.3},
        lambda s_k, r_k: -((r_k / 0.3).softmax(0) * ls(0.1 * s_k) + ls(-0.1 * s_k) / len(s_k)).sum(),
    ),
    "exo_rw": (
        "exo_rw",
        {"beta_r": 0.3},
        lambda s_k, r_k: (s_k.softmax(0) * (s_k.log_softmax(0) - (r_k / 0.3).log_softmax(0))).sum(),
    ),
}
"""Entry, settings and the loss of a list by its log-ratios and rewards."""
OF_LISTS = ("one pair", "padding left", "not in order", "lists and pairs", "far", "float32")


@pytest.mark.parametrize("shape", OF_LISTS)
@pytest.mark.parametrize("key", LISTS)
def test_lists(key: str, shape: str) -> None:
    """Groups weigh by their size."""
    (name, settings, formula), given = LISTS[key], SHAPES[shape]

    def expected(logp_bt: Tensor) -> Tensor:
        score_b = torch.stack([row.u for row in given.rows(logp_bt)])
        lists = [given.group_b == group for group in given.group_b.unique()]
        each = [own.sum() * formula(score_b[own], given.reward_b[own].double()) for own in lists]
        return torch.stack(each).sum() / len(given.group_b)

    check(name, settings, given, expected)


# --- every method of preferences ------------------------------------------------------------------------------------

FAMILIES = (".preference.", ".dialects.trl_preference", ".dialects.trl_labels", ".dialects.trl_reference_free")
SHAPED = (r"Pass .*\[B(,T)?\]", r"Edges\(index_e2, value_e\)", "Pass step=…, the number")
OF_PREFERENCES = sorted(n for n, e in CATALOGUE.items() if any(f in e.compose.__module__ for f in FAMILIES))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["pairs", "groups of one", "lists and pairs"])
@pytest.mark.parametrize("name", OF_PREFERENCES)
def test_plain_tensors_are_enough_or_the_error_says_what_is_not(name: str, kind: str) -> None:
    """It names the field or the output, how it is passed, and its shape."""
    given = {"pairs": SHAPES["padding left"], **LABELS, **SHAPES}[kind]
    method, logp_bt = grouprl.method(name), given.logp_bt.clone().requires_grad_()
    value, told = torch.zeros(()), ""
    try:
        value = method.loss(logp_bt, method.prepare(given.batch(old_bt=given.logp_bt))).value
    except InputError as error:
        told = str(error)
    assert not told or re.search(rf"batch\.\w+.*({'|'.join(SHAPED)})", told)
    assert value.isfinite()
    if value.requires_grad:
        assert torch.autograd.grad(value, logp_bt)[0].isfinite().all()
