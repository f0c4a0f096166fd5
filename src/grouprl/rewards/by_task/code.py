"""A reward for programs: they run in the sandbox, and their results are compared outside it.

The program receives the inputs of the tests but never the expected results, so nothing that it prints, writes or
pretends can pass for a right result, except the right result. Each call's result leaves the sandbox through a pipe
before the next call begins, so nothing that happens later can change it.
"""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grouprl.core.errors import InputError, RunError
from grouprl.rewards import clock
from grouprl.rewards.by_task.structured import strict_json
from grouprl.rewards.contract import Crowded, known_examples

if TYPE_CHECKING:
    from grouprl.core.json_types import JsonObject
    from grouprl.sandbox import ProgramOutcome, SandboxSettings

FENCED = re.compile(r"```(?:python3?|py3?)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
COMPILED_HERE = 4_000
"""The longest program, in characters, that this process compiles: the time may grow quadratically with the length."""
LONGEST = 1 << 20
"""The longest program that the sandbox runs, in characters."""
SPENT, WAITED = 0.5, 0.9
"""The shares of the reward's time limit that programs may spend running, and running plus waiting for a processor; the
rest is for starting and ending them."""
PATIENCE = 8.0
"""The factor from running time to running plus waiting time, for a reward without a time limit."""
SHORTEST = 0.05
"""Seconds that must be left for another test to begin."""
WHOLE = 2.0**53
"""The size from which floats no longer hold every integer, so whole floats are compared like other floats."""
HARNESS = """
import json, os, sys, types
def report(out, dumps, write, function):
    with open("inputs.json") as file:
        inputs = json.load(file)
    module = sys.modules["answer"] = types.ModuleType("answer")
    with open("answer.py", encoding="utf-8") as file:
        exec(compile(file.read(), "answer.py", "exec"), module.__dict__)
    for arguments in inputs:
        try:
            line = dumps({"result": module.__dict__[function](*arguments)}, allow_nan=False)
        except Exception as error:
            line = dumps({"error": type(error).__name__})
        rest = (line + "\\n").encode()
        while rest:
            rest = rest[write(out, rest):]
pipe, nothing = os.dup(1), os.open("/dev/null", os.O_WRONLY)
for stream in (1, 2):
    os.dup2(nothing, stream)
report(pipe, json.dumps, os.write, sys.argv[1])
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
    tests: Sequence[Mapping[str, object]] | str,
    function: str = "",
    sandbox: Mapping[str, object] | SandboxSettings | None = None,
    partial: bool = False,
) -> dict[str, float]:
    """Return 1 iff the program passes all tests; with `partial` the share that it passes.

    Args:
        completion: a text that holds the program: its last fenced block, or all of it if there is none.
        tests: {"stdin", "stdout"} for programs that read and print, {"arguments", "result"} for those that define
            `function`; a list, or the same as JSON. Results are compared as JSON.
        function: the name of the function that is called.
        sandbox: limits and `allow` (`grouprl.sandbox.SandboxSettings`).
        partial: whether to pay the share of passed tests.

    Whole numbers are compared exactly, other finite floats to nine digits; NaN and infinity equal nothing. `seconds` of
    the sandbox limits each program that reads and prints, and all calls of a function together. All tests get at most
    half of the reward's own time limit; tests that are not finished by then have failed. Time spent waiting for a
    processor does not count.

    Raises:
        InputError: on tests of another form, or if this machine cannot confine programs.
        RunError: if no sandbox can be built or no processor is free: the machine's fault, never the program's.
    """
    settings = _settings(sandbox)
    found = _plain(json.loads(tests) if isinstance(tests, str) else tests, function)
    code = extract_code(completion)
    if not compiles(code):
        passed = [False]
    elif function:
        passed = _call_all(code, found, function, settings)
    else:
        passed = _read_and_print(code, found, settings, partial)
    share = sum(passed) / len(found)
    return {"tests": share if partial else float(share == 1), "correct": float(share == 1)}


def extract_code(completion: str) -> str:
    """Return the last fenced block of a text, or all of it if there is none."""
    blocks = FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def compiles(code: str) -> bool:
    """Return whether code may be Python and is short enough, so that it is worth running.

    Code that is too long to compile here without a time limit is left to the sandbox, which has one.
    """
    if len(code) > COMPILED_HERE:
        return len(code) <= LONGEST
    try:
        with warnings.catch_warnings():  # otherwise warnings would show lines of the code in the terminal
            warnings.simplefilter("ignore")
            compile(code, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _settings(given: Mapping[str, object] | SandboxSettings | None) -> SandboxSettings:
    from grouprl.sandbox import SandboxSettings  # it needs pydantic, which workers of other rewards need not import

    if isinstance(given, SandboxSettings):
        return given
    try:
        return SandboxSettings(**(given or {}))
    except ValueError as error:
        raise InputError(f"The sandbox's settings are {given!r}", str(error)) from error


def _plain(tests: object, function: str) -> list[JsonObject]:
    """Return the tests as JSON values.

    Raises:
        InputError: if they have another form, or expect something that JSON cannot hold, such as infinity.
    """
    keys = {"arguments", "result"} if function else {"stdin", "stdout"}
    if (
        not isinstance(tests, Sequence)
        or isinstance(tests, str)
        or not tests
        or not all(isinstance(t, Mapping) and keys <= set(t) for t in tests)
    ):
        raise InputError(
            f"The tests of a program are {str(tests)[:80]!r}",
            f"at least one is needed, and each has the keys {' and '.join(sorted(keys))}",
            "Name the function that is called as 'function', or leave it out for programs that read and print.",
        )
    try:
        return [json.loads(json.dumps({key: test[key] for key in keys}, allow_nan=False)) for test in tests]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"The tests of a program are {str(tests)[:80]!r}: {error}",
            "arguments and results must be JSON values, which NaN and infinity are not",
            "Correct the column 'tests'",
        ) from error


def _call_all(code: str, tests: Sequence[Mapping[str, object]], function: str, settings: SandboxSettings) -> list[bool]:
    """Call the function on all inputs in one run; results from before a crash count."""
    inputs = json.dumps([test["arguments"] for test in tests])
    harness = f"import sys\nsys.argv[1:] = [{function!r}]\n{HARNESS}"
    files: dict[str, str | bytes] = {"inputs.json": inputs, "answer.py": code.encode(errors="surrogatepass")}
    # Results get as much room as files: they would be files if they were not read immediately.
    roomy = settings.model_copy(update={"output_kb": min(1 << 14, settings.disk_mb << 10)})
    written = _Budget(settings.seconds).run(roomy, harness, files=files).stdout
    results = [_result(line) for line in written.split("\n")[: len(tests)]]
    results += [NOTHING] * (len(tests) - len(results))
    return [same(found, test["result"]) for found, test in zip(results, tests, strict=True)]


def _read_and_print(
    code: str, tests: Sequence[Mapping[str, object]], settings: SandboxSettings, partial: bool
) -> list[bool]:
    """Run the program on every input in turn; without `partial`, stop at the first failure."""
    budget, passed = _Budget(settings.seconds * len(tests)), []
    for test in tests:
        outcome = None
        if budget.left > SHORTEST:
            outcome = budget.run(settings, code, stdin=str(test["stdin"]))
        good = outcome is not None and outcome.why == "ok" and _lines(outcome.stdout) == _lines(str(test["stdout"]))
        passed.append(good)
        if not good and not partial:
            break
    return passed


class _Budget:
    """The time that all programs of one completion may take together: the settings' limit, within the reward's own.

    Waiting for a busy processor is not counted; only the reward's own time limit ends it.
    """

    def __init__(self, wanted: float) -> None:
        own = clock.left()
        self.left = wanted if own is None else min(wanted, SPENT * own)
        self._end = time.monotonic() + (PATIENCE * wanted if own is None else WAITED * own)

    def run(self, settings: SandboxSettings, code: str, **given: Any) -> ProgramOutcome:
        """Run code within the settings' limit and the remaining budget, and subtract the time it used.

        Raises:
            Crowded: if this machine had no processor for it in time.
            RunError: if no sandbox can be built around the program.
        """
        wanted, wall = min(settings.seconds, self.left), max(0.01, self._end - time.monotonic())
        wall = min(wall, settings.wall or wall)
        seconds = min(wanted, wall)
        outcome = _run(settings.model_copy(update={"seconds": seconds, "wall": wall}), code, **given)
        if outcome.why == "starved" or (outcome.why == "timeout" and seconds < wanted):
            raise Crowded(f"this machine gave a program less than its {wanted:g} s within {outcome.seconds:g} s")
        self.left -= max(0.0, outcome.seconds - outcome.waited)
        return outcome


def _run(settings: SandboxSettings, code: str, **given: Any) -> ProgramOutcome:
    """Run code, and once more if the sandbox failed.

    A program on which the fork server is lost twice has failed: it may be to blame.

    Raises:
        RunError: if no sandbox can be built. That happens before the program's first line, so it is not to blame.
    """
    outcome = settings.run(code, **given)
    if outcome.why == "refused" or outcome.lost:
        outcome = settings.run(code, **given)
    if outcome.why == "refused":
        raise RunError(f"The sandbox could not run a program: {outcome.what}")
    return outcome


NOTHING = object()


def same(found: object, expected: object) -> bool:
    """Return whether two JSON values are equal: whole numbers exactly, other floats to 9 digits, and true is not 1."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        return _same_number(found, expected)
    if isinstance(found, list) and isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, dict) and isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in found)
    return type(found) is type(expected) and bool(found == expected)


def _same_number(found: float, expected: float) -> bool:
    """Return whether two numbers are equal, to 9 digits if both are floats and one has a fraction, else exactly."""
    floats = [value for value in (found, expected) if isinstance(value, float)]
    if not all(map(math.isfinite, floats)):
        return False
    if len(floats) < 2 or all(value.is_integer() and abs(value) < WHOLE for value in floats):
        return found == expected or (isinstance(expected, float) and expected == 0 and abs(found) <= ROUNDED)
    return abs(found - expected) <= max(1e-9 * max(abs(found), abs(expected)), ROUNDED * (expected == 0))


ROUNDED = 1e-12
"""The largest float that counts as equal to 0.0."""


def _result(line: str) -> object:
    """Return the result of a call from its line of output; NOTHING if the line holds no result."""
    try:
        found = strict_json(line)
    except (ValueError, RecursionError):
        return NOTHING
    return found["result"] if isinstance(found, dict) and found.keys() == {"result"} else NOTHING


def _lines(text: str) -> list[str]:
    """Return the lines of a text without trailing white space and trailing empty lines."""
    return [line.rstrip(" \t\r\f\v") for line in text.rstrip(" \t\r\n\f\v").split("\n")]
