"""What real servers do, whoever wrote them: a class of tests that `tests/on_vllm` and `tests/on_sglang` each inherit.

`make vllm` and `make sglang` run it, each with a server from an environment of its own that the tests share.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.rollout.servers.engine import ServerEngine
from grouprl.testing import check_sampler, check_sync
from real_servers import (
    LONG,
    REQUESTS,
    ROUNDING,
    check_each_version,
    check_ends,
    check_greedy,
    check_log_probs,
    check_merged_adapters,
    check_new_weights,
    check_small_step,
    configured,
    largest,
    moved,
    run,
    saved_model,
    wait_until,
)
from served_policies import endless


class ServerContract:
    """Tests of an engine with a real server of one kind."""

    kind: ClassVar[str]
    """The engine's name in a configuration."""
    engine_class: ClassVar[type[ServerEngine]]
    settings_class: ClassVar[type[Servers]]
    command: ClassVar[tuple[str, ...]]
    """What starts a server."""
    external: ClassVar[str]
    """The address of a server that runs already, of the model of these tests, started as the engine starts its own."""
    greedy: ClassVar[dict[str, Any]] = {}
    """Settings that a greedy request has besides, without effect."""
    release: ClassVar[str]
    """The server's name and version in a plan."""
    too_long: ClassVar[str]
    """What the server says of a prompt that is longer than its model's context."""

    def generated(self, engine: Any) -> float:
        """How many tokens the server has made, or holds; it grows while completions are made."""
        raise NotImplementedError

    def at_work(self, engine: Any) -> float:
        """How many requests the server works on."""
        raise NotImplementedError

    def before(self, policy: Any, address: str, **settings: Any) -> Any:
        """An engine before the server of these tests."""
        return self.engine_class(policy, self.settings_class(addresses=(address,), **settings))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return saved_model(tmp_path_factory.mktemp(cls.kind))

    @pytest.fixture(scope="class")
    @classmethod
    def address(cls, model: Path) -> Iterator[str]:
        """A running server."""
        if cls.external:
            yield cls.external
            return
        engine = cls.engine_class(load_policy(str(model)), cls.settings_class(command=cls.command))
        engine.fleet.up()
        yield engine.fleet.servers[0].wire.address
        engine.close()

    @pytest.fixture
    def policy(self, model: Path) -> Any:
        return load_policy(str(model))

    @pytest.fixture
    def engine(self, policy: Any, address: str) -> Iterator[Any]:
        with ExitStack() as open_things:
            engine = self.before(policy, address)
            open_things.callback(engine.close)
            yield engine

    def test_it_does_what_engines_do(self, engine: Any, policy: Any) -> None:
        check_sampler(engine, REQUESTS, pieces=False)
        check_sync(engine, policy, sample=lambda: engine.sample(REQUESTS))

    @pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
    def test_log_probs_are_the_policys(self, engine: Any, policy: Any, temperature: float) -> None:
        check_log_probs(engine, policy, temperature)

    def test_greedy_samples_are_the_local_ones(self, engine: Any, policy: Any) -> None:
        check_greedy(engine, policy, **self.greedy)

    def test_texts_and_sequences_end_completions(self, engine: Any, policy: Any) -> None:
        check_ends(engine, policy)

    def test_new_weights_arrive(self, engine: Any, policy: Any) -> None:
        check_new_weights(engine, policy)

    def test_adapters_arrive_merged(self, model: Path, address: str) -> None:
        check_merged_adapters(model, lambda adapted: self.before(adapted, address))

    def test_a_step_as_small_as_an_optimisers_is_told_from_none(
        self, engine: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_small_step(engine, policy, monkeypatch)

    def test_weights_change_while_completions_are_made(self, policy: Any, address: str) -> None:
        assert self.spans(policy, address, (1, 2), lambda version: True) == {(0, 1, 2)}

    def spans(
        self, policy: Any, address: str, versions: tuple[int, ...], busy: Callable[[int], bool], **settings: Any
    ) -> set[tuple[int, ...]]:
        """The versions that each of some long completions was sampled with, while they were published.

        `busy` says of a version whether completions are still made when it is published.
        """
        engine = self.before(policy, address, **settings)
        engine.publish(0, policy)
        states = [policy.trainable_state()]
        worker = self.engine_class.attach(policy, engine.attachment, engine.settings)
        endless(worker)
        requests = [replace(request, budget=LONG) for request in REQUESTS]
        found: list[Any] = []
        sampling = threading.Thread(target=lambda: found.append(worker.sample(requests)))
        sampling.start()
        for version in versions:
            if busy(version):
                begun = self.generated(engine)
                wait_until(lambda begun=begun: self.generated(engine) > begun + 10 * len(requests))
            moved(policy, version)
            engine.publish(version, policy)
            states.append(policy.trainable_state())
        sampling.join()
        check_each_version(policy, requests, found[0], states)
        worker.close()
        engine.close()
        return {tuple(dict.fromkeys(row.tolist())) for row in found[0].version_bt}

    def test_work_is_given_up_when_the_run_is_interrupted(self, engine: Any) -> None:
        endless(engine)
        engine.sample(REQUESTS[:1])

        def interrupt() -> None:
            wait_until(lambda: self.at_work(engine))
            os.kill(os.getpid(), signal.SIGINT)

        heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
        try:
            threading.Thread(target=interrupt, daemon=True).start()
            with pytest.raises(KeyboardInterrupt):
                engine.sample([replace(request, budget=LONG) for request in REQUESTS * 8])
        finally:
            signal.signal(signal.SIGINT, heard)
        wait_until(lambda: not self.at_work(engine))
        assert engine.sample(REQUESTS[:2]).actions

    def test_what_the_server_refuses_is_said(self, engine: Any) -> None:
        with pytest.raises(InputError, match=self.too_long):
            engine.sample([replace(REQUESTS[0], prompt=(5,) * 600)])
        assert engine.sample(REQUESTS[:1]).actions

    def test_a_plan_names_the_server(self, model: Path, address: str) -> None:
        found = plan(configured(self.kind, model, address))
        assert not found.refusals
        assert any(self.release in note and "through memory" in note for note in found.notes)

    def test_a_run(self, model: Path, address: str, tmp_path: Path) -> None:
        records = run(configured(self.kind, model, address), tmp_path / "run")
        assert len(records) == 4
        assert largest(records, "logp_gap_max") < ROUNDING
        assert 0 < max(record["canary_gap"] for record in records) < ROUNDING
        assert all(record["entropy"] > 0 for record in records)

    def test_a_run_of_episodes(self, model: Path, address: str, tmp_path: Path) -> None:
        more = {"task": {"name": "guess"}, "warmup": {"steps": 20, "batch": 16}}
        records = run(configured(self.kind, model, address, **more), tmp_path / "run")
        assert len(records) == 4
        assert largest(records, "logp_gap_max") < ROUNDING
        assert largest(records, "turns_mean") > 1

    def test_an_asynchronous_run(self, model: Path, address: str, tmp_path: Path) -> None:
        self.check_asynchronous_run(model, address, tmp_path)

    def test_a_run_that_continues_completions_in_later_steps(self, model: Path, address: str, tmp_path: Path) -> None:
        """The server is asked for pieces; what it wrote before an update stays, with its version."""
        sampling = {"engine": self.kind, self.kind: {"addresses": [address]}, "max_new_tokens": 60}
        shape = {"batch": {"prompts": 1, "group_size": 2}, "warmup": {"steps": 0}, "steps": 12}
        more = {"sampling": sampling, "run": {"async_steps": 2, "samplers": 0, "threads": 1}, **shape}
        records = run(configured(self.kind, model, address, **more), tmp_path / "run")
        assert len(records) == 12
        assert 0 < largest(records, "staleness_max") <= 2
        assert largest(records, "spanning_fraction") > 0
        assert largest([record for record in records if not record["staleness_max"]], "logp_gap_max") < ROUNDING

    def check_asynchronous_run(self, model: Path, address: str, folder: Path, **settings: Any) -> None:
        """Samples of a run that samples ahead are stale, and not more than they may be."""
        sampling = {"engine": self.kind, self.kind: {"addresses": [address], **settings}}
        more = {"sampling": sampling, "run": {"async_steps": 2, "threads": 1}, "steps": 6}
        records = run(configured(self.kind, model, address, **more), folder / "run")
        assert len(records) == 6
        assert 0 < largest(records, "staleness_max") <= 2
