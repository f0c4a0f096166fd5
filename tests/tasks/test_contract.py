"""What holds for every task of the registry; a task that is registered anew is held to it without being named here.

An adapter needs something to adapt: `ADAPTED` makes it, and a test fails until a new adapter stands there too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Demonstrator, Environment
from grouprl.envs.async_methods import awaited
from grouprl.envs.environment import unwritable, worth
from grouprl.envs.game import Game
from grouprl.plan.plan import plan
from grouprl.records.examples import Example, Split
from grouprl.rewards import check_reward
from grouprl.rewards.scoring import score
from grouprl.tasks import Task, load_task, task_names
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.task import split_of
from grouprl.testing import check_task

SUPPORT = Path(__file__).parents[1] / "support"
ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(20)]
LABELLED = [{"prompt": f"{i}+1", "completions": ["one", f"{i + 1}"], "labels": [True, bool(i % 2)]} for i in range(40)]
PAIRS = [{"prompt": f"{n}:", "chosen": "a", "rejected": "b"} for n in range(20)]
WORLDS = {"alfworld": "alfworld", "webshop": "web_agent_site"}
"""Adapters that take no argument: the packages they need, which do not hold their data."""
PLAIN = [name for name in task_names() if ":" not in name and name not in WORLDS]
KINDS = {name.partition(":")[0] for name in task_names() if ":" in name} | set(WORLDS)
DICE = '''
import random
import re

from grouprl.envs import Observation, Step


class Dice:
    """Say a number above the die."""

    def reset(self, example, seed):
        self.die, self.right = random.Random(seed).randint(1, 6), False
        return Observation(f"d{self.die}>")

    def step(self, action):
        self.right = action.isdecimal() and int(action) > self.die
        return Step(Observation("again>"), float(self.right), terminated=self.right, valid=action.isdecimal())

    def score(self):
        return {"correct": float(self.right)}

    def close(self):
        pass
'''
COMPARED = ("duels",)
"""Tasks whose rewards compare the completions of a group: none is right alone."""
MANY_EXAMPLES = ("adventure", "screen", "sql", "search", "signals", "team", "subgoals")
"""Tasks whose rewards have five known examples and more."""
LIMITED = ("calculator", "guess", "keys", "tictactoe")
"""Environments that nonsense does not end; a limit of turns does."""
SHELLS = ("repositories", "terminal")
"""Environments in which any text is a command."""
RIGHT = {
    "adventure": (0.55, 0.90),
    "diagnose": (0.30, 0.70),
    "screen": (0.65, 0.95),
    "search": (0.30, 0.65),
    "sentinel": (0.40, 0.80),
    "shortlist": (0.20, 0.50),
    "signals": (0.20, 0.45),
    "sql": (0.55, 0.80),
    "subgoals": (0.25, 0.75),
    "team": (0.35, 0.65),
}
"""How often demonstrations are right: (more than, less than)."""
JUNK = (
    *("", " ", "\n\n", "\0", "no", "1" * 400, "(" * 300, "²³½ 😀", "nan", "-inf"),
    *("\\boxed{}", "<answer></answer>", "<tool_call>{"),
)
STEPS = 40
"""Steps of junk after which an episode that has not ended is left."""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows_file(folder: Path, rows: list[dict[str, str]]) -> Path:
    return written(folder / "rows.jsonl", "\n".join(map(json.dumps, rows)))


def sampled_run(folder: Path) -> Path:
    """A run of one step with its rollouts."""
    from rich.console import Console

    from grouprl.training.loop import train

    tiny = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}}
    sizes = {"batch": {"prompts": 4, "group_size": 4}, "eval": {"every": 0, "final_prompts": 4}, "steps": 1}
    config = parse_config({"task": "addition", "model": tiny, "run": {"threads": 1}, **sizes})
    return train(config, folder=folder / "run", console=Console(quiet=True)).folder


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of an environment behind a socket."""
    pytest.importorskip("websockets")
    pytest.importorskip("uvicorn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SUPPORT / "openenv_servers.py"), str(port), "4", "by hand"])
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"openenv:http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def jobs(folder: Path) -> Path:
    """A folder with jobs for a shell."""
    for number in range(10):
        told = {"prompt": f"Write {number} to a.txt", "tests": [{"file": "a.txt", "content": str(number)}]}
        place = folder / f"job{number}"
        (place / "files").mkdir(parents=True)
        written(place / "files" / "b.txt", "old\n")
        written(place / "task.yaml", json.dumps({**told, "solution": [f"echo {number} > a.txt"]}))
    return folder


def chores(folder: Path) -> dict[str, Any]:
    """ALFWorld's task on a few small games in the format of its data."""
    pytest.importorskip("alfworld", reason="alfworld is not installed: pip install 'grouprl[alfworld]'")
    from alfworld_games import write_games

    counts = {"train": 4, "valid_seen": 4, "valid_unseen": 4}
    return {"name": "alfworld", "data": str(write_games(folder, counts)), "turns": 12}


def shop(folder: Path) -> str:
    """WebShop's task; the package is not on the index, and comes with its data."""
    pytest.importorskip("web_agent_site", reason="WebShop is not installed: its repository is to be set up")
    return "webshop"


def letters(folder: Path) -> dict[str, Any]:
    """An environment of `verifiers`, written as its installed version wants it."""
    pytest.importorskip("verifiers", reason="verifiers is not installed: pip install 'grouprl[verifiers]'")
    if tuple(map(int, importlib.metadata.version("verifiers").split(".")[:2])) >= (0, 4):
        return {"name": "verifiers:verifiers-letters"}
    return {"name": "verifiers:vf-letters", "args": {"kind": "single"}, "tokens": 6}


ADAPTED: dict[str, Callable[[Path], Any]] = {
    "alfworld": chores,
    "construct": lambda folder: "construct:tsp",
    "control": lambda folder: "control:CartPole-v1",
    "env": lambda folder: f"env:{written(folder / 'dice.py', DICE)}:Dice",
    "gym": lambda folder: "gym:FrozenLake-v1",
    "hf": lambda folder: f"hf:{rows_file(folder, ROWS)}",
    "jsonl": lambda folder: f"jsonl:{rows_file(folder, ROWS)}",
    "judge": lambda folder: f"judge:{rows_file(folder, PAIRS)}",
    "mcp": lambda folder: {"name": f"mcp:{sys.executable} {SUPPORT / 'mcp_counter.py'}", "of": "summands"},
    "openenv": lambda folder: served(),
    "pairs": lambda folder: f"pairs:{rows_file(folder, PAIRS)}",
    "pettingzoo": lambda folder: "pettingzoo:classic.tictactoe_v3",
    "program": lambda folder: {"name": f"program:{SUPPORT / 'agent_programs.py'}:slow", "examples": "summands"},
    "reasoning_gym": lambda folder: "reasoning_gym:leg_counting",
    "rollouts": lambda folder: f"rollouts:{sampled_run(folder)}",
    "solved": lambda folder: {"name": "solved:tsp", "count": 5},
    "squad": lambda folder: "squad:parallel_ferry",
    "step_labels": lambda folder: f"step_labels:{rows_file(folder, LABELLED)}",
    "task_folders": lambda folder: f"task_folders:{jobs(folder)}",
    "textarena": lambda folder: "textarena:GuessTheNumber-v0",
    "textworld": lambda folder: {"name": "textworld:generated", "folder": str(folder), "quest_length": 1, "games": 2},
    "tools": lambda folder: {"name": f"tools:{SUPPORT / 'tools_at_hand.py'}:add", "of": "addition"},
    "trajectories": lambda folder: {
        "name": f"trajectories:{SUPPORT / 'stored_rows' / 'walks.jsonl'}",
        "of": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
    },
    "verifiers": letters,
    "webshop": shop,
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """How a configuration names a task of each kind."""
    with contextlib.ExitStack() as stack:

        @cache
        def spec(name: str) -> Any:
            made = ADAPTED[name](tmp_path_factory.mktemp(name)) if name in ADAPTED else name
            return stack.enter_context(made) if hasattr(made, "__enter__") else made

        yield spec


@pytest.fixture
def task(request: pytest.FixtureRequest, specs: Callable[[str], Any]) -> Task:
    return usable(specs(request.param), seed=3)


def usable(spec: Any, **options: Any) -> Task:
    """A task whose packages are installed; others are left out."""
    try:
        made = load_task(spec, **options)
        if made.environment() is not None:
            awaited(made.environment().close())
    except MissingExtra as error:
        pytest.skip(str(error))
    return made


EVERY = pytest.mark.parametrize("task", [*PLAIN, *sorted(KINDS)], indirect=True)


def first(task: Task, count: int = 4, split: Split = "train") -> list[Example]:
    size = task.size(split)
    return [task.example(split, index) for index in range(count if size is None else min(count, size))]


def reward_of(task: Task, text: str, example: Example) -> tuple[float, bool]:
    found = score(task.reward, [text], [example.columns], ids=["contract"])
    return float(found.reward_b[0]), bool(found.correct_b[0])


def test_every_adapter_is_here() -> None:
    assert set(ADAPTED) == KINDS


@EVERY
def test_prompts_are_a_function_of_split_and_number(task: Task) -> None:
    check_task(task)
    if task.size("train") != 0 and task.size("eval") != 0:
        assert first(task, 1)[0].id != first(task, 1, "eval")[0].id


@EVERY
def test_it_travels_to_another_process_unchanged(task: Task) -> None:
    other = pickle.loads(pickle.dumps(task))
    assert other.fingerprint() == task.fingerprint()
    assert first(other) == first(task)


@EVERY
def test_what_a_plan_reads_is_there(task: Task) -> None:
    assert task.name
    assert task.description
    assert task.max_new_tokens > 0
    assert task.max_turns > 0
    assert task.agents
    for example in first(task):
        assert all(isinstance(hint, str) for hint in task.hints(example))
        assert task.demonstration(example, 0) == task.demonstration(example, 0)


@EVERY
def test_a_gold_has_the_full_reward_and_junk_less(task: Task) -> None:
    if task.environment() is not None or task.spaces is not None or hasattr(task, "stored_rows"):
        return
    for example in first(task):
        gold = task.solution(example)
        full, right = (math.inf, True) if gold is None else reward_of(task, gold, example)
        assert right, (example.id, gold)
        for text in JUNK:
            reward, correct = reward_of(task, text, example)
            assert math.isfinite(reward)
            assert abs(reward) <= 20
            assert reward <= full + 1e-9, (text, reward, full)
            assert not (correct and text.strip() == ""), "an empty completion is right"


@EVERY
def test_an_environment_ends_right_by_its_gold_and_survives_junk(task: Task) -> None:
    if task.environment() is None or task.spaces is not None:
        return
    for example in first(task, 2):
        gold = task.solution(example)
        if gold is not None and not hasattr(task, "of"):  # in front of tools a gold is what is said at the end
            assert played(task, example, gold.splitlines())[1] == 1.0
        total, _ = played(task, example, [JUNK[n % len(JUNK)] for n in range(STEPS)])
        assert math.isfinite(total)
        assert abs(total) <= 200


def spoiled(gold: str) -> list[str]:
    """Golds whose numbers are endless or in other digits, and whose texts hold half a character, as JSON writes it."""
    other = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    half = re.sub(r'"[^"]*"', lambda found: r'"\ud800"', gold)
    return [re.sub(r"\d+", "9" * 5000, gold), gold.translate(other), half, gold + r'"\ud800"']


@EVERY
def test_a_spoiled_gold_is_scored_as_any_other_text(task: Task) -> None:
    for example in first(task, 2):
        gold = task.solution(example)
        if gold is None or task.spaces is not None or hasattr(task, "stored_rows"):
            return
        for text in spoiled(gold):
            if task.environment() is None:
                found = score(task.reward, [text], [example.columns], ids=["contract"])
                assert found.status_b.tolist() == ["ok"], (text[:80], found.problems)
            else:
                assert math.isfinite(played(task, example, text.splitlines())[0])


def played(task: Task, example: Example, actions: list[str]) -> tuple[float, float]:
    """Return the reward of an episode and whether it ended right."""
    environment = task.environment()
    awaited(environment.reset(example, 0))
    total = 0.0
    for action in actions:
        step = awaited(environment.step(action))
        total += step.reward
        assert unwritable(step.observation.text) is None, action[:80]
        if step.terminated or step.truncated:
            break
    components = awaited(environment.score())
    awaited(environment.close())
    return total + worth(components), components.get("correct", 0.0)


def of_kind(kind: type[Any], name: str, **options: Any) -> Any:
    """A task of the registry that is of a kind; others are left out."""
    made = usable(name, **options)
    if not isinstance(made, kind):
        pytest.skip(f"it is no {kind.__name__}")
    return made


@pytest.mark.parametrize("name", PLAIN)
def test_generated_prompts_follow_from_the_seed_and_splits_are_disjoint(name: str) -> None:
    one, again, other = (of_kind(GeneratedTask, name, seed=seed) for seed in (5, 5, 6))
    examples = [one.example("train", index) for index in range(80)]
    assert [again.example("train", index) for index in range(80)] == examples
    assert [other.example("train", index).prompt for index in range(50)] != [each.prompt for each in examples[:50]]
    assert again.demonstration(examples[7], 3) == one.demonstration(examples[7], 3)
    held_out = {other.content(other.example("eval", index).prompt) for index in range(50)}
    assert not held_out & {one.content(each.prompt) for each in examples}
    assert all(split_of(content) == "eval" for content in held_out)


@pytest.mark.parametrize("name", PLAIN)
def test_the_reward_knows_its_examples_and_travels(name: str) -> None:
    task = of_kind(GeneratedTask, name)
    assert check_reward(task.reward, task.reward_examples()) >= (5 if name in MANY_EXAMPLES else name not in COMPARED)
    example = task.example("train", 1)
    text = task.demonstration(example, 0)
    rewards = (task.reward, pickle.loads(pickle.dumps(task.reward)))
    here, there = (score(reward, [text], [example.columns], ids=["contract"]) for reward in rewards)
    assert here.reward_b.tolist() == there.reward_b.tolist()


@pytest.mark.parametrize("name", PLAIN)
def test_environments_are_single_use(name: str) -> None:
    task = of_kind(EnvironmentTask, name)
    environment = task.environment()
    if not isinstance(environment, Game):
        pytest.skip("it has its own words for its states")
    assert isinstance(environment, Environment)
    assert isinstance(environment, Demonstrator)
    with pytest.raises(InputError, match="before reset"):
        environment.step("1")
    environment.reset(task.example("train", 0), 0)
    with pytest.raises(InputError, match="called twice"):
        environment.reset(task.example("train", 0), 0)
    while not (step := environment.step("nonsense")).terminated and not step.truncated:
        assert not step.valid or name in SHELLS
    assert step.observation.legal == ()
    assert step.truncated or name not in LIMITED
    with pytest.raises(InputError, match=r"after the end.*one episode"):
        environment.step("1")
    environment.close()
    environment.close()
    with pytest.raises(InputError, match="after close"):
        environment.step("1")


@pytest.mark.parametrize("name", RIGHT)
def test_demonstrations_are_imperfect(name: str) -> None:
    task, right = load_task(name), 0
    for index in range(200):
        environment, rng = task.environment(), random.Random(index)
        environment.reset(task.example("train", index), index)
        while not (step := environment.step(environment.demonstrate(rng))).terminated and not step.truncated:
            pass
        right += environment.correct
    low, high = RIGHT[name]
    assert low < right / 200 < high


@pytest.mark.parametrize("name", [*PLAIN, *WORLDS])
def test_a_plan_says_what_a_run_on_it_does(name: str, specs: Callable[[str], Any]) -> None:
    """Nothing but a sentence may rule a run out: whatever a task is, planning it ends."""
    tiny = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 4096}}
    settings = {"model": tiny, "batch": {"prompts": 2, "group_size": 2}, "steps": 1, "reward": {"self_test": False}}
    try:
        found = plan(parse_config({"task": specs(name), **settings}))
    except MissingExtra as error:
        pytest.skip(str(error))
    assert found.task == name
    assert found.example
    assert found.batch.completions == 4
    assert all(isinstance(reason, str) for reason in found.refusals)
    assert found.peak


FIRST = """
import hashlib, json, sys
from grouprl.tasks import load_task
for name in json.loads(sys.argv[1]):
    task = load_task(name, seed=3)
    found = [repr(task.example(split, index)) for split in ("train", "eval") for index in range(3)]
    print(task.name, hashlib.sha256("\\n".join(found).encode()).hexdigest())
"""


def test_prompts_do_not_depend_on_the_process(specs: Callable[[str], Any]) -> None:
    """Two processes whose sets and dicts hash differently have the same prompts."""
    asked = [*PLAIN, *(specs(name) for name, package in WORLDS.items() if importlib.util.find_spec(package))]
    command = [sys.executable, "-c", FIRST, json.dumps(asked)]
    said = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(asked)
