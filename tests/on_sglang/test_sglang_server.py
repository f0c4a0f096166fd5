"""The engine `sglang` against a server of SGLang itself, computing in torch: `make sglang`.

`GRL_SGLANG` names the python of its environment; a server is started once, which takes minutes, and the tests share it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from grouprl.config.sections import Sglang
from grouprl.core.errors import InputError, RunError
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.sglang.engine import SglangEngine
from grouprl.rollout.sglang.requests import completion_body, scoring_body
from marked_processes import marked
from real_servers import (
    REQUESTS,
    ROUNDING,
    apart,
    check_new_weights,
    moved,
    versions,
    wait_until,
)
from served_policies import endless
from server_contract import ServerContract

PYTHON = os.environ.get("GRL_SGLANG", "")
PROGRAM = (PYTHON, str(Path(__file__).with_name("serve_on_cpu.py")))
pytestmark = pytest.mark.skipif(not PYTHON, reason="GRL_SGLANG names no python: make sglang")


class TestSglang(ServerContract):
    """The contract, and what is SGLang's own."""

    kind, engine_class, settings_class = "sglang", SglangEngine, Sglang
    command, external = PROGRAM, os.environ.get("GRL_SGLANG_ADDRESS", "")
    greedy: ClassVar[dict[str, Any]] = {"top_p": 0.5}
    release, too_long = "SGLang 0.5", "longer than the model's context length"

    def generated(self, engine: SglangEngine) -> float:
        return float(loads(engine)["num_used_tokens"])

    def at_work(self, engine: SglangEngine) -> float:
        found = loads(engine)
        return float(found["num_running_reqs"] + found["num_waiting_reqs"])

    def test_new_weights_arrive_by_disk(self, policy: Any, address: str) -> None:
        engine = self.before(policy, address, weights="disk")
        check_new_weights(engine, policy)
        engine.close()

    @pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (40, 0.5), (1, 1.0)])
    def test_log_probs_are_of_what_was_sampled_from(
        self, engine: SglangEngine, policy: Any, top_k: int, top_p: float
    ) -> None:
        """Top-k first, of the whole distribution; then top-p, of the whole as well."""
        requests = [replace(request, top_k=top_k, top_p=top_p, temperature=0.5, budget=1) for request in REQUESTS]
        samples = engine.sample(requests)
        policy.temperature = 0.5
        for request, ids, logp in zip(requests, samples.actions, samples.logp_bt[:, 0], strict=True):
            every = Tokens.of([request.prompt] * 99, [[token] for token in range(99)])
            with torch.no_grad():
                logp_v, order = policy.logp(every)[:, 0].double().sort(descending=True)
            before_v = logp_v.exp().cumsum(0) - logp_v.exp()
            kept = (torch.arange(99) < (top_k or 99)) & (before_v <= top_p)
            found = order.tolist().index(ids[0])
            assert kept[found]
            assert float(logp_v[found] - logp_v[kept].logsumexp(0)) == pytest.approx(float(logp), abs=ROUNDING)

    def test_seeds_decide_and_neighbours_do_not(self, engine: SglangEngine) -> None:
        whole = engine.sample(REQUESTS).actions
        assert len(set(whole)) > len(whole) // 2
        assert engine.sample(REQUESTS[::-1]).actions[::-1] == whole
        assert engine.sample(REQUESTS[7:8]).actions[0] == whole[7]
        for others in ({"greedy": True}, {"top_k": 5}, {"top_p": 0.5}, {"temperature": 1.3}):
            mixed = [each for request in REQUESTS for each in (request, replace(request, **others))]
            assert engine.sample(mixed).actions[::2] == whole, others

    def test_a_token_that_ends_nothing_here_is_sampled_past(self, engine: SglangEngine, policy: Any) -> None:
        """The server stops at its own end token; what follows is what it would have sampled."""
        requests = [replace(request, budget=100) for request in REQUESTS]
        ended = engine.sample(requests)
        assert any(ids[-1] == 2 for ids in ended.actions), "a completion ends within its budget"
        endless(engine)
        whole = engine.sample(requests)
        assert {len(ids) for ids in whole.actions} == {100}
        assert all(ids[: len(part)] == part for ids, part in zip(whole.actions, ended.actions, strict=True))
        assert apart(policy, requests, whole) < ROUNDING
        assert whole.truncated_b.all()

    def test_turns_continue_on_what_was_read(self, engine: SglangEngine) -> None:
        """The turns of an episode: each prompt is the one before and what followed."""
        prompt = tuple(3 + i * 7 % 90 for i in range(128))
        said = engine.sample([Request(prompt, 4, 1)]).actions[0]
        wire = engine.fleet.servers[0].wire
        longer = Request((*prompt, *said, 5, 6, 7), 4, 2)
        body = completion_body(longer, ids=longer.prompt, budget=4, ends=(2,), kept=0, vocabulary=99, name="turn")
        reply: Any = wire.request("/generate", body, 60.0)
        assert reply["meta_info"]["cached_tokens"] >= 128

    def test_a_token_that_would_end_the_server_is_not_sent(self, engine: SglangEngine) -> None:
        with pytest.raises(InputError, match="the prompt's token 99"):
            engine.sample([replace(REQUESTS[0], prompt=(5, 99))])
        assert engine.sample(REQUESTS[:1]).actions

    def test_half_an_update_is_not_sampled_with(self, engine: SglangEngine, policy: Any) -> None:
        """The bytes are not those that were announced: the server says so, stays paused, and takes weights again."""
        engine.publish(0, policy)
        said: list[str] = []
        engine.say = said.append
        write = engine.served.memory.write

        def half(policy: Any) -> Any:
            engine.served.memory.written = replace(write(policy), checksum=1)
            return engine.served.memory.written

        engine.served.memory.write = half  # type: ignore[method-assign]
        with pytest.raises(RunError, match=r"no server of SGLang is left(.|\n)*have the checksum"):
            engine.publish(1, policy)
        assert "exchanged once more" in said[0]
        assert "set aside" in said[1]
        told: Any = engine.fleet.servers[0].wire.get("/model_info")
        assert told["weight_version"].endswith(".unfinished")
        again = SglangEngine(policy, engine.settings)
        moved(policy)
        again.publish(2, policy)
        assert apart(policy, REQUESTS, again.sample(REQUESTS)) < ROUNDING
        again.close()

    def test_a_server_that_another_run_uses_gets_its_weights_anew(
        self, engine: SglangEngine, policy: Any, model: Path
    ) -> None:
        engine.publish(3, policy)
        other = SglangEngine(load_policy(str(model)), engine.settings)
        moved(other.policy, 5)
        other.publish(0, other.policy)
        other.close()
        said: list[str] = []
        engine.say = said.append
        samples = engine.sample(REQUESTS)
        assert "other weights than it was given" in said[0]
        assert apart(policy, REQUESTS, samples) < ROUNDING

    def test_an_own_server_that_is_killed_is_replaced(self, model: Path) -> None:
        """It takes two starts of a server."""
        policy = load_policy(str(model))
        engine = SglangEngine(policy, Sglang(command=PROGRAM))
        said: list[str] = []
        engine.say = said.append
        moved(policy)
        engine.publish(5, policy)
        whole = engine.sample(REQUESTS)
        (server,) = engine.fleet.servers
        assert server.own is not None
        os.killpg(server.own.pid, signal.SIGKILL)
        again = engine.sample(REQUESTS)
        assert "is replaced" in said[0]
        assert again.actions == whole.actions
        assert versions(again) == {5}
        engine.close()
        assert not server.own.alive

    def test_nothing_outlives_a_killed_run(self, model: Path) -> None:
        mark = f"GRL_MARK={uuid.uuid4().hex}"
        words = [sys.executable, "-c", SAMPLING, *PROGRAM, str(model), mark.partition("=")[2]]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == "sampled\n"
            assert len(marked(mark)) >= 3, "the server, its scheduler and its detokenizer"
            run.kill()
            run.wait()
            wait_until(lambda: not marked(mark))


def loads(engine: SglangEngine) -> dict[str, Any]:
    """What the scheduler of a server counts."""
    told: Any = engine.fleet.servers[0].wire.get("/v1/loads")
    return dict(told["loads"][0])


def test_what_is_sent_is_known_to_sglang() -> None:
    """Its own classes know every field, so none is silently dropped, and take every value."""
    request = replace(REQUESTS[0], top_k=7, top_p=0.5, stop_texts=("a",))
    bodies = [
        completion_body(request, ids=(3, 4), budget=5, ends=(2,), kept=7, vocabulary=99, name="one"),
        completion_body(
            replace(request, greedy=True), ids=(3, 4), budget=5, ends=(), kept=0, vocabulary=99, name="two"
        ),
        scoring_body((3, 4, 5)),
    ]
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import serve_on_cpu
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
for body in json.loads(sys.stdin.read()):
    request = GenerateReqInput(**body)
    request.normalize_batch_and_arguments()
    SamplingParams(**body["sampling_params"]).verify(99)
print("known")
"""
    said = subprocess.run([PYTHON, "-c", code], input=json.dumps(bodies), capture_output=True, text=True)
    assert said.stdout.endswith("known\n"), said.stderr


def test_the_hash_that_stands_in_is_sglangs() -> None:
    """Behind seeds: SGLang's own Triton kernel, in Triton's interpreter, computes the same."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import serve_on_cpu, torch
from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel
seed_n = torch.tensor([0, 7, 2**63 - 5, -3]).view(torch.uint64)
position_n, column_m = torch.tensor([0, 5, 77, 2**31 - 1]), torch.arange(99)
found_nm = torch.empty((4, 99), dtype=torch.uint32)
murmur_hash32_kernel[(4, 1)](seed_n, position_n, column_m, found_nm, 4, 99, BLOCK_SIZE=128)
ours_nm = serve_on_cpu.murmur_hash32(seed_n, position_n, column_m)
assert len(set(found_nm.flatten().tolist())) == 396
print("equal" if found_nm.tolist() == ours_nm.tolist() else "other")
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    said = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout.endswith("equal\n"), said.stderr


SAMPLING = """
import sys
from grouprl.config.sections import Sglang
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.rollout.sglang.engine import SglangEngine

engine = SglangEngine(load_policy(sys.argv[3]), Sglang(command=sys.argv[1:3], env={"GRL_MARK": sys.argv[4]}))
while True:
    engine.sample([Request((3, 4, 5), 12, i) for i in range(24)])
    print("sampled", flush=True)
"""
