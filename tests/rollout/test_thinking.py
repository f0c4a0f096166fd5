"""Thinking is told apart: in the reward, the transcript, the stored turns, `show`, and as a mark of tokens."""

from __future__ import annotations

from typing import Any

import torch
from test_histories_families import SUM, with_tools

from chat_families import family_policy
from grouprl.core.batch import Batch
from grouprl.orchestrator.text_features import all_thoughts
from grouprl.rollout.episodes import Episodes, Start, play
from grouprl.view.trajectory import Piece, Trajectory, TurnShown, _thinking
from grouprl.view.trajectory_text import lines


def played(name: str, *texts: str) -> tuple[Any, Episodes]:
    policy = family_policy(name)
    ends = policy.tokenizer.convert_tokens_to_ids(["<|im_end|>" if "qwen" in name else "<|call|>"])
    prefix = tuple((*policy.encode(text), ends[0]) for text in texts)
    start = Start(SUM, 0, prefix=prefix, train_prefix=True)
    return policy, play(policy, with_tools, [start], max_turns=len(texts), max_new_tokens=200, history="append")


CALL = '<tool_call>{"name": "add", "arguments": {"first": 1, "second": 2}}</tool_call>'
TURNS = (f"<think>\none\n</think>\n\n{CALL}", CALL, "<think>\ntwo, or 4\n</think>\n\n3")


def test_turns_know_their_thinking() -> None:
    policy, episodes = played("qwen 3", *TURNS)
    (record,) = episodes.records
    assert [turn.thinking for turn in record.turns] == ["one", "", "two, or 4"]
    assert episodes.outcomes[0]["correct"] == 1.0, "the reward sees the answer alone"
    for turn, text in zip(record.turns, ("<think>\none\n</think>", "", "<think>\ntwo, or 4\n</think>"), strict=True):
        ids = policy.encode(turn.action)
        assert policy.decode_all([ids[: turn.thought]])[0].strip() == text
    assert episodes.texts[0].splitlines()[0].endswith("> (thinking) one")
    assert "(thinking) two, or 4\n3" in episodes.texts[0]


def test_harmony_thinks_on_a_channel() -> None:
    think = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    call = ' to=functions.add<|channel|>commentary json<|message|>{"first": 1, "second": 2}'
    policy, episodes = played("gpt-oss", think + call)
    (turn,) = episodes.records[0].turns
    assert turn.thinking == "hm"
    shown = policy.decode_all([policy.encode(turn.action)[: turn.thought]])[0]
    assert shown == "<|channel|>analysis<|message|>hm<|end|>"


class Samples:
    """What `all_thoughts` reads of scored samples."""

    def __init__(self, episodes: Episodes) -> None:
        self.rollout, self.records = episodes.rollout, episodes.records
        self.response_ids = episodes.rollout.response_ids
        self.extras = {"turn_bt": episodes.turn_bt}


def test_thinking_of_every_turn_is_marked() -> None:
    policy, episodes = played("qwen 3", *TURNS)
    mask_bt = torch.from_numpy(episodes.mask_bt)
    batch = Batch(mask_bt=mask_bt, group_b=torch.zeros(1, dtype=torch.int64), reward_b=torch.ones(1))
    marked = all_thoughts(batch, Samples(episodes), [])[0]  # type: ignore[arg-type]
    ids = [token for token, thought in zip(episodes.rollout.response_ids[0], marked.tolist(), strict=True) if thought]
    assert policy.tokenizer.decode(ids) == "<think>\none\n</think><think>\ntwo, or 4\n</think>"
    assert not (marked & ~mask_bt[0]).any()


def test_show_prints_thinking_by_itself() -> None:
    pieces = _thinking([Piece("<think>", True), Piece("a", True), Piece("</think>", True), Piece("b", True)], 3)
    turn = TurnShown(0, "", 0, "?", -1, "", pieces, 1.0, True, "")
    rows = ({"row": 0, "agent": "", "reward": 1.0, "used": True},)
    text = "\n".join(line.plain for line in lines(Trajectory(1, "q", 0, (turn,), rows), plain=True))
    assert "  ~ <think>a</think>\n  > b\n" in text
    assert "~ its thinking" in text
