"""Templates of what a user adds: `grouprl new KIND NAME` writes a file, its test and a configuration that uses it."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from grouprl.core.errors import InputError, suggest
from grouprl.storage.run_folder import in_words

TINY = """\
model: {name: tiny, tiny: {hidden: 32, layers: 2, heads: 2, intermediate: 64}}
warmup: {steps: 30, batch: 32, lr: 1e-2}
batch: {prompts: 8, group_size: 8, minibatches: 2}
steps: 10
eval: {every: 5, prompts: 16, final_prompts: 16}
run: {checkpoint_every: 5}
"""
REWARD = '''\
"""A reward of $name. Try it: grouprl check-reward $name.py:$name --task $name.yaml"""


def $name(completion: str, answer: str) -> dict[str, float]:
    """Return 1 for the right answer, and a little for any number.

    The completion comes first, then the columns of the task that are named. The values of a dict are added up.
    """
    text = completion.strip()
    return {"right": float(text == answer), "number": 0.1 * text.isdigit()}
'''
REWARD_TEST = """\
from $name import $name


def test_only_the_right_answer_is_paid_in_full():
    assert $name(" 7", "7") == {"right": 1.0, "number": 0.1}
    assert $name("8", "7") == {"right": 0.0, "number": 0.1}
    assert $name("seven", "7") == {"right": 0.0, "number": 0.0}
"""
REWARD_RUN = 'task: {name: addition, digits: 1}\nreward: {function: "$name.py:$name"}\nmethod: grpo\n' + TINY
ENVIRONMENT = '''\
"""An environment. Try it: grouprl check-env $name.py:$Class"""

import random

from grouprl.envs import Observation, Step


class $Class:
    """Take one or two from a number until it is exactly zero."""

    def reset(self, example, seed):
        """Begin an episode; everything random follows from `seed`."""
        self.number, self.over = random.Random(seed).randint(3, 6), False
        return self._look()

    def step(self, action):
        """Answer an action of the policy."""
        if action not in ("1", "2"):
            return Step(self._look(), terminated=True, valid=False)
        self.number, self.over = max(0, self.number - int(action)), self.number < int(action)
        return Step(self._look(), reward=float(self.number == 0 and not self.over), terminated=self.number == 0)

    def score(self):
        """Say how the episode went."""
        return {"correct": float(self.number == 0 and not self.over)}

    def close(self):
        """Give back what the episode holds."""

    def demonstrate(self, rng):
        """Return an action that may be a poor one, for the warm-up of a tiny model."""
        return rng.choice(("1", "2"))

    def _look(self):
        return Observation(f"{self.number}>", state=str(self.number), legal=("1", "2"))
'''
ENVIRONMENT_TEST = """\
from grouprl.testing import check_environment

from $name import $Class


def test_it_keeps_the_rules_of_environments():
    check_environment($Class, None, ["1", "2", "1", "1", "1"])
"""
ENVIRONMENT_RUN = (
    'task: {name: "env:$name.py:$Class", turns: 8, tokens: 3, characters: "0123456789>"}\n'
    "method: grpo\nenvironment: {workers: 0}\n" + TINY
)
METHOD = '''\
"""A method. Check it: grouprl methods check $name.py:$name"""

import grouprl


def $name(clip: float = 0.1, kl_coef: float = 0.02) -> grouprl.Method:
    """GRPO with a narrow clip on both sides and a weak KL term."""
    return grouprl.method("grpo", clip_low=clip, clip_high=clip, kl_coef=kl_coef)
'''
CHECKED = """\
from typer.testing import CliRunner

from grouprl.cli.app import app


def test_it_keeps_the_rules_of_methods():
    done = CliRunner().invoke(app, ["methods", "check", "$name.py:$method"])
    assert done.exit_code == 0, done.output
"""
METHOD_TEST = (
    "from $name import $name\n"
    + CHECKED.replace("$method", "$name")
    + """

def test_its_settings_arrive():
    assert $name(clip=0.3).objective.clip_low == 0.3
"""
)
METHOD_RUN = 'task: {name: addition, digits: 1}\nmethod: {base: "$name.py:$name", clip: 0.15}\n' + TINY
PART = '''\
"""A part of the kind advantage. Check it: grouprl methods check $name.py:with_$name"""

import torch

import grouprl


@grouprl.part("advantage", name="$name")
class $Class(grouprl.Advantage):
    """A completion's reward less the median reward of its group, the same for all its tokens."""

    half: bool = False

    says = "compare each completion with the median of its group"
    equation = "A_i = R_i - median(R)"

    def __call__(self, batch):
        """Return the advantages [B,T]."""
        median_b = torch.zeros_like(batch.reward_b)
        for group in torch.unique(batch.group_b):
            rows_b = batch.group_b == group
            median_b[rows_b] = batch.reward_b[rows_b].quantile(0.5)
        return batch.broadcast((batch.reward_b - median_b) * (0.5 if self.half else 1.0))


def with_$name() -> grouprl.Method:
    """GRPO with this part."""
    return grouprl.method("grpo").with_parts(advantage=$Class())
'''
PART_TEST = (
    "import torch\n"
    + CHECKED.replace("$method", "with_$name").replace(
        "from grouprl.cli", "from grouprl import Batch\nfrom grouprl.cli"
    )
    + """

def test_its_numbers():
    from $name import $Class

    batch = Batch(
        mask_bt=torch.ones(3, 2, dtype=torch.bool),
        group_b=torch.tensor([0, 0, 0]),
        reward_b=torch.tensor([1.0, 0.0, 4.0]),
    )
    assert $Class()(batch)[:, 0].tolist() == [0.0, -1.0, 3.0]
    assert $Class(half=True)(batch)[:, 0].tolist() == [0.0, -0.5, 1.5]
"""
)
PART_RUN = (
    "plugins: [$name.py]\ntask: {name: addition, digits: 1}\n"
    "method: {base: grpo, advantage: {part: $name, half: true}}\n" + TINY
)
TASK = '''\
"""A task. Look at it: grouprl tasks show $name.py:$Class"""

from grouprl.records.examples import Example
from grouprl.tasks.task import Task


def right(completion: str, answer: str) -> float:
    """Return 1 for the right answer, else 0."""
    return float(completion.strip() == answer)


class $Class(Task):
    """Say which of two digits is larger."""

    name = "$name"
    alphabet = "0123456789<>? "
    max_new_tokens = 4
    reward = staticmethod(right)

    def size(self, split):
        """Return the number of prompts: pairs with an even sum train, the others are held out."""
        return len(self._pairs(split))

    def example(self, split, index):
        """Return prompt number `index` of a split, always the same one."""
        a, b = self._pairs(split)[index]
        return Example(id=f"{split}-{index}", prompt=f"{a}<>{b}?", columns={"answer": str(max(a, b))})

    def demonstration(self, example, seed):
        """Return a completion that may be wrong, for the warm-up of a tiny model."""
        return example.prompt[0] if seed % 2 else example.prompt[3]

    def solution(self, example):
        """Return the right completion."""
        return example.columns["answer"]

    def _pairs(self, split):
        held_out = split == "eval"
        return [(a, b) for a in range(10) for b in range(10) if a != b and (a + b) % 2 == held_out]
'''
TASK_TEST = """\
from $name import $Class, right


def test_solutions_are_right_and_no_prompt_is_in_both_splits():
    task, seen = $Class(), {}
    for split in ("train", "eval"):
        examples = [task.example(split, n) for n in range(task.size(split))]
        assert all(right(task.solution(each), each.columns["answer"]) for each in examples)
        seen[split] = {each.prompt for each in examples}
    assert not seen["train"] & seen["eval"]
"""
TASK_RUN = 'task: {name: "$name.py:$Class"}\nmethod: grpo\n' + TINY
RECIPE = "task: {name: addition, digits: 1}\nmethod: grpo\n" + TINY
RECIPE_TEST = """\
from pathlib import Path

import grouprl


def test_nothing_speaks_against_it():
    assert grouprl.plan(Path(__file__).parent / "$name.yaml").refusals == ()
"""
KINDS = {
    "reward": (REWARD, REWARD_TEST, REWARD_RUN),
    "env": (ENVIRONMENT, ENVIRONMENT_TEST, ENVIRONMENT_RUN),
    "method": (METHOD, METHOD_TEST, METHOD_RUN),
    "part": (PART, PART_TEST, PART_RUN),
    "task": (TASK, TASK_TEST, TASK_RUN),
    "recipe": ("", RECIPE_TEST, RECIPE),
}
"""The source, its test and a configuration that uses it, by kind."""


def write_new(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a new reward, environment, method, part, task or recipe, and return their paths.

    Raises:
        InputError: the kind is unknown, the name cannot be a module's or is another module's, or one of the files
            exists.
        RunError: the disk is full.
    """
    if kind not in KINDS:
        raise InputError(f"new makes nothing of the kind '{kind}'", remedy=suggest(kind, KINDS))
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise InputError(
            f"the name {name!r}", "it names a file and a function, so it may hold only small letters, digits and _"
        )
    title = "".join(word.capitalize() for word in name.split("_"))
    files = zip((f"{name}.py", f"test_{name}.py", f"{name}.yaml"), KINDS[kind], strict=True)
    texts = {folder / file: Template(text).substitute(name=name, Class=title) for file, text in files if text}
    if there := [path for path in texts if path.exists()]:
        raise InputError(f"{there[0]} exists already", "new never overwrites anything", "Choose another name")
    if KINDS[kind][0] and _is_module(name):
        rule = f"Python has a module of this name, which {name}.py would hide from everything that imports it"
        raise InputError(f"the name {name!r}", rule, f"Choose another name, such as my_{name}")
    with in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return list(texts)


def _is_module(name: str) -> bool:
    """Return whether `import NAME` finds something already."""
    return name in sys.stdlib_module_names or name in sys.modules or find_spec(name) is not None
