"""Servers sample from the token ids that the local engine samples from, whatever sets the chat template's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chat_policies import chatting
from sglang_stand_in import GENERATE as SGLANG_GENERATE
from sglang_stand_in import SglangStandIn
from variable_runs import BUDGET, Prompts, asking, of_the_local_engine, sampled
from vllm_brain import Brain
from vllm_stand_in import GENERATE, StandIn, standing_in


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
    policy = chatting(None, hidden=64, max_positions=128)
    config = asking(policy, tmp_path)
    local = of_the_local_engine(config, tmp_path / "local", monkeypatch)
    make, given = SERVERS[engine]
    server = make(Brain(policy))
    with standing_in(server) as address:
        sampled(config, tmp_path / engine, engine=engine, **{engine: {"addresses": [address]}})
    assert given(server) == local
