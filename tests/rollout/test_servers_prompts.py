"""Servers sample from the token ids that the local engine samples from, whatever sets the chat template's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import grouprl
from chat_policies import chatting
from grouprl.rollout.local.sampler import decode
from sglang_stand_in import GENERATE as SGLANG_GENERATE
from sglang_stand_in import SglangStandIn
from short_runs import SMALL, quiet
from vllm_brain import Brain
from vllm_stand_in import GENERATE, StandIn, standing_in

TEMPLATE = (
    "{{ '<quiet>' if quiet }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BUDGET = 4
"""Tokens of a completion; other requests of a run ask for fewer."""
Prompts = set[tuple[int, ...]]


def questions(folder: Path) -> dict[str, Any]:
    lines = "".join(f'{{"prompt": "{n}+2", "answer": "{n + 2}"}}\n' for n in range(12))
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    return {"task": f"jsonl:{folder / 'rows.jsonl'}", "reward": {"function": "numeric_match"}}


def given_to_vllm(server: Any) -> Prompts:
    bodies = [body for path, body in server.got if path == GENERATE]
    return {tuple(body["token_ids"]) for body in bodies if body["sampling_params"]["max_tokens"] == BUDGET}


def given_to_sglang(server: Any) -> Prompts:
    bodies = [body for path, body in server.got if path == SGLANG_GENERATE]
    return {tuple(body["input_ids"]) for body in bodies if body["sampling_params"]["max_new_tokens"] == BUDGET}


SERVERS = {"vllm": (StandIn, given_to_vllm), "sglang": (SglangStandIn, given_to_sglang)}


@pytest.mark.parametrize("engine", list(SERVERS))
def test_servers_get_the_prompts_of_the_local_engine(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = chatting(TEMPLATE, hidden=64, max_positions=128)
    policy.save(tmp_path / "model")
    model = {"name": str(tmp_path / "model"), "chat_template_kwargs": {"quiet": True}}
    config = {**SMALL, **questions(tmp_path), "model": model, "steps": 1}
    sampling = {"max_new_tokens": BUDGET}
    local: Prompts = set()

    def spied(policy: Any, requests: Any, **settings: Any) -> Any:
        local.update(tuple(request.prompt) for request in requests)
        return decode(policy, requests, **settings)

    with monkeypatch.context() as patched:
        patched.setattr("grouprl.rollout.local.sampler.decode", spied)
        grouprl.train({**config, "sampling": sampling}, folder=tmp_path / "local", console=quiet())
    make, given = SERVERS[engine]
    server = make(Brain(policy))
    with standing_in(server) as address:
        served = {**sampling, "engine": engine, engine: {"addresses": [address]}}
        grouprl.train({**config, "sampling": served}, folder=tmp_path / engine, console=quiet())
    assert len(local) >= 3
    assert given(server) == local
    begins = tuple(policy.encode("<quiet>"))
    assert {ids[: len(begins)] for ids in local} == {begins}
