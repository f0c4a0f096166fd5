"""Single completions or episodes of a run's stored rollouts, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.view.runfiles import read_rollouts
from grouprl.view.tokens import Pieces, token_texts

Row = JsonMapping


@dataclass(frozen=True)
class Piece:
    """A token of the policy: its text, whether it was trained on, and its numbers if they are known."""

    text: str
    trained: bool
    advantage: float | None = None
    logp: float | None = None
    entropy: float | None = None
    thought: bool = False
    """Whether the token is part of the turn's thinking."""


LONGEST_STATE = 40
"""Characters of a state that are shown."""


@dataclass(frozen=True)
class TurnShown:
    """One turn: the agent that acted, its state, its text, and the environment's reply."""

    number: int
    agent: str
    row: int
    prompt: str | None
    """Prompt of the agent if its row begins with this turn; else None."""
    caller: int
    """Number of the row that began this one; -1 for none."""
    state: str
    said: tuple[Piece, ...]
    reward: float | None
    valid: bool
    seen: str

    @property
    def shown_number(self) -> int:
        """Number of the turn for readers, counted from 1 as in `check-env`."""
        return self.number + 1

    @property
    def state_shown(self) -> str:
        """The state for readers; of a long key, as arrays have it, the ends, which tell states apart."""
        return self.state if len(self.state) <= LONGEST_STATE else f"{self.state[:8]}…{self.state[-8:]}"

    @property
    def thinking(self) -> str:
        """Text of the turn's thinking, including its signs."""
        return "".join(piece.text for piece in self.said if piece.thought)

    @property
    def trained(self) -> int:
        """Number of the turn's tokens that were trained on."""
        return sum(piece.trained for piece in self.said)

    @property
    def advantage(self) -> float | None:
        """Mean advantage of the trained tokens; None without any."""
        known = [piece.advantage for piece in self.said if piece.trained and piece.advantage is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Trajectory:
    """A completion or an episode of a stored step."""

    step: int
    prompt: str
    sample: int
    turns: tuple[TurnShown, ...]
    rows: tuple[Row, ...]
    """The stored rows, in the order in which they began."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of their first turns."""
        return tuple(dict.fromkeys(turn.agent for turn in self.turns))

    @property
    def ended(self) -> str:
        """Reason for the end of the trajectory."""
        first = self.rows[0]
        return str(first.get("ended") or ("cut off" if first.get("truncated") else "ended"))

    @property
    def strongest(self) -> float:
        """The largest |advantage| of a trained token."""
        found = (abs(p.advantage) for turn in self.turns for p in turn.said if p.trained and p.advantage is not None)
        return max(found, default=0.0)

    def data(self) -> JsonObject:
        """Return the trajectory as JSON data; turns count from 1."""
        turns = [asdict(turn) | {"number": turn.shown_number, "advantage": turn.advantage} for turn in self.turns]
        return {"step": self.step, "prompt": self.prompt, "sample": self.sample, "ended": self.ended, "turns": turns}


def find(folder: Path, step: int | None = None, prompt: str | None = None, sample: int | None = None) -> Trajectory:
    """Return the requested trajectory; by default that of the last stored step's first prompt with unequal rewards.

    Raise InputError if there is no such step, prompt or completion.
    """
    found = of_step(folder, step)
    names = list(dict.fromkeys(each.prompt for each in found))
    if prompt is None and sample is None:
        mixed = (n for n in names if len({_reward(each) for each in found if each.prompt == n}) > 1)
        prompt = next(mixed, names[0])
    elif prompt is None:
        prompt = names[0]
    elif prompt not in names:
        raise InputError(f"step {found[0].step} sampled no prompt '{prompt}'", remedy=suggest(prompt, names))
    of_prompt = {each.sample: each for each in found if each.prompt == prompt}
    sample = next(iter(of_prompt)) if sample is None else sample
    if sample not in of_prompt:
        known = ", ".join(map(str, of_prompt))
        raise InputError(f"prompt '{prompt}' has no completion {sample} in step {found[0].step}", f"it has {known}")
    return of_prompt[sample]


def of_step(folder: Path, step: int | None = None) -> list[Trajectory]:
    """Return all trajectories of a stored step, by default the last one, in their order.

    Raise InputError if nothing is stored.
    """
    number, rows = read_rollouts(folder, step)
    pieces = token_texts(folder)
    groups: dict[tuple[str, int], list[Row]] = {}
    for place, row in enumerate(rows):
        sample = _sample(row)
        name = (str(row.get("prompt_id")), place if sample is None else sample)
        groups.setdefault(name, []).append(row)
    return [_trajectory(number, prompt, which, of, pieces) for (prompt, which), of in groups.items()]


def trajectories(rows: Sequence[Row], folder: Path) -> list[Trajectory]:
    """Return the episodes in stored rows; none if the rows are single completions."""
    pieces = token_texts(folder)
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.get("turns"):
            groups.setdefault((str(row["prompt_id"]), _sample(row) or 0), []).append(row)
    return [_trajectory(int(of[0]["step"]), name, number, of, pieces) for (name, number), of in groups.items()]


def _sample(row: Row) -> int | None:
    """Return the number of a row's sample of its prompt; None if it is not stored."""
    return None if row.get("sample") is None else int(row["sample"])


def _trajectory(step: int, prompt: str, sample: int, rows: Sequence[Row], pieces: Pieces) -> Trajectory:
    ordered = sorted(rows, key=lambda row: row.get("row") or 0)
    turns = [turn for row in ordered for turn in _turns(row, pieces)]
    return Trajectory(step, prompt, sample, tuple(sorted(turns, key=lambda turn: turn.number)), tuple(ordered))


def _turns(row: Row, pieces: Pieces) -> list[TurnShown]:
    told = _told(row, pieces(dict(row)))
    turns = row.get("turns")
    number, caller, agent = int(row.get("row") or 0), row.get("caller"), str(row.get("agent") or "")
    if turns is None:
        said = tuple(piece for _, piece in told) or (Piece(str(row.get("completion") or ""), bool(row.get("used"))),)
        return [TurnShown(0, "", number, str(row.get("prompt") or ""), -1, "", said, row.get("reward"), True, "")]
    return [
        TurnShown(
            number=int(turn["number"]),
            agent=agent,
            row=number,
            prompt=str(row.get("prompt") or "") if place == 0 else None,
            caller=-1 if caller is None else int(caller),
            state=str(turn["state"] or ""),
            said=_thinking([piece for of, piece in told if of == place], turn.get("thought") or 0)
            or (Piece(str(turn["action"]), False),),
            reward=turn["reward"],
            valid=bool(turn["valid"]),
            seen=str(turn["seen"] or ""),
        )
        for place, turn in enumerate(turns)
    ]


def _thinking(pieces: Sequence[Piece], thought: int) -> tuple[Piece, ...]:
    """Return the tokens of a turn with the first `thought` of them marked as thinking."""
    return tuple(replace(piece, thought=place < thought) for place, piece in enumerate(pieces))


def _told(row: Row, texts: Sequence[str] | None) -> list[tuple[int, Piece]]:
    """Return the tokens of the row as (turn, piece); [] if their texts are unknown, so that turns show whole texts."""
    ids = row.get("completion_ids") or []
    turn_t = row.get("turn") or [0] * len(ids)
    mask_t = row.get("mask") or [True] * len(ids)
    if texts is None:
        return _whole(row, turn_t, mask_t)
    columns = [row.get(name) or [None] * len(ids) for name in ("advantage", "behavior_logp", "entropy")]
    used = bool(row.get("used"))
    return [
        (turn_t[i], Piece(texts[i], used and bool(mask_t[i]), *(column[i] for column in columns)))
        for i in range(len(ids))
        if turn_t[i] >= 0
    ]


def _whole(row: Row, turn_t: Sequence[int], mask_t: Sequence[bool]) -> list[tuple[int, Piece]]:
    """Return one (turn, piece) per turn, with the whole text of the turn."""
    found = []
    for place, turn in enumerate(row.get("turns") or ()):
        where = [i for i, of in enumerate(turn_t) if of == place]
        trained = bool(row.get("used")) and any(mask_t[i] for i in where)
        known = [row["advantage"][i] for i in where] if trained and row.get("advantage") else []
        found.append((place, Piece(str(turn["action"]), trained, sum(known) / len(known) if known else None)))
    return found


def _reward(trajectory: Trajectory) -> float:
    values = [row["reward"] for row in trajectory.rows if row.get("reward") is not None]
    return float(sum(values))
