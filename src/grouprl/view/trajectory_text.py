"""A trajectory for a terminal, in colour or with plain marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from grouprl.core.display_nouns import worded
from grouprl.envs.environment import COUNT
from grouprl.records.episode_records import UNDER_WAY
from grouprl.view.pairs import score_words
from grouprl.view.trajectory import Piece, Trajectory, TurnShown

RETURN, TURN_REWARDS = "return", "turn_rewards"
"""Components of rows over arrays: the return of the whole episode, and what the row's actions were paid."""
GOLD = "gold"
"""The component that is measured beside what is paid."""
UP, DOWN = ("green", "bold green"), ("red", "bold red")
"""Styles of weakly and strongly raised (`UP`) or lowered (`DOWN`) tokens."""


def lines(trajectory: Trajectory, *, plain: bool) -> Iterator[Text]:
    """Yield the printed lines; `plain` has no colours, and puts tokens that were not trained on in ⟦ ⟧."""
    kind = "episode" if len(trajectory.turns) > 1 else "completion"
    yield Text(f"prompt {trajectory.prompt} · {kind} {trajectory.sample} · step {trajectory.step}", style="bold")
    for row in trajectory.rows:
        yield Text("  " + _outcome(row, trajectory))
    under_way = trajectory.ended == UNDER_WAY
    over = "not over: it continues in the next step" if under_way else f"over because: {trajectory.ended}"
    yield Text("  " + over.replace("_", " "))
    problem = next((row["problem"] for row in trajectory.rows if row.get("problem")), None)
    if problem:
        yield Text(f"  {problem}", style="red")
    turns = trajectory.turns  # none, where the environment failed before the first action
    for turn, follows in zip_longest(turns, turns[1:]):
        yield from _turn(turn, follows, trajectory, plain)
    yield Text()
    yield _legend(plain, stored=trajectory.rows[0].get("source") == "demonstration")


COLUMNS = ("prompt", "completion", "turns", "rows", "reward", "right", "advantage", "ended")
Cell = str | int | float | bool | None


def entries(found: Sequence[Trajectory]) -> tuple[Sequence[str], list[tuple[Cell, ...]]]:
    """Return the columns, and a row per completion or episode of a step; None for no reward, or if not trained on."""
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        first = each.rows[0]
        known = [turn.advantage for turn in each.turns if turn.advantage is not None]
        reward = None if first.get("reward") is None else sum(row["reward"] or 0.0 for row in each.rows)
        advantage = sum(known) / len(known) if known else None
        counts = (len(each.turns), len(each.rows))
        rows.append((each.prompt, each.sample, *counts, reward, first.get("correct"), advantage, each.ended))
    return COLUMNS, rows


def table(found: Sequence[Trajectory]) -> Table:
    """Return a table with a line per completion or episode of a step."""
    made, acted = Table(box=None, pad_edge=False), any(len(each.turns) > 1 for each in found)
    for name in COLUMNS:
        made.add_column(
            worded(name, actions=acted), justify="left" if name in ("prompt", "ended") else "right", overflow="fold"
        )
    for prompt, sample, turns, rows, reward, right, advantage, ended in entries(found)[1]:
        made.add_row(
            str(prompt),
            str(sample),
            str(turns),
            str(rows),
            "none" if reward is None else f"{reward:.3g}",
            "" if right is None else "yes" if right else "no",
            "not trained" if advantage is None else f"{advantage:+.3g}",
            str(ended).replace("_", " "),
        )
    return made


def _outcome(row: object, trajectory: Trajectory) -> str:
    assert isinstance(row, dict)
    who = f"row {row['row']} ({row['agent'] or 'the policy'}): " if len(trajectory.rows) > 1 else ""
    if row.get("reward") is None:
        return f"{who}no reward ({row.get('status')})"
    found = dict(row.get("components") or ())
    gold = f" · gold {found.pop(GOLD):.3g}, not paid" if GOLD in found else ""
    # `return` is that of the whole episode, and counts are measured; neither is added to the reward.
    whole = found.pop(RETURN, None) if TURN_REWARDS in found else None
    counts = {name: found.pop(name) for name in list(found) if name.startswith(COUNT)}
    parts = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
    measured = "".join(f" · {name} {value:.3g}, not paid" for name, value in counts.items())
    measured += "" if whole is None else f" · return of the episode {whole:.3g}"
    right = {None: "", True: " · right", False: " · wrong"}[row.get("correct")]
    used = "" if row.get("used") else " · not trained on"
    scores = "".join(f" · {said}" for said in score_words(row))
    return f"{who}reward {row['reward']:.3g}{f' = {parts}' if parts else ''}{gold}{measured}{right}{scores}{used}"


def _turn(turn: TurnShown, follows: TurnShown | None, trajectory: Trajectory, plain: bool) -> Iterator[Text]:
    yield Text()
    if turn.prompt is not None:
        called = f", called by row {turn.caller}" if turn.caller >= 0 else ""
        if len(trajectory.rows) > 1:
            yield Text(f"── row {turn.row} begins ({turn.agent or 'the policy'}{called}) ──", style="cyan")
        yield from _quoted(turn.prompt, plain)
    yield Text(_head(turn), style="bold")
    thought = sum(piece.thought for piece in turn.said)
    if thought:
        yield _said(turn.said[:thought], trajectory.strongest, plain, "  ~ ")
    if thought < len(turn.said) or not turn.said:
        yield _said(turn.said[thought:], trajectory.strongest, plain)
    if follows is None or follows.prompt is None:  # otherwise it is the prompt that begins the next row
        yield from _quoted(turn.seen, plain)


def _head(turn: TurnShown) -> str:
    facts = [f"turn {turn.shown_number}", *[turn.agent] * bool(turn.agent)]
    facts += [f"state {turn.state_shown}"] * bool(turn.state)
    facts += [f"reward {turn.reward:+.3g}"] * (turn.reward is not None)
    facts.append("not trained on" if turn.advantage is None else f"advantage {turn.advantage:+.3g}")
    if 0 < turn.trained < len(turn.said):
        facts.append(f"{turn.trained} of {len(turn.said)} tokens trained on")
    return " · ".join([*facts, *["INVALID"] * (not turn.valid)])


def _quoted(text: str, plain: bool) -> Iterator[Text]:
    for line in text.splitlines():
        yield Text(f"  | {line}", style="" if plain else "dim")


def _said(said: Sequence[Piece], strongest: float, plain: bool, sign: str = "  > ") -> Text:
    made = Text(sign)
    for i, piece in enumerate(said):
        words = piece.text.replace("\n", "⏎\n    ")
        if not plain:
            made.append(words, style=_style(piece, strongest))
            continue
        opens = not piece.trained and (i == 0 or said[i - 1].trained)
        closes = not piece.trained and (i + 1 == len(said) or said[i + 1].trained)
        made.append("⟦" * opens + words + "⟧" * closes)
    return made


def _style(piece: Piece, strongest: float) -> str:
    if not piece.trained:
        return "dim italic"
    if not piece.advantage:
        return ""
    strong = abs(piece.advantage) > strongest / 2
    return (UP if piece.advantage > 0 else DOWN)[strong]


def _legend(plain: bool, *, stored: bool) -> Text:
    if plain:
        writer = "stored in the data" if stored else "written by the policy"
        return Text(f"> {writer}   ~ its thinking   | shown to it   ⟦ ⟧ not trained on")
    made = Text()
    for words, style in (
        ("pushed up", UP[1]),
        ("pushed down", DOWN[1]),
        ("no push", ""),
        ("not trained on", "dim italic"),
    ):
        made.append(words, style=style)
        made.append("   ")
    made.append("| shown to the policy", style="dim")
    return made
