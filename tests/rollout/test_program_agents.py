"""Agent libraries that nobody here wrote, trained and served as they are."""

from __future__ import annotations

import asyncio

import pytest

from chat_policies import chatting
from grouprl.rollout.episodes import Start, play
from grouprl.tasks import Example, load_task

pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")

SUM = Example("sum", "3+4=", {"answer": "7"})
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'


def program(function):
    return load_task(
        {"name": f"program:{__file__}:{function}", "examples": "summands", "reward": f"{__file__}:seven", "turns": 6}
    )


def seven(result, answer):
    return float(str(result).strip() == answer)


def smol(prompt, base_url, api_key):
    """A tool-calling agent of smolagents."""
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    model = OpenAIServerModel("policy", api_base=base_url, api_key=api_key)
    return ToolCallingAgent([add], model, max_steps=4, verbosity_level=-1).run(prompt)


def pydantic_ai(prompt, base_url, api_key):
    """A tool-calling agent of pydantic-ai."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("policy", provider=OpenAIProvider(base_url=base_url, api_key=api_key)))

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return asyncio.run(agent.run(prompt)).output


def acted(function, *actions):
    environment = program(function).environment()
    steps = [environment.reset(SUM, 0)]
    last = None
    for action in actions:
        last = environment.step(action)
        steps.append(last.observation)
    score = environment.score()
    environment.close()
    return steps, last, score


def test_a_pydantic_ai_agent():
    pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim[openai] is not installed")
    seen, last, score = acted("pydantic_ai", CALL, "7")
    assert [tool["function"]["name"] for tool in seen[0].tools] == ["add"]
    assert (seen[1].text, seen[1].fresh) == ("7", False)  # the tool's result, behind the call
    assert (last.terminated, score) == (True, {"outcome": 1.0, "correct": 1.0})


def test_a_smolagents_agent():
    pytest.importorskip("smolagents", reason="smolagents is not installed")
    final = '<tool_call>{"name": "final_answer", "arguments": {"answer": "7"}}</tool_call>'
    seen, last, score = acted("smol", CALL, final)
    assert {tool["function"]["name"] for tool in seen[0].tools} == {"add", "final_answer"}
    assert "7" in seen[1].text
    assert (last.terminated, score) == (True, {"outcome": 1.0, "correct": 1.0})


@pytest.mark.parametrize("function", ["pydantic_ai", "smol"])
def test_a_policy_that_knows_nothing_plays_them(function):
    pytest.importorskip({"smol": "smolagents"}.get(function, function))
    policy = chatting(max_positions=16384)
    episodes = play(policy, program(function).environment, [Start(SUM, 0)], max_turns=6, max_new_tokens=8)
    assert not episodes.failures
    assert set(episodes.ended) <= {"terminated", "out_of_turns"}
