"""openai-agents, which speaks the responses' protocol, on a served policy; skipped where it is not installed."""

from __future__ import annotations

import asyncio

import pytest

from chat_policies import chatting, scripted
from grouprl.serve import Service

agents = pytest.importorskip("agents", reason="openai-agents is not installed: pip install openai-agents")
openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint  # noqa: E402

CALL = '<think>Two odd ones.</think><tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


def test_an_agent_calls_its_tool_streamed_and_whole(monkeypatch):
    policy = chatting()
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, iter([CALL, "It is 3."] * 2)))
    service = Service(policy, "tiny", max_tokens=200)
    endpoint = Endpoint(service)
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=endpoint.url, api_key="me", max_retries=0)
    model = agents.OpenAIResponsesModel("tiny", client)

    @agents.function_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    agent = agents.Agent(name="adder", instructions="Be brief.", tools=[add], model=model)

    async def both():
        whole = (await agents.Runner.run(agent, "1+2?")).final_output
        stream = agents.Runner.run_streamed(agent, "1+2? Again")
        async for _ in stream.stream_events():
            pass
        return whole, stream.final_output

    try:
        assert asyncio.run(both()) == ("It is 3.", "It is 3.")
        assert [row["turns"] for row in service.rows("me")] == [2, 2]
    finally:
        endpoint.close()
        service.close()
