"""A shell in a runtime: a task in words, files to work on, and tests of the files that are left in the end."""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grouprl.core.json_types import JsonMapping
from grouprl.envs.environment import Observation
from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns, Message
from grouprl.runtimes.checks import passed, read_checks
from grouprl.runtimes.runtime import CommandOutcome, FolderUnreadable, Runtime, folder_digest, folder_of
from grouprl.sandbox.folder import FolderEntry

if TYPE_CHECKING:
    from grouprl.records.examples import Example

PROMPT = "\n$ "
"""The text before a command."""
DONE = ("done", "exit")
SILENT = "(no output)"
SYSTEM = (
    "You work in a Linux shell. Each reply is one bash command and nothing else. Reply done when the task is finished."
)
FENCE = re.compile(r"```[a-z]*[ \t]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
SHOWN = frozenset(string.printable) - frozenset("\r\x0b\x0c")
BOTH = ("sh", "-c", 'exec 2>&1; exec bash --noprofile --norc -c "$1"', "sh")
"""Command line of a shell that mixes error output into its output, as on a screen."""


class Shell(Game):
    """A task that is solved with shell commands, one per turn; the tests check the folder when the episode is over.

    Columns: `files` (path -> text, or {"content", "mode"}), `tests` (`grouprl.runtimes.checks`), and for demonstrations
    `solution` (commands that solve it) and `slips` (commands that do not). An action is a command, alone or in a fenced
    block; its observation is its output, cut in the middle if it is long, its exit status if that is not 0, and a
    prompt sign. Every command begins in the folder. `done` ends the episode, as does the last turn. Then all processes
    that the commands started are ended, the tests are run on the files that are left, and the reward is 1 if all pass.
    An empty action is invalid. The state is the content of the folder and the last output.
    """

    def __init__(
        self,
        make: Callable[[], Runtime],
        max_turns: int,
        *,
        seconds: float = 10.0,
        shown: int = 600,
        system: str = SYSTEM,
        before: Sequence[Message] = (),
        noise: float = 0.3,
        ascii_only: bool = True,
    ) -> None:
        """Prepare an episode of at most `max_turns` commands.

        Args:
            make: returns a fresh runtime; one for the commands, further ones for tests.
            max_turns: the largest number of commands, including `done`.
            seconds: time limit of a command.
            shown: characters of a command's output that are shown.
            system: first message to a policy with a chat template.
            before: messages between that and the prompt, for such a policy only: solved tasks.
            noise: chance that a demonstrated command is a slip.
            ascii_only: show other characters as '?'.
        """
        super().__init__(max_turns)
        self.make, self.seconds, self.shown, self.system = make, seconds, shown, system
        self.before, self.noise, self.ascii_only = tuple(before), noise, ascii_only
        self.runtime: Runtime | None = None
        self.columns: Columns = {}
        self.followed = self.commands = self.failed = 0
        self.printed, self.right = "", False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Copy the files into a fresh runtime."""
        self.columns = {"solution": (), "slips": (), **columns}
        self.checks = read_checks(columns["tests"])
        self.runtime = self.make()
        self.runtime.start(given_folder(columns["files"]))

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode; a policy with a chat template is told how to reply."""
        first = super().reset(example, seed)
        user = {"role": "user", "content": first.text.removesuffix(PROMPT)}
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return Observation(first.text, first.state, messages=(*system, *self.before, user))

    @property
    def state(self) -> str:
        """A hash of the content of the folder and of the last output."""
        if self.runtime is None or self._phase != "playing":
            return ""
        try:
            folder = folder_digest(self.runtime.snapshot())
        except FolderUnreadable:
            folder = ""
        text = f"{folder}\0{self.printed}"
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()

    @property
    def correct(self) -> bool:
        """True if all tests passed; known when the episode is over."""
        return self.right

    def act(self, action: str) -> Outcome:
        """Run a command, or end the episode."""
        assert self.runtime is not None
        command = command_of(action)
        ended = command.lower().rstrip(".!") in DONE
        text, valid = ("", True) if ended else self._run(command)
        if ended or self.turns + 1 >= self.max_turns:
            self.right = self._judge()
        return Outcome(text, float(self.right), ended=ended, valid=valid)

    def score(self) -> dict[str, float]:
        """Return `correct`, and the numbers of commands and of failed commands."""
        return {**super().score(), "#commands": float(self.commands), "#failed_commands": float(self.failed)}

    def close(self) -> None:
        """Stop the runtime."""
        super().close()
        if self.runtime is not None:
            self.runtime.stop()
            self.runtime = None

    def demonstrate(self, rng: random.Random) -> str:
        """Return the next command of the solution, or a slip with a certain chance."""
        if self.columns["slips"] and rng.random() < self.noise:
            return str(rng.choice(self.columns["slips"]))
        solution: Sequence[str] = self.columns["solution"]
        return solution[self.followed] if self.followed < len(solution) else DONE[0]

    def _observe(self, text: str) -> Observation:
        shown = super()._observe(text)
        if self.turns == 0:
            return shown
        message = {"role": "user", "content": text.removesuffix(PROMPT).strip("\n") or SILENT}
        return Observation(text, shown.state, messages=(message,))

    def _run(self, command: str) -> tuple[str, bool]:
        """Return the answer to a command, and whether the action is a command."""
        assert self.runtime is not None
        if not command or "\0" in command:
            return f"(no command){PROMPT}", False
        solution = self.columns["solution"]
        self.followed += self.followed < len(solution) and command == solution[self.followed]
        found = self.runtime.run([*BOTH, command], seconds=self.seconds)
        self.commands, self.failed = self.commands + 1, self.failed + (not found.ok)
        self.printed = shown_of(found, self.shown, self.ascii_only)
        return f"{self.printed}{PROMPT}" if self.printed else PROMPT.lstrip("\n"), True

    def _judge(self) -> bool:
        """Return whether all tests pass on the files that the commands left; everything that they started has ended."""
        assert self.runtime is not None
        try:
            folder = self.runtime.snapshot()
        except FolderUnreadable:
            return False
        self.runtime.stop()
        self.runtime = None
        return all(passed(self.checks, folder, self.make))


def solved_task(words: str, commands: Sequence[str]) -> tuple[Message, ...]:
    """Return a solved task as messages: its commands, none of which prints anything, and `done`."""
    replies = [Message(role="assistant", content=command) for command in (*commands, DONE[0])]
    users = [Message(role="user", content=text) for text in (words, *[SILENT] * len(commands))]
    return tuple(message for pair in zip(users, replies, strict=True) for message in pair)


def shown_of(found: CommandOutcome, most: int, ascii_only: bool = False) -> str:
    """Return the result of a command as an agent is shown it: at most `most` characters, and its exit."""
    printed = (found.stdout + found.stderr).replace("\r\n", "\n").rstrip("\n")
    text = "".join(char if char in SHOWN or (not ascii_only and char.isprintable()) else "?" for char in printed)
    notes = [f"[stopped: {found.stopped}]"] if found.stopped else []
    notes += [f"[exit status {found.exit_code}]"] if found.exit_code else []
    notes += [f"[{found.what}]"] if found.what else []
    return "\n".join(filter(None, (cut_in_the_middle(text, most), *notes)))


def command_of(action: str) -> str:
    """Return the command in an action: the first fenced block, or the whole text without a prompt sign."""
    fenced = FENCE.search(action)
    text = fenced.group(1) if fenced else action
    return text.strip().removeprefix("$ ").strip("`").strip()


def given_folder(files: JsonMapping) -> dict[str, FolderEntry]:
    """Return the folder that a column describes: texts, or {"content", "mode"}, by path."""
    return folder_of(
        {
            path: each
            if isinstance(each, str)
            else FolderEntry(mode=int(each.get("mode", "644"), 8), content=each["content"].encode())
            for path, each in files.items()
        }
    )


def cut_in_the_middle(text: str, most: int) -> str:
    """Return a text of at most `most` characters and a note: its head and its tail, with the number of characters left
    out.
    """
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"
