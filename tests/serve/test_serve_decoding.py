"""A long completion is decoded once, not once more with every stretch; pieces and stop texts stay what they were."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from grouprl.protocols import Request
from grouprl.serve.joint_sampling import STRETCH, BatchedSampling, SampleJob

EOS = 256


class Bytes:
    """A policy whose tokens are bytes, so that characters consist of several; counts what is decoded."""

    eos_ids = (EOS,)

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        return bytes(each for each in ids if each != EOS).decode(errors="replace")


class Says:
    """A sampler that says a text, whatever it is asked."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def sample(self, requests: list[Request[Any]]) -> Any:
        found = [self.ids[len(each.prompt) - 1 :][: each.budget] for each in requests]
        width = max(map(len, found))
        return SimpleNamespace(actions=found, logp_bt=torch.zeros(len(found), width))


def say(text: bytes, stop: tuple[str, ...] = (), budget: int | None = None) -> tuple[Any, list[str], Bytes]:
    policy, told = Bytes(), []
    ids = [*text, EOS]
    sampling = BatchedSampling(policy, sampler=Says(ids))
    try:
        job = SampleJob((0,), budget or len(ids), 0, stop=stop, told=told.append)
        return sampling.sample(job).result(60), told, policy
    finally:
        sampling.close()


def test_the_work_grows_with_the_length_not_with_its_square() -> None:
    short, long = say(b"abcd" * 500)[2].decoded, say(b"abcd" * 5000)[2].decoded
    assert long < 12 * short
    assert long < 6 * 20_000
    assert say("aé".encode()[:2] * 10_000)[2].decoded < 12 * 20_000  # half a character at the end of every stretch


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_the_text_and_end_before_the_stop(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("aé€😀\n") for _ in range(300)) + "STOP" + "x" * rng.randrange(80)
    found, told, _ = say(text.encode(), ("STOP", "never"))
    before = text[: text.index("STOP")]
    assert found.text == before == "".join(told)
    assert found.ended
    assert bytes(found.ids).decode() == before + "STOP"  # the tokens up to the one that completes it


def test_a_stop_that_two_stretches_share_is_found() -> None:
    for place in range(STRETCH - 5, STRETCH + 3):
        found, told, _ = say(b"a" * place + b"<end>" + b"b" * 100, ("<end>",))
        assert found.text == "".join(told) == "a" * place


def test_bytes_that_are_no_text_are_said_all_the_same() -> None:
    text = bytes([0xFF, 0xC3]) * 200
    found, told, _ = say(text)
    assert found.text == "".join(told) == text.decode(errors="replace")
    cut, told, _ = say("é".encode() * 50, budget=33)
    assert cut.text == "".join(told) == "é" * 16 + "\ufffd"


def test_a_request_after_the_end_is_cancelled_and_does_not_wait_for_ever() -> None:
    sampling = BatchedSampling(cast("Any", Bytes()), sampler=cast("Any", Says([65])))
    sampling.close()
    assert sampling.sample(SampleJob((0,), 1, 0)).cancelled()
