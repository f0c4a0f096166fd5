"""Rollouts of a run as data: samples of one policy with their rewards, from which another policy learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.hashing import content_number, digest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.records.examples import Example, Split
from grouprl.records.offline import StoredRow
from grouprl.rewards import Reward
from grouprl.tasks.options import OptionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.table import Table
from grouprl.tasks.task import check_request, without_folder

COLUMNS = (
    *("step", "group", "prompt_id", "prompt", "completion", "prompt_ids", "completion_ids", "behavior_logp"),
    *("reward", "components", "correct", "truncated", "status", "turns"),
)
"""The columns that are read from a rollout file."""


def nothing_to_say(completion: str, **columns: object) -> float:
    """Refuse to score: the reward of a stored completion is stored with it."""
    raise InputError("a new completion is to be scored", "the task rollouts has stored rewards, and no reward function")


@register_task("rollouts", argument="path")
class Rollouts(OptionTask):
    """Stored rollouts: rollouts:RUN, the folder of a run, or one of its rollout files.

    Nothing is sampled: the rows of a group are the stored ones, token by token, with the log-probs of their sampling
    and their rewards, and the policy computes its own log-probs of them. The model must have the same tokenizer. A
    share of the prompts is held out; an evaluation uses the reward of the completion that the policy finds likeliest.
    """

    path: str = Field(description="the run folder, its folder rollouts, or a file in it")
    eval_fraction: float = Field(0.1, ge=0, lt=1, description="share of the prompts held out; 0 for none")

    _groups: dict[Split, list[list[JsonObject]]] = PrivateAttr()
    _content: str = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Read the files.

        Raises:
            InputError: there are no rollouts, the files are of another kind, or the rows are episodes of more than one
                completion.
        """
        groups = _read(Path(self.path))
        prompts = sorted({group[0]["prompt_id"] for group in groups}, key=content_number)
        count = max(round(self.eval_fraction * len(prompts)), 1 if self.eval_fraction > 0 else 0)
        held_out = set(prompts[:count])
        training = [group for group in groups if group[0]["prompt_id"] not in held_out]
        if not training:
            raise InputError(f"No prompt of {self.path} is left to train on", "some are held out", "Lower it")
        self._groups = {"train": training, "eval": [g for g in groups if g[0]["prompt_id"] in held_out]}
        self._content = digest(groups)

    @property
    def name(self) -> str:
        """The path after "rollouts:"."""
        return f"rollouts:{without_folder(self.path)}"

    @property
    def reward(self) -> Reward:
        """A function that refuses to be called, because rewards are stored."""
        return nothing_to_say

    @property
    def max_new_tokens(self) -> int:
        """The length of the longest stored completion."""
        return max(len(row["completion_ids"]) for rows in self._groups.values() for group in rows for row in group)

    def example(self, split: Split, index: int) -> Example:
        """Return group `index` of a split, in the order in which groups were sampled; its rows are in its columns.

        Raises:
            InputError: an unknown split, or an index beyond the size.
        """
        check_request(self.name, split, index, self.size(split))
        rows = self._groups[split][index]
        first = rows[0]
        return Example(f"{first['prompt_id']}@{first['step']}", first["prompt"], {"rows": rows})

    def size(self, split: Split) -> int:
        """Return how many groups a split has. Raises InputError on an unknown split."""
        check_request(self.name, split, 0, None)
        return len(self._groups[split])

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return the rows of a group as they were sampled."""
        return [
            StoredRow(
                row["completion"],
                row["reward"],
                correct=row["correct"],
                components=dict(row["components"] or ()),
                ids=tuple(row["completion_ids"]),
                prompt_ids=tuple(row["prompt_ids"]),
                behavior_logp=tuple(row["behavior_logp"]),
                truncated=row["truncated"],
            )
            for row in example.columns["rows"]
        ]

    def options(self) -> JsonObject:
        """Return every option with its value, and a hash of the rollouts."""
        return {**super().options(), "content": self._content}

    def tables(self) -> Sequence[Table]:
        """Return the stored completions, those of training first."""
        rows = [row for groups in self._groups.values() for group in groups for row in group]
        return (Table(self.path, rows, range(len(rows)), "row"),)


def _read(path: Path) -> list[list[JsonObject]]:
    """Return the scored rows of the files at `path`, group by group in the order of steps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else [folder]
    found: dict[tuple[int, int], list[JsonObject]] = {}
    for file in files:
        try:
            rows = pq.read_table(file, columns=list(COLUMNS)).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{file} cannot be read as rollouts: {error}", "rollouts are files of a run") from error
        for row in rows:
            _check(row, file)
            if row["status"] == "ok":
                found.setdefault((row["step"], row["group"]), []).append(row)
    if not found:
        raise InputError(f"{path} holds no rollouts", "a run leaves them in its folder rollouts", "Check the path")
    return [found[key] for key in sorted(found)]


def _check(row: JsonMapping, file: Path) -> None:
    if row["turns"] is not None:
        raise InputError(f"{file} holds episodes", "stored completions are read, and an episode is more than one")
    if len(row["behavior_logp"]) != len(row["completion_ids"]):
        raise InputError(f"a row of group {row['group']} in {file} is damaged", "every token has a log-prob")
