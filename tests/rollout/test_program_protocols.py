"""Programs that speak other protocols than chat completions, and what is said of those whose requests are refused."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from chat_policies import TOOLS, chatting
from grouprl.core.errors import InputError
from grouprl.policy import Tokens
from grouprl.policy.language.template_settings import set_defaults
from grouprl.rollout.episodes import Start, play
from grouprl.tasks import Example, load_task

pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")

PROGRAMS = Path(__file__).parents[1] / "support" / "agent_programs.py"
SUM = Example("sum", "3+4=", {"answer": "7"})


def seven(result, answer):
    return float(result == answer)


def program(path, **options):
    return load_task({"name": f"program:{path}", "examples": "summands", "reward": f"{__file__}:seven", **options})


def begun(function, **options):
    environment = program(f"{PROGRAMS}:{function}", **options).environment()
    return environment, environment.reset(SUM, 0)


@pytest.mark.parametrize("function", ["tool_loop", "through_responses", "through_messages"])
def test_a_tool_loop_is_the_same_episode_in_every_protocol(function):
    environment, first = begun(function)
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]
    assert first.messages == ({"role": "user", "content": "3+4="},)
    called = environment.step('Let me see.<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>')
    assert called.observation.text == "7"
    (message,) = called.observation.messages
    assert (message["role"], message["content"]) == ("tool", "7")
    assert not called.observation.fresh
    assert called.observation.tools == ()
    assert environment.step("7").terminated
    assert environment.score()["correct"] == 1.0
    environment.close()


@pytest.mark.parametrize("function", ["through_responses", "through_messages"])
def test_rows_are_what_the_policy_sampled(function):
    policy, task = chatting(), program(f"{PROGRAMS}:{function}")
    calls = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
    prefix = ((*policy.encode(calls), policy.eos_ids[0]),)
    starts = [Start(SUM, 0, action_seed=1), Start(SUM, 1, prefix=prefix, train_prefix=True, action_seed=2)]
    episodes = play(policy, task.environment, starts, max_turns=3, max_new_tokens=6)
    assert not episodes.failures
    assert episodes.episode_b.tolist() == [0, 1]  # the answer to the call stands in the row of the call
    rollout, mask = episodes.rollout, torch.from_numpy(episodes.mask_bt)
    logp_bt = policy.logp(Tokens(rollout.prompt_ids, rollout.response_ids))
    own = mask & (rollout.logp_bt != 0)
    assert own.any()
    assert torch.allclose(logp_bt[own], rollout.logp_bt[own], atol=1e-5)
    text = "".join(policy.tokenizer.convert_ids_to_tokens(rollout.response_ids[1]))
    assert f"{calls}<eos><|tool|>7<eos><|assistant|>" in text


def test_a_refused_request_is_reported_as_what_it_was():
    with pytest.raises(InputError, match=r"without a request to the model: BadRequestError(?s:.*)not held to a form"):
        begun("wants_json")
    with pytest.raises(
        InputError, match=r"its last request was refused: There is no POST /v1/embeddings; available are"
    ):
        begun("hides_refusals")
    environment, _ = begun("asks_then_hides")
    last = environment.step("7")
    assert last.terminated
    assert "not held to a form" in last.info["refused"][0]
    environment.close()
    environment, _ = begun("sulks", timeout=0.8)
    late = r"within 0\.8 seconds: it was not at its end; its last request was refused: response_format"
    with pytest.raises(TimeoutError, match=late):
        environment.step("7")
    environment.close()


def test_what_a_function_prints_is_told_with_its_refused_request(capsys):
    before = sys.stdout
    said = r"without a request to the model: it printed: planning(?s:.*)no answer(?s:.*)refused"
    with pytest.raises(InputError, match=said):
        begun("prints_then_ends")
    with pytest.raises(InputError, match=r"ValueError: odd(?s:.*)it printed: planning(?s:.*)no answer(?s:.*)refused"):
        begun("prints_then_raises")
    environment, _ = begun("prints_and_goes_on")
    last = environment.step("7")
    assert "not held to a form" in last.info["refused"][0]
    assert last.info["printed"] == "aside\nplanning\nno answer"
    environment.close()
    environment, _ = begun("prints_and_sulks", timeout=0.8)
    with pytest.raises(TimeoutError, match=r"not at its end; it printed: planning\nno answer; its last request was"):
        environment.step("7")
    environment.close()
    print("of somebody else")
    assert "planning" in capsys.readouterr().out, "it is printed all the same"
    deadline = time.monotonic() + 30
    while sys.stdout is not before and time.monotonic() < deadline:  # until the last of them has ended
        time.sleep(0.01)
    assert sys.stdout is before


COMMAND = """
    import os, sys, time, urllib.error, urllib.request
    print("planning", flush=True)
    key, url = os.environ["ANTHROPIC_API_KEY"], os.environ["ANTHROPIC_BASE_URL"]
    request = urllib.request.Request(url + "/v1/messages", sys.argv[1].encode(), {"x-api-key": key})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        print("no answer:", error.code, flush=True)
    THEN
"""


@pytest.mark.parametrize(
    ("then", "error", "message"),
    [
        ("pass", InputError, "ended without a request to the model: it printed: planning\nno answer: 400"),
        ("sys.exit(3)", InputError, "ended without a request to the model: exit code 3: planning\nno answer: 400"),
        ("sys.exit('odd')", InputError, "exit code 1: odd"),
        ("time.sleep(60)", TimeoutError, "within 3 seconds: exit code -9: planning\nno answer: 400"),
    ],
)
def test_a_commands_own_output_is_told(tmp_path, then, error, message):
    file = tmp_path / "agent.py"
    file.write_text(textwrap.dedent(COMMAND).replace("THEN", then))
    task = program(f"{sys.executable} {file} '{{}}'", timeout=3)
    environment = task.environment()
    with pytest.raises(error) as caught:
        environment.reset(SUM, 0)
    assert message in str(caught.value)
    assert "its last request was refused: 'max_tokens' is missing" in str(caught.value)
    environment.close()


@pytest.mark.parametrize(
    "function", ["answer_once", "through_responses", "through_messages", "set_variable_quiet_to_false"]
)
def test_a_runs_variables_hold_unless_a_program_sets_them(function):
    """Programs of every protocol have the prompt of `model.chat_template_kwargs`."""
    policy = chatting("{{ '<quiet>' if quiet }}" + TOOLS)
    set_defaults(policy.tokenizer, {"quiet": True})
    options = {"max_turns": 3, "max_new_tokens": 4, "history": "append"}
    episodes = play(policy, program(f"{PROGRAMS}:{function}").environment, [Start(SUM, 0)], **options)
    assert not episodes.failures
    text = "".join(policy.tokenizer.convert_ids_to_tokens(episodes.rollout.prompt_ids[0]))
    assert text.endswith("<|user|>3+4=<eos><|assistant|>")
    assert text.startswith("<quiet>") == (function != "set_variable_quiet_to_false")


def test_variables_of_the_template_are_trained_with():
    """A program's `chat_template_kwargs` reach the prompt, and what the template has not fails in words."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '<quiet>' if quiet }}{% endif %}"
    )
    policy = chatting(template)
    for name, begins in (("quiet", "<|user|>3+4=<eos><|assistant|><quiet>"), ("quite", None)):
        file = f"{PROGRAMS}:set_variable_{name}"
        episodes = play(
            policy, program(file).environment, [Start(SUM, 0)], max_turns=3, max_new_tokens=4, history="append"
        )
        if begins is None:
            assert "no variable 'quite' to set" in episodes.failures[0].what
        else:
            assert not episodes.failures
            text = "".join(policy.tokenizer.convert_ids_to_tokens(episodes.rollout.prompt_ids[0]))
            assert text == begins
            later = "".join(policy.tokenizer.convert_ids_to_tokens(episodes.rollout.response_ids[0]))
            assert later.count("<|assistant|><quiet>") == 1  # in the second turn, too
