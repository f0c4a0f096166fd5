"""A reward for programs: they run in the sandbox, and what they return is compared outside of it.

The program learns the inputs of the tests but never the results that are expected, so nothing that it prints, writes
or pretends can stand for a right answer, save the right answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grouprl.errors import InputError
from grouprl.rewards.contract import known_examples

if TYPE_CHECKING:
    from grouprl.sandbox import SandboxSettings

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
RESULTS = "results.jsonl"
HARNESS = """
import json, sys
with open("inputs.json") as file:
    inputs = json.load(file)
namespace = {"__name__": "answer"}
with open("answer.py") as file:
    exec(compile(file.read(), "answer.py", "exec"), namespace)
with open("results.jsonl", "w") as file:
    for arguments in inputs:
        try:
            line = json.dumps({"result": namespace[sys.argv[1]](*arguments)})
        except Exception as error:
            line = json.dumps({"error": type(error).__name__})
        file.write(line + "\\n")
        file.flush()
"""


@known_examples(
    ("```python\nprint(int(input()) + 1)\n```", {"tests": [{"stdin": "2", "stdout": "3"}]}, True),
    ("print(3)", {"tests": [{"stdin": "2", "stdout": "3"}, {"stdin": "5", "stdout": "6"}]}, False),
    ("def f(a, b):\n    return a * b", {"tests": [{"arguments": [2, 3], "result": 6}], "function": "f"}, True),
    ("def f(a, b):\n    return a + b", {"tests": [{"arguments": [2, 3], "result": 6}], "function": "f"}, False),
    ("", {"tests": [{"arguments": [], "result": 1}], "function": "f"}, False),
)
def passes_tests(
    completion: str,
    tests: Sequence[Mapping[str, Any]] | str,
    function: str = "",
    sandbox: Mapping[str, Any] | SandboxSettings | None = None,
    partial: bool = False,
) -> dict[str, float]:
    """Return 1 iff the program passes all tests; with `partial` the share that it passes.

    Args:
        completion: the program: the last fenced block, or the whole text where none is fenced.
        tests: {"stdin", "stdout"} for programs that read and print, {"arguments", "result"} for those that define
            `function`; a list, or the same as JSON. Results are compared as JSON.
        function: the name of the function that is called.
        sandbox: limits and `allow` (`grouprl.sandbox.SandboxSettings`).
        partial: whether some passed tests earn something.

    Raises:
        InputError: on tests of another form, or where this machine cannot contain code.
    """
    settings = _settings(sandbox)
    found = json.loads(tests) if isinstance(tests, str) else tests
    _check_tests(found, function)
    code = extract_code(completion)
    passed = _call_all(code, found, function, settings) if function else _read_and_print(code, found, settings)
    share = sum(passed) / len(passed)
    return {"tests": share if partial else float(share == 1), "correct": float(share == 1)}


def extract_code(completion: str) -> str:
    """Return the last fenced block of a text, or all of it where none is fenced."""
    blocks = FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def compiles(code: str) -> bool:
    """Whether code is Python; what is not need not be run."""
    try:
        compile(code, "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _settings(given: Mapping[str, Any] | SandboxSettings | None) -> SandboxSettings:
    from grouprl.sandbox import SandboxSettings  # pydantic, which workers of other rewards need not import

    if isinstance(given, SandboxSettings):
        return given
    try:
        return SandboxSettings(**(given or {}))
    except ValueError as error:
        raise InputError(f"The sandbox's settings are {given!r}", str(error)) from error


def _check_tests(tests: Any, function: str) -> None:
    keys = {"arguments", "result"} if function else {"stdin", "stdout"}
    if (
        not isinstance(tests, Sequence)
        or not tests
        or not all(isinstance(t, Mapping) and keys <= set(t) for t in tests)
    ):
        raise InputError(
            f"The tests of a program are {str(tests)[:80]!r}",
            f"there is at least one, and each has {' and '.join(sorted(keys))}",
            "Name the function that is called as 'function', or leave it out for programs that read and print.",
        )


def _call_all(code: str, tests: Sequence[Mapping[str, Any]], function: str, settings: SandboxSettings) -> list[bool]:
    """Call the function on all inputs in one run; what it did before it died counts."""
    if not compiles(code):
        return [False] * len(tests)
    inputs = json.dumps([test["arguments"] for test in tests])
    harness = f"import sys\nsys.argv[1:] = [{function!r}]\n{HARNESS}"
    files: dict[str, str | bytes] = {"inputs.json": inputs, "answer.py": code.encode(errors="surrogatepass")}
    written = settings.run(harness, files=files).files.get(RESULTS, b"")
    results = [_result(line) for line in written.decode(errors="replace").splitlines()[: len(tests)]]
    results += [{}] * (len(tests) - len(results))
    return [same(found.get("result", NOTHING), test["result"]) for found, test in zip(results, tests, strict=True)]


def _read_and_print(code: str, tests: Sequence[Mapping[str, Any]], settings: SandboxSettings) -> list[bool]:
    if not compiles(code):
        return [False] * len(tests)
    outcomes = (settings.run(code, stdin=str(test["stdin"])) for test in tests)
    return [
        outcome.why == "ok" and _lines(outcome.stdout) == _lines(str(test["stdout"]))
        for outcome, test in zip(outcomes, tests, strict=True)
    ]


NOTHING = object()


def same(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal: numbers to 9 digits, but true is not 1."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        return found == expected or abs(found - expected) <= 1e-9 * max(abs(found), abs(expected))
    if isinstance(found, list) and isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, dict) and isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in found)
    return type(found) is type(expected) and bool(found == expected)


def _result(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(text: str) -> list[str]:
    """Return lines without white space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
