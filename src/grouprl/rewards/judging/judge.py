"""A judge that ranks the trajectories of a group relative to each other: one request for each group.

After RULER in OpenPipe's ART (see "RULER" in its documentation): a language model compares the trajectories of a group
more reliably than it scores a single one, and advantages within groups need only the comparison.
*Differs from RULER*: the names and order of the trajectories are random for each group; texts of policies are escaped;
equal trajectories are shown once and score alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from grouprl.rewards.contract import Columns, Reward
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer, check_url
from grouprl.rewards.judging.judge_text import RUBRIC, JudgedTrajectory, as_messages, read_scores, shown
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward

if TYPE_CHECKING:
    from grouprl.records.examples import Prompt

T = TypeVar("T")
R = TypeVar("R")
PLACE = "judged"
"""The column that tells a judge the place of a completion in its group."""


@dataclass(frozen=True)
class GroupPlace:
    """The place of a row: its group, its sample within the group, and the prompt before it."""

    group: Hashable
    sample: Hashable
    prompt: Prompt


@dataclass(frozen=True)
class TrajectoryJudge(VerdictReward):
    """A reward that scores a group's trajectories from 0 to 1 by a model behind an OpenAI-compatible endpoint.

    Rows of one sample (an episode in several contexts) are one trajectory and score alike. If a group cannot be judged,
    all its rows have failed and are treated as `reward.on_error` says.

    Args:
        client: the endpoint.
        rubric: the criteria of a good trajectory, as text.
        tokens: largest number of tokens of the judge's reply.
        temperature: the judge's sampling temperature; 0 for the likeliest reply.
        schema: whether to ask the endpoint to enforce the JSON schema of the reply.
        at_once: number of groups judged at the same time.
        longest: largest number of characters shown of a trajectory; a longer one loses its middle.
        seed: seed of the order in which trajectories are shown.
        store: keeps the verdict of each request; with None, equal groups are judged again.

    Raises:
        InputError: if the client's URL is not a valid address.
    """

    client: JudgeClient
    rubric: str = RUBRIC
    tokens: int = 2048
    temperature: float = 0.0
    schema: bool = False
    at_once: int = 4
    longest: int = 20_000
    seed: int = 0
    store: VerdictStore | None = None
    sees_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_url(self.client.url)

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the score of each row, judged within its group; the columns hold its `GroupPlace` (see `placed`).

        A row without a place is a group of one, without a prompt.
        """
        samples: dict[Hashable, dict[Hashable, list[int]]] = {}
        places = [each.get(PLACE) or GroupPlace(ids[row], 0, ()) for row, each in enumerate(columns)]
        for row, place in enumerate(places):
            samples.setdefault(place.group, {}).setdefault(place.sample, []).append(row)
        groups = [list(rows.values()) for rows in samples.values()]
        trajectories = [
            [
                JudgedTrajectory(as_messages(places[rows[0]].prompt), "\n".join(completions[i] for i in rows))
                for rows in group
            ]
            for group in groups
        ]
        scores = side_by_side(lambda group: self._scores(group, terms.correct_at), trajectories, self.at_once)
        found: dict[int, Verdict] = {}
        for group, judged in zip(groups, scores, strict=True):
            for rows, verdict in zip(group, judged, strict=True):
                found |= dict.fromkeys(rows, verdict)
        return [found[row] for row in range(len(completions))]

    def judge(self, group: Sequence[JudgedTrajectory]) -> tuple[float, ...]:
        """Return the scores of a group's trajectories, with one request and further ones if it fails.

        If verdicts are stored, a group that was judged before gets its old scores; failures are not stored.

        Raises:
            NoAnswer: if no try gave a usable reply.
        """
        # Shown twice, equal trajectories could get different scores, and an advantage out of nothing.
        distinct = list(dict.fromkeys((each.text, repr(each.prompt)) for each in group))
        first = {key: next(each for each in group if (each.text, repr(each.prompt)) == key) for key in distinct}
        told = shown([first[key] for key in distinct], self.rubric, self.seed, self.longest)

        def attempt(complaint: str) -> tuple[float, ...]:
            again = f"{complaint[:300]}. Reply with the JSON alone, each id once."
            more = [{"role": "user", "content": again}] if complaint else []
            return read_scores(self.client.complete([*told.messages, *more], self._settings), told.names)

        request = [self.client.url, self.client.model, self._settings, *told.messages]
        found = self.client.answered(self.store, request, (len(distinct),), attempt)
        scores = dict(zip(distinct, found, strict=True))
        return tuple(scores[each.text, repr(each.prompt)] for each in group)

    def notes(self) -> Mapping[str, float]:
        """Return metrics of what the judge was asked since the last call, and forget them."""
        return self.client.costs()

    def _scores(self, group: Sequence[JudgedTrajectory], correct_at: float) -> list[Verdict]:
        try:
            scores = self.judge(group)
        except NoAnswer as error:
            return [Verdict("timeout" if error.late else "error", what=error.what)] * len(group)
        graded = correct_at == 1.0
        return [Verdict("ok", score, {"judge": score}, score >= correct_at, graded=graded) for score in scores]

    @property
    def _settings(self) -> dict[str, object]:
        entry = {"id": {"type": "string"}, "why": {"type": "string"}, "score": {"type": "number"}}
        item = {"type": "object", "properties": entry, "required": list(entry), "additionalProperties": False}
        scores = {"type": "array", "items": item}
        whole = {"type": "object", "properties": {"scores": scores}, "required": ["scores"]}
        schema = {"name": "scores", "strict": True, "schema": {**whole, "additionalProperties": False}}
        form = {"response_format": {"type": "json_schema", "json_schema": schema}} if self.schema else {}
        return {"max_tokens": self.tokens, "temperature": self.temperature, "seed": self.seed, **form}


def placed(reward: Reward, columns: Sequence[Columns], places: Sequence[GroupPlace]) -> list[Columns]:
    """Return the columns of rows, with their places added if the reward is a judge or a model."""
    if not getattr(reward, "sees_groups", False):
        return list(columns)
    return [{**given, PLACE: place} for given, place in zip(columns, places, strict=True)]


def side_by_side(function: Callable[[T], R], items: Sequence[T], at_once: int) -> list[R]:
    """Return `function` of each item, `at_once` at a time, in threads that do not delay the end of the run."""
    waiting: SimpleQueue[tuple[int, T]] = SimpleQueue()
    done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
    over = Event()
    for each in enumerate(items):
        waiting.put(each)

    def work() -> None:
        while not over.is_set():
            try:
                place, item = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((place, function(item), None))
            except BaseException as error:
                done.put((place, None, error))

    for _ in range(min(at_once, len(items))):
        Thread(target=work, name="judging", daemon=True).start()
    found: dict[int, R] = {}
    try:
        while len(found) < len(items):
            place, result, error = done.get()
            if error is not None:
                raise error
            found[place] = cast(R, result)
    finally:
        over.set()
    return [found[place] for place in range(len(items))]
