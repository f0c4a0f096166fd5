"""Our side of the talk with servers of vLLM, against a stand-in: above all, what happens when it goes wrong.

That it works with vLLM itself is shown by `make vllm`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.algorithms.sampling.papers.entropy_score import ScoredTemperature
from grouprl.config.run import parse_config
from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.testing import check_sampler, check_sync
from interrupts import interrupted
from served_policies import REQUESTS as SMALL_SEEDS
from served_policies import Stand, engines, moved, small_policy
from vllm_brain import Brain
from vllm_stand_in import GENERATE, StandIn, standing_in

REQUESTS = [replace(request, seed=request.seed + 2**63) for request in SMALL_SEEDS]
LIGHT = Path(__file__).parents[1] / "support" / "vllm_stand_in.py"
Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


@pytest.fixture
def stand(policy: Tiny) -> Iterator[Stand]:
    with engines(
        lambda **settings: VllmEngine(policy, Vllm(**settings)), lambda: StandIn(Brain(policy)), start_timeout=3.0
    ) as make:
        yield make


def once(fault: Callable[[Any], Any], *, always: bool = False, at: str = GENERATE) -> Callable[[str, Any, Any], Any]:
    """A fault in the first answer at a path, or in every one; of completions, not of the canary."""
    left = [1]

    def act(path: str, body: Any, answer: Any) -> Any:
        canary = path == GENERATE and "prompt_logprobs" in body["sampling_params"]
        if not path.startswith(at) or canary or (not left[0] and not always):
            return answer
        left[0] = 0
        return fault(answer)

    return act


def changed(**fields: Any) -> Callable[[Any], Any]:
    """An answer whose completion has other fields."""

    def change(answer: Any) -> Any:
        choice = answer["choices"][0]
        return {"choices": [{**choice, **{k: v(choice) if callable(v) else v for k, v in fields.items()}}]}

    return change


def logprob(value: Any) -> Callable[[Any], Any]:
    """The log-probs of a completion, the first one replaced."""
    return lambda c: {"content": [{**c["logprobs"]["content"][0], "logprob": value}, *c["logprobs"]["content"][1:]]}


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no JSON": (lambda a: (200, b"<html>busy</html>"), "not JSON"),
    "another JSON": (lambda a: ["hello"], "one completion was requested"),
    "no completion": (lambda a: {"choices": []}, "one completion was requested"),
    "two completions": (lambda a: {"choices": a["choices"] * 2}, "one completion was requested"),
    "too many tokens": (changed(token_ids=lambda c: c["token_ids"] * 9), "requested were 1 to 8"),
    "no tokens": (changed(token_ids=[], logprobs={"content": []}), "requested were 1 to 8"),
    "text for tokens": (changed(token_ids=["a"]), "the tokens of a completion"),
    "a token outside": (changed(token_ids=lambda c: [10**6, *c["token_ids"][1:]]), "outside the vocabulary"),
    "a token below": (changed(token_ids=lambda c: [-1, *c["token_ids"][1:]]), "outside the vocabulary"),
    "no log-probs": (changed(logprobs=None), "has no log-probs"),
    "fewer log-probs": (changed(logprobs={"content": []}), "not those of its tokens"),
    "others' log-probs": (changed(logprobs={"content": [{"token_id": 0, "logprob": -1}]}), "not those of its tokens"),
    "NaN": (changed(logprobs=logprob(float("nan"))), "a log-prob is nan"),
    "what stands for NaN": (changed(logprobs=logprob(-9999.0)), "not finite"),
    "null": (changed(logprobs=logprob(None)), "a log-prob is None"),
    "above zero": (changed(logprobs=logprob(0.5)), "above 0"),
    "no end": (
        changed(
            finish_reason="stop",
            token_ids=[3],
            logprobs={"content": [{"token_id": 3, "logprob": -1}]},
            weight_versions=None,
        ),
        "is not an end token",
    ),
    "cut short": (
        changed(
            finish_reason="length",
            token_ids=[3],
            logprobs={"content": [{"token_id": 3, "logprob": -1}]},
            weight_versions=None,
        ),
        "used its budget",
    ),
    "given up": (changed(finish_reason="abort"), "gave a completion up"),
    "versions with gaps": (changed(weight_versions=[{"version": "a", "start": 1, "end": 2}]), "the versions of"),
    "versions of nobody": (changed(weight_versions="?"), "the versions of"),
    "a status of 500": (lambda a: (500, b'{"error": {"message": "out of memory"}}'), "out of memory"),
    "a broken connection": (lambda a: None, "does not answer"),
}


def test_it_samples_what_the_policy_would(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    found = engine.sample(REQUESTS)
    local = LocalSampler(policy).sample([replace(request, seed=request.seed % 2**63) for request in REQUESTS])
    assert found.actions == local.actions
    np.testing.assert_allclose(found.logp_bt, local.logp_bt, atol=1e-5)
    assert found.truncated_b.tolist() == local.truncated_b.tolist()
    assert not found.exact
    assert found.version_bt is None, "nothing is published"
    bodies = [body["sampling_params"] for path, body in server.got if path == GENERATE][-len(REQUESTS) :]
    assert {body["seed"] for body in bodies} == {request.seed % 2**63 for request in REQUESTS}
    assert all(body["ignore_eos"] and body["stop_token_ids"] == list(policy.eos_ids) for body in bodies)


def test_defaults_of_a_running_server_do_not_change_what_is_sampled(policy: Tiny, stand: Any) -> None:
    """A model's generation_config.json may set penalties, which a server takes where a request names none."""
    engine, (server,), _ = stand()
    engine.sample(REQUESTS)
    asked = [body["sampling_params"] for path, body in server.got if path == GENERATE]
    assert len(asked) > len(REQUESTS), "the canary's requests, too"
    neutral = {"min_p": 0.0, "min_tokens": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for settings in asked:
        assert settings | neutral | {"repetition_penalty": 1.0} == settings


def test_it_does_what_engines_do(policy: Tiny, stand: Any) -> None:
    engine, _, _ = stand()
    check_sampler(engine, REQUESTS, pieces=False)
    check_sync(engine, policy, sample=lambda: engine.sample(REQUESTS))


def test_new_weights_arrive(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)
    before = engine.sample(REQUESTS)
    moved(policy)
    engine.publish(1, policy)
    after = engine.sample(REQUESTS)
    assert after.actions != before.actions
    logp_bt = policy.logp(Tokens.of([r.prompt for r in REQUESTS], after.actions))
    np.testing.assert_allclose(after.logp_bt, logp_bt.numpy(), atol=1e-5)
    assert server.label == f"{engine.run}.1"
    assert set(after.version_bt[after.version_bt >= 0].tolist()) == {1}


def test_adapters_arrive_merged(stand: Any) -> None:
    pytest.importorskip("peft")
    lora = {"r": 2, "alpha": 4, "target_modules": "all-linear"}
    adapted = small_policy(lora=lora)
    moved(adapted)
    server = StandIn(Brain(small_policy(seed=2)))
    with standing_in(server) as address:
        engine = VllmEngine(adapted, Vllm(addresses=(address,)))
        found = engine.sample(REQUESTS)
        engine.close()
    logp_bt = adapted.logp(Tokens.of([r.prompt for r in REQUESTS], found.actions))
    np.testing.assert_allclose(found.logp_bt, logp_bt.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_contained(name: str, stand: Any) -> None:
    fault, words = FAULTS[name]
    engine, (server,), _ = stand()
    whole = engine.sample(REQUESTS)
    server.fault = once(fault)
    assert engine.sample(REQUESTS).actions == whole.actions
    server.fault = once(fault, always=True)
    with pytest.raises(RunError, match=words):
        engine.sample(REQUESTS)


def test_what_a_server_refuses_is_not_sent_again(stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.sample(REQUESTS[:1])
    server.fault = once(lambda a: (400, b'{"error": {"message": "the prompt is too long"}}'), always=True)
    server.got.clear()
    with pytest.raises(InputError, match="the prompt is too long"):
        engine.sample(REQUESTS[:1])
    assert len(server.got) == 1
    server.fault = once(lambda a: (403, b'{"error": "Scale-out endpoints are disabled"}'), always=True)
    with pytest.raises(InputError, match="--enable-scale-out"):
        engine.sample(REQUESTS[:1])


def test_stale_weights_are_noticed(policy: Tiny, stand: Any) -> None:
    engine, (server,), said = stand()
    engine.publish(0, policy)
    moved(policy)
    load, times = server.brain.load, []
    server.brain.load = lambda message: times.append(1) if not times else load(message)
    engine.publish(1, policy)
    assert len(said) == 1
    assert "exchanged once more" in said[0]
    moved(policy, 1)
    server.brain.load = lambda message: None
    with pytest.raises(RunError, match=r"did not take version 2 of the weights, twice: the server"):
        engine.publish(2, policy)


def test_small_steps_are_noticed_when_they_do_not_arrive(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1e-4)
    server.brain.load = lambda message: None
    with pytest.raises(RunError, match="samples with earlier weights"):
        engine.publish(1, policy)


def test_a_server_that_was_restarted_by_others_gets_its_weights_anew(policy: Tiny, stand: Any) -> None:
    engine, (server,), said = stand()
    engine.publish(3, policy)
    whole = engine.sample(REQUESTS)
    server.brain, server.label = Brain(small_policy(seed=5)), "default"
    assert engine.sample(REQUESTS).actions == whole.actions
    assert any("other weights than it was given" in sentence for sentence in said)


@pytest.mark.parametrize("at", ["/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"])
def test_half_an_update_samples_nothing(at: str, policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)
    moved(policy)
    server.fault = once(lambda a: (500, b"half way"), at=at)
    engine.publish(1, policy)  # the second time it works
    assert server.label == f"{engine.run}.1"
    moved(policy, 1)
    server.down = (at, b"half way")
    with pytest.raises(RunError, match="half way"):
        engine.publish(2, policy)
    assert server.paused
    assert server.label == f"{engine.run}.{2 if at == '/resume' else 'unfinished'}"


def test_an_update_that_another_run_left_open_is_ended(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    server.active = True
    engine.publish(0, policy)
    assert not server.active


def test_requests_are_spread(stand: Any) -> None:
    engine, servers, _ = stand(3)
    engine.sample(REQUESTS[:1])
    for server in servers:
        server.got.clear()
        server.fault = lambda path, body, answer: time.sleep(0.2) or answer
    engine.sample(REQUESTS)
    assert min(len(server.got) for server in servers) >= 2, "each has about a third"


def test_a_hung_server_is_set_aside(stand: Any) -> None:
    engine, servers, said = stand(2, timeout=0.5)
    whole = engine.sample(REQUESTS)
    servers[0].fault = lambda path, body, answer: time.sleep(1.5) if path == GENERATE else answer
    assert engine.sample(REQUESTS).actions == whole.actions
    assert [server.state for server in engine.fleet.servers] == ["aside", "up"]
    assert "set aside" in said[0]
    servers[1].fault = servers[0].fault
    with pytest.raises(RunError, match=r"no server of vLLM is left(.|\n)*has not answered for 0.5 seconds"):
        engine.sample(REQUESTS)


def test_work_is_given_up_when_the_run_is_interrupted(stand: Any) -> None:
    engine, (server,), _ = stand()
    whole = engine.sample(REQUESTS)
    over, waited = threading.Event(), []
    server.fault = lambda path, body, answer: (waited.append(over.wait(60)), answer)[1]
    with pytest.raises(KeyboardInterrupt), interrupted(0.3):
        engine.sample(REQUESTS)
    assert not waited, "the answers are not waited for"
    over.set()
    server.fault = None
    assert engine.sample(REQUESTS).actions == whole.actions


def test_sequences_and_texts_end_completions(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    long = [replace(request, budget=40) for request in REQUESTS]
    plain = engine.sample(long)
    ids = next(actions for actions in plain.actions if len(actions) > 6)
    row = plain.actions.index(ids)
    by_sequence = engine.sample([replace(long[row], stop=(ids[2:4],))])
    assert by_sequence.actions[0] == ids[:4]
    assert not by_sequence.truncated_b[0]
    text = policy.decode_all([ids[2:4]])[0]
    local = LocalSampler(policy).sample([replace(long[row], seed=long[row].seed % 2**63, stop_texts=(text,))])
    by_text = engine.sample([replace(long[row], stop_texts=(text,))])
    assert by_text.actions == local.actions
    assert server.got[-1][1]["sampling_params"]["stop"] == [text]


def test_versions_come_with_the_tokens(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(4, policy)
    attached = VllmEngine.attach(policy, engine.attachment)
    first, second = f"{engine.run}.4", f"{engine.run}.5"

    def spans(choice: Any) -> Any:
        count = len(choice["token_ids"])
        cut = min(2, count)
        later = [{"version": second, "start": cut, "end": count}] if count > cut else []
        return [{"version": first, "start": 0, "end": cut}, *later]

    server.fault = once(changed(weight_versions=spans), always=True)
    found = attached.sample(REQUESTS)
    long = next(row for row, ids in enumerate(found.actions) if len(ids) > 2)
    assert found.version_bt[long, :3].tolist() == [4, 4, 5]
    with pytest.raises(InputError, match="another process"):
        attached.publish(6, policy)
    attached.close()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(REQUESTS[0], sampled=2), "continues a sample after 2"),
        (replace(REQUESTS[0], entropy_scaling=ScoredTemperature(0.1, (1.0, 1.0, 1.0))), "follows the entropy"),
        (replace(REQUESTS[0], prompt=()), "no tokens"),
    ],
)
def test_what_servers_cannot_do_is_refused(request_: Request[Any], words: str, stand: Any) -> None:
    engine, _, _ = stand()
    with pytest.raises(InputError, match=words):
        engine.sample([request_])


# ------------------------------------------------------------------------------------------------ own servers


def own(policy: Tiny, tmp_path: Path, **settings: Any) -> tuple[VllmEngine, list[str]]:
    env = {"GRL_DIED": str(tmp_path / "died"), **settings.pop("env", {})}
    command = (sys.executable, str(LIGHT))
    engine = VllmEngine(policy, Vllm(command=command, env=env, canary=1e3, start_timeout=20.0, **settings))
    said: list[str] = []
    engine.say = said.append
    return engine, said


def test_a_server_that_dies_is_replaced(policy: Tiny, tmp_path: Path) -> None:
    engine, said = own(policy, tmp_path)
    engine.publish(0, policy)
    whole = engine.sample(REQUESTS)
    process = engine.fleet.servers[0].own
    before = process.pid
    deadly = replace(REQUESTS[0], prompt=(9, 9, 9))
    assert len(engine.sample([*REQUESTS, deadly])) == len(REQUESTS) + 1
    assert process.pid != before
    assert "is replaced" in said[0]
    assert engine.sample(REQUESTS).actions == whole.actions
    os.killpg(process.pid, signal.SIGKILL)
    assert engine.sample(REQUESTS).actions == whole.actions
    before = process.pid
    os.killpg(process.pid, signal.SIGKILL)
    engine.publish(1, policy)
    assert set(engine.sample(REQUESTS).version_bt[:, 0].tolist()) == {1}
    assert process.pid != before
    engine.close()
    assert not process.alive


def test_a_server_that_does_not_come_up_is_shown_with_its_log(policy: Tiny, tmp_path: Path) -> None:
    engine, _ = own(policy, tmp_path, env={"GRL_NEVER_UP": "1"})
    with pytest.raises(RunError, match=r"exit code 3(.|\n)*ValueError: the model does not fit"):
        engine.sample(REQUESTS)
    engine.close()


def test_a_program_that_is_not_there(policy: Tiny) -> None:
    with pytest.raises(InputError, match="an environment of its own"):
        VllmEngine(policy, Vllm(command=("no-such-vllm",)))


# ----------------------------------------------------------------------------------------------------- the plan

RUN: dict[str, Any] = {
    "task": {"name": "reverse", "length": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
    "batch": {"prompts": 4, "group_size": 4},
    "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
}


def planned(vllm: dict[str, Any], **more: Any) -> Any:
    return plan(parse_config({**RUN, "sampling": {"engine": "vllm", "vllm": vllm}, **more}))


def test_a_plan_says_who_samples() -> None:
    with standing_in(StandIn()) as address:
        found = planned({"addresses": [address]})
        assert any("vLLM 0.32.0 at" in note and "through memory" in note for note in found.notes)
        assert not found.refusals
    found = planned({"command": [sys.executable]})
    assert any("the run starts a server of vLLM" in note for note in found.notes)


@pytest.mark.parametrize(
    ("vllm", "more", "words"),
    [
        ({"command": ["no-such-vllm"]}, {}, "There is no such program"),
        ({"addresses": ["http://127.0.0.1:9"]}, {}, "does not answer"),
        ({"command": [sys.executable]}, {"method": "hapo"}, "Take sampling.engine local"),
        ({"command": [sys.executable]}, {}, "heads of 8 dimensions"),
    ],
)
def test_a_plan_refuses_what_cannot_work(vllm: dict[str, Any], more: dict[str, Any], words: str) -> None:
    assert any(words in refusal for refusal in planned(vllm, **more).refusals)


def test_a_plan_of_adapters_that_servers_load() -> None:
    model = {**RUN["model"], "lora": {"r": 2}}
    with standing_in(StandIn()) as address:
        found = planned({"addresses": [address], "adapters": "loaded"}, model=model, run={"async_steps": 1})
        assert any("as adapters that it loads" in note for note in found.notes)
        assert any("are finished with the adapters that they began with" in note for note in found.notes)
        assert not found.refusals
        refused = planned({"addresses": [address], "adapters": "loaded"}).refusals
        assert any("the model has no adapters. Set model.lora" in refusal for refusal in refused)
    closed = StandIn()
    closed.down = ("/v1/load_lora_adapter", b"")
    closed.fault = lambda path, body, answer: (404, b"") if path == closed.down[0] else answer
    with standing_in(closed) as address:
        refused = planned({"addresses": [address], "adapters": "loaded"}, model=model).refusals
        assert any("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve … --enable-lora" in each for each in refused)


def test_a_configuration_is_read_as_it_was_written() -> None:
    config = parse_config({**RUN, "sampling": {"engine": "vllm", "vllm": {"addresses": ["http://127.0.0.1:8000"]}}})
    assert parse_config(config.model_dump(mode="json")) == config
    assert parse_config({**RUN, "sampling": {"vllm": {"port": 8000}}}).fingerprint() == parse_config(RUN).fingerprint()


@pytest.mark.parametrize(
    ("vllm", "words"),
    [
        ({"addresses": ["10.0.0.1:80"]}, "begins with neither"),
        ({"addresses": ["http://a"], "servers": 2}, "servers that a run starts"),
        ({"weights": "disk"}, "for running servers"),
        ({"addresses": ["http://a"], "weights": "disk", "adapters": "loaded"}, "are read from a folder"),
        ({"adress": []}, "Did you mean 'addresses'"),
    ],
)
def test_settings_that_contradict_each_other(vllm: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_config({**RUN, "sampling": {"engine": "vllm", "vllm": vllm}})
