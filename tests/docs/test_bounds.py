"""`docs/bounds.md` has a line for every bound inside a formula of the library, and none for one that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import grouprl

ROOT = Path(grouprl.__file__).parent / "algorithms"
PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"
CALLS = {"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "held", "nan_to_num", "within"}
GUARD = 1e-6
"""Lower bounds up to this guard a division or a logarithm."""


def bounds(source: str) -> Iterator[str]:
    """Yield the bounds of a module that need a line, as they are written there."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name not in CALLS:
            continue
        given = call.args[ast.unparse(call.func) in (name, f"torch.{name}") :]
        written = [*map(ast.unparse, given), *(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords)]
        if name == "held" or not all(map(plain, written)) or not written:
            yield f"{name}({', '.join(written)})"


def plain(bound: str) -> bool:
    """Whether a bound needs no line: a setting of its part, a positive or negative part, a count, a guard."""
    if re.fullmatch(r"(m(in|ax)=|low=|high=)?(-|1 [-+] )?self\.\w+", bound) or bound in (
        "min=0",
        "min=1",
        "max=0",
        "low=0",
    ):
        return True
    guard = re.fullmatch(r"min=([\d.e-]+)", bound)
    return guard is not None and float(guard[1]) <= GUARD


def test_every_bound_has_a_line_with_its_source() -> None:
    found = {
        (path.relative_to(ROOT).with_suffix("").as_posix(), bound)
        for path in ROOT.rglob("*.py")
        for bound in bounds(path.read_text(encoding="utf-8"))
    }
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found == {(where, bound) for where, bound, _ in rows}
    assert all(len(why) > 3 for *_, why in rows)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x.clamp(min=1)", []),
        ("x.clamp(1 - self.low, 1 + self.high)", []),
        ("x.clamp(-20, 20)", ["clamp(-20, 20)"]),
        ("torch.clamp(x, max=3)", ["clamp(max=3)"]),
        ("held(x)", ["held()"]),
    ],
)
def test_what_needs_a_line(source: str, found: list[str]) -> None:
    assert list(bounds(source)) == found
