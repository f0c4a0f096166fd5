"""The data model: what it holds, what it refuses, and in which words."""

from __future__ import annotations

import pytest
import torch

from grouprl import Batch, InputError
from small import f64, near, small

MASK = torch.tensor([[True, True], [True, False]])


def make(**changes) -> Batch:
    fields = {"mask_bt": MASK, "group_b": torch.tensor([0, 0]), "reward_b": f64([1.0, 0.0])}
    return Batch(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_bt": MASK.long()}, "It must be"),
        ({"mask_bt": MASK[0]}, "It must be"),
        ({"reward_b": f64([1.0])}, r"reward_b has shape \[1\].*\[B\] = \[2\]"),
        ({"reward_b": torch.tensor([1, 0])}, "must be a float type"),
        ({"reward_b": f64([1.0, torch.nan])}, "reward_b is not finite in row 1 .group 0."),
        ({"group_b": torch.tensor([0.0, 1.0])}, "int64 group ids"),
        ({"group_b": torch.tensor([0, -1])}, r"group_b\[1\] = -1.*must belong to a group"),
        ({"old_bt": torch.zeros(2, 3)}, r"old_bt has shape \[2, 3\].*\[B,T\] = \[2, 2\]"),
        ({"old_bt": f64([[0.0, torch.inf], [0.0, 0.0]])}, "old_bt is not finite in row 0"),
        ({"mask_bt": torch.tensor([[False, False], [False, False]])}, "no action token in any of its 2 rows"),
        ({"keys": {"variant": torch.tensor([0])}}, r"keys\['variant'\] has shape"),
        ({"rewards": {"format": f64([1.0])}}, r"rewards\['format'\] has shape"),
        ({"truncated_b": torch.tensor([0, 1])}, "truncated_b has type torch.int64.*must be bool"),
        ({"turn_reward_bs": f64([1.0, 2.0])}, "turn_reward_bs has shape"),
    ],
)
def test_wrong_input_is_refused_in_words(changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_garbage_outside_the_mask_is_nobodys_business():
    batch = make(old_bt=f64([[0.0, 0.0], [0.0, torch.nan]]))
    assert batch.size == (2, 2)


def test_groups_need_not_be_sorted_or_adjacent():
    batch = small([1, 0, 1], groups=[9, 2, 9])
    assert batch.grouping("group").tolist() == [9, 2, 9]


def test_groupings_by_name():
    batch = make(agent_b=torch.tensor([3, 4]), keys={"variant": torch.tensor([1, 2])})
    assert batch.grouping("batch").tolist() == [0, 0]
    assert batch.grouping("agent").tolist() == [3, 4]
    assert batch.grouping("variant").tolist() == [1, 2]
    with pytest.raises(InputError, match=r"unknown grouping 'turn'.*batch, group, agent, variant"):
        batch.grouping("turn")


def test_a_missing_field_names_reader_field_and_remedy():
    with pytest.raises(InputError, match=r"the KL term needs batch.ref_bt.*reference model"):
        make().need("ref_bt", "the KL term")


def test_rows_take_every_field_along():
    batch = make(
        old_bt=f64([[1.0, 2.0], [3.0, 4.0]]),
        rewards={"format": f64([5.0, 6.0])},
        keys={"variant": torch.tensor([7, 8])},
        max_length=4,
    )
    part = batch.rows(torch.tensor([1]))
    assert part.old_bt.tolist() == [[3.0, 4.0]]
    assert part.rewards["format"].tolist() == [6.0]
    assert part.keys["variant"].tolist() == [8]
    assert part.max_length == 4
    assert batch.rows(torch.tensor([False, True])).reward_b.tolist() == [0.0]


def test_the_last_token_is_the_last_of_the_mask():
    batch = small([0, 0], mask_bt=[[True, False, True, False], [True, True, False, False]], old_bt=None)
    assert batch.last_token_bt().tolist() == [[False, False, True, False], [False, True, False, False]]


def test_a_reward_is_the_scalar_plus_its_token_rewards():
    batch = small([1.0, 2.0], [2, 1], token_reward_bt=[[0.5, 0.25], [-1.0]])
    near(batch.total_reward_b, [1.75, 1.0])


def test_spreading_a_value_over_tokens():
    near(make().broadcast(f64([2.0, 3.0])), [[2.0, 2.0], [3.0, 0.0]])


def test_replacing_a_field_checks_it():
    with pytest.raises(InputError, match="old_bt is not finite"):
        make().replace(old_bt=f64([[0.0, torch.nan], [0.0, 0.0]]))
    with pytest.raises(InputError, match="group_b has shape"):
        make().replace(mask_bt=MASK[:1])
    with pytest.raises(TypeError, match="no field rewrd_b"):
        make().replace(rewrd_b=f64([1.0, 2.0]))
    before = make()
    after = before.replace(reward_b=f64([5.0, 6.0]))
    assert (before.reward_b.tolist(), after.reward_b.tolist()) == ([1.0, 0.0], [5.0, 6.0])


def test_large_finite_numbers_may_add_up_to_infinity():
    near(make().replace(reward_b=f64([1.7e308, 1.7e308])).reward_b, [1.7e308, 1.7e308])
