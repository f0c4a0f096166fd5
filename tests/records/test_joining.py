"""Several collections of rows as one: what rows mean that lack a column which others have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fake_context import FakeContext
from grouprl.algorithms.augment.resampling import again, splice
from grouprl.core.batch import Batch
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.records.text_samples import TextSamples


def stored_rows(context: FakeContext, completions: int = 2) -> TextSamples:
    """Rows of whole completions, which say nothing of masks or turns."""
    rows = context.sample([replace(each, completions=completions) for each in context.take(2)])
    return replace(rows.with_source("demonstration"), extras={})


def unscored(context: FakeContext, rows: TextSamples, **columns: np.ndarray) -> ScoredSamples:
    """One further completion of each prompt, with the columns of completions that are sampled outside of the task."""
    found = context.sample([again(rows, row) for row in (0, 2)])
    return replace(found, extras={}).with_extras(mask_bt=found.acted_bt, **columns)


def laid_out(samples: ScoredSamples) -> Batch:
    return to_batch(samples, max_length=16)


def test_stored_rows_keep_their_tokens_beside_sampled_ones() -> None:
    context = FakeContext(lengths=lambda i, number: 2 + number)
    rows = stored_rows(context)
    alone = laid_out(rows)
    both = splice(rows, np.zeros(len(rows), dtype=bool), [unscored(context, rows)])
    batch = laid_out(both)
    own_b = batch.from_source("demonstration")
    assert batch.mask_bt[own_b].sum(1).tolist() == alone.mask_bt.sum(1).tolist() == [2, 3, 2, 3]
    assert batch.mask_bt[~own_b].sum(1).tolist() == [4, 4]
    assert torch.equal(batch.turn_bt, torch.where(batch.mask_bt, 0, -1))


def test_a_mask_within_stored_rows_stays_where_it_is() -> None:
    context = FakeContext(lengths=lambda i, number: 3)
    rows = stored_rows(context)
    own_bt = np.array([[True, False, True]] * 4)
    both = join([rows.with_extras(mask_bt=own_bt), stored_rows(context)])
    assert laid_out(both).mask_bt.tolist() == [[True, False, True]] * 4 + [[True] * 3] * 4


def test_rows_without_a_column_have_what_its_absence_means() -> None:
    context = FakeContext(lengths=lambda i, number: 2)
    rows = stored_rows(context)
    count = len(rows)
    given = {
        "loss_mask_bt": np.zeros((count, 2), dtype=bool),
        "turn_bt": np.zeros((count, 2), dtype=np.int64),
        "turn_reward_bs": np.zeros((count, 3)),
        "state_bs": np.zeros((count, 3), dtype=np.int64),
        "valid_bs": np.zeros((count, 3), dtype=bool),
        "stat_b": np.zeros(count, dtype=bool),
        "keys.caller": np.zeros(count, dtype=np.int64),
        "keys.prompt": np.zeros(count, dtype=np.int64),
        "keys.episode": np.zeros(count, dtype=np.int64),
        "keys.context": np.zeros(count, dtype=np.int64),
        "keys.ended": np.full(count, 4),
        "keys.budget": np.ones(count, dtype=np.int64),
        "mask_bt": np.ones((count, 2), dtype=bool),
    }
    late = stored_rows(context)
    late = replace(late, rollout=replace(late.rollout, truncated_b=torch.tensor([True, False, False, False])))
    batch = laid_out(join([rows.with_extras(**given), late]))
    assert batch.loss_mask_bt[count:].all(), "in the loss"
    assert batch.stat_b[count:].all(), "in the statistics of its group"
    assert not batch.loss_mask_bt[:count].any()
    assert not batch.stat_b[:count].any()
    assert batch.turn_reward_bs[count:, 0].tolist() == late.scores.reward_b.tolist()
    assert not batch.turn_reward_bs[count:, 1:].any()
    assert batch.state_bs[count:].tolist() == [[-1, -1, -1]] * count
    assert batch.valid_bs[count:, 0].all()
    assert batch.keys["caller"][count:].tolist() == [-1] * count
    assert batch.keys["prompt"][count:].tolist() == late.ordinal_b.tolist()
    assert len(set(batch.keys["episode"][count:].tolist())) == count, "each an episode of its own"
    assert batch.keys["ended"][count:].tolist() == [1, 0, 0, 0]
    assert batch.keys["budget"][count:].tolist() == [0] * count, "no group of theirs"


def test_rows_that_lack_a_reward_earn_nothing_in_their_turn() -> None:
    context = FakeContext()
    rows = stored_rows(context)
    failed = replace(rows, scores=replace(rows.scores, reward_b=np.full(len(rows), np.nan)))
    joined = join([rows.with_extras(turn_reward_bs=np.ones((len(rows), 1))), failed])
    assert joined.extras["turn_reward_bs"][len(rows) :].tolist() == [[0.0]] * len(rows)
