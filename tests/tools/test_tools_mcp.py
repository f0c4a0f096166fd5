"""Tools of a real MCP server, spoken to by stdio."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grouprl.chat.calls import Call
from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs.check import check_environment
from grouprl.tasks import Example, load_task

pytest.importorskip("mcp", reason="mcp is not installed: pip install 'grouprl[agents]'")
from mcp import types

from grouprl.tools import Toolbox, ToolError
from grouprl.tools import mcp as mcp_tools
from grouprl.tools.mcp import McpServer

COMMAND = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'mcp_counter.py'}"


@pytest.fixture(scope="module")
def server():
    made = McpServer(COMMAND)
    yield made
    made.close()


@pytest.fixture(scope="module")
def toolbox(server):
    return Toolbox(server.tools())


def test_listed_tools_are_tools(toolbox):
    assert set(toolbox.tools) == {"add", "next_number", "fail", "sleep", "die"}
    function = next(each["function"] for each in toolbox.schemas if each["function"]["name"] == "add")
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["required"] == ["a"]
    assert function["parameters"]["properties"]["b"]["type"] == "integer"


def test_a_call_has_a_result(toolbox):
    result = toolbox.call(Call("add", {"a": 3, "b": 4}))
    assert (result.text, result.status) == ("7", "ok")
    assert toolbox.call(Call("add", {"a": 3})).text == "4"
    assert toolbox.call(Call("add", "3, 4")).text == "7"  # the compact form


def test_what_fails_is_told(toolbox):
    result = toolbox.call(Call("fail", {"word": "luck"}))
    assert result.status == "error"
    assert "no luck here" in result.text


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("add", {}, "'a' is a required property"),
        ("add", {"a": "x"}, "add: a: 'x' is not of type 'integer'"),
        ("add", "1,x", "add: b: 'x' is not of type 'integer'"),
        ("next_number", "3", "takes no arguments"),
        *(("add", f"1,{text}", "add: b: '") for text in ("9" * 5000, "[" * 5000, "NaN", r'"\ud800"')),
        ("addd", {}, "no tool 'addd'"),
    ],
)
def test_what_does_not_fit_is_malformed(toolbox, name, arguments, message):
    result = toolbox.call(Call(name, arguments))
    assert result.status == "malformed"
    assert message in result.text


def test_calls_have_a_clock():
    server = McpServer(COMMAND, seconds=0.5)
    tool = next(each for each in server.tools() if each.name == "sleep")
    with pytest.raises(ToolError, match=r"no result within 0\.5 s"):
        tool.function(seconds=2.0)
    server.close()


def test_a_server_that_dies_is_started_again():
    server = McpServer(COMMAND, seconds=5)
    toolbox = Toolbox(server.tools())
    assert toolbox.call(Call("next_number", {})).text == "1"
    assert toolbox.call(Call("die", {})).status == "error"
    assert toolbox.call(Call("next_number", {})).text == "1"
    server.close()
    server.close()


def test_tools_are_pickled_as_their_server(toolbox):
    again = pickle.loads(pickle.dumps(toolbox.tools["add"]))
    assert again.function(a=1, b=2) == "3"
    again.server.close()


def test_a_server_on_the_network(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"import mcp_counter; mcp_counter.server.run('streamable-http', port={port})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1] / "support", stderr=subprocess.DEVNULL
    )
    server = McpServer(f"http://127.0.0.1:{port}/mcp")
    try:
        for _ in range(100):
            try:
                tools = server.tools()
                break
            except InputError:
                time.sleep(0.1)
        assert Toolbox(tools).call(Call("add", {"a": 2, "b": 2})).text == "4"
    finally:
        server.close()
        process.kill()
        process.wait()


def test_a_task_with_a_servers_tools():
    task = load_task({"name": f"mcp:{COMMAND}", "of": "summands", "names": ["add"], "turns": 3})
    example = Example("sum", "3+4=", {"answer": "7", "total": 7})
    environment = task.environment()
    first = environment.reset(example, 0)
    assert [each["function"]["name"] for each in first.tools] == ["add"]
    seen = environment.step('<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>')
    assert (seen.valid, seen.observation.messages[0]["content"]) == (True, "7")
    broken = environment.step('<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>')
    assert not broken.valid
    environment.close()
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=8)
    assert report.problems == ()
    assert task.description == "The prompts of summands with the tools add."


def test_episodes_can_have_servers_of_their_own():
    call = '<tool_call>{"name": "next_number", "arguments": {}}</tool_call>'
    for fresh, expected in ((True, ["1", "1"]), (False, ["1", "2"])):
        task = load_task({"name": f"mcp:{COMMAND}", "of": "summands", "fresh": fresh})
        texts = []
        for _ in range(2):
            environment = task.environment()
            environment.reset(task.example("train", 0), 0)
            texts.append(environment.step(call).observation.messages[0]["content"])
            environment.close()
        assert texts == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "mcp:no-such-server --x", "of": "summands"}, "'no-such-server --x' cannot be reached"),
        ({"name": "mcp:http://127.0.0.1:9/mcp", "of": "summands"}, "cannot be reached"),
        ({"name": f"mcp:{COMMAND}", "of": "summands", "names": ["ad"]}, "no tool 'ad'.*Did you mean 'add'"),
        ({"name": "mcp:python '", "of": "summands"}, "is not a command line"),
        ({"name": f"mcp:{COMMAND}"}, "lacks its option 'of'"),
    ],
)
def test_errors_in_words(spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[agents\]"):
        load_task({"name": f"mcp:{COMMAND}", "of": "summands"})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, "refers to 'file:///etc/hostname'"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "is not a JSON schema"),
    ],
)
def test_a_schema_that_reads_files_or_is_none_is_refused_when_it_is_listed(server, schema, message):
    listed = types.Tool(name="spy", input_schema=schema)
    with pytest.raises(InputError, match=f"The schema of the tool 'spy'.*{message}"):
        mcp_tools._tool(server, listed)


def test_a_servers_pattern_is_matched_under_a_clock(server):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
    toolbox = Toolbox([mcp_tools._tool(server, types.Tool(name="spy", input_schema=schema))])
    result = toolbox.call(Call("spy", {"a": "a" * 40 + "!"}))
    assert (result.status, result.text) == (
        "malformed",
        "spy: the arguments cannot be checked: more than 1 s of processor time",
    )
