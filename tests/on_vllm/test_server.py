"""The engine `vllm` against a server of vLLM itself, of its CPU build: `make vllm`.

`GRL_VLLM` names the program; a server is started once, which takes minutes, and the tests share it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rank_runs
from grouprl.config.sections import Vllm
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.servers.http_client import Wire
from grouprl.rollout.servers.own_server import OwnServer
from grouprl.rollout.servers.starting import free_port
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.vllm.requests import GENERATE
from grouprl.rollout.vllm.start_server import serve_words, server_environment
from marked_processes import marked
from real_servers import (
    LONG,
    REQUESTS,
    ROUNDING,
    apart,
    largest,
    moved,
    run,
    versions,
    wait_until,
)
from real_servers import configured as configured_with
from served_policies import endless
from server_contract import ServerContract
from variable_runs import BUDGET, asking, of_the_local_engine, sampled

PROGRAM = os.environ.get("GRL_VLLM", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="GRL_VLLM names no program: make vllm")
configured = partial(configured_with, "vllm")


class TestVllm(ServerContract):
    """The contract, and what is vLLM's own."""

    kind, engine_class, settings_class = "vllm", VllmEngine, Vllm
    command, external = (PROGRAM,), os.environ.get("GRL_VLLM_ADDRESS", "")
    release, too_long = "vLLM 0.32", r"maximum context length|longer than"

    def generated(self, engine: VllmEngine) -> float:
        return told(engine.fleet.servers[0].wire, "vllm:generation_tokens_total")

    def at_work(self, engine: VllmEngine) -> float:
        return running(engine.fleet.servers[0].wire)

    def test_weights_change_after_completions_are_finished(self, policy: Any, address: str) -> None:
        """When the second version comes, all are finished."""
        spans = self.spans(policy, address, (1, 2), lambda version: version == 1, in_flight="finish")
        assert spans <= {(0,), (1,), (2,)}

    def test_an_asynchronous_run_that_finishes_completions(self, model: Path, address: str, tmp_path: Path) -> None:
        self.check_asynchronous_run(model, address, tmp_path, in_flight="finish")

    def test_log_probs_are_of_what_was_sampled_from(self, engine: VllmEngine, policy: Any) -> None:
        requests = [replace(request, top_k=5, budget=1) for request in REQUESTS[:3]]
        samples = engine.sample(requests)
        for request, ids, logp in zip(requests, samples.actions, samples.logp_bt[:, 0], strict=True):
            every = Tokens.of([request.prompt] * policy.model.config.vocab_size, [[t] for t in range(99)])
            logp_v = policy.logp(every)[:, 0]
            best = logp_v.topk(5)
            assert ids[0] in best.indices.tolist()
            assert float(logp_v[ids[0]] - best.values.logsumexp(0)) == pytest.approx(float(logp), abs=ROUNDING)

    def test_answers_continue_on_what_was_read(self, engine: VllmEngine) -> None:
        """The turns of an episode: each prompt is the one before and what followed, whole blocks of which are kept."""
        wire = engine.fleet.servers[0].wire
        prompt = tuple(3 + i * 7 % 90 for i in range(128))
        engine.sample([Request(prompt, 4, 1)])
        before = told(wire, "vllm:prefix_cache_hits_total")
        engine.sample([Request((*prompt, 5, 6, 7), 4, 2)])
        assert told(wire, "vllm:prefix_cache_hits_total") - before >= 64

    def test_a_run_that_sends_its_weights(self, model: Path, address: str, tmp_path: Path) -> None:
        sampling = {"engine": "vllm", "vllm": {"addresses": [address], "weights": "broadcast"}}
        config = configured(model, address, sampling=sampling)
        found = plan(config)
        assert not found.refusals
        assert any("over the network" in note for note in found.notes)
        records = run(config, tmp_path / "run")
        assert largest(records, "logp_gap_max") < ROUNDING
        assert 0 < max(record["canary_gap"] for record in records) < ROUNDING

    def test_it_gets_the_ids_of_the_local_engine_where_a_template_variable_is_set(
        self, model: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Id by id in what is sent, and as many in all as the server counts."""
        config = asking(load_policy(str(model)), tmp_path)
        local = of_the_local_engine(config, tmp_path / "local", monkeypatch)
        sent: list[dict[str, Any]] = []

        def heard(send: Callable[..., object]) -> Callable[..., object]:
            def spied(wire: Wire, path: str, body: Any = None, *more: float, **named: float) -> object:
                sent.extend([body] if path == GENERATE else [])
                return send(wire, path, body, *more, **named)

            return spied

        wire = Wire(address)
        before = told(wire, "vllm:prompt_tokens_total")
        with monkeypatch.context() as patched:
            patched.setattr(Wire, "request", heard(Wire.request))
            patched.setattr(Wire, "post", heard(Wire.post))
            sampled(config, tmp_path / "served", engine="vllm", vllm={"addresses": [address]})
        completed = [body for body in sent if body["sampling_params"]["max_tokens"] == BUDGET]
        assert {tuple(body["token_ids"]) for body in completed} == local
        counted = told(wire, "vllm:prompt_tokens_total") - before
        assert counted == sum(len(body["token_ids"]) for body in sent)

    def test_vllm_takes_the_calls_that_wake_a_server(self, policy: Any, address: str) -> None:
        """Its scheduler sleeps and wakes as on a GPU; the CPU build's worker frees nothing, and says so in its log."""
        engine = VllmEngine(policy, Vllm(addresses=(address,), sleep=True))
        wire = engine.fleet.servers[0].wire
        for version in range(2):
            moved(policy, version)
            engine.publish(version, policy)
            assert apart(policy, REQUESTS, engine.sample(REQUESTS)) < ROUNDING
            engine.rest()
            assert wire.get("/is_sleeping") == {"is_sleeping": True}
        assert apart(policy, REQUESTS, engine.sample(REQUESTS)) < ROUNDING, "a request wakes it"
        assert wire.get("/is_sleeping") == {"is_sleeping": False}
        engine.close()

    def test_the_cpu_build_refuses_the_sleep_mode(self, model: Path) -> None:
        """Why a plan does."""
        policy, port = load_policy(str(model)), free_port()
        words = [*serve_words(Vllm(command=(PROGRAM,)), policy, model, port), "--enable-sleep-mode"]
        server = OwnServer(words, server_environment(Vllm(), policy.device))
        server.start()
        wait_until(lambda: not server.alive)
        assert "Sleep mode is not supported on current platform" in server.last_words()
        server.end()

    @pytest.mark.parametrize("ahead", [0, 1])
    def test_a_run_on_two_ranks(self, ahead: int, model: Path, address: str, tmp_path: Path) -> None:
        """Rank 0 gathers the weights and gives them to the server, which samples for both, in turn or ahead."""
        config = configured(model, address, run={"async_steps": ahead})
        (tmp_path / "run.yaml").write_text(config.dump())
        code, said = rank_runs.launch(2, tmp_path / "run.yaml", tmp_path / "two", "-q")
        assert code == 0, said
        both = [line for line in rank_runs.metrics(tmp_path / "two") if line["phase"] == "train"]
        assert [line["step"] for line in both] == [1, 2, 3, 4]
        assert 0 < max(line["canary_gap"] for line in both) < ROUNDING
        if ahead:
            assert max(line["staleness_max"] for line in both) == 1
            return
        alone = run(config, tmp_path / "one")
        assert both[0]["reward_mean"] == alone[0]["reward_mean"]
        assert largest(both, "logp_gap_max") < ROUNDING

    def test_one_of_two_own_servers_is_killed(self, model: Path) -> None:
        """It takes three starts of a server."""
        policy = load_policy(str(model))
        engine = VllmEngine(policy, Vllm(command=(PROGRAM,), servers=2))
        endless(engine)
        said: list[str] = []
        engine.say = said.append
        moved(policy)
        engine.publish(5, policy)
        whole = engine.sample(REQUESTS)
        first, second = engine.fleet.servers
        many = [*REQUESTS, *[replace(r, budget=LONG, seed=i) for i, r in enumerate(REQUESTS)]]
        as_soon_as_it_works(first.wire, lambda: os.killpg(first.own.pid, signal.SIGKILL))
        again = engine.sample(many)
        assert told(second.wire, "vllm:generation_tokens_total") > 0
        assert "is replaced" in said[0]
        assert again.actions[: len(REQUESTS)] == whole.actions
        assert versions(again) == {5}
        engine.fleet.up()
        assert apart(policy, REQUESTS, engine.sample(REQUESTS)) < ROUNDING
        engine.close()
        assert not first.own.alive
        assert not second.own.alive

    def test_adapters_are_loaded_by_the_server_and_nothing_outlives_a_killed_run(self, model: Path) -> None:
        """A run in a process of its own swaps adapters; it is killed while the server works."""
        pytest.importorskip("peft")
        mark = f"GRL_MARK={uuid.uuid4().hex}"
        words = [sys.executable, "-c", ADAPTED, PROGRAM, str(model), mark.partition("=")[2]]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            lines = [json.loads(run.stdout.readline()) for _ in range(6)]
            assert len(marked(mark)) >= 3, "the server, its engine and its worker"
            run.kill()
            run.wait()
            wait_until(lambda: not marked(mark))
        assert max(line["gap"] for line in lines) < ROUNDING
        assert max(line["apart"] for line in lines) < ROUNDING
        assert [line["versions"] for line in lines] == [[version] for version in range(6)]
        assert lines[-1]["names"] == 4
        assert [line["worker"] for line in lines] == [[version] for version in range(6)], (
            "who is attached gets the newest"
        )
        assert max(line["worker_apart"] for line in lines) < ROUNDING

    def test_weights_from_disk_arrive_where_no_head_is_tied(self, model: Path, tmp_path: Path) -> None:
        """A running server of a model whose head has weights of its own; those of a tied head stay (docs/vllm.md)."""
        from transformers import AutoModelForCausalLM

        tied = AutoModelForCausalLM.from_pretrained(model)
        tied.config.tie_word_embeddings = False
        apart_model = type(tied)(tied.config)
        apart_model.load_state_dict(tied.state_dict())
        apart_model.save_pretrained(tmp_path / "untied")
        load_policy(str(model)).tokenizer.save_pretrained(tmp_path / "untied")
        policy, port = load_policy(str(tmp_path / "untied")), free_port()
        words = serve_words(Vllm(command=(PROGRAM,)), policy, tmp_path / "untied", port)
        at = words.index("--load-format")
        server = OwnServer(words[:at] + words[at + 2 :], server_environment(Vllm(), policy.device))
        server.start()
        try:
            settings = Vllm(addresses=(f"http://127.0.0.1:{port}",), weights="disk", folder=str(tmp_path / "weights"))
            engine = VllmEngine(policy, settings)
            for version in range(2):
                moved(policy, version)
                engine.publish(version, policy)
                assert engine.gap < ROUNDING
                assert apart(policy, REQUESTS, engine.sample(REQUESTS)) < ROUNDING
            engine.close()
        finally:
            server.end()


def told(wire: Any, name: str) -> float:
    """What a server counts."""
    with urllib.request.urlopen(f"{wire.address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def running(wire: Any) -> float:
    """Requests that a server works on."""
    return told(wire, "vllm:num_requests_running")


def as_soon_as_it_works(wire: Any, act: Callable[[], object]) -> None:
    """Do something while a server works on requests."""

    def wait() -> None:
        wait_until(lambda: running(wire))
        act()

    threading.Thread(target=wait, daemon=True).start()


ADAPTED = """
import json, sys
import numpy as np, torch
from grouprl.config.sections import Vllm
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.servers.own_server import OwnServer
from grouprl.rollout.servers.starting import free_port
from grouprl.rollout.vllm.start_server import serve_words, server_environment

def apart(samples):
    with torch.no_grad():
        logp_bt = policy.logp(Tokens.of([r.prompt for r in requests], samples.actions)).numpy()
    return float(np.abs(logp_bt - samples.logp_bt).max())

policy = load_policy(sys.argv[2], lora={"r": 4, "alpha": 8, "target_modules": "all-linear"})
vllm = Vllm(command=(sys.argv[1],), adapters="loaded", env={"GRL_MARK": sys.argv[3]})
engine = VllmEngine(policy, vllm)
requests = [Request((3, 4, 5 + i % 3), 12, i) for i in range(24)]
worker = None
for version in range(6):
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    engine.publish(version, policy)
    samples = engine.sample(requests)
    versions = sorted(set(samples.version_bt[samples.version_bt >= 0].tolist()))
    names = [each["id"] for each in engine.fleet.servers[0].wire.get("/v1/models")["data"] if each["id"] != "policy"]
    worker = worker or VllmEngine.attach(policy, engine.attachment, vllm)
    theirs = worker.sample(requests)
    found = {"gap": engine.gap, "apart": apart(samples), "versions": versions, "names": len(names)}
    found["worker_apart"] = apart(theirs)
    found["worker"] = sorted(set(theirs.version_bt[theirs.version_bt >= 0].tolist()))
    print(json.dumps(found), flush=True)
while True:
    engine.sample(requests)
"""
