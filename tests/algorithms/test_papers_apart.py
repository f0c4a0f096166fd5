"""Each part stands in the folder of its kind, in `papers` there while a single paper needs it."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import grouprl
from grouprl import algorithms
from grouprl.algorithms import BASES
from grouprl.algorithms import part as part_module
from grouprl.algorithms.part import KINDS, PARTS, RULES, Part
from grouprl.methods.registry import CATALOGUE, Entry

ROOT = Path(grouprl.__file__).parent


def parts_of(entry: Entry) -> set[type[Part]]:
    """The parts that an entry adds to its base, with any settings, and those of its method as it is."""
    found = set(_named(entry.function, set()))
    if inspect.Parameter.empty not in entry.settings.values():
        found |= {type(part) for part in entry.build().parts()}
    return found


def _named(function: Any, seen: set[Any]) -> Iterator[type[Part]]:
    """The part classes that the code of a composing function names, in functions of the catalogue that it calls too."""
    if function in seen:
        return
    seen.add(function)
    names = _names(function.__code__)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*(function.__globals__.get(name) for name in names), *cells]
    modules = [v for v in values if isinstance(v, types.ModuleType) and v.__name__.startswith("grouprl.methods")]
    for value in [*values, *(getattr(module, name, None) for module in modules for name in names)]:
        if isinstance(value, type) and issubclass(value, Part):
            yield value
        elif inspect.isfunction(value) and value.__module__.startswith("grouprl.methods"):
            yield from _named(value, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


@cache
def users() -> dict[type[Part], set[str]]:
    """Of each part: the methods that need it; dialects of one method are one."""
    found: dict[type[Part], set[str]] = defaultdict(set)
    for name, entry in CATALOGUE.items():
        for part in parts_of(entry):
            found[part].add(name.partition("@")[0])
    parts = (part for kind in RULES for part in PARTS[kind].values())
    return {part: found[part] for part in parts if part.__module__.startswith("grouprl.")}


@cache
def imports() -> dict[str, set[str]]:
    """Of each module of the parts: those of them that it imports."""
    found = {}
    for path in (ROOT / "algorithms").rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}
        found["grouprl." + ".".join(path.relative_to(ROOT).with_suffix("").parts)] = names
    return found


def of_papers(module: str) -> bool:
    return ".papers" in module


BY_HAND = {
    "given": "advantages that come with the batch, for loops of one's own",
    "reject_mismatch": "leaves out completions that the sampler saw otherwise, in any method",
    "adaptive_kl": "the regulariser of KL control, in any method; entries have it in the reward",
    "off_policy_mask": "a mask for any objective that trains on older completions",
}
"""Shared parts that no entry needs: methods that are composed by hand have them."""


ONCE = {
    "geometric_importance": "one weight per completion for the gap between sampler and trainer, in any method",
    "model_score": "the output of a reward model, in any loss of pairs",
    "score_error": "least squares to stored scores, for any model that has scores",
    "attribute_errors": "least squares to stored ratings, for any model that has a score for each",
    "score_likelihood": "the likelihood of stored scores, for any model that has scores",
    "center_scores": "keeps the scores of any reward model around 0",
    "reward_gap": "a margin for any pairwise loss",
    "gap": "pairs that are far enough apart, for any pairwise loss",
    "across": "pairs of the policy's completions with its opponents', for any pairwise loss",
    "opponents_apart": "leaves opponents out of the loss, in any method that samples them",
    "sampled_kl": "a KL on the policy's own completions beside stored ones, for any loss of pairs",
    "measure": "one completion that the others are compared with, in any method that compares",
    "return_scale": "the spread of returns over a whole run, for any method that scales its rewards",
}
"""Shared parts that one entry needs so far, though nothing in them is of one paper."""


def test_what_several_methods_need_is_shared() -> None:
    assert [part.name for part, methods in users().items() if len(methods) > 1 and of_papers(part.__module__)] == []


def test_what_one_paper_needs_stands_apart() -> None:
    alone = [part for part, methods in users().items() if len(methods) == 1]
    assert len(alone) > 150
    assert {part.name for part in alone if not of_papers(part.__module__)} == set(ONCE)


def test_a_shared_part_that_no_method_needs_says_why() -> None:
    unused = {part.name for part, methods in users().items() if not methods and not of_papers(part.__module__)}
    assert unused == set(BY_HAND)


def test_shared_parts_need_nothing_of_one_paper() -> None:
    assert [(m, o) for m, others in imports().items() if not of_papers(m) for o in others if of_papers(o)] == []


def test_only_methods_and_parts_know_parts_of_one_paper() -> None:
    """Whatever the trainer needs to know of a part, the part answers itself, by a hook of its kind's base class."""
    known = [
        (path.relative_to(ROOT).as_posix(), str(node.module))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in ("algorithms", "methods")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("grouprl.algorithms.")
    ]
    assert len(known) > 30
    assert [(path, module) for path, module in known if of_papers(module)] == []


SHARED = {
    "auxiliary_models",
    "building",
    "data_part",
    "flow",
    "kept_perceptron",
    "lines",
    "losses",
    "method",
    "outcome",
    "part",
    "part_checks",
    "plain",
    "preferences",
    "references",
    "seen_numbers",
    "sources",
    "stage_checks",
    "turn_returns",
    "vectors",
    "warmup_examples",
}
"""Modules that parts of several kinds need."""


def strays(parts: Mapping[str, Mapping[str, type[Part]]]) -> list[str]:
    """Parts of grouprl's own that stand in the folder of another kind, in words."""
    return [
        f"{kind} {cls.__name__} in {cls.__module__}"
        for kind, named in parts.items()
        for cls in named.values()
        if cls.__module__.startswith("grouprl.") and not cls.__module__.startswith(f"grouprl.algorithms.{kind}.")
    ]


def test_a_part_stands_in_the_folder_of_its_kind() -> None:
    assert sum(len(PARTS[kind]) for kind in KINDS) > 200
    assert strays(PARTS) == []


def test_a_part_in_another_folder_is_told() -> None:
    clip = PARTS["objective"]["clipped"]
    assert strays({"filter": {"clipped": clip}}) == ["filter Clipped in grouprl.algorithms.objective.objective"]


def test_folders_are_named_as_kinds() -> None:
    folders = {path.parent.relative_to(ROOT / "algorithms").as_posix() for path in ROOT.glob("algorithms/**/*.py")}
    assert {folder.partition("/papers")[0] for folder in folders} - {"."} == set(RULES)
    assert {path.stem for path in (ROOT / "algorithms").glob("*.py")} - {"__init__"} == SHARED


def test_every_kind_has_its_base_class() -> None:
    assert set(BASES) == set(RULES)
    for kind, name in BASES.items():
        base = getattr(grouprl, name)
        assert base is getattr(algorithms, name)
        assert [cls.__name__ for cls in PARTS[kind].values() if not issubclass(cls, base)] == []


def test_a_kind_and_its_base_class_are_one_word() -> None:
    def word(text: str) -> str:
        return text.replace("_", "").lower()[:7]

    assert {kind: name for kind, name in BASES.items() if word(name) != word(kind)} == {}


def test_the_example_of_a_part_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The docstring of `part.py` shows one."""
    shown = str(part_module.__doc__).partition("::\n\n")[2]
    example = textwrap.dedent("".join(line for line in shown.splitlines(True) if line[:4] in ("    ", "\n")))
    (tmp_path / "sharpen_example.py").write_text(f"import grouprl\n\n\n{example}")
    monkeypatch.syspath_prepend(str(tmp_path))
    sharpen = importlib.import_module("sharpen_example").Sharpen(power=2.0)
    del PARTS["token_weight"]["sharpen"]
    batch = grouprl.Batch(
        mask_bt=torch.ones(1, 2, dtype=torch.bool),
        group_b=torch.zeros(1, dtype=torch.long),
        reward_b=torch.ones(1),
        entropy_bt=torch.tensor([[1.0, 3.0]]),
    )
    assert sharpen(batch).tolist() == [[1.0, 9.0]]
    assert (sharpen.words(), sharpen.formula()) == ("weigh each token by its entropy to the power 2", "× H_t^2")
