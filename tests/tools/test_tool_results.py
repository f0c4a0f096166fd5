"""What tools return and how they fail, in words that are the same in every run; how many calls a turn may hold."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pydantic
import pytest

from grouprl.chat.turn_content import Call
from grouprl.core.errors import InputError, MissingExtra
from grouprl.rewards import exact_match
from grouprl.tasks import Example, load_task
from grouprl.tools import FORMS, Toolbox, ToolEnvironment, ToolError, tool
from grouprl.tools.attempt import shown


@dataclass
class Place:
    name: str
    near: tuple[str, ...] = ()


class Record(pydantic.BaseModel):
    size: int


class Bare:
    def __init__(self) -> None:
        self.width, self._secret = 3, 4


class Spoken:
    def __str__(self) -> str:
        return "in my own words"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Place("hill", ("sea",)), '{"name": "hill", "near": ["sea"]}'),
        ([Place("a")], '[{"name": "a", "near": []}]'),
        (Record(size=2), '{"size": 2}'),
        ({"b", "a", "c"}, '["a", "b", "c"]'),
        (frozenset({3, 1}), "[1, 3]"),
        (Bare(), '{"width": 3}'),
        (SimpleNamespace(a=1), "namespace(a=1)"),
        (Spoken(), '"in my own words"'),
        (np.array([1, 2]), "[1, 2]"),
        (np.float64(0.5), "0.5"),
        ("text", "text"),
        (None, "null"),
    ],
)
def test_a_result_is_shown_by_its_fields(value: object, text: str) -> None:
    assert shown(value).strip('"') == text.strip('"')


@pytest.mark.parametrize("value", [object(), lambda: 1, (i for i in "a"), [object()], {"a": object()}])
def test_a_result_that_says_nothing_of_itself_is_a_failed_call(value: object) -> None:
    @tool(seconds=None)
    def give() -> object:
        """Give it."""
        return value

    result = Toolbox([give]).call(Call("give", {}))
    assert "0x" not in result.text
    if result.status != "ok":
        assert "has no text of its own: a tool returns a text" in result.text


def test_arguments_written_as_text_get_the_types_of_the_schema() -> None:
    @tool(seconds=None)
    def show(count: int, name: str, many: list[int], maybe: str | None = None) -> str:
        """Show them."""
        return repr((count, name, many, maybe))

    text = FORMS["glm"].write("show", {"count": 2, "name": "5", "many": [1, 2], "maybe": "7"})
    (call,) = FORMS["glm"].read(text).calls
    assert Toolbox([show]).call(call).text == "(2, '5', [1, 2], '7')"


@tool(seconds=None)
def one() -> int:
    """Return one."""
    return 1


@pytest.mark.parametrize("form", ["hermes", "mistral", "pythonic", "llama"])
def test_a_turn_holds_so_many_calls_and_no_more(form: str) -> None:
    environment = ToolEnvironment(Toolbox([one]), exact_match, form=form, max_calls=3)
    environment.reset(Example("q", "?", {"answer": "1"}), 0)
    step = environment.step(FORMS[form].write_all([Call("one", {})] * 1000))
    assert [message["content"] for message in step.observation.messages] == [
        *("1", "1", "1"),
        "997 calls were not made: a turn has at most 3 calls",
    ]
    assert not step.valid
    assert environment.score()["#tool_calls"] == 3


def test_a_tool_of_the_main_script_is_named_as_a_tool(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from grouprl.chat.turn_content import Call\nfrom grouprl.tools import Toolbox\n\n\n"
        'def mine(x: int) -> int:\n    """Do it."""\n    return x\n\n\n'
        "try:\n    Toolbox([mine]).call(Call('mine', {'x': 1}))\nexcept Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("The tool mine uses 'mine' of the main script")
    assert "reward" not in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mpe.simple_spread_v3", "pip install mpe2, and name it mpe2.simple_spread_v3"),
        ("magent.battle_v4", "pip install magent2, and name it magent2.battle_v4"),
        ("butterfly.pistonball_v6", r"pip install 'pettingzoo\[butterfly\]'"),
        ("atari.pong_v3", r"pip install 'pettingzoo\[atari\]'"),
        ("nowhere_at_all.game_v1", "pip install nowhere_at_all where that package has it"),
    ],
)
def test_a_missing_game_is_told_where_to_be_had(name: str, words: str) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[agents]'")
    with pytest.raises((InputError, MissingExtra), match=words):
        load_task(f"pettingzoo:{name}")


def test_a_server_that_writes_to_its_standard_error_is_not_heard(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed: pip install 'grouprl[agents]'")
    from grouprl.tools.mcp import McpServer

    counter = Path(__file__).parents[1] / "support" / "mcp_counter.py"
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import sys\nprint('Failed to validate request: 1 validation error\\n' * 100, file=sys.stderr)\n"
        f"exec(compile(open({str(counter)!r}).read(), {str(counter)!r}, 'exec'))\n"
    )
    server = McpServer(f"{sys.executable} {noisy}")
    try:
        assert "add" in [each.name for each in server.tools()]
    finally:
        server.close()
    assert "validation error" not in capfd.readouterr().err
    (tmp_path / "dead.py").write_text("raise SystemExit('no key for the service')")
    with pytest.raises(InputError, match="no key for the service"):
        McpServer(f"{sys.executable} {tmp_path / 'dead.py'}").tools()


def test_an_error_of_a_tool_is_its_message() -> None:
    @tool(seconds=None)
    def refuse() -> int:
        """Refuse."""
        raise ToolError("not today")

    assert Toolbox([refuse]).call(Call("refuse", {})).text == "error: not today"
