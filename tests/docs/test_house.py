"""The house: which room may import which, no circles of rooms or of files, and what importing the package loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import grouprl

ROOT = Path(grouprl.__file__).parent
TOP = Path(__file__).parents[2]
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
ROOMS = (
    "core",
    "protocols",
    "records",
    "processes",
    "sandbox",
    "runtimes",
    "chat",
    "storage",
    "rewards",
    "envs",
    "testing",
    "tools",
    "tasks",
    "policy",
    "algorithms",
    "methods",
    "config",
    "rollout",
    "orchestrator",
    "evaluation",
    "lessons",
    "trackers",
    "plan",
    "papers",
    "monitor",
    "view",
    "training",
    "experiments",
    "serve",
    "cli",
)
"""Lowest first: a room imports from rooms that stand before it."""
LIBRARY = ("core", "protocols", "records", "algorithms", "methods")
"""What a call of the library needs: these import nothing of the rooms around them, wherever those stand."""


def rooms() -> list[str]:
    """Names of the folders of the package."""
    return sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imports() -> Mapping[str, set[str]]:
    """Modules that each module imports: inside functions too, and what only a type checker reads."""
    return _graphs()[0]


def run_imports() -> Mapping[str, set[str]]:
    """The same without what only a type checker reads: what Python imports sooner or later."""
    return _graphs()[1]


@cache
def _graphs() -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
    files = {_name(path): path for path in ROOT.rglob("*.py")}
    every: dict[str, set[str]] = {}
    run: dict[str, set[str]] = {}
    for name, path in files.items():
        inside = f"{name}." if path.name == "__init__.py" else "\n"  # a package that gathers what its own files define
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for graph, typed in ((every, True), (run, False)):
            wanted = set(_imported(tree, files, typed)) - {name}
            graph[name] = {each for each in wanted if not each.startswith(inside)}
    return every, run


def room(module: str) -> str:
    """The folder of a module; "" for the package's own files, which stand in no room."""
    first = module.split(".")[1:2]
    return first[0] if first and first[0] in rooms() else ""


def _name(path: Path) -> str:
    return ".".join(("grouprl", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def _imported(tree: ast.AST, known: Mapping[str, Path], typed: bool) -> Iterator[str]:
    left = [tree]
    while left:
        node = left.pop()
        if not typed and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            wholes = [f"{node.module}.{each.name}" for each in node.names]
            yield from (whole if whole in known else str(node.module) for whole in wholes if str(node.module) in known)
        elif not isinstance(node, ast.expr):  # no expression holds an import
            left.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def crossings(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports of a room that stands after, in words."""
    place = {name: number for number, name in enumerate(ROOMS)}
    return sorted(
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if room(module) and room(other) and place[room(module)] < place[room(other)]
    )


def test_every_room_has_its_place() -> None:
    assert sorted(ROOMS) == rooms()


def test_every_room_has_a_room_of_tests() -> None:
    tested = {path.parent.name for path in (TOP / "tests").glob("*/test_*.py")}
    assert set(rooms()) <= tested


def test_every_file_of_tests_says_what_it_tests() -> None:
    silent = [p.name for p in (TOP / "tests").rglob("test_*.py") if ast.get_docstring(ast.parse(p.read_text())) is None]
    assert silent == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by that name, and refuses the second."""
    names = [path.name for path in (TOP / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_rooms_import_from_the_rooms_before_them_only() -> None:
    assert crossings(imports()) == []


BY_PATH = {"spec_from_file_location", "SourceFileLoader", "exec_module", "runpy"}
"""Names with which Python runs a file that no import names."""


def loads_by_path() -> list[str]:
    """Modules that run a file of the package otherwise than by importing it, or hand one on to be run."""
    found = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        suspect = any(word in text for word in (*BY_PATH, "__file__"))
        for node in ast.walk(ast.parse(text)) if suspect else ():
            names = {getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", "")}
            script = isinstance(node, ast.Attribute) and node.attr == "__file__" and isinstance(node.ctx, ast.Load)
            found += [_name(path)] * bool(names & BY_PATH or script)
    return sorted(set(found))


def test_no_file_of_the_package_is_loaded_by_path() -> None:
    """What is loaded so is seen by no graph of imports, no type checker and no test: see `processes.child_process`.

    `core.late_import` runs a package of others, by its name.
    """
    assert loads_by_path() == ["grouprl.core.late_import"]


def test_an_import_of_a_later_room_is_told() -> None:
    wrong = {"grouprl.core.batch": {"grouprl.training.loop", "grouprl.core.errors"}}
    assert crossings(wrong) == ["grouprl.core.batch imports grouprl.training.loop"]


def test_the_library_stands_apart_from_the_trainer() -> None:
    outside = [(m, o) for m, others in run_imports().items() for o in others if room(m) in LIBRARY and room(o)]
    assert [pair for pair in outside if room(pair[1]) not in LIBRARY] == []


WITHIN: Mapping[str, Mapping[str, set[str]]] = {
    "policy": {
        "": set(),
        "fast_forward": {""},
        "language": {"", "fast_forward"},
        "replicated": {"", "sharded", "vectors"},
        "sharded": {"", "language"},
        "teams": {"", "language"},
        "vectors": {""},
    },
    "envs": {"": set(), "adapters": {""}, "builtin": {""}, "construction": {""}},
    "tasks": {"": set(), "adapters": {""}, "builtin": {""}},
    "tasks.builtin": {"": set(), "agents": set(), "single_turn": {"agents"}},
    "rollout": {
        "": {"local", "sharded", "stored"},
        "kinds": {"", "vectors"},
        "local": set(),
        "servers": {"", "local"},
        "sglang": {"servers"},
        "sharded": {"local"},
        "stored": set(),
        "vectors": {""},
        "vllm": {"servers"},
    },
    "orchestrator": {"": set(), "asynchronous": {"", "on_ray"}, "on_ray": {""}},
    "rewards": {
        "": set(),
        "by_task": {""},
        "catalogue": {"", "by_task", "math"},
        "judging": {""},
        "math": {""},
    },
    "plan": {"": set(), "cluster": {""}},
    "monitor": {"": set(), "glossary": set()},
    "view": {"": set(), "app": {""}},
}
"""Rooms within rooms, with those that each imports from; "" for the files that stand in none of them."""


def room_within(module: str, outer: str) -> str | None:
    """The room of `outer` that a module is in; "" for a file beside them, None for a module of elsewhere."""
    parts = module.removeprefix(f"grouprl.{outer}.").split(".")
    if not module.startswith(f"grouprl.{outer}."):
        return None
    return parts[0] if len(parts) > 1 or ROOT.joinpath(*outer.split("."), parts[0]).is_dir() else ""


def crossings_within(outer: str, graph: Mapping[str, set[str]]) -> list[str]:
    """Imports from one room of `outer` to another that `WITHIN` does not name, in words."""
    pairs = [(module, other) for module, others in graph.items() for other in others]
    places = [(module, other, room_within(module, outer), room_within(other, outer)) for module, other in pairs]
    return sorted(
        f"{module} imports {other}"
        for module, other, here, there in places
        if here is not None and there is not None and here != there and there not in WITHIN[outer][here]
    )


@pytest.mark.parametrize("outer", WITHIN)
def test_rooms_within_a_room_have_an_order_too(outer: str) -> None:
    folders = {path.parent.name for path in ROOT.joinpath(*outer.split(".")).glob("*/__init__.py")}
    assert {*folders, ""} == set(WITHIN[outer])
    assert crossings_within(outer, imports()) == []


@pytest.mark.parametrize("outer", WITHIN)
def test_rooms_within_a_room_make_no_circle(outer: str) -> None:
    TopologicalSorter(WITHIN[outer]).prepare()


def test_a_game_that_imports_an_adapter_is_told() -> None:
    game, adapter, shared = (f"grouprl.envs.{name}" for name in ("builtin.guess", "adapters.gym", "game"))
    assert crossings_within("envs", {game: {adapter, shared}}) == [f"{game} imports {adapter}"]
    assert crossings_within("envs", {shared: {game}}) == [f"{shared} imports {game}"]


FILES = 27
"""Modules that stand flat in one folder at most: more are rooms within it."""


def crowded(paths: Iterable[Path]) -> dict[str, int]:
    """Folders with more files of Python than `FILES`, with their number."""
    counts = Counter(path.parent.as_posix() for path in paths)
    return {folder: count for folder, count in counts.items() if count > FILES}


def test_folders_are_split_before_they_are_crowded() -> None:
    assert crowded(path.relative_to(ROOT) for path in ROOT.rglob("*.py")) == {}
    assert crowded(Path(f"rollout/{number}.py") for number in range(FILES + 1)) == {"rollout": FILES + 1}


SUBJECTS = (
    ("envs", "tasks", "rewards"),
    ("algorithms", "methods"),
    ("rollout/servers", "rollout/sglang", "rollout/vllm"),
    ("monitor",),
)
"""Folders that share names, file by file, because they share subjects: a game, its task and its reward, a part and its
method, kinds of servers, and a number with its line in the glossary."""


def repeated(paths: Iterable[Path]) -> dict[str, list[str]]:
    """File names that stand at three places or more, folders of one subject counted once."""
    places: dict[str, set[str]] = {}
    for path in paths:
        shared = [each[0] for each in SUBJECTS if path.as_posix().startswith(tuple(f"{folder}/" for folder in each))]
        places.setdefault(path.name, set()).add((*shared, path.parts[0])[0])
    return {name: sorted(found) for name, found in places.items() if len(found) > 2 and name != "__init__.py"}


def test_file_names_tell_files_apart() -> None:
    assert repeated(path.relative_to(ROOT) for path in ROOT.rglob("*.py")) == {}
    assert repeated(Path(f"{folder}/process.py") for folder in ("tools", "envs", "tasks", "rollout/vllm")) == {
        "process.py": ["envs", "rollout/servers", "tools"]
    }


KINDS = ("grouprl.rollout.vllm", "grouprl.rollout.sglang")
"""Kinds of servers: what they share is in `grouprl.rollout.servers`."""


def test_kinds_of_servers_do_not_know_each_other() -> None:
    shared = "grouprl.rollout.servers"
    knowing = [
        (module, other)
        for module, others in imports().items()
        for other in others
        for kind in KINDS
        if other.startswith(kind) and module.startswith((*KINDS, shared)) and not module.startswith(kind)
    ]
    assert knowing == []
    assert all(any(module.startswith(room) for module in imports()) for room in (*KINDS, shared))


def test_files_make_no_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


LOADED = """
import sys
import grouprl
grouprl.Batch
print(*sorted(name for name in sys.modules if name.startswith("grouprl")))
grouprl.method("grpo")
print(*sorted(name for name in sys.modules if name.startswith("grouprl")))
"""


@cache
def loaded() -> list[list[str]]:
    """Own modules loaded after `import grouprl; grouprl.Batch`, and after `grouprl.method("grpo")`."""
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=300)
    return [line.split() for line in said.stdout.splitlines()]


def test_importing_the_package_loads_little() -> None:
    assert len(loaded()[0]) <= 60


def test_a_method_loads_no_room_around_the_library() -> None:
    assert {room(name) for name in loaded()[1]} - {""} <= set(LIBRARY)
    assert {"core", "methods"} <= {room(name) for name in loaded()[1]}


def test_the_catalogue_is_a_package_that_can_be_called() -> None:
    assert grouprl.methods() == grouprl.methods.CATALOGUE
    assert grouprl.methods.registry.method is grouprl.method
    assert grouprl.methods is sys.modules["grouprl.methods"]


def shadowed() -> list[str]:
    """Names that a package defines or imports in its own file although one of its modules has them."""
    found = []
    for path in sorted(ROOT.rglob("__init__.py")):
        inside = {each.stem for each in path.parent.glob("*.py")} | {
            each.parent.name for each in path.parent.glob("*/__init__.py")
        }
        package = _name(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in inside:
                found.append(f"{package}.{node.name}")
            if isinstance(node, ast.ImportFrom) and node.module != package:
                found += [f"{package}.{n}" for a in node.names if (n := a.asname or a.name) in inside]
    return found


def test_no_name_hides_a_module() -> None:
    assert shadowed() == []


TWICE = {"Environment", "Critic", "Verdict"}
"""Names that users know in two rooms: environments of any kind and over text, critics as parts and as a task, verdicts
of a reward and of a run."""


def test_a_name_means_one_class_or_one_kind_of_number() -> None:
    found: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(_name(path))
            elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Annotated["):
                found.setdefault(ast.unparse(node.targets[0]), []).append(_name(path))
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in TWICE} == {}


LONGEST = 60
"""Lines of a function's body, its signature and docstring left out: what a screen shows at once."""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement of a function behind its docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_read_on_one_screen() -> None:
    paths = [path for folder in (TOP / "src", TOP / "scripts", TOP / "bench") for path in folder.rglob("*.py")]
    trees = {path.relative_to(TOP).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    functions = [(n, f) for n, t in trees.items() for f in ast.walk(t) if isinstance(f, FUNCTION)]
    assert len(functions) > 3000
    assert [(name, f.name, body_lines(f)) for name, f in functions if body_lines(f) > LONGEST] == []


BY_NAME = {
    "cli.check_env",
    "cli.scoring.check_reward",
    "cli.scoring.rewardbench",
    "cli.serve",
    "cli.tasks",
    "experiments.evaluating",
}
"""Commands, and what they call, that take the name of a task, without a configuration around it."""


def resolving() -> dict[str, list[str]]:
    """What each module hands to `compose` and `load_task`; those that define them left out."""
    found: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("compose", "load_task"):
                found.setdefault(_name(path).removeprefix("grouprl."), []).append(ast.unparse(node.args[0]))
    return {name: given for name, given in found.items() if not name.startswith(("methods.", "tasks."))}


def test_a_configuration_is_resolved_in_one_place() -> None:
    found = resolving()
    assert sorted(found.pop("orchestrator.resolve")) == ["config.method", "config.task"]
    assert set(found) <= BY_NAME
    assert [text for given in found.values() for text in given if "config" in text] == []


ANYS = {
    "": 2,
    "algorithms": 10,
    "chat": 8,
    "cli": 6,
    "config": 2,
    "core": 6,
    "envs": 38,
    "evaluation": 0,
    "methods": 9,
    "monitor": 2,
    "orchestrator": 7,
    "papers": 2,
    "plan": 2,
    "policy": 15,
    "processes": 11,
    "protocols": 4,
    "records": 4,
    "rewards": 7,
    "rollout": 12,
    "runtimes": 3,
    "sandbox": 2,
    "serve": 2,
    "storage": 2,
    "tasks": 13,
    "testing": 11,
    "tools": 6,
    "training": 1,
    "view": 2,
}
"""How often the annotations and aliases of each room may say `Any`; the numbers can only fall.

Where a value is handed on unread its type is `object`, and what is read has a type that says what it holds."""


def anys() -> dict[str, int]:
    """How often the annotations and aliases of each room say `Any`; "" for the package's own files."""
    found: dict[str, int] = {}
    for path in ROOT.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        count = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
        found[room(_name(path))] = found.get(room(_name(path)), 0) + count
    return found


def test_any_does_not_spread() -> None:
    above = {name: count for name, count in anys().items() if count > ANYS.get(name, 0)}
    assert above == {}, "say the types instead (object where a value is only handed on)"
