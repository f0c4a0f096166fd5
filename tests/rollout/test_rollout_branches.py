"""Rows with the same tokens so far are one row of the decoder, and nothing that is sampled changes by it."""

import pytest
import torch

from grouprl.rollout.local import decode_loop, key_value_cache
from grouprl.rollout.local.lean_decoder import LeanDecoder
from grouprl.rollout.local.sampler import generate
from grouprl.rollout.local.shared_prefix_rows import Branches
from grouprl.rollout.local.turn_cache import TurnCache
from policies import FAMILIES, kept_rows, make_policy, precise_norms

PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 5, 6]]


def sampled(policy, monkeypatch, *, apart=False, prompts=PROMPTS, n=6, kept=None, **options):
    """Sample; `apart`: every row for itself from the beginning."""
    with monkeypatch.context() as patch:
        if apart:
            patch.setattr(decode_loop, "Branches", lambda decoder: decoder)
        settings = {"max_new_tokens": 9, "temperature": 0.4, "seeds": range(len(prompts) * n), **options}
        if kept is not None:
            return kept_rows(policy, prompts, kept, range(len(prompts) * n), n=n, **settings)
        return generate(policy, prompts, n=n, **settings)


def rows_seen(monkeypatch):
    """Rows of each step of the decoder from here on."""
    seen, step = [], LeanDecoder.step
    monkeypatch.setattr(LeanDecoder, "step", lambda self, token_r: seen.append(len(token_r)) or step(self, token_r))
    return seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 5, 6], [1, 9, 9]]])
@pytest.mark.parametrize("way", ["few rows", "many rows", "prompts stored once"])
def test_what_is_sampled_stays_the_same(family, prompts, way, monkeypatch):
    policy = make_policy(family, torch.float64)
    precise_norms(policy.model)
    if way == "prompts stored once":
        monkeypatch.setattr(key_value_cache, "SHARED_NUMBERS", 0)
    n = 6 if way == "few rows" else 20
    for options in ({}, {"greedy": True}, {"budgets": [3, *[9] * (len(prompts) * n - 1)]}, {"stop": [[7]]}):
        together, apart = (
            sampled(policy, monkeypatch, apart=apart, prompts=prompts, n=n, **options) for apart in (False, True)
        )
        assert together.response_ids == apart.response_ids
        assert torch.equal(together.truncated_b, apart.truncated_b)
        torch.testing.assert_close(together.logp_bt, apart.logp_bt, rtol=0, atol=1e-10)
        torch.testing.assert_close(together.entropy_bt, apart.entropy_bt, rtol=0, atol=1e-10)


def test_the_decoder_goes_on_once_for_each_history(monkeypatch):
    policy, seen = make_policy(), rows_seen(monkeypatch)
    rollout = sampled(policy, monkeypatch, max_new_tokens=7, n=8)
    live = [
        {(p, r[: t + 1]) for p, r in zip(rollout.prompt_ids, rollout.response_ids, strict=True) if len(r) > t + 1}
        for t in range(len(seen))
    ]
    ended = [sum(len(r) <= t + 1 for r in rollout.response_ids) for t in range(len(seen))]
    assert len(seen) == rollout.logp_bt.shape[1] - 1
    assert all(len(distinct) <= rows for distinct, rows in zip(live, seen, strict=True))
    assert all(rows <= len(distinct) + gone for distinct, rows, gone in zip(live, seen, ended, strict=True))
    assert seen[0] < 24


def test_greedy_completions_are_one_row_for_each_prompt(monkeypatch):
    policy, seen = make_policy(), rows_seen(monkeypatch)
    sampled(policy, monkeypatch, greedy=True, n=8)
    assert set(seen) <= {1, 2, 3}


def test_prompts_of_their_own_are_rows_of_their_own(monkeypatch):
    made = []
    monkeypatch.setattr(decode_loop, "Branches", lambda decoder: made.append(decoder) or Branches(decoder))
    sampled(make_policy(), monkeypatch, n=1)
    assert not made
    sampled(make_policy(), monkeypatch, n=2)
    assert len(made) == 1


class Told:
    """A decoder that writes down what it is told."""

    width = 2

    def __init__(self):
        self.said = []

    def start(self, prompts, prompt_r, room, rows=None):
        self.said.append(("start", list(prompt_r), rows))
        return torch.arange(len(prompts))[:, None].expand(-1, 10)

    def step(self, token_r):
        self.said.append(("step", token_r.tolist()))
        return torch.arange(len(token_r))[:, None].expand(-1, 10)

    def fork(self, parent_n):
        self.said.append(("fork", parent_n.tolist()))

    def keep(self, index_n, rows=None):
        self.said.append(("keep", index_n.tolist()))


def test_forks_by_hand():
    told = Told()
    branches = Branches(told)
    assert branches.start([[1], [2]], [0, 0, 0, 1, 1], 4)[:, 0].tolist() == [0, 0, 0, 1, 1]
    assert branches.step(torch.tensor([7, 5, 7, 3, 3]))[:, 0].tolist() == [2, 0, 2, 1, 1]
    assert branches.step(torch.tensor([4, 4, 6, 9, 9]))[:, 0].tolist() == [2, 0, 3, 1, 1]
    assert branches.step(torch.tensor([1, 2, 3, 4, 5]))[:, 0].tolist() == [0, 1, 2, 3, 4], "each row has its own now"
    assert branches.step(torch.tensor([1, 2, 3, 4, 5]))[:, 0].tolist() == [0, 1, 2, 3, 4]
    branches.keep(torch.tensor([4, 2]))
    assert branches.step(torch.tensor([6, 7]))[:, 0].tolist() == [0, 1]
    assert told.said == [
        ("start", [0, 1], 5),
        ("fork", [0]),
        ("step", [5, 3, 7]),
        ("fork", [2]),
        ("step", [4, 9, 4, 6]),
        ("fork", [1]),
        ("keep", [2, 0, 3, 1, 4]),
        ("step", [1, 2, 3, 4, 5]),
        ("step", [1, 2, 3, 4, 5]),
        ("keep", [4, 2]),
        ("step", [6, 7]),
    ]


def test_rows_that_leave_may_leave_one_branch_for_each():
    told = Told()
    branches = Branches(told)
    branches.start([[1], [2]], [0, 0, 1], 4)
    branches.keep(torch.tensor([2, 1]))
    assert branches.step(torch.tensor([6, 7]))[:, 0].tolist() == [0, 1]
    assert told.said == [("start", [0, 1], 3), ("keep", [1, 0]), ("step", [6, 7])]


@pytest.mark.parametrize("shared", [0, 10**9])
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 5, 6], [1, 9, 9]]])
def test_few_rows_that_are_left_are_laid_out_anew(shared, prompts, monkeypatch):
    """Most of forty rows end after three tokens: what the others sample does not change, nor what they leave behind."""
    policy, moved, of = make_policy("llama", torch.float64), [], key_value_cache.RowCache.of
    precise_norms(policy.model)
    monkeypatch.setattr(key_value_cache, "SHARED_NUMBERS", shared)
    monkeypatch.setattr(key_value_cache.RowCache, "of", lambda *given: moved.append(given[2].shape[1]) or of(*given))
    budgets = [9 if i % 11 == 0 else 3 for i in range(20 * len(prompts))]
    kept = TurnCache(1.0)
    few = sampled(policy, monkeypatch, prompts=prompts, n=20, budgets=budgets, kept=kept)
    assert moved
    assert set(moved) <= set(range(1, 8))
    again = [(*p, *r, 5, 6) for p, r in zip(few.prompt_ids, few.response_ids, strict=True)]
    further = sampled(policy, monkeypatch, prompts=again, n=1, kept=kept)
    monkeypatch.setattr(key_value_cache, "SLOT_ROWS", 10**9)
    moved.clear()
    rows = sampled(policy, monkeypatch, prompts=prompts, n=20, budgets=budgets)
    alone = sampled(policy, monkeypatch, prompts=again, n=1)
    assert not moved
    for one, other in ((few, rows), (further, alone)):
        assert one.response_ids == other.response_ids
        torch.testing.assert_close(one.logp_bt, other.logp_bt, rtol=0, atol=1e-10)
