"""The rows of a stored step, with the properties that findings are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from grouprl.monitor.loops import looped
from grouprl.view.judge_moves import Moves
from grouprl.view.pairs import pair_of
from grouprl.view.trajectory import Trajectory


@dataclass(frozen=True)
class Witness:
    """A completion or an episode of a stored step that shows a finding."""

    step: int
    prompt: str
    sample: int
    reward: float | None
    tokens: int
    turns: int
    ended: str
    cut: bool
    """Whether a limit ended one of its rows."""
    text: str
    tied: bool
    """Whether all rewards of its group are equal."""
    repeated: bool
    """Whether another completion of its group has the same text."""
    entropy: float
    """Mean entropy of its tokens, in nats; 0 where it is not stored."""
    sampled: bool = True
    """Whether the policy wrote it; a stored row has the reward that its data gave it."""
    margin: float | None = None
    """For the better row of a pair: by how much the reward model in training prefers it; None for others."""
    right: bool = False
    """Whether the reward counts it as correct."""
    looped: bool = False
    """Whether it ends in a loop of tokens."""
    drift: float = 0.0
    """Mean log π/π_ref of its tokens, in nats; 0 where it is not stored."""
    disputed: bool = False
    """Whether the same text has another reward elsewhere in its group."""
    gap: float = 0.0
    """Mean |log-prob of the sampler less the trainer's| of its tokens, in nats; 0 where it is not stored."""
    pushed: float = 0.0
    """Sum of the advantages of its trained tokens."""
    agents: Mapping[str, int] = field(default_factory=dict)
    """Tokens of each agent, by name."""
    chosen: bool = False
    """Whether it is the better row of a stored pair."""
    stride: float = 0.0
    """Mean |π/π_old - 1| of its tokens in the update; 0 where it is not stored."""
    moved: float = 0.0
    """Distance between the judge's last score of it and the first, where the judge was asked again."""


def witnesses(found: Sequence[Trajectory], moves: Moves | None = None) -> list[Witness]:
    """Return the completions or episodes of a stored step with the properties that findings are about.

    `moves` says how far a judge's scores of rows of this step have moved.
    """
    rewards: dict[str, set[float | None]] = {}
    of_texts: dict[tuple[str, str], list[float | None]] = {}
    for each in found:
        rewards.setdefault(each.prompt, set()).add(_reward(each))
        of_texts.setdefault((each.prompt, _said(each)), []).append(_reward(each))
    margins, looped_n, better = _margins(found), _looped(found), _better(found)
    return [
        Witness(
            step=each.step,
            prompt=each.prompt,
            sample=each.sample,
            reward=_reward(each),
            tokens=sum(map(len, _own(each, "entropy"))),
            turns=len(each.turns),
            ended=each.ended,
            cut=any(row.get("truncated") for row in each.rows),
            text=_said(each),
            tied=len(rewards[each.prompt]) == 1,
            repeated=len(of_texts[each.prompt, _said(each)]) > 1,
            entropy=_entropy(each),
            sampled=each.rows[0].get("source") != "demonstration",
            margin=margins.get(id(each)),
            right=any(row.get("correct") for row in each.rows),
            looped=bool(looped_n[number]),
            drift=_drift(each),
            disputed=len({*of_texts[each.prompt, _said(each)]} - {None}) > 1,
            gap=max((row.get("gap") or 0.0 for row in each.rows), default=0.0),
            chosen=id(each) in better,
            stride=_stride(each),
            pushed=sum(sum(value or 0.0 for value in row) for row in _own(each, "advantage")),
            agents=_tokens_of_agents(each),
            moved=(moves or {}).get((each.prompt, each.sample), 0.0),
        )
        for number, each in enumerate(found)
    ]


def _ranked(found: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the groups, the best row of each first."""
    groups: dict[object, list[Trajectory]] = {}
    for each in found:
        groups.setdefault(each.rows[0].get("group"), []).append(each)
    return [sorted(group, key=lambda each: -(_reward(each) or 0.0)) for group in groups.values()]


def _better(found: Sequence[Trajectory]) -> set[int]:
    """Return the identities of the better rows of stored pairs."""
    stored = [each for each in found if each.rows[0].get("source") == "demonstration"]
    return {id(pair[0]) for pair in _ranked(stored) if len(pair) == 2 and _reward(pair[0]) != _reward(pair[1])}


def _margins(found: Sequence[Trajectory]) -> dict[int, float | None]:
    """Return the margin of scores of each pair, by the identity of its better row."""
    pairs = [(group, pair_of([dict(each.rows[0]) for each in group])) for group in _ranked(found)]
    return {id(group[0]): pair["score"] for group, pair in pairs if pair is not None}


def _reward(each: Trajectory) -> float | None:
    if each.rows[0].get("reward") is None:
        return None
    return float(sum(row["reward"] or 0.0 for row in each.rows))


def _said(each: Trajectory) -> str:
    return " ⏎ ".join("".join(piece.text for piece in turn.said) for turn in each.turns)


def _looped(found: Sequence[Trajectory]) -> Sequence[bool]:
    """Return which texts end in a loop, as `loop_fraction` counts it: not episodes, whose turns may be alike."""
    rows = [each.rows[0] for each in found]
    whole = [[] if row.get("turns") else row.get("completion_ids") or [] for row in rows]
    ids = [each if row.get("truncated") else each[:-1] for row, each in zip(rows, whole, strict=True)]
    return looped(ids).tolist()


def _entropy(each: Trajectory) -> float:
    return _mean(_own(each, "entropy"))


def _tokens_of_agents(each: Trajectory) -> dict[str, int]:
    """Return how many tokens each agent wrote."""
    counts = Counter[str]()
    for row in each.rows:
        counts[str(row.get("agent") or "")] += sum(row.get("mask") or ())
    return {name: count for name, count in counts.items() if name}


def _drift(each: Trajectory) -> float:
    return _mean(_own(each, "log_ratio"))


def _stride(each: Trajectory) -> float:
    return _mean([[abs(x - 1.0) for x in row if x is not None] for row in _own(each, "ratio")])


def _mean(found: list[list[float | None]]) -> float:
    known = [value for row in found for value in row if value is not None]
    return fmean(known) if known else 0.0


def _own(each: Trajectory, name: str) -> list[list[float | None]]:
    """Return the stored values of each token that the policy wrote, row by row; the texts of tokens may be unknown."""
    return [
        [value for value, own in zip(row[name], row["mask"], strict=True) if own]
        for row in each.rows
        if row.get(name) and row.get("mask")
    ]
