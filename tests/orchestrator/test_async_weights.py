"""Weights in shared memory are whole or not there; the canary knows a stale or damaged sampler."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time

import pytest
import torch

from grouprl.core.errors import RunError
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower
from grouprl.orchestrator.asynchronous.sampler_canary import Canary, CanaryReport, forced_logp
from grouprl.orchestrator.asynchronous.weights import SharedWeights, lay_out
from grouprl.orchestrator.weight_checksum import checksum
from grouprl.policy import load_policy
from grouprl.rollout.canary_tokens import canary_tokens

TINY = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 32}
ROWS = 30_000


def filled(value: float) -> dict[str, torch.Tensor]:
    return {
        "a": torch.full((3,), value),
        "wide": torch.full((ROWS, 7), value, dtype=torch.float64),
        "half": torch.full((2, 5), value, dtype=torch.bfloat16),
    }


def test_what_is_published_is_what_is_read() -> None:
    state = {
        "one": torch.tensor(1.5),
        "odd": torch.arange(3, dtype=torch.float32),
        "half": torch.randn(5, 3).bfloat16(),
        "none": torch.zeros(0, 4),
    }
    shared = SharedWeights.create(state)
    assert shared.latest == -1
    total = shared.publish(0, state)
    version, got = shared.read()
    assert version == shared.latest == 0
    assert total == checksum(got) == checksum(state)
    assert all(torch.equal(got[name], tensor) and got[name].dtype == tensor.dtype for name, tensor in state.items())
    shared.publish(1, {name: tensor + 1 for name, tensor in state.items()})
    assert shared.read()[0] == 1
    assert torch.equal(shared.read()[1]["odd"], torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(got["odd"], torch.tensor([0.0, 1.0, 2.0])), "what was read is a copy"
    shared.close()


def test_tensors_begin_at_whole_words() -> None:
    places = lay_out({"a": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(2), "c": torch.zeros(1)})
    assert [(p.start, p.size) for p in places] == [(0, 6), (8, 8), (16, 4)]


def _write(fd: int, places: tuple, seconds: float) -> None:
    shared, version, end = SharedWeights(os.dup(fd), places), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        version += 1
        shared.publish(version, filled(version % 250))


def test_a_reader_never_sees_half_a_version() -> None:
    """Another process writes as fast as it can: every value read belongs to the version that was read."""
    shared = SharedWeights.create(filled(0))
    shared.publish(0, filled(0))
    writer = multiprocessing.get_context("fork").Process(target=_write, args=(shared.fd, shared.places, 1.5))
    writer.start()
    seen = set()
    while writer.is_alive():
        version, state = shared.read()
        assert all(bool((tensor == version % 250).all()) for tensor in state.values())
        seen.add(version)
    writer.join()
    assert len(seen) > 3
    shared.close()


def test_damaged_weights_are_never_read() -> None:
    shared = SharedWeights.create(filled(1))
    shared.publish(0, filled(1))
    shared._map[200] ^= 1
    with pytest.raises(RunError, match="version 0 of the weights in shared memory does not match its checksum"):
        shared.read()


def test_a_version_half_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.orchestrator.asynchronous.weights.PATIENCE_SECONDS", 0.05)
    shared = SharedWeights.create(filled(1))
    with pytest.raises(RunError, match="no whole version"):
        shared.read()
    shared.publish(0, filled(1))
    shared._words[1] = 2  # the writer began another version in the same slot and was killed
    with pytest.raises(RunError, match="no whole version"):
        shared.read()


def followed(engine: str) -> tuple[SharedWeights, Canary, Follower, list[CanaryReport]]:
    """A trainer's policy in shared memory as version 0, and a sampler's policy of other weights that follows it."""
    trained, own = (load_policy("tiny", seed=seed, engine=engine, alphabet="0123456789", **TINY) for seed in (1, 2))
    shared, canary, reports = (
        SharedWeights.create(trained.trainable_state()),
        Canary(trained, canary_tokens(trained)),
        [],
    )
    canary.expect(0, shared.publish(0, trained.trainable_state()), keep=2)
    return shared, canary, Follower(own, shared, reports.append, canary_tokens(own)), reports


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_the_canary_sings_after_an_exchange(engine: str) -> None:
    _shared, canary, follower, reports = followed(engine)
    follower.refresh()
    follower.refresh()
    assert [report.version for report in reports] == [0]
    assert canary.check(reports[0]) < 1e-5


def test_forced_decoding_gives_the_log_probs_of_the_policy() -> None:
    policy = load_policy("tiny", dtype="float64", temperature=0.7, alphabet="0123456789", **TINY)
    tokens = canary_tokens(policy)
    torch.testing.assert_close(forced_logp(policy, tokens), policy.logp(tokens), rtol=0, atol=1e-10)


def test_a_stale_sampler_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _shared, canary, follower, reports = followed("lean")
    monkeypatch.setattr(follower.policy, "load_trainable_state", lambda state: None)
    follower.refresh()
    with pytest.raises(RunError, match="not those of version 0 that it says it has: it is stale or damaged"):
        canary.check(reports[0])


def test_a_sampler_that_takes_damaged_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _shared, canary, follower, reports = followed("lean")
    taken = follower.policy.load_trainable_state

    def shifted(state: dict[str, torch.Tensor]) -> None:
        name = next(name for name in state if "norm" in name)
        taken({**state, name: state[name] * 1.001})

    monkeypatch.setattr(follower.policy, "load_trainable_state", shifted)
    follower.refresh()
    with pytest.raises(RunError, match="not those of version 0 that it says it has: it is stale or damaged"):
        canary.check(reports[0])


def test_a_decoder_with_other_weights_is_caught() -> None:
    _shared, canary, follower, reports = followed("lean")
    follower.refresh()
    other = load_policy("tiny", seed=2, alphabet="0123456789", **TINY)
    logp = tuple(tuple(row) for row in forced_logp(other, canary.tokens).tolist())
    with pytest.raises(RunError, match=r"disagree on the canary by .* nats at version 0"):
        canary.check(dataclasses.replace(reports[0], logp=logp))
    broken = ((float("nan"),) * len(logp[0]),) * len(logp)
    with pytest.raises(RunError, match="disagree on the canary"):
        canary.check(dataclasses.replace(reports[0], logp=broken))


def test_a_version_that_was_never_published_is_caught() -> None:
    _shared, canary, follower, reports = followed("lean")
    follower.refresh()
    with pytest.raises(RunError, match="took version 9 of the weights; the trainer has published 0 to 0"):
        canary.check(dataclasses.replace(reports[0], version=9))


def test_only_as_many_versions_are_remembered_as_can_come() -> None:
    _, canary, _, _ = followed("lean")
    for version in range(1, 6):
        canary.expect(version, 0, keep=3)
    assert sorted(canary._expected) == [3, 4, 5]
