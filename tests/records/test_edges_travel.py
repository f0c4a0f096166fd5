"""Relations between rows on their way: joined, cut, stored, replayed, resumed and written with the rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from fake_context import FakeContext
from grouprl.algorithms.buffer.group_replay import RolloutReplay
from grouprl.algorithms.data_part import Augmentation
from grouprl.algorithms.part import part
from grouprl.config.run import parse_config
from grouprl.core.edges import Edges
from grouprl.core.errors import InputError, RunError
from grouprl.monitor.metrics import rollout_table
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, sort_by_group, subset, to_batch
from grouprl.records.serialize import pack, unpack
from grouprl.training.loop import train


def better(samples: ScoredSamples) -> ScoredSamples:
    """The rows with an edge from each to the next one of its group, worth the number of the row that it begins at."""
    found = [(i, i + 1) for i in range(len(samples) - 1) if samples.group_b[i] == samples.group_b[i + 1]]
    index_e2 = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
    value_e = torch.from_numpy(samples.sample_b)[index_e2[:, 0]].float()
    return samples.with_edges(better=Edges(index_e2, value_e))


def named(samples: ScoredSamples, name: str = "better") -> set[tuple[Any, Any, float]]:
    """The edges of rows, by the keys of the rows instead of their places."""
    keys, edges = samples.row_keys, samples.edges[name]
    return {(keys[a], keys[b], v) for (a, b), v in zip(edges.index_e2.tolist(), edges.value_e.tolist(), strict=True)}


def rows_of(context: FakeContext, count: int) -> ScoredSamples:
    return better(context.sample(context.take(count)))


def test_edges_keep_their_rows_when_rows_are_joined_cut_and_sorted() -> None:
    context = FakeContext()
    one, two = rows_of(context, 2), rows_of(context, 1)
    plain = context.sample(context.take(1))
    whole = join([one, plain, two])
    assert named(whole) == named(one) | named(two)
    order = np.random.default_rng(0).permutation(len(whole))
    assert named(subset(whole, order)) == named(whole)
    assert named(sort_by_group(subset(whole, order))) == named(whole)
    kept = subset(whole, whole.sample_b != 1)  # both edges of a row go with it
    assert named(kept) == {edge for edge in named(whole) if 1 not in (edge[0][1], edge[1][1])}
    batch = to_batch(whole, max_length=4)
    assert torch.equal(batch.edges["better"].index_e2, whole.edges["better"].index_e2)
    assert torch.equal(batch.edges["better"].value_e, whole.edges["better"].value_e)


def test_edges_are_stored_with_their_rows() -> None:
    context = FakeContext()
    rows = rows_of(context, 2)
    found = unpack(pack(rows), context.task)
    assert named(found) == named(rows)
    assert found.edges["better"].value_e.dtype == rows.edges["better"].value_e.dtype
    old = {name: value for name, value in pack(rows).items() if name != "edges"}  # a checkpoint of earlier versions
    assert unpack(old, context.task).edges == {}


def test_an_edge_to_no_row_is_refused() -> None:
    context = FakeContext()
    rows = context.sample(context.take(1))
    with pytest.raises(InputError, match=rf"joins rows up to {len(rows)}.*The rows are numbered 0 to {len(rows) - 1}"):
        rows.with_edges(wrong=Edges(torch.tensor([[0, len(rows)]]), torch.ones(1)))


def test_the_rollouts_name_the_rows_that_edges_join() -> None:
    context = FakeContext()
    rows = rows_of(context, 2)
    table = rollout_table(1, rows, *[[None] * len(rows)] * 2).to_pylist()
    found = {
        ((row["group"], row["sample"], row["row"]), (edge["group"], edge["sample"], edge["row"]), edge["value"])
        for row in table
        for edge in row["edges"]
        if edge["name"] == "better"
    }
    assert found == named(rows)
    plain = context.sample(context.take(1))
    nothing = [None] * len(plain)
    assert [row["edges"] for row in rollout_table(1, plain, nothing, nothing).to_pylist()] == nothing


def test_replayed_groups_bring_their_edges() -> None:
    context, replay = FakeContext(), RolloutReplay(fresh_share=0.5, mixed_only=False, first_epoch=False)
    first = rows_of(context, 2)
    replay.observe(first, to_batch(first, max_length=4), context)
    context.step = 1
    fresh = rows_of(context, 1)
    mixed = replay.mix(fresh, context)
    assert mixed is not None
    assert len(mixed) > len(fresh)
    replayed = {ordinal for ordinal, *_ in mixed.row_keys} - set(fresh.ordinal_b.tolist())
    assert named(mixed) == named(fresh) | {edge for edge in named(first) if edge[0][0] in replayed}


@part("augment")
class RankedNeighbours(Augmentation):
    """Adds an edge from each row to the next one of its group."""

    says = "join neighbours"

    def __call__(self, samples: ScoredSamples, context: Any) -> ScoredSamples:
        if context.step == STOP.get("step"):
            raise RunError("the plug was pulled")
        return better(samples)


STOP: dict[str, int] = {}
"""The step in which the part ends the run."""


CONFIG: dict[str, Any] = {
    "task": {"name": "reverse", "length": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
    "method": {
        "base": "grpo",
        "augment": [{"part": "ranked_neighbours"}],
        "buffer": {"part": "rollout_replay", "mixed_only": False, "first_epoch": False},
    },
    "steps": 6,
    "warmup": {"steps": 0},
    "batch": {"prompts": 4, "group_size": 4},
    "eval": {"every": 0, "final_prompts": 4},
    "run": {"threads": 1, "checkpoint_every": 3},
}


def written(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((folder / "rollouts").iterdir()) for row in pq.read_table(path).to_pylist()]


def test_a_resumed_run_has_the_edges_of_one_that_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO())
    train(parse_config(CONFIG), folder=tmp_path / "whole", console=console)
    monkeypatch.setitem(STOP, "step", 4)
    with pytest.raises(RunError, match="pulled"):
        train(parse_config(CONFIG), folder=tmp_path / "cut", console=console)
    monkeypatch.delitem(STOP, "step")
    train(parse_config(CONFIG), folder=tmp_path / "cut", console=console, resume=True)
    found = written(tmp_path / "whole")
    assert written(tmp_path / "cut") == found
    assert all(len(row["edges"]) == (1 if row["sample"] < 3 else 0) for row in found)
