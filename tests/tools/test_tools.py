"""Tools: schemas, calls in text, checks of arguments, limits, what is remembered, environments and tasks."""

import json
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.envs.check import check_environment
from grouprl.envs.playing import total_reward
from grouprl.rewards import check_reward, exact_match, score
from grouprl.sandbox import SandboxSettings
from grouprl.tasks import Example, PythonToolTask, load_task
from grouprl.tools import (
    FORMS,
    Call,
    Malformed,
    PythonTool,
    Result,
    Said,
    Toolbox,
    ToolEnvironment,
    as_tool,
    tool,
)
from grouprl.tools.python import python
from tools_at_hand import CALLS, add, count, describe, misbehave

JSON, COMPACT = FORMS["json"], FORMS["compact"]


@pytest.fixture(scope="module")
def box():
    made = Toolbox([add, count, describe, misbehave])
    yield made
    made.close()


def called(box, name, **arguments):
    return box.call(Call(name, arguments))


def test_a_schema_says_what_the_signature_and_the_docstring_say():
    schema = as_tool(add).schema
    assert schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.\n\nMore about it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "first": {"type": "integer", "description": "one number"},
                    "second": {"type": "integer", "description": "the other one", "default": 10},
                },
                "required": ["first"],
            },
        },
    }
    nested = as_tool(describe).schema["function"]["parameters"]
    assert nested["properties"]["kind"] == {"type": "string", "enum": ["short", "long"], "default": "short"}
    assert nested["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert nested["$defs"]["Place"]["properties"]["floor"] == {"type": "integer", "default": 0}


def test_arguments_may_have_names_that_mean_something_to_pydantic():
    def odd(schema: int, model_config: str, title: str = "t", copy: int = 0) -> str:
        """Do it."""
        return f"{schema} {model_config} {title} {copy}"

    made = as_tool(odd)
    assert set(made.schema["function"]["parameters"]["properties"]) == {"schema", "model_config", "title", "copy"}
    result = Toolbox([tool(seconds=None)(odd)]).call(Call("odd", {"schema": 1, "model_config": "m", "copy": 2}))
    assert result == Result("odd", "1 m t 2")


def untyped(a) -> int:
    """Do it."""
    return a


def silent(a: int) -> int:
    return a


def starred(*a: int) -> int:
    """Do it."""
    return len(a)


def wrong(first: int) -> int:
    """Do it.

    Args:
        frist: a number
    """
    return first


def unknown(a: "Nowhere") -> int:  # noqa: F821
    """Do it."""
    return a


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, "argument 'a' of the tool 'untyped' has no type"),
        (silent, "'silent' has no docstring"),
        (starred, "Every argument of a tool needs a name"),
        (wrong, "describes 'frist'.*Did you mean 'first'"),
        (unknown, "types of the tool 'unknown' cannot be read"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_in_words(function, words):
    with pytest.raises(InputError, match=words):
        as_tool(function)


def test_a_toolbox_needs_tools_of_different_names():
    for tools in ([], [add, add]):
        with pytest.raises(InputError, match="names must differ"):
            Toolbox(tools)
    with pytest.raises(InputError, match="seconds"):
        tool(seconds=0)(silent)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", Said(answer="")),
        (" 42 \n", Said(answer="42")),
        (
            'so <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
            Said((Call("add", {"a": 1}),)),
        ),
        (
            '<tool_call>{"name": "a"}</tool_call>, <tool_call>{"name": "b", "arguments": "{\\"x\\": 1}"}</tool_call>',
            Said((Call("a", {}), Call("b", {"x": 1}))),
        ),
    ],
)
def test_json_calls(text, said):
    assert JSON.read(text) == said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<tool_call>", "<tool_call> without </tool_call>"),
        ("</tool_call>", "</tool_call> without <tool_call>"),
        ("<tool_call></tool_call>", "the call is not JSON"),
        ("<tool_call>{</tool_call>", "the call is not JSON"),
        ('<tool_call>{"name": "a", "arguments": "{"}</tool_call>', "the call is not JSON"),
        ("<tool_call>[1]</tool_call>", 'object with a "name"'),
        ('<tool_call>{"name": 1}</tool_call>', 'object with a "name"'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '"arguments" of the call are not an object'),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "the call is not JSON"),
        ("<tool_call>" + "1" * 10_000 + "</tool_call>", "the call is not JSON"),
    ],
)
def test_malformed_json_calls(text, what):
    (found,) = JSON.read(text).calls
    assert isinstance(found, Malformed)
    assert what in found.what
    assert len(found.what) <= 200


def test_one_malformed_call_does_not_hide_another():
    read = JSON.read('<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}')
    assert read.calls == (Call("a", {}), Malformed("<tool_call> without </tool_call>"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=42", Said(answer="42")),
        ("=", Said(answer="")),
        ("add(1,2)", Said((Call("add", "1,2"),))),
        (" add(1,2); ", Said((Call("add", "1,2"),))),
        ("p((1+2)*3)", Said((Call("p", "(1+2)*3"),))),
        ("now()", Said((Call("now", ""),))),
    ],
)
def test_compact_calls(text, said):
    assert COMPACT.read(text) == said


@pytest.mark.parametrize("text", ["", "42", "add(1,2", "add 1", "(1)", "add(1)2", "1add(2)"])
def test_malformed_compact_calls(text):
    assert isinstance(COMPACT.read(text).calls[0], Malformed)


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "add"',
        ', "arguments": {',
        '"a": 1',
        "}",
        "}}",
        "[",
        "=",
        "add(",
        ")",
        ";",
    ]
)


@given(st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=12).map("".join)))
def test_every_text_is_calls_or_an_answer(text):
    for form in FORMS.values():
        said = form.read(text)
        assert (said.answer is None) == bool(said.calls)
        assert all(isinstance(call, (Call, Malformed)) for call in said.calls)


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), st.text(alphabet="abc {}\n", max_size=10))
def test_what_is_written_is_read_again(name, arguments, thought):
    text = thought + JSON.write(name, arguments) + thought
    if "<tool_call>" not in json.dumps(arguments) and "</tool_call>" not in json.dumps(arguments):
        assert JSON.read(text) == Said((Call(name, arguments),))


@given(NAMES, st.lists(st.integers(), max_size=3))
def test_compact_calls_are_read_again(name, numbers):
    written = COMPACT.write(name, {f"x{i}": n for i, n in enumerate(numbers)})
    assert COMPACT.read(written) == Said((Call(name, ",".join(map(str, numbers))),))
    assert COMPACT.read(COMPACT.answer(name)) == Said(answer=name)


def test_arguments_are_checked_and_converted(box):
    assert called(box, "add", first="2", second=3) == Result("add", "5")
    assert called(box, "add", first=2) == Result("add", "12")
    assert box.call(Call("add", "2, 3")) == Result("add", "5")
    assert box.call(Call("add", "2")) == Result("add", "12")
    described = called(box, "describe", place={"city": "Bern"}, kind="long", tags=["a"])
    assert json.loads(described.text) == {"city": "Bern", "floor": 0, "kind": "long", "tags": ["a"]}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("add", {}), "add: first: Field required"),
        (Call("add", {"first": "two"}), "add: first: Input should be a valid integer"),
        (Call("add", {"first": 1, "third": 2}), "add: third: Extra inputs are not permitted"),
        (Call("add", "1,2,3"), "add: second: Input should be a valid integer"),
        (Call("add", ""), "add: first: Field required"),
        (Call("describe", {"place": {}}), "describe: place.city: Field required"),
        (Call("ad", {}), "there is no tool 'ad'. Did you mean 'add'?"),
        (Malformed("broken"), "broken"),
    ],
)
def test_calls_that_do_not_fit_are_malformed(box, call, words):
    result = box.call(call)
    assert result.status == "malformed"
    assert result.text.startswith(words)


def test_results_of_pure_tools_are_remembered():
    CALLS.clear()
    box = Toolbox([count])
    texts = [box.call(Call("count", {"word": word})).text for word in ("a", "b", "a")]
    assert (texts, CALLS, box.hits) == (["1", "2", "1"], ["a", "b"], 1)
    assert pickle.loads(pickle.dumps(box)).call(Call("count", "a")).text == "3"


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ("well", "ok", "did well in a worker"),
        ("raise", "error", "error: ValueError: no good"),
        ("say", "error", "error: in words"),
        ("exit", "error", "error: SystemExit: 3"),
        ("die", "error", "error: the tool's process ended by itself with exit code 7"),
        ("print", "ok", "did print in a worker"),
        ("fork", "ok", "did fork in a worker"),
        ("forge", "error", "error: the tool's process sent something that is not a result"),
        ("sleep", "timeout", "error: no result within 0.5 s"),
    ],
)
def test_whatever_a_tool_does_is_an_observation(box, how, status, text):
    result = called(box, "misbehave", how=how)
    assert result.status == status, result
    assert result.text.startswith(text)
    assert "Traceback" not in result.text
    assert called(box, "misbehave", how="well") == Result("misbehave", "did well in a worker")


def test_a_late_tool_is_ended():
    box = Toolbox([misbehave])
    assert called(box, "misbehave", how="well").status == "ok"
    process = box._worker._worker._held[0].child
    began = time.monotonic()
    assert called(box, "misbehave", how="sleep").status == "timeout"
    assert time.monotonic() - began < 10
    assert process.poll() is not None
    box.close()


def test_long_results_are_cut_and_traces_shown_when_asked_for():
    box = Toolbox([misbehave], traces=True, longest=100)
    assert called(box, "misbehave", how="long").text == "y" * 99 + "…"
    assert called(box, "misbehave", how="raise").text.startswith("Traceback (most recent call last)")
    box.close()


SHARED = Toolbox([add, count, misbehave])


def began(form="json", max_turns=4, prompt="1+2?", **columns):
    environment = ToolEnvironment(SHARED, exact_match, form=form, max_turns=max_turns)
    return environment, environment.reset(Example("q", prompt, columns), 0)


def test_an_episode_of_calls_and_an_answer():
    environment, first = began(answer="3")
    assert first.text.endswith("\n\n1+2?")
    assert '"name": "add"' in first.text
    assert first.messages == ({"role": "user", "content": "1+2?"},)
    assert [schema["function"]["name"] for schema in first.tools] == ["add", "count", "misbehave"]
    step = environment.step("I add. " + JSON.write("add", {"first": 1, "second": 2}))
    assert (step.observation.text, step.valid) == ("\n<tool_response>\n3\n</tool_response>\n", True)
    assert step.observation.messages == ({"role": "tool", "name": "add", "content": "3"},)
    two = environment.step(JSON.write("nothing", {}) + JSON.write("misbehave", {"how": "raise"}))
    assert two.observation.text.count("<tool_response>") == 2
    assert not two.valid
    last = environment.step(" 3\n")
    assert (last.reward, last.terminated) == (1.0, True)
    counts = {"#tool_calls": 2.0, "#used_results": 1.0, "#malformed_calls": 1.0, "#failed_calls": 1.0}
    assert environment.score() == {"correct": 1.0, **counts}
    environment.close()
    environment.close()


def test_a_result_is_used_once_by_a_later_call_or_the_answer_and_not_by_the_call_it_came_from():
    environment, _ = began(answer="10")
    environment.step(JSON.write("add", {"first": 3, "second": 0}))
    assert environment.score()["#used_results"] == 0.0
    environment.step(JSON.write("add", {"first": 3, "second": 7}))
    assert environment.score()["#used_results"] == 1.0
    environment.step("no idea")
    assert environment.score()["#used_results"] == 1.0
    other, _ = began(answer="10")
    other.step(JSON.write("add", {"first": 3, "second": 7}))
    other.step("It is 10, since 3 + 7 = 10")
    assert other.score()["#used_results"] == 1.0


def test_chat_prompts_keep_their_messages():
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2?"})
    _, first = began(prompt=messages, answer="3")
    assert first.messages == messages
    assert first.text.endswith("Be brief.\n\n1+2?")


def test_an_episode_in_the_compact_form():
    environment, first = began("compact", answer="3")
    assert (first.text, first.state, first.messages, first.tools) == ("1+2?", "-", (), ())
    texts = [environment.step(text).observation.text for text in ("add(1,2)", "add(1", "misbehave(raise)")]
    assert texts == ["3>", "!>", "!>"]
    step = environment.step("=4")
    assert (step.reward, step.terminated, environment.score()["correct"]) == (0.0, True, 0.0)


def test_episodes_are_cut_off_and_single_use():
    environment, _ = began("compact", max_turns=2, answer="3")
    assert [environment.step("add(1)").truncated for _ in range(2)] == [False, True]
    with pytest.raises(InputError, match="one episode"):
        environment.step("=3")
    with pytest.raises(InputError, match="one episode"):
        environment.reset(Example("q", ""), 0)


def test_equal_histories_are_equal_states():
    def states(*actions):
        environment, first = began("compact", max_turns=9, answer="3")
        return [first.state] + [environment.step(action).observation.state for action in actions]

    assert states("add(1,2)", "x") == states("add(1,2)", "x")
    assert states("add(1,2)")[-1] != states("add(2,1)")[-1]
    assert len(set(states("add(1,2)", "add(1,2)", "x"))) == 4


def test_a_reward_that_fails_is_not_a_zero():
    environment, _ = began("compact")  # without the column that exact_match needs
    with pytest.raises(InputError, match="needs the column 'answer'"):
        environment.step("=3")


FILE = '''
from grouprl.tools import tool

@tool(pure=True)
def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b

def half(a: int) -> float:
    """Halve."""
    return a / 2
'''


EXPERT = """
def expert(prompt, results, rng, answer):
    if results:
        return f"=|{results[-1].text}"
    a, b = (int(number) for number in prompt[:-1].split("*"))
    return f"times({a},{b})"

def mute(prompt, results, rng, answer):
    return None
"""


def test_tools_of_a_file_beside_the_questions_of_another_task(tmp_path):
    file = tmp_path / "my_tools.py"
    file.write_text(FILE)
    spec = {"name": f"tools:{file}:times,half", "of": {"name": "multiplication", "level": 1}, "form": "compact"}
    task = load_task(spec, seed=3)
    example = task.example("train", 5)
    assert example == load_task({"name": "multiplication", "level": 1}, seed=3).example("train", 5)
    a, b = map(int, example.prompt[:-1].split("*"))
    right = example.columns["answer"]
    assert task.reward(f"times({a},{b})\n=|{right}", **example.columns) == 1
    assert task.reward(f"half({a})\n=|1{right}", **example.columns) == 0
    assert task.reward(task.solution(example), **example.columns) == 1
    assert task.fingerprint() != load_task(spec, seed=4).fingerprint()
    task._toolbox.close()


def test_an_expert_demonstrates_calls_and_answers(tmp_path):
    file = tmp_path / "my_tools.py"
    file.write_text(FILE + EXPERT)
    of = {"name": "multiplication", "level": 1}
    spec = {"name": f"tools:{file}:times", "of": of, "form": "compact", "expert": f"{file}:expert"}
    task = load_task(spec)
    example = task.example("train", 0)
    environment = task.environment()
    environment.reset(example, 0)
    a, b = (int(number) for number in example.prompt[:-1].split("*"))
    call = environment.demonstrate(random.Random(0))
    assert call == f"times({a},{b})"
    assert environment.step(call).observation.text == f"{a * b}>"
    last = environment.step(environment.demonstrate(random.Random(0)))
    assert (last.reward, last.terminated) == (1.0, True)
    assert not hasattr(load_task({**spec, "expert": None}).environment(), "demonstrate")
    assert task.needs_clock
    mute = load_task({**spec, "expert": f"{file}:mute"}).environment()
    mute.reset(example, 0)
    with pytest.raises(InputError, match="A demonstrated turn is a text"):
        mute.demonstrate(random.Random(0))
    task._toolbox.close()


@pytest.mark.parametrize(
    ("path", "of", "words"),
    [
        ("{}:nothing", "addition", "no 'nothing'"),
        ("{}:times,times", "addition", "names must differ"),
        ("{}:times", "guess", "environment of its own"),
        ("{}:times", "additoin", "no task 'additoin'"),
        ("nowhere.py:times", "addition", "does not exist"),
    ],
)
def test_tools_that_cannot_be_had_are_refused(tmp_path, path, of, words):
    file = tmp_path / "my_tools.py"
    file.write_text(FILE)
    with pytest.raises(InputError, match=words):
        load_task({"name": "tools:" + path.format(file), "of": of})


def test_python_as_a_tool():
    assert python("1 + 1") == "2"
    assert python("x = 3\nprint(x, x)") == "3 3"
    assert python("```python\nprint(5)\n```") == "5"
    box = Toolbox([python, PythonTool(SandboxSettings(seconds=0.5), "quick")])
    assert box.call(Call("python", {"code": "1/0"})) == Result(
        "python", "error: ZeroDivisionError: division by zero", "error"
    )
    assert box.call(Call("quick", "while True: pass")).text == "error: timeout"
    assert box.call(Call("python", "x = = 1")).text == "error: SyntaxError: invalid syntax"
    assert box.call(Call("python", "open('/etc/passwd').read()")).status == "error"
    assert pickle.loads(pickle.dumps(box)).schemas == box.schemas


@pytest.mark.parametrize("level", range(1, 7))
def test_the_task_python_tool(level):
    task = load_task({"name": "python_tool", "level": level})
    for index in range(50):
        example = task.example("train", index)
        expression, answer = example.columns["expression"], example.columns["answer"]
        assert eval(expression) == int(answer) >= 0
        assert max(len(f"p({expression})"), len(answer) + 1) + 1 <= task.max_new_tokens
        assert len(answer) <= task._toolbox.longest
        for text in (example.prompt, task.solution(example), f"p({expression})", answer + ">"):
            assert set(text) <= set(task.alphabet)
    assert check_reward(task.reward, task.reward_examples()) == 4
    assert task.reward(f"p({expression})\n={answer}", **example.columns) == 1


def test_demonstrations_of_the_python_tool_are_imperfect():
    task = PythonToolTask(digits=1, operations=1)
    examples = [task.example("train", index) for index in range(100)]
    shown = [task.demonstration(example, 0) for example in examples]
    scores = score(task.reward, shown, [q.columns for q in examples], ids=[q.id for q in examples])
    assert 0.3 < scores.reward_b.mean() < 0.85
    assert set("".join(shown)) <= set(task.alphabet + "\n")
    perfect = PythonToolTask(digits=1, operations=1, noise=0)
    assert all(perfect.reward(perfect.demonstration(q, 0), **q.columns) == 1 for q in examples[:20])
    assert task._toolbox.hits > 0


def test_the_environment_of_the_python_tool_keeps_the_rules():
    task = PythonToolTask(digits=1, operations=1)
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=24)
    assert report.problems == ()
    assert total_reward(task.environment(), task.example("train", 0), ["p(", "p(1", "p()"]) == 0


def test_the_page_about_tools_is_true(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_tools.py").write_text(code)
    (tmp_path / "questions.jsonl").write_text("\n".join(f'{{"prompt": "p{n}", "answer": {n}}}' for n in range(20)))
    written = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["task"]
    spec = written | {
        "name": written["name"].replace("my_tools.py", str(tmp_path / "my_tools.py")),
        "of": written["of"] | {"name": f"jsonl:{tmp_path / 'questions.jsonl'}"},
    }
    task = load_task(spec)
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    call = page.partition("thinking:\n\n```\n")[2].partition("\n```")[0]
    assert environment.step(call).observation.text == "\n<tool_response>\n8\n</tool_response>\n"
    failed = environment.step(JSON.write("price", {"item": "plum"}))
    assert failed.observation.messages[0]["content"] == "error: there is no plum"
    answer = str(task.example("train", 0).columns["answer"])
    assert environment.step(answer).reward == 1
    compact = load_task(spec | {"form": "compact"}).environment()
    compact.reset(task.example("train", 0), 0)
    assert compact.step("price(pear,2)").observation.text == "8>"


def test_the_recipes_of_tools_and_code_are_whole():
    for name in ("python_tool", "code"):
        config = load_config(name)
        assert load_task(config.task).example("eval", 0).level in (1, 2)


@tool(seconds=None)
def echo(value: Any) -> Any:
    """Return what it is given.

    Args:
        value: anything.
    """
    if value == "raise":
        raise ValueError(Unspeakable())
    return value


class Unspeakable:
    def __str__(self):
        raise RuntimeError("not this either")


ODD = ["\ud800", "a\udfffb", "\0", "a\0b", "\udcff" * 5000]


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_a_result_that_cannot_be_encoded_is_a_failed_call(text):
    result = Toolbox([echo]).call(Call("echo", {"value": text}))
    assert result.status == "error"
    assert "cannot be shown" in result.text
    result.text.encode()
    for call in (Call(text, {}), Call("echo", {text: 1}), Call("echo", text), Malformed(text)):
        found = Toolbox([echo]).call(call)
        (found.name + found.text).encode()
    assert "\0" not in Toolbox([echo]).call(Call("echo", {"value": text})).text


def test_a_result_outside_the_alphabet_is_a_failed_call():
    box = Toolbox([echo], alphabet="0123456789!>", longest=6)
    assert box.call(Call("echo", "12")).status == "ok"
    for text in ("1.5", "True", "1234567", "é", " "):
        assert box.call(Call("echo", {"value": text})).status == "error"
    assert pickle.loads(pickle.dumps(box)).call(Call("echo", {"value": "x"})).status == "error"


def test_errors_without_a_message_and_nested_arguments_are_failed_calls():
    box = Toolbox([echo, tool(pure=True, seconds=None)(add)])
    assert box.call(Call("echo", "raise")).text.startswith("error: ValueError: its message raised RuntimeError")
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for name in ("echo", "add"):
        assert box.call(Call(name, {"value": deep})).status in ("error", "malformed")
    while deep:
        deep = deep.pop()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["json", "compact"]))
def test_no_turn_makes_the_environment_raise(text, form):
    environment = ToolEnvironment(Toolbox([echo, add]), exact_match, form=form, max_turns=3)
    environment.reset(Example("q", "?", {"answer": "3"}), 0)
    for turn in (text, f"<tool_call>{text}</tool_call>", f"echo({text})"):
        step = environment.step(turn)
        step.observation.text.encode()
        if step.terminated or step.truncated:
            return


def test_a_turn_of_endless_calls_is_cut():
    environment, _ = began(answer="3")
    step = environment.step(JSON.write("add", {"first": 1, "second": 2}) * 1000)
    assert step.observation.text.count("<tool_response>") == 65
    assert "at most 64 calls" in step.observation.text
    assert not step.valid


@pytest.mark.parametrize("said", ["9**999", "1/2", "True", "'x'", "chr(0)", "chr(55296)", "1e999", "[1]", "print('é')"])
def test_what_python_says_beside_the_alphabet_is_a_failed_call(said):
    task = PythonToolTask(digits=1, operations=1)
    environment = task.environment()
    example = task.example("train", 0)
    environment.reset(example, 0)
    step = environment.step(f"p({said})")
    assert step.observation.text == "!>"
    assert environment.score()["#failed_calls"] == 1
    assert set(step.observation.text) <= set(task.alphabet)
    assert environment.step(task.solution(example)).reward == 1
