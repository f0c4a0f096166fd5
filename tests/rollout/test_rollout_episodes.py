"""Episodes: token-in token-out, exact masks and log-probs, independence, endings, failing environments."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from chat_policies import CHATML, FORGETFUL
from grouprl import InputError
from grouprl.envs import Observation, Step
from grouprl.policy import load_policy
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Start, demonstrate, play
from grouprl.tasks import Example
from toy_envs import Asking, AskTask, Counting


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", alphabet=AskTask.alphabet, hidden=16, layers=1, heads=2, intermediate=16, seed=1)


def counting(*turns, prompt="?"):
    return [Start(Example(f"q{i}", prompt, {"turns": t}), 0, action_seed=100 * i + 7) for i, t in enumerate(turns)]


def requests(n):
    return [Start(AskTask().example("train", i), i, action_seed=1000 + i) for i in range(n)]


def go(policy, make=Counting, starts=None, **changes):
    return play(policy, make, starts or counting(1, 3, 2), **{"max_turns": 5, "max_new_tokens": 4, **changes})


def segments(episodes, row):
    """Runs of (turn, ids) of a row, -1 for the environment."""
    ids = episodes.rollout.response_ids[row]
    found = []
    for token, turn in zip(ids, episodes.turn_bt[row], strict=False):
        if not found or found[-1][0] != turn:
            found.append((int(turn), []))
        found[-1][1].append(token)
    return found


def test_rows_are_actions_and_observations_in_order(policy):
    episodes = go(policy)
    assert episodes.turns_b.tolist() == [1, 3, 2]
    for row, turns in enumerate((1, 3, 2)):
        parts = segments(episodes, row)
        assert [turn for turn, _ in parts] == [t for k in range(turns) for t in (k, -1)][:-1]
        assert [ids for turn, ids in parts if turn < 0] == [policy.encode("ab" * k) for k in range(1, turns)]
        assert list(episodes.rollout.prompt_ids[row]) == policy.encode_prompt("?" * (1 + turns))
    present = episodes.rollout.tokens.present_bt().numpy()
    assert (episodes.mask_bt == (episodes.turn_bt >= 0)).all()
    assert not (episodes.mask_bt & ~present).any()
    assert not episodes.rollout.logp_bt.numpy()[~episodes.mask_bt].any()
    assert not episodes.rollout.entropy_bt.numpy()[~episodes.mask_bt].any()
    assert episodes.turn_reward_bs.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert episodes.valid_bs.tolist() == [[True, False, False], [True] * 3, [True, True, False]]


def test_an_action_holds_the_end_token_that_was_sampled(policy):
    episodes = go(policy, starts=counting(*[3] * 24))
    actions = [ids for row in range(24) for turn, ids in segments(episodes, row) if turn >= 0]
    ended = [ids[-1] in policy.eos_ids for ids in actions]
    assert True in ended
    assert False in ended
    assert all(len(ids) == 4 for ids, end in zip(actions, ended, strict=True) if not end)
    assert not any(token in policy.eos_ids for ids in actions for token in ids[:-1])


def test_no_token_of_the_policy_is_encoded_again(policy, monkeypatch):
    encoded = []
    whole = type(policy).encode_all
    monkeypatch.setattr(type(policy), "encode_all", lambda self, texts: encoded.extend(texts) or whole(self, texts))
    go(policy)
    assert sorted(encoded) == sorted(["ab", "abab", "ab"])


def test_log_probs_are_those_of_a_forward_over_the_whole_row(policy):
    episodes = go(policy, starts=counting(1, 4, 2, 3))
    out = policy.evaluate(episodes.rollout.tokens, ["log_prob", "entropy"])
    mask = torch.from_numpy(episodes.mask_bt)
    torch.testing.assert_close(episodes.rollout.logp_bt[mask], out["log_prob"][mask], rtol=0, atol=2e-5)
    torch.testing.assert_close(episodes.rollout.entropy_bt[mask], out["entropy"][mask], rtol=0, atol=2e-5)


def test_an_episode_does_not_depend_on_its_neighbours(policy):
    starts = counting(1, 4, 2, 3)
    together = go(policy, starts=starts)
    for row, start in enumerate(starts):
        alone = go(policy, starts=[start])
        assert alone.rollout.response_ids[0] == together.rollout.response_ids[row]
    turned = go(policy, starts=starts[::-1])
    assert turned.rollout.response_ids == together.rollout.response_ids[::-1]


def test_turns_have_samples_of_their_own(policy):
    """With equal observations and seeds the turns of an episode would be copies of each other."""
    episodes = go(policy, starts=counting(*[4] * 8))
    firsts = [[ids for turn, ids in segments(episodes, row) if turn >= 0] for row in range(8)]
    assert all(len({tuple(ids) for ids in turns}) > 1 for turns in firsts)


def test_greedy_episodes_are_the_same_whatever_the_seed(policy):
    starts = counting(2, 3)
    other = [Start(s.example, s.seed, action_seed=s.action_seed + 999) for s in starts]
    a, b = go(policy, starts=starts, greedy=True), go(policy, starts=other, greedy=True)
    assert a.rollout.response_ids == b.rollout.response_ids
    assert go(policy, starts=starts).rollout.response_ids != a.rollout.response_ids


def test_why_episodes_end(policy):
    class Cut(Counting):
        def step(self, action):
            step = super().step(action)
            return Step(step.observation, truncated=self.turn == 2)

    assert go(policy).ended == ("terminated",) * 3
    cut = go(policy, make=Cut, starts=counting(4))
    assert cut.ended == ("truncated",)
    assert cut.rollout.truncated_b.tolist() == [True]
    short = go(policy, max_turns=2)
    assert short.ended == ("terminated", "out_of_turns", "terminated")
    assert short.turns_b.tolist() == [1, 2, 2]
    assert short.rollout.truncated_b.tolist() == [False, True, False]


def test_a_row_never_outgrows_the_model():
    small = load_policy("tiny", alphabet="ab?", hidden=16, layers=1, heads=2, intermediate=16, max_positions=24)
    episodes = go(small, starts=counting(1, 9), max_turns=9, max_new_tokens=6)
    assert episodes.ended == ("terminated", "out_of_room")
    assert max(episodes.rollout.tokens.lengths) <= 24 + 2 * 9
    assert episodes.mask_bt[1].nonzero()[0].max() + len(episodes.rollout.prompt_ids[1]) < 24
    assert max(episodes.rollout.tokens.lengths) <= 24
    with pytest.raises(InputError, match="the first observation of prompt 'q0' has 31 tokens"):
        go(small, starts=counting(29))


def test_states_are_equal_exactly_where_their_keys_are(policy):
    a, b = play(policy, Asking, requests(12), max_turns=2, max_new_tokens=2), go(policy)
    assert len(set(a.state_bs[:, 0].tolist())) == 1
    assert set(b.state_bs[1].tolist()) == {int(b.state_bs[1, 0])}
    assert b.state_bs[0].tolist()[1:] == [-1, -1]
    assert int(a.state_bs[0, 0]) != int(b.state_bs[0, 0])
    assert a.state_bs.min() >= -1


def test_the_score_is_the_sum_of_the_turns_and_the_components(policy):
    class Scored(Counting):
        def score(self):
            return {"style": 0.25, "correct": 1.0}

    episodes = go(policy, make=Scored)
    assert episodes.verdicts[1] == {"turn_rewards": 3.0, "style": 0.25, "correct": 1.0}


def test_demonstrations_have_the_same_layout(policy):
    episodes = demonstrate(policy, Asking, requests(5), max_turns=2, max_new_tokens=2)
    end = policy.eos_ids[0]
    for row, start in enumerate(requests(5)):
        letter = start.example.columns["letter"]
        expected = [*policy.encode("k"), end, *policy.encode(letter * 2), end]
        assert list(episodes.rollout.response_ids[row]) == expected
        assert episodes.mask_bt[row].tolist() == [True, True, False, True, True]
    assert episodes.turn_reward_bs.tolist() == [[0.5, 0.5]] * 5
    assert episodes.texts[0].startswith("> k\n")
    (failure,) = demonstrate(policy, Mute, requests(1), max_turns=2, max_new_tokens=2).failures
    assert "demonstrate() raised AttributeError" in failure.what


class Mute:
    """Cannot demonstrate."""

    def __init__(self):
        self.inner = Asking()
        self.reset, self.step, self.score, self.close = (
            getattr(self.inner, name) for name in ("reset", "step", "score", "close")
        )


def broken(where, how):
    class Broken(Asking):
        def reset(self, example, seed):
            if where == "reset" and example.id.endswith("1"):
                return how()
            return super().reset(example, seed) if "letter" in example.columns else Observation("?")

        def step(self, action):
            step = super().step(action)
            return how() if where == "step" and self.turn == 2 else step

        def score(self):
            return how() if where == "score" else super().score()

    return Broken


def fail():
    raise ValueError("no board")


@pytest.mark.parametrize(
    ("where", "how", "words"),
    [
        ("reset", fail, r"\(prompt 'ask/train/1', seed 1, turn 0\): reset\(\) raised ValueError: no board"),
        ("step", fail, r"\(prompt 'ask/train/1', seed 1, turn 2\): step\(\) raised ValueError: no board"),
        ("score", fail, r"turn 2\): score\(\) raised ValueError: no board"),
        ("reset", lambda: "a text", r"reset\(\) is str, not Observation"),
        ("reset", lambda: Observation(3), "text of type int"),
        ("step", lambda: None, r"step\(\) is NoneType, not Step"),
        ("step", lambda: Step("a text"), r"the observation of step\(\) is str, not Observation"),
        ("step", lambda: Step(Observation("a"), float("nan")), "the reward nan, not a finite number"),
        ("score", lambda: 1.0, "named components"),
        ("score", lambda: {"reward": 1.0}, "no 'reward'"),
    ],
)
def test_environments_that_fail_are_errors_of_their_row(policy, where, how, words):
    Asking.opened.clear()
    episodes = play(policy, broken(where, how), requests(3), max_turns=2, max_new_tokens=2)
    assert episodes.ended[1] == "error"
    assert isinstance(episodes.verdicts[1], Failure)
    assert re.search(words, episodes.verdicts[1].what), episodes.verdicts[1].what
    if where == "reset":
        assert not episodes.mask_bt[1].any()
        assert episodes.ended[0] == episodes.ended[2] == "terminated"
    else:
        assert episodes.mask_bt[1].any()
    assert all(environment.closed == 1 for environment in Asking.opened)


def test_environments_are_closed_when_the_policy_is_interrupted(policy, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    Asking.opened.clear()
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", stopped)
    with pytest.raises(KeyboardInterrupt):
        play(policy, Asking, requests(3), max_turns=2, max_new_tokens=2)
    assert [environment.closed for environment in Asking.opened] == [1, 1, 1]


def chat_policy(template):
    alphabet = "".join(chr(c) for c in range(32, 127)) + "\n"
    made = load_policy("tiny", alphabet=alphabet, hidden=16, layers=1, heads=2, intermediate=16)
    made.tokenizer.chat_template = template
    return made


def test_chat_templates_put_their_words_between_turns():
    policy = chat_policy(CHATML)
    system = ({"role": "system", "content": "Go."}, {"role": "user", "content": "?"})
    (start,) = counting(2, prompt=system)
    episodes = play(policy, Counting, [start] * 1, max_turns=2, max_new_tokens=3)
    assert episodes.prompts[0] == (system[0], {"role": "user", "content": "???"})
    prompt = "".join(policy.tokenizer.convert_ids_to_tokens(episodes.rollout.prompt_ids[0]))
    assert prompt == "<|system|>Go.<eos><|user|>???<eos><|assistant|>"
    (_, first), (_, between), _ = segments(episodes, 0)
    words = "".join(policy.tokenizer.convert_ids_to_tokens(between))
    end = "" if first[-1] in policy.eos_ids else "<eos>"
    assert words == f"{end}<|user|>ab<eos><|assistant|>"


def test_an_episode_whose_history_is_rewritten_is_refused_and_no_other():
    policy = chat_policy(FORGETFUL)
    said = [((*policy.encode(text), policy.eos_ids[0]),) for text in ("x</think>b", "b")]
    starts = [replace(counting(2)[0], prefix=prefix) for prefix in said]
    thought, plain = play(policy, Counting, starts, max_turns=2, max_new_tokens=3).outcomes
    assert "the chat template rewrites history: what was 'x</think>b" in thought.what
    assert "sampling.history" in thought.what
    assert not isinstance(plain, Failure)


def test_many_episodes_of_different_lengths_stay_in_step(policy):
    turns = [1 + i % 5 for i in range(40)]
    episodes = go(policy, starts=counting(*turns))
    assert episodes.turns_b.tolist() == turns
    assert np.array_equal(episodes.turn_reward_bs.sum(1), np.array(turns, dtype=float))


class Odd(Counting):
    """Shows characters that no policy of the alphabet can read."""

    def step(self, action):
        step = super().step(action)
        shown = Observation("é" + step.observation.text + "\0", step.observation.state)
        return Step(shown, step.reward, step.terminated)


def test_what_the_policy_cannot_read_is_left_out_and_makes_the_turn_invalid(policy):
    odd, plain = go(policy, Odd), go(policy)
    assert odd.rollout.response_ids == plain.rollout.response_ids
    assert odd.ended == plain.ended
    assert plain.valid_bs.tolist() == [[True, False, False], [True] * 3, [True, True, False]]
    assert odd.valid_bs.tolist() == [[True, False, False], [False, False, True], [False, True, False]]
    assert not odd.failures


def test_a_first_observation_that_cannot_be_read_costs_its_prompt(policy):
    class OddFirst(Counting):
        def reset(self, example, seed):
            shown = super().reset(example, seed)
            return Observation("é") if example.id == "q1" else shown

    odd, plain = go(policy, OddFirst), go(policy)
    assert odd.ended == (plain.ended[0], "error", plain.ended[2])
    for row in (0, 2):
        assert odd.rollout.response_ids[row] == plain.rollout.response_ids[row]
    (failure,) = odd.failures
    assert failure.lost, "its prompt is set aside"
    assert re.match(r"the first observation cannot be shown \(prompt 'q1', seed 0, turn 0\): .*alphabet", failure.what)
