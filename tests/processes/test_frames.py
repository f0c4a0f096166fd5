"""Frames and replies: whole or refused, never unpickled from a child, and silent in processes that user code forked."""

import json
import os
import pickle

import pytest

from grouprl.processes.frames import PIECE, BadReply, Replies, framed, frames, parse_reply, read_exactly, write_all


def test_frames_arrive_one_after_the_other() -> None:
    source, sink = os.pipe()
    write_all(sink, framed(pickle.dumps({"a": 1})) + framed(pickle.dumps("b")))
    os.close(sink)
    assert list(frames(source)) == [{"a": 1}, "b"]
    os.close(source)


def test_half_a_message_is_none() -> None:
    source, sink = os.pipe()
    write_all(sink, b"12345")
    os.close(sink)
    assert read_exactly(source, 6) == b""
    os.close(source)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"1", b"no json", pickle.dumps(["x"]), b"\xff", b"[" * PIECE])
def test_what_is_no_list_is_no_reply(line: bytes) -> None:
    with pytest.raises(BadReply):
        parse_reply(line)


def test_a_fork_that_comes_back_says_nothing() -> None:
    source, sink = os.pipe()
    reply = Replies(sink)
    child = os.fork()
    if child == 0:
        reply("forked")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reply("own", 2)
    os.close(sink)
    with os.fdopen(source) as lines:
        assert [json.loads(line) for line in lines] == [["own", 2]]
