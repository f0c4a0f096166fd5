"""Rewards of episodes that count under a condition, what a turn contributed, and what facts are worth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from fake_context import CharacterPolicy, FakeContext
from grouprl import InputError
from grouprl.algorithms.augment.papers.fewest_calls import FewestCalls
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.papers.progress import ProgressModel, completed
from grouprl.algorithms.reward_transform.papers.turn_gates import RewardGate, ToolProductivity, TryAgain
from grouprl.algorithms.reward_transform.papers.turn_rewards import ProactiveRewards
from grouprl.records.tokens import Tokens
from grouprl.rewards.by_task.shapley import importance, information_gain, shapley
from small import f64, near, small


def turned(rewards, turns, **fields):
    """Rows of as many turns as `turns` says, a token each."""
    width = max(turns)
    turn_bt = torch.tensor([[k if k < n else -1 for k in range(width)] for n in turns])
    return small(rewards, turns, turn_bt=turn_bt, **fields)


# --- gates -------------------------------------------------------------------------------------------------------


def test_turns_count_only_behind_a_good_outcome():
    """Five steps that earn 1: nothing without the outcome (ungated 5), 1 + 5w with it."""
    batch = turned([5, 6], [5, 5], turn_reward_bs=[[1.0] * 5] * 2)
    near(RewardGate()(batch).reward_b, [0, 6])
    near(RewardGate(weight=0.5)(batch).reward_b, [0, 3.5])
    near(RewardGate(threshold=None)(batch).reward_b, [5, 6])
    near(RewardGate(threshold=1.0)(batch).reward_b, [0, 1])
    near(RewardGate(threshold=-1.0)(batch).reward_b, [5, 6])
    near(RewardGate()(batch).turn_reward_bs, [[0] * 5, [1] * 5])


def test_the_gate_can_ask_whether_the_episode_is_right():
    batch = turned([2, 2], [2, 2], turn_reward_bs=[[1.0, 1.0]] * 2, correct_b=torch.tensor([True, False]))
    near(RewardGate(outcome="correct")(batch).reward_b, [2, 0])
    assert RewardGate(outcome="correct", threshold=2.0).idle(RunFacts())


# --- frugality ---------------------------------------------------------------------------------------------------


def test_factors_of_tool_calls():
    """The dossier's examples: n = 2 and m = 0, 1, 2, 4, 8; n = 0 and m = 0, 1, 2, 4 with c = 4."""
    part = ToolProductivity(smoothing=4.0)
    near(part.factors(f64([0, 1, 2, 4, 8]), f64([2] * 5)), [0, 0.8660254, 1, 0.8660254, 0.5877853], atol=1e-7)
    near(part.factors(f64([0, 1, 2, 4]), f64([0] * 4)), [1, 0.8660254, 0.7071068, 0.5], atol=1e-7)
    near(part.factors(f64([0, 1, 2, 4]), None), [1, 0.8660254, 0.7071068, 0.5], atol=1e-7)
    near(part.factors(f64([3]), f64([math.inf])), [0])


@settings(max_examples=50, deadline=None)
@given(m=st.integers(0, 50), n=st.integers(0, 50))
def test_the_fewest_calls_are_best(m, n):
    part = ToolProductivity()
    found, best = part.factors(f64([m, n]), f64([n, n]))
    assert 0 <= found <= best + 1e-12 == pytest.approx(1.0)


def test_only_right_episodes_of_the_prompt_set_the_fewest():
    batch = turned(
        [1, 1, 1], [2, 4, 1], groups=[0, 0, 1], correct_b=torch.tensor([False, True, True]),
        past={"fewest_calls": f64([-1, -1, 5])},
    )  # fmt: skip
    near(ToolProductivity()(batch).reward_b, [math.sin(math.pi / 4), 1, 1])


def test_the_fewest_calls_are_remembered_by_prompt():
    context = FakeContext((1.0,) * 8, completions=2, prompts=2)
    part = FewestCalls()

    def turns(rows, each):
        return rows.with_extras(turn_bt=np.array([[k if k < n else -1 for k in range(4)] for n in each]))

    first = turns(context.sample(context.take(2)), [3, 4, 2, 2])
    near(part.fill(context.batch(first), first, context).past["fewest_calls"], [-1, -1, -1, -1])
    part.observe(first, None, context)
    again = replace(first, index_b=np.array([first.index_b[0], first.index_b[2], 77, 77]))
    near(part.fill(context.batch(again), again, context).past["fewest_calls"], [2, 1, -1, -1])
    part.observe(turns(first, [4, 2, 4, 4]), None, context)
    near(part.fill(context.batch(again), again, context).past["fewest_calls"], [1, 1, -1, -1])
    assert part.idle(RunFacts(examples=None))
    assert not part.idle(RunFacts(examples=9))


# --- second tries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "completions", "valid", "expected"),
    [
        (1, [5, 5, 6], [True] * 3, 0.25 - 0.5 / 3),
        (1, [6], [True], 1.0),
        (0, [5] * 5, [True] * 5, -0.4),
        (1, [5, 5, 6], [True, False, True], 0.25),
        (0, [5, 5], [False, False], 0.0),
    ],
)
def test_late_and_repeated_attempts(reward, completions, valid, expected):
    batch = turned([reward], [len(completions)], token_bt=torch.tensor([completions]), valid_bs=torch.tensor([valid]))
    near(TryAgain()(batch).reward_b, [expected])


# --- information -------------------------------------------------------------------------------------------------


def test_shapley_values_of_a_small_game():
    """Fact a alone is worth 1, b alone 0, both 4: a gets (1 + 4)/2, b (0 + 3)/2."""
    worth = {frozenset(): 0.0, frozenset("a"): 1.0, frozenset("b"): 0.0, frozenset("ab"): 4.0}
    assert shapley(worth.__getitem__, "ab") == {"a": 2.5, "b": 1.5}
    found = shapley(worth.__getitem__, "ab", orders=4000)
    assert found["a"] == pytest.approx(2.5, abs=0.1)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 6), exact=st.booleans())
def test_shapley_values_share_out_everything(seed, n, exact):
    def value(some):
        return math.sin(seed + sum((i + 1) ** 2 for i in some))

    found = shapley(value, range(n), None if exact else 3, seed)
    assert sum(found.values()) == pytest.approx(value(range(n)) - value(()))


def test_facts_revealed_again_are_worth_nothing():
    weights = importance({"fever": 2.0, "cough": 0.0}, temperature=2.0)
    assert weights["fever"] == pytest.approx(1 / (1 + math.exp(-1)))
    assert information_gain(weights, [], ["fever"]) == weights["fever"]
    assert information_gain(weights, ["fever"], ["fever", "cough"]) == weights["cough"]
    assert information_gain(weights, ["fever"], ["fever"]) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shapley(len, "aa"), "A fact appears twice"),
        (lambda: shapley(len, range(17)), "subsets"),
        (lambda: shapley(len, "ab", orders=0), "orders=0"),
        (lambda: importance({"a": 1.0}, 0.0), "temperature=0.0"),
    ],
)
def test_bad_games_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_questions_are_paid_for_information_and_diagnosis():
    batch = turned([1, 0], [2, 1], turn_reward_bs=[[0.4, 9.0], [0.1, 0.0]], correct_b=torch.tensor([True, False]))
    paid = ProactiveRewards()(batch)
    near(paid.turn_reward_bs, [[1.8, 3.0], [0.0, 0.0]], atol=1e-6)
    near(paid.reward_b, [4.8, 0.0], atol=1e-6)


# --- progress ----------------------------------------------------------------------------------------------------


class Scorer(CharacterPolicy):
    """A policy whose state behind a token is (token, 1/token); its copy is itself."""

    def trainable_state(self):
        return {"w": torch.zeros(1)}

    def hidden(self, tokens):
        rows = [(p[-1:] + r) for p, r in zip(tokens.prompt_ids, tokens.response_ids, strict=True)]
        return [f64([[float(i), 1.0 / float(i)] for i in row])[: len(row) - 1] for row in rows]


class Outcomes(FakeContext):
    """Episodes of two turns of one token each; the outcome is the sum of what the tokens are worth."""

    def sample(self, requests, **_):
        sampled = super().sample(requests)
        rng = np.random.default_rng(len(self.sampled))
        ids = rng.integers(3, 9, (len(sampled), 2))
        reward_b = (0.5 * ids + 2.0 / ids - 1.0).sum(1)
        rollout = replace(
            sampled.rollout,
            inputs=Tokens(sampled.rollout.prompt_ids, tuple(map(tuple, ids.tolist()))),
            logp_bt=torch.zeros(len(ids), 2).double(),
            entropy_bt=torch.zeros(len(ids), 2).double(),
        )
        kept = replace(sampled, rollout=rollout, scores=replace(sampled.scores, reward_b=reward_b))
        return kept.with_extras(turn_bt=np.tile([0, 1], (len(ids), 1)))


def test_a_turn_is_read_with_its_observation():
    mask_t = torch.tensor([True, True, False, False, True, False])
    assert completed(mask_t, 1) == 4  # two tokens of the turn, two of the completion
    assert completed(mask_t, 4) == 5  # the last turn has none that matters


def test_progress_finds_the_hidden_scores_of_steps(monkeypatch):
    """The outcome is Σ (½x + 2/x - 1): the fitted shares are those scores."""
    context = Outcomes((0.5,) * 8, completions=8, prompts=8)
    context.policy = Scorer()
    part = ProgressModel(steps=3, ridge=1e-9)
    monkeypatch.setattr(ProgressModel, "_model", lambda self, context: context.policy)
    found = [part.piece(i, context) for i in range(part.count(context))]
    assert found[-1]["explained_variance"] > 0.999
    rows = context.sample(context.take(2))
    progress_bt = part.fill(context.batch(rows), rows, context).stats["progress"]
    ids = torch.tensor(rows.rollout.response_ids).double()
    near(progress_bt, 0.5 * ids + 2.0 / ids - 1.0, atol=1e-4)
    near(progress_bt.sum(1), f64(rows.scores.reward_b.tolist()), atol=1e-4)
    assert set(context.state_of(part)) == {"weights", "head"}


def test_without_progress_only_valid_actions_are_paid():
    batch = turned(
        [1], [2], valid_bs=torch.tensor([[True, False]]), stats={"progress": f64([[0.3, 0.7]])},
        value_bt=[[0.0, 0.0]], behavior_bt=[[-1.0, -1.0]],
    )  # fmt: skip
    ready = grouprl.method("spa_rl", alpha=0.0, whiten=False, lam=1.0).compute_advantages(batch)
    near(ready.advantage_bt, [[0.5, 0.0]])
