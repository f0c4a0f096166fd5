"""Adapter to environments of `verifiers`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.verifiers import DemonstratedVerifiers, VerifiersEnvironment
from grouprl.envs.adapters.verifiers_classic import ClassicRollouts
from grouprl.envs.adapters.verifiers_loading import Loaded, loaded, version
from grouprl.records.examples import Example, Message, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.contract import Failure
from grouprl.tasks.environments import EpisodeReward
from grouprl.tasks.options import OptionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import lowest
from grouprl.tasks.table import Table
from grouprl.tasks.task import check_request

TURNS = 16
"""The largest number of requests of an episode, if the environment has no limit of its own."""
COLUMNS = ("answer", "info", "task", "example_id")
"""The columns of a row that a reward function of the user can name."""


@register_task("verifiers", argument="id")
class Verifiers(OptionTask):
    """Train in an environment of `verifiers`, by its name: verifiers:wordle, verifiers:owner/wordle.

    The library's own rollout runs in process, and each of its requests is a turn. Its rubric is the reward: weighted
    functions are components, functions without weight are counts.
    """

    id: str = Field(min_length=1, description="the environment's name, in the form that prime or vf-eval accept")
    args: JsonObject = Field(
        default_factory=dict, description="arguments of its load_environment; from 0.4, options of its taskset"
    )
    settings: JsonObject = Field(
        default_factory=dict, description="from verifiers 0.4, further settings of the environment, such as its harness"
    )
    turns: int | None = Field(
        None, ge=1, description="the largest number of requests of an episode; none: its own limit, otherwise 16"
    )
    tokens: int = Field(256, ge=1, description="token budget of one completion, its end included")
    timeout: float = Field(60.0, gt=0, description="seconds within which it sends another request or ends")
    success: float | None = Field(
        None, description="the lowest reward of a correct episode; none: its pass_threshold, 0.5 by default"
    )
    eval_fraction: float = Field(0.1, gt=0, lt=1, description="share held out if it has no data to evaluate on")
    drop_overlap: bool = Field(False, description="whether to leave out training rows that are held out, too")
    expert: str | None = Field(
        None, description="path of expert(messages, rng, **columns), which completes requests for demonstrations"
    )
    characters: str = Field("", description="the characters that requests and completions are made of, if known")

    _rows: dict[str, list[JsonObject]] = PrivateAttr()
    _content: str = PrivateAttr()
    _facts: JsonObject = PrivateAttr()
    _expert: Callable[..., str] | None = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Load the environment and its data.

        Raises:
            MissingExtra: if verifiers, or a package that the endpoint needs, is not installed.
            InputError: if the environment cannot be loaded, or has no data to train on.
        """
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise MissingExtra(str(error.name), "serve", f"The task '{self.name}'") from error
        game = self._load()
        train, held_out = game.rows()
        self._rows = self._split(train, held_out)
        whole = json.dumps([train, held_out], sort_keys=True, default=str)
        self._content = hashlib.sha256(whole.encode()).hexdigest()[:16]
        self._facts = {"grouped": game.grouped, "turns": game.turns, "kind": type(game.env).__name__}
        self._expert = None if self.expert is None else cast(Callable[..., str], import_object(self.expert, "expert"))

    def _load(self) -> Loaded:
        return loaded(self.id, self.args, self.settings, self.success)

    def _split(
        self, train: list[dict[str, object]], held_out: list[dict[str, object]] | None
    ) -> dict[str, list[dict[str, object]]]:
        if not train:
            raise InputError(
                f"The environment '{self.id}' has no data to train on",
                "it needs a data set besides that for evaluation",
            )
        prompts = [_content(row) for row in train]
        if len(set(prompts)) == 1:  # every row begins in the same way, as a game does: rows differ by number
            prompts = [f"{prompt}#{number}" for number, prompt in enumerate(prompts)]
        apart = set(lowest(prompts, self.eval_fraction)) if held_out is None else set(map(_content, held_out))
        kept = [row for row, prompt in zip(train, prompts, strict=True) if prompt not in apart]
        rest = [row for row, prompt in zip(train, prompts, strict=True) if prompt in apart]
        if held_out is not None and rest and not self.drop_overlap:
            raise InputError(
                f"Of the training rows of the environment '{self.id}', {len(rest)} are in its data for evaluation, too",
                "held-out prompts are not trained on",
                "Load it with other task.args, or set drop_overlap to leave such training rows out.",
            )
        if not kept:
            raise InputError(
                f"The environment '{self.id}' has no row left to train on of its {len(train)}",
                "prompts that are held out are not trained on",
            )
        return {"train": kept, "eval": rest if held_out is None else held_out}

    @property
    def name(self) -> str:
        """The environment's name after "verifiers:"."""
        return f"verifiers:{self.id}"

    @property
    def description(self) -> str:
        """A sentence with the environment, its kind and the number of prompts."""
        kind, rows = self._facts["kind"], len(self._rows["train"])
        return f"The environment {self.id} ({kind}) of verifiers {version()}, {rows} prompts."

    @property
    def reward(self) -> Reward:
        """The rubric's score of an episode whose completions, one per line, are given."""
        return EpisodeReward(self)

    def example(self, split: Split, index: int) -> Example:
        """Return row `index` of a split, in the order of the environment's data."""
        check_request(self.name, split, index, self.size(split))
        row = self._rows[split][index]
        columns = {name: row[name] for name in COLUMNS if name in row}
        return Example(f"{self.id}/{split}/{index}", _messages(row.get("prompt")), {**columns, "row": row})

    def size(self, split: Split) -> int:
        """Return how many rows a split has."""
        check_request(self.name, split, 0, None)
        return len(self._rows[split])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return nothing, because no right completions are known."""
        return ()

    def options(self) -> JsonObject:
        """Return every option with its value, and a hash of the rows."""
        return {**super().options(), "content": self._content}

    def tables(self) -> Sequence[Table]:
        """Return the environment's rows, those of training first."""
        rows = [row for split in self._rows.values() for row in split]
        return (Table(self.id, rows, range(len(rows)), "row"),)

    @property
    def max_turns(self) -> int:
        """The option, or the environment's own limit."""
        return self.turns or self._facts["turns"] or TURNS

    @property
    def max_new_tokens(self) -> int:
        """The option `tokens`."""
        return self.tokens

    @property
    def alphabet(self) -> str:
        """The option `characters`."""
        return self.characters

    @property
    def needs_clock(self) -> bool:
        """True if episodes are scored one by one; if a group is scored together, it is played in one process."""
        return not self._facts["grouped"]

    @property
    def scores_groups(self) -> bool:
        """True if its rubric compares the episodes of a group."""
        return bool(self._facts["grouped"])

    async def score_group(self, names: Sequence[tuple[str, int]]) -> Sequence[dict[str, float] | Failure | None]:
        """Score the episodes (prompt's id, seed) of a group together; None for those that did not end here."""
        game = self._load()
        assert isinstance(game, ClassicRollouts)
        return await game.score_group(names)

    def environment(self) -> VerifiersEnvironment:
        """Return a fresh rollout."""
        self._load()  # loaded here, since the library sets signal handlers, which only the main thread may do
        if self._expert is None:
            return VerifiersEnvironment(self._load, timeout=self.timeout)
        return DemonstratedVerifiers(self._expert, self._load, timeout=self.timeout)


def _content(row: Mapping[str, object]) -> str:
    """Return the part of a row that makes its prompt different from others."""
    return json.dumps([row.get(name) for name in ("prompt", "answer", "info")], sort_keys=True, default=str)


def _messages(prompt: object) -> str | tuple[Message, ...]:
    """Return a row's prompt as it is shown to a reader."""
    if not isinstance(prompt, (list, tuple)):
        return str(prompt or "")
    return tuple(Message(role=str(m["role"]), content=_text(m.get("content"))) for m in prompt)


def _text(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return str(content or "")
