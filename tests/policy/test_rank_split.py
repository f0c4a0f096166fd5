"""Which rank works on which rows."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.plan.memory import SAMPLER, Cost, gathered, memory_on_ranks
from grouprl.plan.model_facts import ModelFacts
from grouprl.policy.sharded import rank_work
from grouprl.policy.sharded.row_split import split_over_ranks
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from updates import make_batch, make_policy


def test_rows_of_a_prompt_stay_together_and_loads_are_even() -> None:
    prompts = ["a", "a", "b", "b", "c", "c", "d", "d"]
    shared, own = [10] * 8, [5, 5, 5, 5, 20, 20, 1, 1]
    assert split_over_ranks(prompts, shared, own, 2) == [[4, 5], [0, 1, 2, 3, 6, 7]]  # 50 beside 20 + 20 + 12


def test_a_prompt_of_more_than_a_fair_share_is_cut() -> None:
    assert split_over_ranks(["a"] * 4, [2] * 4, [10] * 4, 2) == [[0, 1], [2, 3]]
    assert split_over_ranks(["a"] * 4 + ["b"], [2] * 5, [10] * 4 + [1], 2) == [[0, 1, 4], [2, 3]]


def test_fewer_rows_than_ranks_leave_some_without() -> None:
    assert split_over_ranks(["a", "b"], [1, 1], [1, 1], 4) == [[0], [1], [], []]
    assert split_over_ranks([], [], [], 3) == [[], [], []]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=20), st.integers(1, 5))
def test_every_row_has_one_rank(rows: list[tuple[int, int]], ranks: int) -> None:
    prompts, own = [prompt for prompt, _ in rows], [tokens for _, tokens in rows]
    shared = [3 * prompt + 1 for prompt in prompts]
    shares = split_over_ranks(prompts, shared, own, ranks)
    assert sorted(row for share in shares for row in share) == list(range(len(rows)))
    assert len(shares) == ranks
    assert all(share == sorted(share) for share in shares)
    loads = [sum(3 * p + 1 for p in {prompts[r] for r in share}) + sum(own[r] for r in share) for share in shares]
    longest = max((3 * p + 1 + sum(t for q, t in rows if q == p) for p in set(prompts)), default=0)
    assert max(loads) <= sum(loads) / ranks + longest  # dealt out longest first, each to the least loaded
    fair = sum({p: 3 * p + 1 for p in prompts}.values()) + sum(own)
    for prompt in set(prompts):
        cost = 3 * prompt + 1 + sum(t for p, t in rows if p == prompt)
        if cost * ranks <= fair:
            assert sum(any(prompts[row] == prompt for row in share) for share in shares) == 1


def test_a_policy_cuts_passes_of_balanced_tokens_with_each_prompt_on_one_rank() -> None:
    policy = make_policy(token_budget=64)
    tokens = make_batch(policy, groups=8, size=4).inputs
    rows = [row for row in range(len(tokens)) if row % 7]
    part = SimpleNamespace(cut=policy.passes)
    for teams, team in ((2, 1), (4, 1), (2, 2)):
        fake = SimpleNamespace(ranks=SimpleNamespace(teams=teams, team=team), _part=part)
        cut = ShardedPolicy.cut(fake, tokens, rows)  # type: ignore[arg-type]
        assert len(cut) == teams * team
        assert len({len(passes) for passes in cut}) == 1, "all ranks take as many passes"
        assert all(cut[rank] == cut[rank - rank % team] for rank in range(len(cut))), "those of a team alike"
        shares = [[row for own in passes if own for row in own] for passes in cut[::team]]
        assert sorted(row for share in shares for row in share) == rows
        homes = [{tokens.prompt_ids[row] for row in share} for share in shares]
        assert sum(map(len, homes)) == len({tokens.prompt_ids[row] for row in rows}), "a prompt is on one rank"
        loads = [
            sum(map(len, home)) + sum(len(tokens.response_ids[row]) for row in share)
            for home, share in zip(homes, shares, strict=True)
        ]
        largest = max(len(p) + sum(len(tokens.response_ids[r]) for r in rows if tokens.prompt_ids[r] == p)
                      for p in homes[0] | homes[1])  # fmt: skip
        assert max(loads) - min(loads) <= largest


def test_ranks_divide_memory_but_for_the_copy_to_sample_from() -> None:
    costs = [Cost("weights", 100, "w"), Cost("gradients", 100, "g"), Cost("activations of a pass", 60, "a")]
    assert [cost.bytes for cost in memory_on_ranks([Cost(SAMPLER, 70, "s")], 4, 4, 4)] == [70]
    assert [cost.bytes for cost in memory_on_ranks(costs, 4, 1, 1)] == [125, 25, 60]
    assert [cost.bytes for cost in memory_on_ranks(costs, 4, 4, 4)] == [500, 100, 240]
    assert [cost.bytes for cost in memory_on_ranks(costs, 4, 4, 1)] == [200, 100, 240], (
        "rank 0 gives others its weights"
    )


def test_a_rank_gathers_the_two_largest_layers_twice() -> None:
    sizes = {"trainable": 0, "intermediate": 8, "kv_width": 4, "positions": None, "dtype": "float32", "bytes_each": 4}
    made = partial(ModelFacts, **sizes, device="cpu", layers=3, hidden=4)
    assert gathered(made(parameters=3 * 100 + 10 * 4, vocabulary=10)).bytes == 2 * 4 * (100 + 100)
    assert gathered(made(parameters=3 * 100 + 50 * 4, vocabulary=50)).bytes == 2 * 4 * (200 + 100)
    assert gathered(made(parameters=3 * 100 + 2 * 50 * 4, vocabulary=50, tied=False)).bytes == 2 * 4 * (200 + 100)


class OnGpu:
    """A parameter of another device, whose whole is its own memory, as of one rank."""

    def detach(self) -> OnGpu:
        return self

    full_tensor = untyped_storage = clone = detach

    def data_ptr(self) -> int:
        return 7

    def to(self, device: str, *, copy: bool) -> torch.Tensor:
        assert copy
        return torch.zeros(2, device=device)

    def cpu(self) -> torch.Tensor:
        return torch.zeros(2)


def test_gathered_weights_are_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_work, "local", lambda tensor: tensor)
    kept: Any = {"policy": SimpleNamespace(every_parameter=lambda: {"w": OnGpu()})}
    station: Any = SimpleNamespace(rank=0, kept=kept)
    found = rank_work.gather(station, rank_work.Gather("policy", ("w",)))
    assert found is not None
    assert isinstance(found["w"], torch.Tensor)
