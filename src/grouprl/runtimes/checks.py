"""Tests of the files that an agent left in its folder, from outside, after all of its processes have ended.

Expected results never enter a place where the agent's code runs. Files are compared here. The agent's programs run in a
runtime, and their output is compared here; expressions over its modules are computed there, and their values return as
JSON to be compared here. So exiting early, patching a test framework, objects that equal everything, exit handlers and
files that look like verdicts achieve nothing: whatever a process pretends is its answer, and only the right answer
passes. A `script` is your own test and inspects the folder itself; it must run the agent's code as a process and never
import it, because imported code can end the script with any status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pydantic
from pydantic import Field

from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import same_value
from grouprl.runtimes.runtime import Runtime, inside
from grouprl.sandbox.folder import Folder

SECONDS = 10.0
OUTPUT_KB = 256
HARNESS = """
import json, os, sys
def report(out, dumps, write, request):
    sys.path.insert(0, os.getcwd())
    space = {"__name__": "request"}
    exec(request["imports"], space)
    for expression in request["expressions"]:
        try:
            line = dumps({"value": eval(expression, space)}, allow_nan=False)
        except Exception as error:
            line = dumps({"raises": type(error).__name__})
        rest = (line + "\\n").encode()
        while rest:
            rest = rest[write(out, rest):]
pipe, nothing = os.dup(1), os.open("/dev/null", os.O_WRONLY)
request = json.load(sys.stdin)
for stream in (1, 2):
    os.dup2(nothing, stream)
report(pipe, json.dumps, os.write, request)
"""


class _Check(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class FileCheck(_Check):
    """A check of a file in the working folder, or of its absence."""

    kind: Literal["file"] = "file"
    file: str
    """Path of the file."""
    content: str | None = None
    """Expected content, ignoring spaces at line ends and empty lines at the end; None for any."""
    mode: str | None = Field(None, pattern="^[0-7]{3}$")
    """Expected permissions, as for chmod; None for any."""
    absent: bool = False
    """Whether the path must not exist."""

    def passes(self, folder: Folder) -> bool:
        """Return whether the file in the folder is as expected."""
        entry = folder.get(inside(self.file))
        if self.absent or entry is None:
            return self.absent and entry is None
        right = self.content is None or same_text(entry.content.decode(errors="replace"), self.content)
        return entry.kind == "file" and right and self.mode in (None, f"{entry.mode:03o}")


class NamesCheck(_Check):
    """A check of the paths of all files in a folder and its subfolders."""

    kind: Literal["names"] = "names"
    names: str
    """Path of the folder; "." is the working folder itself."""
    are: tuple[str, ...]
    """Expected paths inside it, without folders."""

    def passes(self, folder: Folder) -> bool:
        """Return whether the folder holds exactly the expected paths."""
        head = "" if self.names == "." else f"{inside(self.names)}/"
        found = [path.removeprefix(head) for path, e in folder.items() if e.kind != "folder" and path.startswith(head)]
        return sorted(found) == sorted(self.are)


class RunCheck(_Check):
    """A check of the output of a command that runs in the folder."""

    kind: Literal["run"] = "run"
    run: str | tuple[str, ...]
    """The command, as a list of words or as text for the shell."""
    stdin: str = ""
    stdout: str | None = None
    """Expected output, ignoring spaces at line ends and empty lines at the end; None for any."""
    exit_code: int | None = 0
    """Expected exit status; None for any."""
    seconds: float = Field(SECONDS, gt=0, le=3600)

    def passes_in(self, runtime: Runtime) -> bool:
        """Run the command and return whether its output and exit status are as expected."""
        found = runtime.run(self.run, stdin=self.stdin, seconds=self.seconds, output_kb=OUTPUT_KB)
        ended = not found.stopped and self.exit_code in (None, found.exit_code)
        return ended and (self.stdout is None or same_text(found.stdout, self.stdout))


class ValuesCheck(_Check):
    """A check of the values of expressions over the modules in the folder."""

    kind: Literal["values"] = "values"
    imports: str
    """Python that runs first, such as import statements."""
    values: tuple[tuple[str, Any], ...]
    """Pairs of an expression and its value, as JSON; {"raises": "ValueError"} for one that raises."""
    seconds: float = Field(SECONDS, gt=0, le=3600)

    def passes_in(self, runtime: Runtime) -> bool:
        """Return whether each expression has its expected value."""
        request = {"imports": self.imports, "expressions": [expression for expression, _ in self.values]}
        command = ["python3", "-I", "-c", HARNESS]
        found = runtime.run(command, stdin=json.dumps(request), seconds=self.seconds, output_kb=OUTPUT_KB)
        lines = found.stdout.split("\n")[:-1]
        expected = [value if _raises(value) else {"value": value} for _, value in self.values]
        return len(lines) == len(expected) and all(map(_says, lines, expected))


class ScriptCheck(_Check):
    """A test of your own: it passes if the script ends with exit status 0.

    The script is passed as an argument instead of a file, so nothing in the sandbox can read it.
    """

    kind: Literal["script"] = "script"
    script: str
    language: Literal["python", "bash"] = "python"
    seconds: float = Field(SECONDS, gt=0, le=3600)

    def passes_in(self, runtime: Runtime) -> bool:
        """Return whether the script ends with exit status 0."""
        command = ["python3", "-I", "-c"] if self.language == "python" else ["bash", "--noprofile", "--norc", "-c"]
        found = runtime.run([*command, self.script], seconds=self.seconds, output_kb=OUTPUT_KB)
        return found.ok and not found.stopped


Check = FileCheck | NamesCheck | RunCheck | ValuesCheck | ScriptCheck


def read_checks(plain: Sequence[Mapping[str, object]], where: str = "the tests") -> tuple[Check, ...]:
    """Return checks from plain data.

    Raises:
        InputError: if one of them is not a check, or there are none.
    """
    kinds = (FileCheck, NamesCheck, RunCheck, ValuesCheck, ScriptCheck)
    by_key: dict[str, type[Check]] = {kind.model_fields["kind"].default: kind for kind in kinds}
    if not plain:
        raise InputError(
            f"There are no tests in {where}", "at least one test is needed to tell what is right", "Add one"
        )
    found = []
    for each in plain:
        named = [name for name in by_key if isinstance(each, Mapping) and name in each]
        if len(named) != 1:
            raise InputError(
                f"A test of {where} is {shortened(each)}", f"it must have one of the keys {', '.join(by_key)}"
            )
        try:
            found.append(by_key[named[0]](**each))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            rule = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(f"A test of {where} is {shortened(each)}", rule) from error
    return tuple(found)


def passed(checks: Sequence[Check], folder: Folder, make: Callable[[], Runtime]) -> tuple[bool, ...]:
    """Return which checks pass on a folder; each check that runs something gets a fresh runtime from `make`.

    Raises:
        RuntimeLost: if the runtime fails.
    """
    return tuple(_passed(checks, folder, make))


def _passed(checks: Sequence[Check], folder: Folder, make: Callable[[], Runtime]) -> Iterator[bool]:
    for check in checks:
        if isinstance(check, FileCheck | NamesCheck):
            yield check.passes(folder)
            continue
        runtime = make()
        try:
            runtime.start(folder)
            yield check.passes_in(runtime)
        finally:
            runtime.stop()


def same_text(one: str, other: str) -> bool:
    """Return whether two texts have the same lines, ignoring trailing spaces and trailing empty lines."""
    return [line.rstrip() for line in one.rstrip().splitlines()] == [
        line.rstrip() for line in other.rstrip().splitlines()
    ]


def _says(line: str, expected: object) -> bool:
    try:
        return same_value(json.loads(line), json.loads(json.dumps(expected)))
    except (ValueError, RecursionError):
        return False


def _raises(value: object) -> bool:
    return isinstance(value, dict) and list(value) == ["raises"]
