"""Relations between rows: what `rows`, joins and `trim` make of them, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl import Edges, InputError
from small import f64, small

ROWS = 6


def edges(*joined: tuple[int, int], values: list[float] | None = None) -> Edges:
    index_e2 = torch.tensor(joined, dtype=torch.int64).view(-1, 2)
    return Edges(index_e2, f64(values if values is not None else list(range(len(joined)))))


def as_set(given: Edges, names: list[int] | None = None) -> set[tuple[int, int, float]]:
    """Edges as (row, row, value), rows by `names`."""
    names = list(range(ROWS)) if names is None else names
    return {(names[i], names[j], v) for (i, j), v in zip(given.index_e2.tolist(), given.value_e.tolist(), strict=True)}


graphs = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)), max_size=12).map(lambda e: edges(*e))
takes = st.permutations(range(ROWS)).flatmap(lambda p: st.integers(1, ROWS).map(lambda n: list(p[:n])))


@settings(max_examples=80, deadline=None)
@given(graph=graphs, taken=takes)
def test_rows_keep_the_edges_between_them_in_any_order(graph, taken):
    kept = graph.rows(torch.tensor(taken), ROWS)
    within = {(i, j, v) for i, j, v in as_set(graph) if i in taken and j in taken}
    assert as_set(kept, taken) == within


@settings(max_examples=80, deadline=None)
@given(graph=graphs, taken=takes, seed=st.integers(0, 9))
def test_rows_of_rows_are_the_rows_of_both(graph, taken, seed):
    again = torch.randperm(len(taken), generator=torch.Generator().manual_seed(seed))[: max(1, len(taken) // 2)]
    twice = graph.rows(torch.tensor(taken), ROWS).rows(again, len(taken))
    once = graph.rows(torch.tensor(taken)[again], ROWS)
    assert torch.equal(twice.index_e2, once.index_e2)
    assert torch.equal(twice.value_e, once.value_e)


def test_a_preference_matrix_and_a_tree_go_with_their_rows():
    prob_bb = f64([[0.5, 0.9, 0.2], [0.1, 0.5, 0.6], [0.8, 0.4, 0.5]])
    matrix = Edges.where(~torch.eye(3, dtype=torch.bool), prob_bb)
    tree = edges((1, 0), (2, 1))
    batch = small([1, 0, 0], [2, 1, 1], edges={"preferred": matrix, "tree": tree})
    part = batch.rows(torch.tensor([2, 1]))
    assert as_set(part.edges["preferred"]) == {(0, 1, 0.4), (1, 0, 0.6)}
    assert as_set(part.edges["tree"]) == {(0, 1, 1.0)}
    assert as_set(batch.rows(torch.tensor([True, False, True])).edges["tree"]) == set()
    assert part.trim(1).edges is part.edges


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": edges((0, 2))}, r"edges\['x'\] joins the rows \[0, 2\].*rows of the batch are numbered 0 to 1"),
        ({"x": edges((0, 1), values=[torch.nan])}, "not finite"),
        ({"x": torch.zeros(1, 2)}, r"edges\['x'\] is of type Tensor"),
        (edges((0, 1)), "edges is of type Edges"),
    ],
)
def test_wrong_edges_are_refused_in_words(given, message):
    with pytest.raises(InputError, match=message):
        small([1, 0], edges=given)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match=r"index_e2 has shape \[2\].*\[E,2\]"):
        Edges(torch.tensor([0, 1]), f64([1.0]))
    with pytest.raises(InputError, match=r"value_e has shape \[2\].*\[E\] = \[1\]"):
        Edges(torch.tensor([[0, 1]]), f64([1.0, 2.0]))
    with pytest.raises(InputError, match=r"needs batch.edges.tree.*Edges\(index_e2, value_e\)"):
        small([1.0]).need("edges.tree", "it")
