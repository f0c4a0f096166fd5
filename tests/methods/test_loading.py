"""Looking a method up by its name imports what it is composed of and no more, and gives the same as importing all."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import json
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import grouprl
from grouprl.algorithms.part import KINDS, PARTS
from grouprl.core.discovery import METHOD, PART, method_homes, part_homes, registrations
from grouprl.methods import CATALOGUE

OWN = "sorted(name for name in sys.modules if name.partition('.')[0] == 'grouprl')"
FORKS = """
import json, os, sys, traceback
import torch
first, codes = json.load(sys.stdin)
exec(first)
def forked(code):
    reader, writer = os.pipe()
    if not os.fork():
        names = {}
        try:
            exec(code, names)
            with os.fdopen(writer, "w") as answer:
                json.dump(names["found"], answer)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    os.wait()
    return json.loads(told)
json.dump([forked(code) for code in codes], sys.stdout)
"""
"""A process that has torch and what is imported first, and for each piece of code a fork of it."""


def afresh(codes: Sequence[str], first: str = "") -> list[Any]:
    """What each of `codes` gives as `found`, in a process that has imported nothing of ours but what `first` does."""
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        input=json.dumps([first, [f"import sys\n{code}" for code in codes]]),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert told.returncode == 0, told.stderr
    return list(json.loads(told.stdout))


@pytest.fixture(scope="module")
def _everything() -> None:
    """Import every module of the library's two catalogues."""
    for package in (grouprl.methods, importlib.import_module("grouprl.algorithms")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


@pytest.mark.usefixtures("_everything")
def test_the_names_read_off_the_sources_are_those_that_are_registered() -> None:
    entries = {n: e.function.__module__ for n, e in CATALOGUE.loaded().items() if e.family != "own"}
    assert entries == method_homes()
    for kind in KINDS:
        parts = {n: p.__module__ for n, p in PARTS[kind].loaded().items() if p.__module__.startswith("grouprl.")}
        assert parts == part_homes().get(kind, {})


def test_no_name_is_written_twice() -> None:
    names = [match[1] for _, match in registrations("grouprl.methods", METHOD)]
    assert len(names) == len(set(names)) == len(method_homes()) > 190
    parts = [match for _, match in registrations("grouprl.algorithms", PART)]
    assert len(parts) == sum(map(len, part_homes().values())) > 240


def test_the_card_of_a_method_stands_right_below_its_composing_function() -> None:
    apart = []
    for module in sorted(set(method_homes().values())):
        statements = ast.parse(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")).body
        for before, call in itertools.pairwise(statements):
            match call:
                case ast.Expr(ast.Call(func=ast.Name("entry" | "dialect"), args=[name, ast.Name(function), *_])):
                    if getattr(before, "name", None) != function:
                        apart.append(ast.literal_eval(name))
    assert apart == []


FAMOUS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "ppo", "reinforce_pp", "gmpo", "grpo@trl", "grpo@verl")


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[str, int]]:
    """Of every entry: the method in words, and how many modules of ours a process has that asked for it alone."""
    code = f"import grouprl\nfound = repr(grouprl.method({{name!r}})), len({OWN})"
    names = list(method_homes())
    found = afresh([code.format(name=name) for name in names], "import grouprl.methods")
    return {name: (words, count) for name, (words, count) in zip(names, found, strict=True)}


@pytest.mark.usefixtures("_everything")
def test_every_method_by_its_name_alone_is_the_one_of_the_whole_catalogue(alone: dict[str, tuple[str, int]]) -> None:
    assert {name: words for name, (words, _) in alone.items()} == {n: repr(grouprl.method(n)) for n in method_homes()}


def test_a_method_loads_few_modules(alone: dict[str, tuple[str, int]]) -> None:
    assert {name: alone[name][1] for name in FAMOUS if alone[name][1] > 63} == {}
    assert {name: count for name, (_, count) in alone.items() if count > 112} == {}


CALLS = {
    "grouprl.methods": 41,
    "list(grouprl.methods())": 41,
    "'grpo' in grouprl.methods()": 41,
    'grouprl.compose({"objective": "clipped", "advantage": "relative", "aggregate": "token_mean"})': 60,
    'grouprl.compose({"base": "grpo", "aggregate": "token_mean"})': 60,
    'grouprl.method("grpo").loss(-ones, grouprl.method("grpo").prepare(batch)).value': 60,
}
BATCH = """
import torch
import grouprl
ones = torch.ones(4, 2)
group_b, reward_b = ones[:, 0].long(), torch.tensor([1.0, 0, 0, 0])
batch = grouprl.Batch(mask_bt=ones.bool(), group_b=group_b, reward_b=reward_b, old_bt=-ones)
"""


def test_a_call_of_the_library_loads_few_modules() -> None:
    loaded = afresh([f"{BATCH}\n{call}\nfound = len({OWN})" for call in CALLS])
    assert [(call, count) for call, count in zip(CALLS, loaded, strict=True) if count > CALLS[call]] == []


UNKNOWN = f"""
import grouprl
found = []
for call in ({{}}):
    try:
        call()
    except grouprl.InputError as error:
        found.append(str(error))
found += {OWN}
"""


def test_an_unknown_name_is_answered_without_importing_the_catalogue() -> None:
    calls = (
        'lambda: grouprl.method("grppo"), lambda: grouprl.compose({"base": "grpo", "objective": "clippd"}), '
        'lambda: grouprl.compose({"objective": "clipped", "name": "mine"})'
    )
    ((one, other, third, *loaded),) = afresh([UNKNOWN.replace("{}", calls)])
    assert "Did you mean 'grpo'" in one
    assert "Did you mean 'clipped'" in other
    assert "lacks advantage and aggregate" in third
    assert len(loaded) <= 60


TAKEN = """
import grouprl
from grouprl.algorithms.advantage.advantage import Advantage
found = []
def own(base: grouprl.Method) -> grouprl.Method:
    return base
try:
    grouprl.entry("gspo", own, grouprl.Card(title="", summary="", formula=""), base="grpo")
except grouprl.InputError as error:
    found.append(str(error))
class RawReward(Advantage):
    says = "nothing"
try:
    grouprl.part("advantage")(RawReward)
except grouprl.InputError as error:
    found.append(str(error))
found.append(grouprl.method("gspo").objective.name)
"""


def test_a_name_of_ours_cannot_be_taken_before_its_module_is_imported() -> None:
    ((method, part, objective),) = afresh([TAKEN])
    assert "the method 'gspo' exists already" in method
    assert "there are two advantage parts 'raw_reward'" in part
    assert objective == "clipped"


def test_a_file_of_ours_that_is_imported_by_its_path_is_the_same_part() -> None:
    code = (
        "import grouprl.algorithms.part\nfrom pathlib import Path\nfrom grouprl.core.plugins import load_file\n"
        "path = Path(grouprl.__file__).parent / 'algorithms' / 'objective' / 'stop_gradient.py'\n"
        "load_file(str(path), 'a file')\nfound = sorted(grouprl.algorithms.part.PARTS['objective'].loaded())"
    )
    assert "capped" in afresh([code])[0]


def test_a_registered_name_can_be_forgotten() -> None:
    from grouprl.core.discovery import Discovered

    names: Discovered[int] = Discovered(dict)
    names["one"] = 1
    assert (*names,) == ("one",)
    assert "one" in names
    del names["one"]
    assert len(names) == 0
    assert names.get("one") is None
    with pytest.raises(KeyError):
        names["one"]
