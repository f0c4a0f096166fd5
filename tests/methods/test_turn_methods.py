"""Credit over turns: hand values beside those of the cards, invariances, and what each idea does by itself."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from batches import random_case
from fake_context import CharacterPolicy, FakeContext, Numbers
from grouprl import InputError
from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.turn_credit import NormalisedTurns, TurnRelative
from grouprl.algorithms.advantage_transform.papers.turn_entropy import EntropyModulated
from grouprl.algorithms.advantage_transform.papers.turn_shared import SharedPrefix, SharedSteps
from grouprl.algorithms.augment.papers.belief import AnswerBelief
from grouprl.algorithms.reward_transform.papers.turn_rewards import (
    DenseTurns,
    InformationGain,
    ProgressReward,
    RankDiscount,
)
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.turn_returns import accumulated, last_tokens, next_turn, same_actions, turns_of
from small import f64, near, small

HOLES = torch.tensor([[True, False, True, True], [True, True, False, True]])
TURNS = torch.tensor([[0, -1, 1, 1], [0, 0, -1, 1]])


def two(**fields):
    """Two rows of two turns with an observation between them."""
    return small([1, 0], [4, 4], **{"mask_bt": HOLES, "turn_bt": TURNS, "turn_reward_bs": [[0.0, 0.0]] * 2, **fields})


# --- arithmetic -------------------------------------------------------------------------------------------------


def test_the_next_turn_and_last_tokens():
    batch = two()
    there = turns_of(batch, "a test")
    near(next_turn(f64([[1, 2], [3, 4]]), there, 9.0), [[2, 9], [4, 9]])
    gone = torch.tensor([[True, False, True]])
    near(next_turn(f64([[1, 2, 3]]), gone, 9.0), [[3, 3, 9]])
    assert last_tokens(batch, there, "a test").tolist() == [[True, False, False, True], [False, True, False, True]]


def test_credit_does_not_flow_across_a_turn_that_is_off():
    """UI-S1's example: rewards 1, 1, 0.1, 1, a mismatch in the third step, discount 0.5."""
    there, on = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, True, False, True]])
    near(accumulated(f64([[1, 1, 0.1, 1]]), there, 0.5, on), [[1.5, 1.0, 0.1, 1.0]])
    near(accumulated(f64([[1, 1, 0.1, 1]]), there, 0.5), [[1.65, 1.3, 0.6, 1.0]])


def test_equal_actions_have_equal_numbers_wherever_they_stand():
    batch = two(token_bt=torch.tensor([[5, 9, 5, 6], [5, 6, 9, 5]]))
    numbers = same_actions(batch, turns_of(batch, "a test"), "a test")
    assert numbers[0, 0] == numbers[1, 1]
    assert numbers[0, 1] == numbers[1, 0]
    assert numbers[0, 0] != numbers[0, 1]


# --- IGPO --------------------------------------------------------------------------------------------------------


def test_gains_telescope_and_the_last_turn_gets_none():
    batch = two(stats={"answer": f64([[math.log(0.2), 0, math.log(0.5), math.log(0.5)], [-1, -1, 0, -2]])})
    paid = InformationGain()(batch)
    near(paid.turn_reward_bs, [[0.3, 0.0], [math.exp(-2) - math.exp(-1), 0.0]])
    near(paid.reward_b, [1.3, math.exp(-2) - math.exp(-1)])
    logs = InformationGain(measure="log_probability", weight=2.0)(batch)
    near(logs.turn_reward_bs, [[2 * math.log(2.5), 0.0], [-2.0, 0.0]])


def test_normalised_apart_and_together():
    batch = two(turn_reward_bs=[[0.3, 0.0], [0.1, 0.0]]).replace(reward_b=f64([1.3, 0.1]))
    apart = NormalisedTurns(eps=0.0)(batch)
    root = math.sqrt(0.5)
    near(apart, [[2 * root, 0, root, root], [-2 * root, -2 * root, 0, -root]])
    whole = NormalisedTurns(together=True, scale="none", gamma=0.5)(batch)
    near(whole, [[0.275, 0, 0.65, 0.65], [-0.425, -0.425, 0, -0.35]], atol=1e-7)


def test_all_wrong_groups_still_teach_by_what_they_learnt():
    batch = two(stats={"answer": f64([[-2, 0, -1, -1], [-2, -2, 0, -2]])}).replace(reward_b=f64([0, 0]))
    ready = grouprl.method("igpo").compute_advantages(batch)
    assert ready.advantage_bt[0, 0] > 0 > ready.advantage_bt[1, 0]
    near(ready.advantage_bt[:, 2:], [[0, 0], [0, 0]])


class Believer(CharacterPolicy):
    """A policy that finds a completion the likelier the longer what it has read."""

    def logp(self, tokens):
        width = tokens.max_response
        both = zip(tokens.prompt_ids, tokens.response_ids, strict=True)
        rows = [[-1.0 / len(seen)] * len(said) + [0.0] * (width - len(said)) for seen, said in both]
        return f64(rows)


def test_beliefs_are_read_where_turns_begin():
    context = FakeContext((0.5,) * 8, completions=2, prompts=2)
    rows = context.sample(context.take(2))
    batch = context.batch(rows)
    turn_bt = torch.where(batch.mask_bt, torch.arange(batch.size[1])[None] // 2, -1)
    context.policy = Believer()
    filled = AnswerBelief(before="so:").fill(batch.replace(turn_bt=turn_bt), rows, context)
    for b, prompt in enumerate(rows.rollout.prompt_ids):
        for t in range(batch.size[1]):
            expected = -1.0 / (len(prompt) + 2 * (t // 2) + 3) if batch.mask_bt[b, t] else 0.0
            assert float(filled.stats["answer"][b, t]) == pytest.approx(expected)


def test_beliefs_need_a_right_completion():
    class Unknown(Numbers):
        def solution(self, example):
            return None

    context = FakeContext((0.5,) * 8, task=Unknown())
    rows = context.sample(context.take(1))
    with pytest.raises(InputError, match="has no correct answer"):
        AnswerBelief().fill(context.batch(rows), rows, context)


# --- SALT and ARPO's hard attribution ----------------------------------------------------------------------------


def shared(window=0, **changes):
    fields = {
        "turn_bt": torch.tensor([[0, 1, 2]] * 3),
        "state_bs": torch.tensor([[0, 1, 0], [0, 1, 2], [0, 3, 4]]),
        "token_bt": torch.tensor([[5, 6, 5], [5, 7, 8], [9, 6, 5]]),
    }
    batch = small([0, 0, 0], [3, 3, 3], **{**fields, **changes})
    return SharedSteps(window=window)(f64([[3, 3, 3], [0, 0, 0], [-1, -1, -1]]), batch)


def test_shared_steps_get_the_mean_and_others_stay():
    """Rows 0 and 1 take (0, 5, 1); row 0 is in state 0 with action 5 again, but that leads to the end."""
    near(shared(), [[1.5, 3, 3], [1.5, 0, 0], [-1, -1, -1]])


def test_a_step_taken_twice_counts_once():
    """Row 0: (0,5)->0, (0,5)->0, end. Row 1: (0,5)->0 once. Mean of 3 and 0, not of 3, 3 and 0."""
    same = {
        "state_bs": torch.zeros(3, 3, dtype=torch.int64),
        "token_bt": torch.tensor([[5, 5, 7], [5, 6, 8], [1, 2, 3]]),
    }
    near(shared(**same), [[1.5, 1.5, 3], [1.5, 0, 0], [-1, -1, -1]])


def test_history_states_without_key_and_other_groups_part_steps():
    near(shared(window=1), shared())
    later = {"state_bs": torch.tensor([[0, 1, 2], [3, 1, 2], [7, 8, 9]]), "token_bt": torch.tensor([[5, 6, 7]] * 3)}
    near(shared(**later), [[3, 1.5, 1.5], [0, 1.5, 1.5], [-1, -1, -1]])
    near(shared(window=1, **later), [[3, 3, 1.5], [0, 0, 1.5], [-1, -1, -1]])
    near(shared(window=2, **later), [[3, 3, 3], [0, 0, 0], [-1, -1, -1]])
    near(shared(state_bs=torch.full((3, 3), -1)), [[3, 3, 3], [0, 0, 0], [-1, -1, -1]])


def test_what_a_group_shares_keeps_its_sum_and_equal_trajectories_cancel():
    batch = small(
        [1, 0, 0.5], [2, 2, 2], turn_bt=torch.tensor([[0, 1]] * 3), state_bs=torch.tensor([[0, 1]] * 3),
        token_bt=torch.tensor([[5, 6]] * 3),
    )  # fmt: skip
    near(SharedSteps()(Relative()(batch), batch), torch.zeros(3, 2))
    plain = f64([[3, 3, 3], [0, 0, 0], [-1, -1, -1]])
    near(shared().sum(0), plain.sum(0))


def test_tokens_behind_the_same_prefix_share_their_advantage():
    fields = {
        "token_bt": torch.tensor([[5, 6, 7], [5, 6, 8], [4, 6, 7]]),
        "turn_bt": torch.tensor([[0, 1, 1]] * 3),
        "state_bs": torch.tensor([[0, 1]] * 3),
    }
    soft = f64([[2, 2, 2], [-1, -1, -1], [-1, -1, -1]])
    hard = SharedPrefix()(soft, small([1, 0, 0], [3, 3, 3], **fields))
    near(hard, [[0.5, 0.5, 2], [0.5, 0.5, -1], [-1, -1, -1]])
    near(hard.sum(0), soft.sum(0))
    elsewhere = {**fields, "state_bs": torch.tensor([[0, 1], [9, 2], [0, 1]])}
    near(SharedPrefix()(soft, small([1, 0, 0], [3, 3, 3], **elsewhere)), [[0.5, 2, 2], [0.5, -1, -1], [-1] * 3])


# --- EMPG --------------------------------------------------------------------------------------------------------


def test_the_example_of_two_implementations():
    batch = small([0, 0], [2, 2], turn_bt=torch.tensor([[0, 1]] * 2), entropy_bt=[[0.1, 0.5], [0.9, 0.5]])
    out = EntropyModulated()(f64([[1, 1], [-1, -1]]), batch)
    near(out, [[1.3200671, 0.6799329], [-0.7999032, -1.2000968]], atol=1e-6)


def test_scales_average_one_and_advantages_zero():
    case = random_case(4).batch
    ready = grouprl.method("empg").compute_advantages(case)
    there = turns_of(case, "a test")
    means = [
        ready.advantage_bt[b][(case.turn_bt[b] == k) & case.mask_bt[b]].mean()
        for b in range(len(there))
        for k in range(there.shape[1])
        if there[b, k]
    ]
    assert float(torch.stack(means).mean()) == pytest.approx(0, abs=1e-9)


def test_equal_entropies_leave_only_the_bonus():
    batch = two(entropy_bt=torch.full((2, 4), 0.7, dtype=torch.float64))
    out = EntropyModulated(zeta=0.2)(Relative()(batch), batch)
    plain = Relative()(batch)
    near(out - plain, [[0.1, 0, -0.1, -0.1], [0.1, 0.1, 0, -0.1]])


# --- UI-S1 and Rank-GRPO -----------------------------------------------------------------------------------------


def test_steps_of_the_same_number_are_compared():
    batch = two(turn_reward_bs=[[1.0, 0.0], [0.0, 2.0]]).replace(reward_b=f64([1, 2]))
    near(TurnRelative(key="turn", gamma=1.0, episode=0.0)(batch), [[-0.5, 0, -1, -1], [0.5, 0.5, 0, 1]])


def test_a_rank_that_a_list_does_not_have_counts_as_nothing():
    batch = small([1, 1], [2, 1], turn_bt=torch.tensor([[0, 1], [0, -1]]), turn_reward_bs=[[0.0, 1.0], [1.0, 0.0]])
    zero = TurnRelative(key="turn", gamma=1.0, episode=0.0, absent="zero")(batch)
    near(zero, [[0.0, 0.5], [0.0, 0.0]])
    near(TurnRelative(key="turn", gamma=1.0, episode=0.0)(batch), [[0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match="begins in no state"):
        TurnRelative(absent="zero")


def test_ranks_are_discounted():
    batch = small([2], [3], turn_bt=torch.tensor([[0, 1, 2]]), turn_reward_bs=[[1.0, 0.0, 1.0]])
    paid = RankDiscount()(batch)
    near(paid.turn_reward_bs, [[1.0, 0.0, 0.5]])
    near(paid.reward_b, [1.5])


# --- where rewards are paid --------------------------------------------------------------------------------------


def test_rewards_of_turns_are_paid_on_their_last_tokens():
    batch = two(turn_reward_bs=[[0.5, 0.25], [0.0, 1.0]]).replace(reward_b=f64([1.75, 1.0]))
    paid = RewardAtTurnEnd()(batch)
    near(paid.token_reward_bt, [[0.5, 0, 0, 0.25], [0, 0, 0, 1]])
    near(paid.reward_b, [1.0, 0.0])
    near(paid.total_reward_b, batch.total_reward_b)


def test_dense_rewards_sum_to_one_at_most():
    batch = two(turn_reward_bs=[[1.0, 1.0], [1.0, 0.0]], correct_b=torch.tensor([True, False]))
    near(DenseTurns(most=4)(batch.replace(reward_b=f64([2, 1]))).turn_reward_bs, [[0.5, 0.5], [0.25, 0.0]])


def test_progress_replaces_the_outcome():
    stats = {"progress": f64([[0.2, 0, 0.7, 0.7], [0.1, 0.1, 0, -0.3]])}
    batch = two(stats=stats, valid_bs=torch.tensor([[True, False], [True, True]]))
    paid = ProgressReward()(batch)
    near(paid.turn_reward_bs, [[0.7, 0.7], [0.6, 0.2]])
    near(paid.total_reward_b, [1.4, 0.8])
    near(paid.token_reward_bt, [[0.7, 0, 0, 0.7], [0, 0.6, 0, 0.2]])
