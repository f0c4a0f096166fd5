"""Python objects in a configuration become the names under which other processes import them."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
import torch

import grouprl
from grouprl import InputError
from grouprl.config.python_objects import reference, without_object, without_objects
from grouprl.config.run import parse_config
from grouprl.core.importing import import_object
from grouprl.envs import Observation, Step
from grouprl.experiments.calling import designed
from grouprl.tasks import Example, Task
from short_runs import SMALL, quiet

pettingzoo = pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install 'grouprl[teams]'")
HERE = str(Path(__file__).resolve())
PROGRAM = """
import grouprl

def one(completion):
    return 1.0

grouprl.train({{**{settings}, "reward": one}}, folder="run")
"""


def half(completion: str) -> float:
    """Pay a half."""
    return 0.5


class Paying:
    """A reward with a setting."""

    def __init__(self, much: float) -> None:
        self.much = much

    def __call__(self, completion: str) -> float:
        return self.much

    @classmethod
    def whole(cls, completion: str) -> float:
        """Pay one."""
        return 1.0


a_quarter = Paying(0.25)
a_tenth = functools.partial(Paying, 0.1)


class Letters(Task):
    """A task with an option."""

    alphabet = "ab>"
    max_new_tokens = 2

    def __init__(self, count: int = 2, seed: int = 0) -> None:
        self.count = count
        self.seed = seed

    def size(self, split: str) -> None:
        return None

    def example(self, split: str, index: int) -> Example:
        return Example(f"{split}/{index}", "ab>", {})

    @property
    def reward(self):  # type: ignore[no-untyped-def]
        return half


class Hiding(Letters):
    """A task that does not keep its option."""

    def __init__(self, secret: int = 1) -> None:
        super().__init__()


class Bell:
    """An environment of one turn."""

    def reset(self, example: Example, seed: int) -> Observation:
        return Observation("a>")

    def step(self, action: str) -> Step:
        return Step(Observation("b>"), 1.0, terminated=True)

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Pair(pettingzoo.ParallelEnv):  # type: ignore[type-arg]
    """An environment of PettingZoo whose agents act at once."""


class Turns(pettingzoo.AECEnv):  # type: ignore[type-arg]
    """An environment of PettingZoo whose agents act in turn."""


class Pole(gymnasium.Env):  # type: ignore[type-arg]
    """An environment of Gymnasium."""


@grouprl.part("advantage")
class Twice(grouprl.Advantage):
    """Twice the reward."""

    says = "twice the reward"
    equation = "A = 2R"
    times: float = 2.0

    def __call__(self, batch: grouprl.Batch) -> torch.Tensor:
        return batch.broadcast(self.times * batch.reward_b)


def doubled() -> grouprl.Method:
    """GRPO with twice the reward."""
    return grouprl.method("grpo").with_parts(advantage=Twice())


def test_plain_data_is_the_same_object() -> None:
    data = {"task": "addition", "steps": 2, "eval": {"k": [1, 2]}, "reward": None}
    assert without_objects(data) is data


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (half, "half"),
        (Paying, "Paying"),
        (a_quarter, "a_quarter"),
        (a_tenth, "a_tenth"),
        (Letters.size, "Letters.size"),
        (Paying.whole, "Paying.whole"),
    ],
)
def test_an_object_of_a_file_is_named_by_it(given: object, name: str) -> None:
    assert reference(given) == f"{HERE}:{name}"


def test_the_reference_leads_back(tmp_path: Path) -> None:
    again = import_object(reference(half), "reward")
    assert again("x") == 0.5  # type: ignore[operator]
    assert reference(again) == reference(half)


def test_objects_of_packages_are_named_by_their_module() -> None:
    assert reference(json.dumps) == "json:dumps"
    assert reference(quiet).endswith("short_runs.py:quiet")
    assert reference(Task) == "grouprl.tasks.task:Task"


@pytest.mark.parametrize("nameless", [lambda completion: 1.0, Paying(2.0), functools.partial(half)])
def test_what_has_no_name_is_refused(nameless: object) -> None:
    with pytest.raises(InputError, match=r"reward: .* has no name\. Processes of a run import it.*def or class"):
        without_objects({"reward": nameless})


def test_what_stands_in_no_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    exec("def cell(completion):\n    return 1.0", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(InputError, match=r"is not defined in a file.*%%writefile"):
        reference(notebook.cell)


def test_rewards() -> None:
    assert without_objects({"reward": half}) == {"reward": {"function": f"{HERE}:half"}}
    several = [half, "exact_match", {"name": a_quarter, "weight": 0.5}]
    named = [f"{HERE}:half", "exact_match", {"name": f"{HERE}:a_quarter", "weight": 0.5}]
    assert without_objects({"reward": several}) == {"reward": {"function": named}}
    assert without_objects({"reward": ["exact_match"], "task": Letters})["reward"] == [
        "exact_match"
    ]  # refused, as ever
    assert without_objects({"reward": {"function": half}}) == {"reward": {"function": f"{HERE}:half"}}
    assert without_objects({"eval": {"metrics": (half,)}}) == {"eval": {"metrics": [f"{HERE}:half"]}}


def test_tasks_and_environments() -> None:
    def named(task: object) -> object:
        return without_object("task", task)

    assert named(Letters) == f"{HERE}:Letters"
    assert named(Letters(5)) == {"name": f"{HERE}:Letters", "count": 5}
    assert named({"name": Letters, "count": 3}) == {"name": f"{HERE}:Letters", "count": 3}
    assert named(Bell) == f"env:{HERE}:Bell"
    assert named({"name": Bell, "max_turns": 2}) == {"name": f"env:{HERE}:Bell", "max_turns": 2}
    assert named(Pole) == f"control:{HERE}:Pole"
    assert named(Pair) == f"squad:{HERE}:Pair"
    assert named(Turns) == f"pettingzoo:{HERE}:Turns"
    assert named(Path("data.jsonl")) == "data.jsonl"
    assert named("addition") == "addition"
    with pytest.raises(InputError, match=r"Hiding does not say its secret.*\{'name': Hiding, 'secret': …\}"):
        named(Hiding())


def test_methods_and_parts() -> None:
    found = without_objects({"method": doubled()})
    assert found["plugins"] == [HERE]
    assert found["method"] == {"base": "grpo", "advantage": {"part": "twice", "times": 2.0}}
    assert without_object("method", grouprl.method("grpo")) == "grpo"
    assert without_object("method", grouprl.method("dapo", clip_high=0.3)) == {"base": "dapo", "clip_high": 0.3}
    renamed = without_object("method", dataclasses.replace(grouprl.method("grpo"), name="mine"))
    assert renamed["name"] == "mine"  # type: ignore[index]
    assert "base" not in renamed  # type: ignore[operator]
    assert without_objects({"method": doubled}) == {"method": f"{HERE}:doubled"}
    by_class = {"method": {"base": "grpo", "advantage": Twice}, "plugins": ["json", HERE]}
    assert without_objects(by_class) == {"method": {"base": "grpo", "advantage": "twice"}, "plugins": ["json", HERE]}
    resolved = grouprl.compose({"base": "grpo", "clip_high": 0.3})
    kept = without_objects({"method": resolved})
    assert "plugins" not in kept
    again = grouprl.compose(kept["method"])  # type: ignore[arg-type]
    assert list(again.method.parts()) == list(resolved.method.parts())


def test_an_empty_configuration_is_refused() -> None:
    with pytest.raises(InputError, match="the configuration is empty"):
        grouprl.train({}, console=quiet())


def test_what_is_neither_written_nor_named_is_left_to_the_check() -> None:
    with pytest.raises(InputError, match="no configuration file can hold"):
        grouprl.plan({"task": {"name": "addition", "digits": functools}})
    with pytest.raises(InputError, match="no configuration file can hold"):
        parse_config({"task": {"name": "addition", "digits": torch.tensor(2)}})


def test_a_run_and_its_plan_take_objects(tmp_path: Path) -> None:
    settings = {**SMALL, "task": Letters(3), "reward": [half, a_quarter], "method": doubled()}
    assert not grouprl.plan(settings).refusals
    run = grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert run is not None
    assert run.metrics("train")["reward_mean"].tolist() == [0.75, 0.75]
    grouprl.train(run.folder, ["steps=3"], resume=True, console=quiet())
    assert grouprl.load_run(run.folder).summary["steps"] == 3
    found = grouprl.evaluate(run.folder, Letters, prompts=4, reward=a_quarter)
    assert found.reward.value == 0.25


def test_a_comparison_takes_methods_and_functions_that_make_them() -> None:
    methods = [without_object("method", each) for each in ("grpo", doubled)]
    design = designed({**SMALL, "task": Letters}, methods, seeds=2)  # type: ignore[arg-type]
    assert [arm.label for arm in design.arms] == ["grpo", "test_python_objects.py:doubled"]
    with pytest.raises(InputError, match=r"methods has 3\. Each is a name"):
        grouprl.compare(SMALL, ["grpo", 3], console=quiet())  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"a method with parts of .*Give the function"):
        without_object("method", doubled())


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (grouprl.RunListener(), "Put it into a list"),
        ([grouprl.RunListener], r"the class RunListener.*RunListener\(\)"),
        ([print], "built-in function print.*Derive"),
    ],
)
def test_callbacks_that_are_no_listeners_are_refused(callbacks: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        grouprl.train(SMALL, callbacks=callbacks, console=quiet())  # type: ignore[arg-type]


def test_a_program_that_trains_as_it_is_imported_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(settings=SMALL))
    ended = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    said = "program.py calls grouprl.train as it is imported. The processes of a run import the files"
    assert said in ended.stderr
    assert '__name__ == "__main__"' in ended.stderr
    assert not (tmp_path / "run").exists()
