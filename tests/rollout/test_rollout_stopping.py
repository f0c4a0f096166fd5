"""Texts that end a completion or a turn, whatever tokens they are written with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import toy_envs
from episode_runs import launch
from grouprl import InputError
from grouprl.policy import load_policy
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.local.sampler import generate
from grouprl.rollout.local.stopping import StopTexts

ALPHABET = "abck?-!"


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy("tiny", alphabet=ALPHABET, hidden=16, layers=1, heads=2, intermediate=16, seed=1)


def sampled(policy: Any, *stop: str, n: int = 200, tokens: int = 12) -> Any:
    prompts = [policy.encode_prompt("?")]
    return generate(policy, prompts, n=n, max_new_tokens=tokens, seeds=list(range(n)), stop_texts=stop)


def test_completions_end_where_a_text_is_complete_and_are_the_same_until_then(policy: Any) -> None:
    free, bound = sampled(policy), sampled(policy, "ab", "k")
    texts = policy.decode_all(bound.response_ids)
    ended = 0
    for i, (whole, cut, text) in enumerate(zip(free.response_ids, bound.response_ids, texts, strict=True)):
        assert whole[: len(cut)] == cut
        logps = [x.logp_bt[i, : len(cut)] for x in (free, bound)]
        torch.testing.assert_close(*logps, atol=2e-6, rtol=0)
        said = policy.decode(whole)
        places = [said.index(stop) + len(stop) for stop in ("ab", "k") if stop in said]
        assert text == (said[: min(places)] if places else said)
        assert bound.truncated_b[i] == (not places and cut[-1] not in policy.eos_ids)
        ended += bool(places)
    assert ended > 50


def test_they_are_what_sequences_of_tokens_are_for_letters(policy: Any) -> None:
    prompts, seeds = [policy.encode_prompt("?")], list(range(100))
    ids = generate(policy, prompts, n=100, max_new_tokens=9, seeds=seeds, stop=[policy.encode("ab")])
    assert sampled(policy, "ab", n=100, tokens=9).response_ids == ids.response_ids


class Bytes:
    """Tokens of several letters, and a letter that takes two tokens."""

    words = ("x</", "tool", ">\n", "</to", "l", ">", "ol>", "é", "<")

    def __len__(self) -> int:
        return len(self.words) + 2

    def decode(self, ids: list[int]) -> str:
        raw = b"".join([*(w.encode() for w in self.words), b"\xc3", b"\xa9"][i] for i in ids)
        return raw.decode(errors="replace")


class BytePolicy:
    tokenizer, device = Bytes(), torch.device("cpu")

    def decode_all(self, rows: list[list[int]]) -> list[str]:
        return [self.tokenizer.decode(ids) for ids in rows]


@pytest.mark.parametrize(
    ("ids", "ends"),
    [([0, 1, 2], True), ([3, 6], True), ([3, 4, 5], False), ([8, 1, 5], False), ([1, 2], False), ([0, 1], False)],
)
def test_texts_are_found_across_tokens(ids: list[int], ends: bool) -> None:
    stop = StopTexts(BytePolicy(), ["</tool>"])
    token_tb = torch.tensor(ids)[:, None]
    assert bool(stop.ended(token_tb, torch.tensor([0]), len(ids) - 1)) == ends


def test_a_letter_of_two_tokens_is_complete_with_the_second() -> None:
    stop = StopTexts(BytePolicy(), ["é"])
    token_tb = torch.tensor([[9, 7], [10, 5]])
    assert stop.ended(token_tb, torch.tensor([0, 1]), 0).tolist() == [False, True]
    assert stop.ended(token_tb, torch.tensor([0]), 1).tolist() == [True]


def test_an_empty_text_is_refused(policy: Any) -> None:
    with pytest.raises(InputError, match="An empty stop text"):
        sampled(policy, "")


def test_turns_end_at_stop_texts(policy: Any) -> None:
    task = toy_envs.AskTask()
    starts = [Start(task.example("train", i), 0, action_seed=i) for i in range(60)]
    episodes = play(policy, task.environment, starts, max_turns=2, max_new_tokens=8, stop=("k",))
    actions = [turn.action for record in episodes.records for turn in record.turns]
    assert sum(action.endswith("k") for action in actions) > 10
    assert not any("k" in action[:-1] for action in actions)


def test_runs_stop_where_they_are_told(tmp_path: Path) -> None:
    sampling = {"stop": ["k"], "max_new_tokens": 6}
    folder = launch(tmp_path / "run", sampling=sampling, steps=1, eval={"final_prompts": 4})
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    actions = [turn["action"] for row in rows for turn in row["turns"]]
    assert any(action.endswith("k") and len(action) > 1 for action in actions)
    assert not any("k" in action[:-1] for action in actions)
