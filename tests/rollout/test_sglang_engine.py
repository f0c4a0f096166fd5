"""Our side of the talk with servers of SGLang, against a stand-in: above all, what happens when it goes wrong.

That it works with SGLang itself is shown by `make sglang`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.algorithms.sampling.papers.entropy_score import ScoredTemperature
from grouprl.config.run import parse_config
from grouprl.config.sections import Sglang
from grouprl.core.errors import InputError, RunError
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.plan.sglang_servers import server_refusals
from grouprl.protocols import Request
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.servers.weights import WeightMemory, checkpoint_tensors
from grouprl.rollout.sglang.engine import SglangEngine
from grouprl.rollout.sglang.requests import completion_body, kept_tokens, scoring_body
from grouprl.rollout.sglang.start_server import PLUGIN, serve_words
from grouprl.testing import check_sampler, check_sync
from interrupts import interrupted
from served_policies import REQUESTS as SMALL_SEEDS
from served_policies import Stand, endless, engines, moved, small_policy
from sglang_stand_in import GENERATE, SglangStandIn
from vllm_brain import Brain
from vllm_stand_in import Listening, Raw, handler, standing_in

REQUESTS = [replace(request, seed=request.seed + 2**63) for request in SMALL_SEEDS]
Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


@pytest.fixture
def stand(policy: Tiny) -> Iterator[Stand]:
    def stand_in(**facts: Any) -> SglangStandIn:
        return SglangStandIn(Brain(policy), **facts)

    with engines(lambda **more: SglangEngine(policy, Sglang(**more)), stand_in, start_timeout=3.0) as make:
        yield make


def test_a_key_goes_to_servers_of_sglang_alone(policy: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SGLang wants it: for every call. Another program's key is not shown to it."""
    seen: set[str | None] = set()

    class Keyed(handler(SglangStandIn(Brain(policy)))):  # type: ignore[misc]
        def _reply(self, body: Any) -> None:
            seen.add(self.headers.get("Authorization"))
            super()._reply(body)

    listening = Listening(("127.0.0.1", 0), Keyed)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("VLLM_API_KEY", "of vLLM")
    address = f"http://127.0.0.1:{listening.server_address[1]}"
    for key, told in ((None, None), ("open sesame", "Bearer open sesame")):
        if key is not None:
            monkeypatch.setenv("SGLANG_API_KEY", key)
        with closing(SglangEngine(policy, Sglang(addresses=(address,)))) as engine:
            assert engine.sample([Request((3, 4), 3, 1)]).actions
        assert not list(server_refusals(resolve(parse_config(runs_with(address))), 16))
        assert seen == {told}
        seen.clear()
    listening.shutdown()
    listening.server_close()


def runs_with(address: str) -> dict[str, Any]:
    return {"task": "addition", "sampling": {"engine": "sglang", "sglang": {"addresses": [address]}}}


# ------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, 0),
        ({"top_k": 99}, 0),
        ({"top_k": 500}, 0),
        ({"top_k": 7}, 7),
        ({"top_p": 0.9}, 99),
        ({"top_k": 500, "top_p": 0.9}, 99),
        ({"top_k": 1}, 1),
        ({"greedy": True, "top_p": 0.9, "top_k": 7}, 0),
    ],
)
def test_how_many_tokens_are_kept(fields: dict[str, Any], kept: int) -> None:
    assert kept_tokens(replace(REQUESTS[0], **fields), 99, 4096) == kept


def test_log_probs_that_a_server_does_not_tell_are_refused() -> None:
    with pytest.raises(InputError, match=r"for at most 50 tokens, and 99 may be kept(.|\n)*top_k to 50"):
        kept_tokens(replace(REQUESTS[0], top_p=0.9), 99, 50)
    assert kept_tokens(replace(REQUESTS[0], top_p=0.9, top_k=50), 99, 50) == 50


def test_what_a_request_asks_for() -> None:
    request = Request((3, 4), 8, 2**63 + 5, 0.7, stop_texts=("x",), top_k=7, top_p=0.5)
    body = completion_body(request, ids=(3, 4, 9), budget=7, ends=(2, 1), kept=7, vocabulary=99, name="one")
    settings = body["sampling_params"]
    assert (body["rid"], body["input_ids"], body["return_logprob"]) == ("one", [3, 4, 9], True)
    assert (body["return_sampling_mask"], body["sampling_logprobs_mode"]) == (True, "selected")
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (0.7, 7, 0.5)
    assert (settings["max_new_tokens"], settings["sampling_seed"], settings["stop"]) == (7, 5, ["x"])
    assert (settings["stop_token_ids"], settings["ignore_eos"]) == ([1, 2], False)
    greedy = completion_body(
        replace(request, greedy=True), ids=(3,), budget=1, ends=(), kept=0, vocabulary=99, name="two"
    )
    assert greedy["sampling_params"]["temperature"] == 0
    assert (greedy["sampling_params"]["top_p"], greedy["sampling_params"]["top_k"]) == (1.0, 99)
    assert "return_sampling_mask" not in greedy
    assert scoring_body((3, 4))["logprob_start_len"] == 0


# ------------------------------------------------------------------------------------------------------- samples


def test_it_samples_what_the_policy_would(policy: Tiny, stand: Any) -> None:
    engine, servers, _ = stand(2)
    samples, local = (
        engine.sample(REQUESTS),
        LocalSampler(policy).sample([replace(r, seed=r.seed % 2**63) for r in REQUESTS]),
    )
    assert samples.actions == local.actions
    assert samples.truncated_b.tolist() == local.truncated_b.tolist()
    assert not samples.exact
    assert samples.logp_bt == pytest.approx(local.logp_bt, abs=1e-5)
    assert all(any(path == GENERATE and "rid" in body for path, body in server.got) for server in servers)


def test_it_does_what_engines_do(policy: Tiny, stand: Any) -> None:
    engine, _, _ = stand(2)
    check_sampler(engine, REQUESTS, pieces=False)
    check_sync(engine, policy, sample=lambda: engine.sample(REQUESTS))


def test_log_probs_behind_top_k_are_taken_where_it_cuts(stand: Any) -> None:
    engine, _, _ = stand()
    plain, cut = engine.sample(REQUESTS[:1]), engine.sample([replace(REQUESTS[0], top_k=3)])
    assert cut.logp_bt == pytest.approx(plain.logp_bt / 2), "the stand-in tells of cuts by halves"


def changed(answer: Any, **fields: Any) -> Any:
    return {**answer, "meta_info": {**answer["meta_info"], **fields}}


def tokens(answer: Any, ids: Any) -> Any:
    rows = [[-1.0, token, None] for token in ids]
    return {**changed(answer, output_token_logprobs=rows), "output_ids": ids}


def first_logprob(answer: Any, value: Any) -> Any:
    rows = answer["meta_info"]["output_token_logprobs"]
    return changed(answer, output_token_logprobs=[[value, *rows[0][1:]], *rows[1:]])


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no JSON": (lambda a: (200, b"<html>busy</html>"), "not JSON"),
    "another JSON": (lambda a: ["hello"], "has no meta_info"),
    "no reason": (lambda a: changed(a, finish_reason=None), "has no finish_reason"),
    "aborted": (lambda a: changed(a, finish_reason={"type": "abort", "message": "busy"}), "gave a completion up"),
    "too many tokens": (lambda a: tokens(a, a["output_ids"] * 9), "requested were 1 to 8"),
    "no tokens": (lambda a: tokens(a, []), "requested were 1 to 8"),
    "text for tokens": (lambda a: tokens(a, ["a"]), "the tokens of a completion"),
    "a token outside": (lambda a: tokens(a, [10**6, *a["output_ids"][1:]]), "outside the vocabulary"),
    "no log-probs": (lambda a: changed(a, output_token_logprobs=None), "output_token_logprobs are None"),
    "fewer log-probs": (lambda a: changed(a, output_token_logprobs=[]), "are not those of the"),
    "others' log-probs": (lambda a: changed(a, output_token_logprobs=[[-1, 0, None]] * 8), "are not those of the"),
    "NaN": (lambda a: first_logprob(a, float("nan")), "a log-prob is nan"),
    "the least float": (lambda a: first_logprob(a, -3.4e38), "not finite"),
    "above zero": (lambda a: first_logprob(a, 0.5), "above 0"),
    "NaN happened": (
        lambda a: changed(a, finish_reason={"type": "stop", "matched": "NaN happened"}),
        "said to have ended with 'NaN happened'",
    ),
    "an end that is none": (
        lambda a: changed(a, finish_reason={"type": "stop", "matched": 1}),
        "said to have ended with 1",
    ),
    "too short": (
        lambda a: changed(tokens(a, a["output_ids"][:2]), finish_reason={"type": "length", "length": 2}),
        "used its budget of 8",
    ),
    "no versions of half": (
        lambda a: changed(a, weight_versions=[{"version": "x", "start": 0, "end": 1}]),
        "the versions of",
    ),
    "a status of 500": (lambda a: (500, b'{"error": {"message": "busy"}}'), "status 500: 'busy'"),
    "a connection that ends": (lambda a: Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"), "does not answer"),
}


def faulty(fault: Callable[[Any], Any], times: int) -> Callable[[str, Any, Any], Any]:
    """A fault in the first answers to completions; not to the canary."""
    left = [times]

    def act(path: str, body: Any, answer: Any) -> Any:
        if path != GENERATE or not body["sampling_params"]["max_new_tokens"] or not left[0]:
            return answer
        left[0] -= 1
        return fault(answer)

    return act


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_contained(name: str, policy: Tiny, stand: Any) -> None:
    """Once: the completion is the one that it would have been. Always: the run ends and says why."""
    fault, words = FAULTS[name]
    engine, (server,), _ = stand()
    endless(engine)
    whole = engine.sample(REQUESTS[:1])
    server.fault = faulty(fault, 1)
    assert engine.sample(REQUESTS[:1]).actions == whole.actions
    server.fault = faulty(fault, 99)
    with pytest.raises(RunError, match=r"failed 3 times(.|\n)*" + words.replace("(", r"\(")):
        engine.sample(REQUESTS[:1])


def test_a_servers_own_end_token_is_sampled_past(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    endless(engine)
    engine.publish(0, policy)

    def stops(answer: Any) -> Any:
        ids = answer["output_ids"][:3]
        span = [{"version": server.label, "start": 0, "end": 3}]
        ended = {"type": "stop", "matched": ids[-1]}
        return changed(tokens(answer, ids), finish_reason=ended, weight_versions=span)

    server.fault = faulty(stops, 1)
    server.got.clear()
    samples = engine.sample([replace(REQUESTS[0], budget=8)])
    first, second = (body for path, body in server.got if path == GENERATE)
    assert second["input_ids"] == [*first["input_ids"], *samples.actions[0][:3]]
    assert second["sampling_params"]["max_new_tokens"] == 5
    assert second["sampling_params"]["sampling_seed"] == first["sampling_params"]["sampling_seed"]
    assert second["rid"] != first["rid"]
    assert len(samples.actions[0]) == 8 or samples.actions[0][-1] in policy.eos_ids
    assert set(samples.version_bt[samples.version_bt >= 0].tolist()) == {0}


def test_what_a_server_refuses_is_not_sent_again(stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.sample(REQUESTS[:1])
    server.got.clear()
    server.fault = faulty(lambda a: (400, b'{"error": {"message": "longer than the context"}}'), 99)
    with pytest.raises(InputError, match="longer than the context"):
        engine.sample(REQUESTS[:1])
    assert len(server.got) == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(REQUESTS[0], entropy_scaling=ScoredTemperature(1.0, (0.0, 1.0, 0.5))), "follows the entropy"),
        (replace(REQUESTS[0], prompt=()), "no tokens"),
        (replace(REQUESTS[0], prompt=(3, 10**6)), "the prompt's token 1000000"),
    ],
)
def test_what_servers_cannot_do_is_refused(request_: Request[Any], words: str, stand: Any) -> None:
    engine, _, _ = stand()
    with pytest.raises(InputError, match=words):
        engine.sample([request_])


def test_a_hung_server_is_set_aside(stand: Any) -> None:
    engine, (hung, other), said = stand(2, timeout=0.5)
    engine.sample(REQUESTS)

    def hangs(answer: Any) -> Any:
        time.sleep(1.5)
        return answer

    hung.fault = faulty(hangs, 99)
    whole = engine.sample(REQUESTS)
    assert whole.actions == engine.sample(REQUESTS).actions
    assert "is set aside" in said[0]
    assert not other.aborted


def test_work_is_given_up_when_the_run_is_interrupted(stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.sample(REQUESTS[:1])
    over, waited = threading.Event(), []
    server.got.clear()
    server.fault = faulty(lambda answer: (waited.append(over.wait(60)), answer)[1], 99)
    with pytest.raises(KeyboardInterrupt), interrupted(0.3):
        engine.sample(REQUESTS[:3])
    assert not waited, "the answers are not waited for"
    over.set()
    assert set(server.aborted) == {body["rid"] for path, body in server.got if path == GENERATE}
    server.fault = None
    assert engine.sample(REQUESTS[:2]).actions


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("weights", ["shared_memory", "disk"])
def test_new_weights_arrive(weights: str, policy: Tiny, stand: Any, tmp_path: Path) -> None:
    engine, servers, _ = stand(2, facts={"tp_size": 2}, weights=weights)
    for version in range(2):
        moved(policy, version)
        engine.publish(version, policy)
        assert 0 <= engine.gap < 1e-4
        assert {server.label for server in servers} == {f"{engine.run}.{version}"}
        assert engine.sample(REQUESTS).logp_bt == pytest.approx(engine.sample(REQUESTS).logp_bt)
    calls = [path for path, _ in servers[0].got if path.startswith("/update_weights")]
    assert set(calls) == {"/update_weights_from_" + ("tensor" if weights == "shared_memory" else "disk")}


def test_weights_that_do_not_arrive_are_noticed(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)
    server.brain.load = lambda message: None
    moved(policy)
    with pytest.raises(RunError, match="did not take version 1"):
        engine.publish(1, policy)


@pytest.mark.parametrize(
    ("said", "words"), [("ValueError: half of it", "half of it"), ("", "it cannot open this process's memory")]
)
def test_a_loader_that_fails_is_believed(said: str, words: str, policy: Tiny, stand: Any) -> None:
    """SGLang says that it is done, whatever its loader did."""
    engine, (server, other), told = stand(2)
    engine.publish(0, policy)
    server.said = said
    engine.publish(1, policy)
    assert words in told[0]
    assert "is set aside" in told[1]
    assert server.paused
    assert server.label.endswith(".unfinished")
    assert other.label.endswith(".1")
    assert engine.sample(REQUESTS).actions


def test_an_update_that_another_run_left_open_is_ended(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    server.active = server.paused = True
    engine.publish(0, policy)
    assert engine.sample(REQUESTS[:1]).actions
    assert not server.active


def test_a_server_that_was_restarted_by_others_gets_its_weights_anew(policy: Tiny, stand: Any) -> None:
    engine, (server,), said = stand()
    engine.publish(4, policy)
    server.label = "default"
    assert engine.sample(REQUESTS).actions
    assert "other weights than it was given" in said[0]
    assert server.label == f"{engine.run}.4"


def test_another_process_samples_with_the_same_servers(policy: Tiny, stand: Any) -> None:
    engine, _, _ = stand()
    engine.publish(3, policy)
    worker = SglangEngine.attach(policy, engine.attachment, engine.settings)
    samples = worker.sample(REQUESTS)
    assert samples.actions == engine.sample(REQUESTS).actions
    assert set(samples.version_bt[samples.version_bt >= 0].tolist()) == {3}
    worker.close()


@pytest.mark.parametrize(
    ("facts", "settings", "words"),
    [
        ({"enable_deterministic_inference": False}, {}, "ignores seeds"),
        ({"custom_weight_loader": None}, {"weights": "shared_memory"}, "does not take weights from memory"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused(facts: Any, settings: Any, words: str, stand: Any) -> None:
    engine, _, _ = stand(facts=facts, **settings)
    with pytest.raises(InputError, match=words):
        engine.sample(REQUESTS)


def test_a_server_without_the_loader_reads_from_disk(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand(facts={"custom_weight_loader": None})
    engine.publish(0, policy)
    assert any(path == "/update_weights_from_disk" for path, _ in server.got)


def packed(told: dict[str, Any]) -> torch.Tensor:
    """What the trainer sends to a loader."""
    return torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)


class Takes:
    """A model in a server."""

    def load_weights(self, weights: Any) -> None:
        self.found = dict(weights)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "loaded"),
        ({"checksum": 1}, "ValueError: the weights in .* have the checksum .*, not 1"),
        ({"path": "/nowhere"}, "FileNotFoundError: .*/nowhere"),
        ({"more": [["x", "float32", [3], 0, 4]]}, "RuntimeError: shape"),
        ({"places": None}, "TypeError: "),
    ],
)
def test_the_loader_reports_and_raises_nothing(wrong: Any, words: str, policy: Tiny, tmp_path: Path) -> None:
    """It runs inside SGLang, which ends when it raises."""
    spec = importlib.util.spec_from_file_location("grouprl_sglang", PLUGIN / "grouprl_sglang.py")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loader
    spec.loader.exec_module(loader)
    memory, model, report = WeightMemory(), Takes(), tmp_path / "report"
    told = {**memory.write(policy).message(), "report": str(report), "unknown": 1, **wrong}
    told["places"] = told["places"] and [*told["places"], *told.get("more", [])]
    loader.load(model, [("grouprl", packed(told))])
    assert re.fullmatch(words + ".*\n", report.read_text())
    if not wrong:
        assert all(torch.equal(model.found[name], tensor) for name, tensor in checkpoint_tensors(policy))
    loader.load(model, [("grouprl", packed({**told, "report": "/"}))])
    memory.close()
    del sys.modules[spec.name]


# ------------------------------------------------------------------------------------------------- own servers


def test_what_starts_a_server(policy: Tiny, tmp_path: Path) -> None:
    words = serve_words(Sglang(command=("x", "y"), args=("--tp", "2")), policy, tmp_path, 9, 15)
    assert words[:3] == ["x", "y", "serve"]
    assert words[-2:] == ["--tp", "2"]
    assert "--enable-deterministic-inference" in words
    assert words[words.index("--sampling-mask-max-tokens") + 1] == "15"
    assert words[words.index("--context-length") + 1] == "64"


def test_a_program_that_is_not_there(policy: Tiny) -> None:
    with pytest.raises(InputError, match=r"sampling.sglang.command = '/nowhere/sglang'(.|\n)*SGLang is installed in"):
        SglangEngine(policy, Sglang(command=("/nowhere/sglang",)))


def configured(sglang: dict[str, Any], **more: Any) -> Any:
    sampling = {"engine": "sglang", "sglang": sglang, **more.pop("sampling", {})}
    return parse_config({"task": {"name": "reverse"}, "steps": 1, "sampling": sampling, **more})


def test_a_plan_says_who_samples() -> None:
    with standing_in(SglangStandIn()) as address:
        found = plan(configured({"addresses": [address]}, run={"async_steps": 1}))
    assert not [r for r in found.refusals if "server" in r]
    assert any("SGLang 0.5.23" in note and "through memory" in note for note in found.notes)
    assert any("continue with the new ones" in note for note in found.notes)


@pytest.mark.parametrize(
    ("sglang", "more", "words"),
    [
        ({"command": ["/nowhere/sglang"]}, {}, "There is no such program"),
        ({"addresses": ["http://127.0.0.1:9"]}, {}, "does not answer"),
    ],
)
def test_a_plan_refuses_what_cannot_work(sglang: dict[str, Any], more: dict[str, Any], words: str) -> None:
    assert any(words in refusal for refusal in plan(configured(sglang, **more)).refusals)


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"enable_deterministic_inference": False}, "ignores seeds"), ({"version": None}, "does not say how")],
)
def test_a_plan_refuses_servers_that_were_started_otherwise(facts: dict[str, Any], words: str) -> None:
    with standing_in(SglangStandIn(**facts)) as address:
        assert any(words in refusal for refusal in plan(configured({"addresses": [address]})).refusals)


def test_a_plan_says_what_has_no_effect() -> None:
    config = parse_config({"task": {"name": "reverse"}, "steps": 1, "sampling": {"sglang": {"at_once": 2}}})
    assert any("sampling.sglang has no effect" in each for each in plan(config).idle)


@pytest.mark.parametrize(
    ("sglang", "words"),
    [
        ({"addresses": ["http://a:1"], "port": 9}, "port is about servers that a run starts"),
        ({"addresses": ["a:1"]}, "begins with neither"),
        ({"weights": "disk"}, "is for running servers"),
        ({"addresses": ["http://a:1"], "weights": "shared_memory", "folder": "x"}, "folder has no effect"),
        ({"command": []}, "name the program of SGLang"),
        ({"adress": ["http://a:1"]}, "Did you mean 'addresses'"),
        ({"adapters": "loaded"}, "adapters"),
    ],
)
def test_settings_that_contradict_each_other(sglang: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        configured(sglang)


def test_where_completions_are_sampled_does_not_change_the_run() -> None:
    assert configured({"at_once": 3}).fingerprint() == configured({}).fingerprint()
