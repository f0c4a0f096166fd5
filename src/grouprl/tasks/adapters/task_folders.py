"""Jobs for a shell in folders: each has a prompt, initial files, and tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.hashing import digest
from grouprl.core.json_types import JsonObject
from grouprl.envs.terminal import PROMPT, Shell
from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.runtimes.checks import read_checks
from grouprl.tasks.environments import EpisodeReward
from grouprl.tasks.registry import register_task
from grouprl.tasks.shell_options import ShellOptions
from grouprl.tasks.table import Table
from grouprl.tasks.task import check_request, without_folder
from grouprl.tools.shell import ShellTools

HEAD = "task.yaml"
KEYS = {"prompt", "tests", "solution", "split"}
LARGEST = 1 << 20
"""Bytes of the largest initial file."""


@register_task("task_folders", argument="path")
class TaskFolders(ShellOptions):
    """Do your own jobs in a shell, with one folder per job: task_folders:jobs.

    A folder holds `task.yaml` with `prompt`, `tests` (`docs/terminal.md`), optionally a `solution` (commands) and a
    `split` (train or eval; eval for one in ten by default), and next to it a folder `files` with the initial files of
    an episode.
    """

    path: str = Field(description="the folder that holds the folders of the jobs")
    turns: int = Field(12, ge=1, description="the largest number of turns; 'done' counts as one")
    tokens: int = Field(256, ge=1, description="token budget of a command, its end included")
    shown: int = Field(2000, ge=40, description="characters of a command's output that are shown")

    _jobs: dict[Split, list[Example]] = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Read the folders.

        Raises:
            InputError: there are none, or one of them is invalid.
        """
        heads = sorted(Path(self.path).glob(f"*/{HEAD}"))
        if not heads:
            raise InputError(f"There are no jobs in '{self.path}'", f"a job is a folder in it that holds {HEAD}")
        self._jobs = {"train": [], "eval": []}
        for number, head in enumerate(heads):
            example, split = _read(head, "eval" if number % 10 == 9 else "train")
            self._jobs[split].append(example)

    @property
    def name(self) -> str:
        """The folder after "task_folders:"."""
        return f"task_folders:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence with the number of jobs."""
        return f"{sum(map(len, self._jobs.values()))} jobs for a shell in {self.path}."

    @property
    def reward(self) -> Reward:
        """The reward of the actions, one per line: 1 if the tests pass afterwards."""
        return EpisodeReward(self)

    def example(self, split: Split, index: int) -> Example:
        """Return job `index` of a split, in the order of the folders' names."""
        check_request(self.name, split, index, self.size(split))
        return self._jobs[split][index]

    def size(self, split: Split) -> int:
        """Return how many jobs a split has."""
        check_request(self.name, split, 0, None)
        return len(self._jobs[split])

    def solution(self, example: Example) -> str | None:
        """Return the commands of `solution`, one per line, and 'done'; None if there is no solution."""
        commands = self.written(example.columns["solution"])
        return "\n".join([*commands, "done"][: self.turns]) if commands else None

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return an example in which doing nothing does not solve the first job."""
        first = next(example for jobs in self._jobs.values() for example in jobs)
        return (KnownExample("done", first.columns, False),)

    def environment(self) -> Shell | ShellTools:
        """Return a fresh episode, which shows text in any script."""
        return self.episode(ascii_only=False)

    def options(self) -> JsonObject:
        """Return every option, and a hash of the folders' contents."""
        held = [[example.id, example.prompt, example.columns] for jobs in self._jobs.values() for example in jobs]
        return super().options() | {"path": without_folder(self.path), "held": digest(held)}

    def tables(self) -> Sequence[Table]:
        """Return the jobs, those of training first."""
        jobs = [example for jobs in self._jobs.values() for example in jobs]
        rows = [{"job": job.id, "prompt": job.prompt, **job.columns} for job in jobs]
        return (Table(self.path, rows, range(len(rows)), "job"),)


def _read(head: Path, split: Split) -> tuple[Example, Split]:
    where = f"the job '{head.parent.name}'"
    try:
        told = yaml.safe_load(head.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{HEAD} of {where} cannot be read: {error}") from error
    if not isinstance(told, dict) or not isinstance(told.get("prompt"), str) or not told["prompt"].strip():
        raise InputError(f"{HEAD} of {where} has no prompt", "it must have `prompt`, a text, and `tests`")
    if odd := sorted(map(str, told.keys() - KEYS)):
        raise InputError(f"{HEAD} of {where} has the key '{odd[0]}'", f"the keys are {', '.join(sorted(KEYS))}")
    tests, solution = told.get("tests") or [], told.get("solution") or []
    read_checks(tests, where)
    if not isinstance(solution, list) or not all(isinstance(each, str) for each in solution):
        raise InputError(f"The solution of {where} is {solution!r}", "it must be a list of commands")
    if told.get("split", split) not in ("train", "eval"):
        raise InputError(f"The split of {where} is {told['split']!r}", "it must be train or eval")
    columns = {"files": _files(head.parent / "files", where), "tests": tests, "solution": solution, "slips": []}
    example = Example(f"task_folders/{head.parent.name}", f"{told['prompt'].strip()}{PROMPT}", columns)
    return example, told.get("split", split)


def _files(folder: Path, where: str) -> JsonObject:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        content = path.read_bytes()
        if len(content) > LARGEST:
            raise InputError(f"A file of {where} is larger than 1 MiB: {path.name}")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"A file of {where} is not text: {path.name}", "files must be UTF-8") from error
        found[str(path.relative_to(folder))] = {"content": text, "mode": f"{path.stat().st_mode & 0o777:03o}"}
    return found
