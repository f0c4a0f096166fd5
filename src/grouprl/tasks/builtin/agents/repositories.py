"""Generated small packages with one bug each: the issue is the prompt, and hidden tests decide the reward."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from grouprl.envs.terminal import PROMPT
from grouprl.records.examples import Columns
from grouprl.tasks.builtin.agents.repository_pieces import PIECES, Arguments, Bug, CodePiece
from grouprl.tasks.builtin.agents.terminal import ShellTask
from grouprl.tasks.builtin.agents.terminal_kinds import WORDS
from grouprl.tasks.registry import register_task

MODULES = ("core", "lists", "texts", "times", "money", "tools", "shapes", "basics")
INPUT_SETS = 3
"""The number of input sets per function; the first set is shown in the package's own tests."""


@dataclass(frozen=True)
class Placed:
    """A function with its name and its place in a package."""

    piece: CodePiece
    name: str
    module: str
    used: str = ""
    """The name of the function that it uses."""

    def source(self, bug: Bug | None = None) -> str:
        """Return the function's source, with a bug or without."""
        text = self.piece.source if bug is None else self.piece.source.replace(bug.right, bug.wrong, 1)
        return text.strip("\n").replace("{f}", self.name).replace("{g}", self.used) + "\n"

    def call(self, arguments: Arguments) -> str:
        """Return a call as an expression."""
        return f"{self.name}({', '.join(map(repr, arguments))})"


@dataclass(frozen=True)
class Package:
    """A package whose last function has the bug."""

    name: str
    placed: tuple[Placed, ...]
    bug: Bug

    @property
    def broken(self) -> Placed:
        """The function with the bug."""
        return self.placed[-1]

    def module_source(self, module: str, broken: bool = True) -> str:
        """Return the source of a module."""
        functions = [each for each in self.placed if each.module == module]
        used = {each.used for each in functions} - {""} - {each.name for each in functions}
        imports = [f"from {self.name}.{p.module} import {p.name}\n" for p in self.placed if p.name in used]
        sources = [each.source(self.bug if broken and each is self.broken else None) for each in functions]
        return "\n\n".join(["".join(imports), *sources] if imports else sources)

    def files(self, shown: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return all files; `shown` has the asserted lines of each function's test."""
        modules = sorted({each.module for each in self.placed})
        found = {f"{self.name}/__init__.py": "", "tests/__init__.py": ""}
        found |= {f"{self.name}/{module}.py": self.module_source(module) for module in modules}
        return found | {f"tests/test_{each.name}.py": self._test(each, shown[each.name]) for each in self.placed}

    def _test(self, each: Placed, lines: Sequence[str]) -> str:
        head = f"import unittest\n\nfrom {self.name}.{each.module} import {each.name}\n\n\n"
        head += f"class Test(unittest.TestCase):\n    def test_{each.name}(self):\n"
        return head + "".join(f"        self.assertEqual({line})\n" for line in lines)

    def values(self, expressions: Sequence[str], broken: bool) -> list[object]:
        """Return the values of expressions over all functions: JSON values, or {"raises": …}."""
        space: dict[str, object] = {}
        for each in self.placed:
            exec(each.source(self.bug if broken and each is self.broken else None), space)
        return [_value(expression, space) for expression in expressions]

    @property
    def imports(self) -> str:
        """The source lines that import every function."""
        return "".join(f"from {self.name}.{each.module} import {each.name}\n" for each in self.placed)


def _value(expression: str, space: dict[str, object]) -> object:
    try:
        return eval(expression, space)
    except Exception as error:
        return {"raises": type(error).__name__}


@register_task("repositories")
class RepositoriesTask(ShellTask):
    """Fix the bug of a small Python package; the prompt is the issue, and hidden tests decide the reward.

    A prompt begins "plum/core.py: clamp(-2, 3, 12) returns -2 instead of 3", and an action is one bash command. The
    package has its own tests (`python -m unittest`). The hidden tests are further calls of the function
    with the bug and of all others: they run where the agent's code runs, and their values are compared elsewhere. A
    function may use one of another module.
    """

    levels = tuple(
        {"functions": functions, "modules": modules, "pieces": pieces}
        for functions, modules, pieces in ((1, 1, 4), (1, 1, 13), (2, 1, 16), (4, 2, 16), (6, 3, 16), (8, 4, 16))
    )

    functions: int = Field(4, ge=1, le=12, description="functions of the package, at least")
    modules: int = Field(2, ge=1, le=len(MODULES), description="modules that contain them")
    pieces: int = Field(len(PIECES), ge=1, le=len(PIECES), description="number of kinds of functions")
    turns: int = Field(6, ge=1, description="most turns; 'done' is one, too")
    shown: int = Field(900, ge=40, description="characters of what a command printed that are shown")

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return an issue, and the package with hidden tests."""
        while True:
            package = self._package(rng)
            calls = {each.name: [each.call(a) for a in _calls(each.piece, rng)] for each in package.placed}
            mine = calls[package.broken.name]
            right, wrong = package.values(mine, broken=False), package.values(mine, broken=True)
            failing = [n for n, (one, other) in enumerate(zip(right, wrong, strict=True)) if one != other]
            hidden = {mine[n] for n in failing} - set(_shown(mine))
            if len(failing) >= 2 and (hidden or package.bug.kind == "edge case"):
                return self._issue(package, calls, (right, wrong), failing)

    def _package(self, rng: random.Random) -> Package:
        known = PIECES[: self.pieces]
        broken = rng.choice(known)
        others = rng.sample([p for p in known if p is not broken and not p.uses], min(self.functions, len(known)) - 1)
        modules = rng.sample(MODULES, self.modules)
        used = next((piece for piece in PIECES if piece.names[0] == broken.uses), None)
        if used is not None and used not in others:
            others = [used, *others][: max(1, self.functions - 1)]
        placed = [Placed(p, rng.choice(p.names), modules[n % len(modules)]) for n, p in enumerate(others)]
        by_piece = {each.piece.names[0]: each.name for each in placed}
        name = rng.choice(broken.names)
        placed.append(Placed(broken, name, modules[len(others) % len(modules)], by_piece.get(broken.uses, "")))
        return Package(rng.choice(WORDS), tuple(placed), rng.choice(broken.bugs))

    def _issue(
        self,
        package: Package,
        calls: Mapping[str, list[str]],
        outcomes: tuple[list[object], list[object]],
        failing: Sequence[int],
    ) -> tuple[str, dict[str, object]]:
        broken, (right, wrong), first = package.broken, outcomes, failing[0]
        path = f"{package.name}/{broken.module}.py"
        expected, got = _in_words(right[first]), _in_words(wrong[first])
        prompt = f"{path}: {calls[broken.name][first]} {got} instead of {expected.removeprefix('returns ')}. Mend it."
        shown = {}
        for each in package.placed:
            expressions = _shown(calls[each.name])
            found = package.values(expressions, broken=False)
            shown[each.name] = [f"{call}, {value!r}" for call, value in zip(expressions, found, strict=True)]
        hidden = [call for each in reversed(package.placed) for call in calls[each.name]]
        values = zip(hidden, package.values(hidden, broken=False), strict=True)
        tests = [{"imports": package.imports, "values": [list(pair) for pair in values]}]
        solution = [f"cat {path}", _mending(package, package.bug.right, path)]
        slips = [f"cat {path}", "ls", "python -m unittest", f"cat tests/test_{broken.name}.py"]
        slips += [_mending(package, bug.wrong, path) for bug in broken.piece.bugs if bug.right == package.bug.right]
        columns = {"files": package.files(shown), "tests": tests, "solution": solution, "slips": slips}
        return f"{prompt}{PROMPT}", {**columns, "bug": package.bug.kind}


def _calls(piece: CodePiece, rng: random.Random) -> list[Arguments]:
    return [arguments for _ in range(INPUT_SETS) for arguments in piece.calls(rng)]


def _shown(calls: list[str]) -> list[str]:
    """Return those of a function's calls that the package's own tests contain."""
    return calls[: len(calls) // INPUT_SETS]


def _in_words(value: object) -> str:
    if isinstance(value, dict) and list(value) == ["raises"]:
        return f"raises {value['raises']}"
    return f"returns {value!r}"


def _mending(package: Package, text: str, path: str) -> str:
    """Return the command that replaces the line of the bug in its module by a text."""
    right, wrong = (package.module_source(package.broken.module, broken=b).splitlines() for b in (False, True))
    number = next(n for n, (one, other) in enumerate(zip(right, wrong, strict=True)) if one != other)
    names = {"{f}": package.broken.name, "{g}": package.broken.used}
    old, new = package.bug.right, text
    for sign, name in names.items():
        old, new = old.replace(sign, name), new.replace(sign, name)
    line = right[number].replace(old, new, 1)
    return f"sed -i '{number + 1}c\\{line}' {path}"
