"""Attack every grader with the library of hacks and write docs/attacks.md.

Run `python scripts/attacks.py`; `--json` prints the findings instead. Graders of programs have a matrix of their own.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grouprl.core.errors import GrouprlError
from grouprl.envs.playing import demonstrated_actions, over, worth
from grouprl.evaluation.sample_and_score import example_text
from grouprl.rewards import load_reward, reward_names
from grouprl.rewards.by_task.stepwise import line_step_rewards, step_rewards
from grouprl.rewards.catalogue.attacks import CANARY, AttackReport, Case, attack
from grouprl.rewards.catalogue.golds import gold_completion
from grouprl.rewards.judging.comparing import ComparingReward
from grouprl.tasks import Task, load_task, task_names

PAGE = Path(__file__).parent.parent / "docs" / "attacks.md"
TURN = "\x1e"
"""What parts the turns of an episode that is played as a whole."""
TRIES = 50
TOOLS = ("python_tool",)
"""Tasks of turns that run programs: they have a matrix of their own."""
PROGRAMS = ("passes_tests", "code", "speed")
"""Graders that run programs."""
LIBRARY = (
    "countdown",
    "polynomial_multiplication",
    "simple_integration",
    "n_queens",
    "game_of_life_halting",
    "complex_arithmetic",
    "coin_flip",
    "prime_factorization",
    "knights_knaves",
    "spell_backward",
    "gsm_symbolic",
    "rubiks_cube",
    "string_insertion",
    "jugs",
)
GOLDS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "math_equal": (
        (
            r"What is $17\cdot 23+4$?",
            "395",
            (r"\boxed{395}", "The completion is 395.", r"so $x = 395$", r"\boxed{x=395}"),
        ),
        (r"Simplify $\sqrt{8}$.", r"2\sqrt{2}", (r"\boxed{2\sqrt{2}}", r"\boxed{2 \sqrt 2}")),
        ("Solve $x^2-19x+84=0$.", "12, 7", (r"\boxed{12, 7}", r"\boxed{7,12}", r"\boxed{7 \text{ and } 12}")),
        ("Where do the lines meet?", "(1,2)", (r"\boxed{(1, 2)}", r"\boxed{\left(1,2\right)}")),
    ),
    "numeric_match": (
        ("What is 17*23+4?", "395", ("395", "17*23+4 = 395", "**395**", "#### 395")),
        ("What is 10^6?", "1000000", ("1,000,000", "It is 1000000.")),
        ("What is 2^53+1?", "9007199254740993", ("9007199254740993",)),
    ),
    "exact_match": (("The capital?", "Oslo", ("Oslo", " Oslo\n")),),
}
"""Prompts with golds, and correct completions to them, beside the examples that the graders bring themselves."""


def graders() -> Iterator[tuple[str, Any, list[Case]]]:
    """Yield every grader, but those of programs, with what it is attacked on."""
    yield from own_graders()
    if importlib.util.find_spec("reasoning_gym"):
        for name in LIBRARY:
            yield from _task(f"reasoning_gym:{name}")


def own_graders() -> Iterator[tuple[str, Any, list[Case]]]:
    """Yield the graders of `graders` that are no other library's."""
    for name in reward_names():
        if name not in PROGRAMS and (name != "math_equal" or importlib.util.find_spec("math_verify")):
            yield name, load_reward(name), [*_examples(load_reward(name)), *_golds(name)]
    for reward in (step_rewards, line_step_rewards):
        yield reward.__name__, reward, _examples(reward)
    for name in task_names():
        if ":" not in name and name not in PROGRAMS:
            yield from _task(name)


def _examples(reward: Any) -> list[Case]:
    right = [example for example in reward.examples if example.correct]
    return [Case(f"example {n}", "What is 17 * 23 + 4?", e.columns, (e.completion,)) for n, e in enumerate(right)]


def _golds(name: str) -> list[Case]:
    return [Case(f"gold {gold}", prompt, {"answer": gold}, right) for prompt, gold, right in GOLDS.get(name, ())]


def _task(name: str) -> Iterator[tuple[str, Any, list[Case]]]:
    try:
        task = load_task(name)
        if task.environment() is not None:
            yield from _played(name, task)
            return
        if isinstance(task.reward, ComparingReward):  # what a completion earns depends on the others of its group
            return
        example = task.example("train", 0)
    except GrouprlError:  # an adapter without something to adapt
        return
    right = task.solution(example) or gold_completion(task.reward, example.columns)
    yield (
        f"task {name}",
        task.reward,
        [Case(example.id, example_text(example), example.columns, (right,) if right else ())],
    )


@dataclass(frozen=True)
class Played:
    """The reward of a task that is played: a completion is its turns, or one text that is said in every turn."""

    task: Task
    examples: tuple[Any, ...] = ()

    def __call__(self, completion: str, place: int) -> dict[str, float]:
        """Play one episode: the sum of all its rewards, and whether it ended well."""
        environment, example = self.task.environment(), self.task.example("train", place)
        assert environment is not None
        turns = completion.split(TURN) if TURN in completion else [completion] * self.task.max_turns
        try:
            environment.reset(example, 0)
            total = 0.0
            for action in turns:
                step = environment.step(action)
                total += step.reward
                if over(step):
                    break
            score = environment.score()
            return {"reward": total + worth(score), "correct": float(score.get("correct", 0.0) == 1)}
        finally:
            environment.close()


def _played(name: str, task: Task) -> Iterator[tuple[str, Any, list[Case]]]:
    """Yield a task of turns with an episode that it demonstrates, if that is one that ends well."""
    if name in TOOLS:
        return
    reward, rng = Played(task), random.Random(0)
    example = task.example("train", 0)
    for _ in range(TRIES):
        actions = demonstrated_actions(task.environment, example, rng, task.max_turns)  # type: ignore[arg-type]
        if actions and reward(whole := TURN.join([*actions, ""]), 0)["correct"]:
            yield f"turns of {name}", reward, [Case(example.id, example_text(example), {"place": 0}, (whole,))]
            return
    raise AssertionError(f"'{name}' demonstrates no episode that ends well in {TRIES}")


def tried(reward: Any, cases: list[Case]) -> tuple[AttackReport, bool]:
    """Return what an attack found, and whether a program inside of a completion wrote its file."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / CANARY
        return attack(reward, cases, str(canary)), canary.exists()


def main() -> None:
    """Attack all and write the page."""
    rows, total = [], [0, 0, 0, 0, 0]
    for name, reward, cases in graders():
        report, ran = tried(reward, cases)
        kinds = [finding.what for finding in report.findings]
        numbers = [
            report.attacks,
            kinds.count("passes") + ran,
            kinds.count("fails"),
            report.controls,
            kinds.count("refuses"),
        ]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        rows.append(f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
        print(rows[-1], *(json.dumps(asdict(finding)) for finding in report.findings), sep="\n  ", flush=True)
    if "--json" not in sys.argv:
        PAGE.write_text(PREFACE + "\n".join(rows) + "\n| **all** | " + " | ".join(f"{n:,}" for n in total) + " |\n")


PREFACE = """<!-- Made by scripts/attacks.py. -->
# Attacks on graders

A policy under reinforcement learning is an adversary of its grader. Every built-in grader, and the reward of every
built-in task, is attacked with the same library of hacks (`grouprl.rewards.catalogue.attacks`): empty and junk texts,
the prompt copied into every kind of completion, its expressions and formulas of the gold's value, near misses and
hedges around the gold, words to the grader, numbers that are none, endless computations, programs that try to write a
file, and texts that are deep, long or no Unicode. `grouprl check-reward NAME` does the same to any reward, yours
included, on the prompts of your task.

A hack **wins** if it is called correct, earns as much as a correct completion, or its program runs; near misses may
earn something from a grader that rewards nearness, not be called correct. A grader **fails** on a text if it raises,
gives no finite number or does not end. **Controls** are correct completions, scored before and after all hacks;
*refused* are those that were not paid. Rewards of programs run in the sandbox and have cases of their own
(docs/sandbox.md). In a task that is played in turns a hack is said in every turn, and the control is an episode that
the task demonstrates itself.

A second matrix was written apart from that library (`tests/support/grader_matrix.py`): over 500 attacks on single
graders (digits of other scripts, separators, several answers, unevaluated forms, units, tuples and sets, JSON that says
two things) and over 240 honest completions in the usual spellings beside them.

What the library does not show: that a grader understands its subject. A grader that reads the last number of a text
pays for a guessed number, and a grader of one word among few pays for guessing.

| grader | attacks | wins | failures | controls | refused |
|---|---:|---:|---:|---:|---:|
"""

if __name__ == "__main__":
    main()
