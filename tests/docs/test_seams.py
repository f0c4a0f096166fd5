"""The seams: nothing asks what kind of rows or of policy it has outside the files that own that kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import grouprl

ROOT = Path(grouprl.__file__).parent
POLICIES = ("CausalPolicy", "TokenPolicy", "TeamPolicy", "ArrayPolicy", "ShardedPolicy", "DistributedPolicy")
OWNERS = {
    "grouprl.policy": "the policies themselves",
    "grouprl.protocols.policies": "asks once whether a policy is divided among processes (`distributed`)",
    "grouprl.testing": "conformance tests of each kind",
    "grouprl.records.offline": "defines stored rows",
    "grouprl.rollout.kinds.row_kinds": "decides once which source of rows a task needs",
    "grouprl.rollout.vectors": "rows over vectors",
    "grouprl.rollout.offline_rows": "stored rows",
    "grouprl.rollout.engines": "decides which sampler a policy needs",
    "grouprl.rollout.local.sampler": "samples from language models",
    "grouprl.rollout.local.array_sampler": "samples from policies over arrays",
    "grouprl.rollout.sharded": "samples on the ranks of a divided policy",
    "grouprl.rollout.servers": "serves language models",
}
"""Who may ask, and why."""


def asks(tree: ast.AST) -> Iterator[str]:
    """Questions after a kind: `task.spaces`, `StoredRows`, a cast or an `isinstance` to a kind of policy."""
    for node in ast.walk(tree):
        last = getattr(node, "attr", getattr(node, "id", ""))
        if last == "spaces" and f".{ast.unparse(node)}".endswith(".task.spaces"):
            yield ast.unparse(node)
        elif last == "StoredRows" and isinstance(node, ast.Name | ast.Attribute):
            yield "StoredRows"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast", "isinstance"):
            place = 0 if "cast" in ast.unparse(node.func) else 1
            if any(kind in ast.unparse(node.args[place]) for kind in POLICIES):
                yield ast.unparse(node)


def owned(module: str) -> bool:
    return any(module == owner or module.startswith(f"{owner}.") for owner in OWNERS)


@cache
def asking() -> Mapping[str, list[str]]:
    """What each module asks, all modules of the package."""
    paths = {p: ".".join(("grouprl", *p.relative_to(ROOT).with_suffix("").parts)) for p in ROOT.rglob("*.py")}
    found = {name: list(asks(ast.parse(path.read_text(encoding="utf-8")))) for path, name in paths.items()}
    return {name.removesuffix(".__init__"): questions for name, questions in found.items() if questions}


def test_kinds_are_asked_for_by_their_owners_only() -> None:
    assert {name: questions for name, questions in asking().items() if not owned(name)} == {}


def test_no_owner_is_listed_in_vain() -> None:
    """Every owner asks, or defines what is asked for."""
    modules = [*asking(), "grouprl.records.offline"]
    assert [owner for owner in OWNERS if not any(f"{name}.".startswith(f"{owner}.") for name in modules)] == []


def test_a_question_is_noticed() -> None:
    code = "if run.task.spaces is None or isinstance(task, StoredRows):\n    cast('CausalPolicy', policy).logp(x)"
    assert sorted(asks(ast.parse(code))) == ["StoredRows", "cast('CausalPolicy', policy)", "run.task.spaces"]
