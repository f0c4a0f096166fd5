"""Episodes on the page: turn by turn, the tokens of the policy coloured, the environment's text in grey."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from grouprl.view.charts import number
from grouprl.view.tokens import right_among, token_span, verdict
from grouprl.view.trajectory import Trajectory, TurnShown, trajectories

PROMPTS_SHOWN, COMPLETIONS, TURNS, TEXT = 3, 4, 12, 600
"""Largest number of prompts on the page, episodes of a prompt, turns of an episode and characters of an observation."""


def episode_groups(rows: Sequence[dict[str, object]], folder: Path) -> list[str]:
    """Return the HTML of a few prompts with episodes, mixed ones first, with the best and worst of each."""
    by_prompt: dict[str, list[Trajectory]] = {}
    for each in trajectories(rows, folder):
        by_prompt.setdefault(each.prompt, []).append(each)
    mixed_first = sorted(by_prompt.values(), key=lambda group: len({_total(each) for each in group}) == 1)
    return [_group(group) for group in mixed_first[:PROMPTS_SHOWN]]


def _group(group: list[Trajectory]) -> str:
    ranked = sorted(group, key=_total, reverse=True)
    half = COMPLETIONS // 2
    shown = ranked if len(ranked) <= COMPLETIONS else [*ranked[:half], *ranked[-(COMPLETIONS - half) :]]
    strongest = max(each.strongest for each in shown)
    right = right_among([each.rows[0] for each in group])
    episodes = "1 episode" if len(group) == 1 else f"{len(group)} episodes"
    head = f"{escape(group[0].prompt)}: {episodes}, {right}{len(shown)} shown"
    body = "".join(_episode(each, strongest) for each in shown)
    return f'<article class="group"><p class="muted">{head}</p>{body}</article>'


def _episode(each: Trajectory, strongest: float) -> str:
    turns = "1 turn" if len(each.turns) == 1 else f"{len(each.turns)} turns"
    facts = [f"episode {each.sample}", *_rewards(each), each.ended.replace("_", " "), turns]
    head = f'{verdict(each.rows[0].get("correct"))}<span class="muted">{escape(" · ".join(facts))}</span>'
    omitted = len(each.turns) - TURNS
    shown = each.turns if omitted <= 0 else (*each.turns[: TURNS // 2], *each.turns[-TURNS // 2 :])
    parts = []
    for place, turn in enumerate(shown):
        if omitted > 0 and place == TURNS // 2:
            parts.append(f'<p class="gap"> … {omitted} turns left out … </p>')
        follows = shown[place + 1] if place + 1 < len(shown) else None
        parts.append(_turn(turn, follows, len(each.rows) > 1, strongest))
    return f'<div class="completion episode"><p>{head}</p>{"".join(parts)}</div>'


def _rewards(each: Trajectory) -> list[str]:
    known = [(row.get("agent") or "", row.get("reward")) for row in each.rows]
    return [f"{agent} reward {'none' if reward is None else number(float(reward))}".strip() for agent, reward in known]


def _turn(turn: TurnShown, follows: TurnShown | None, several: bool, strongest: float) -> str:
    begun = ""
    if turn.prompt is not None:
        called = f", called by row {turn.caller}" if turn.caller >= 0 else ""
        words = f"row {turn.row} begins: {turn.agent or 'the policy'}{called}"
        begun = f'<p class="row">{escape(words)}</p>' * several + f'<pre class="prompt">{_text(turn.prompt)}</pre>'
    facts = [*[turn.agent] * bool(turn.agent), *[f"state {turn.state_shown}"] * bool(turn.state)]
    facts += [f"reward {turn.reward:+.3g}"] * (turn.reward is not None)
    facts.append("not trained on" if turn.advantage is None else f"advantage {turn.advantage:+.3g}")
    facts += [f"{turn.trained} of {len(turn.said)} tokens trained on"] * (0 < turn.trained < len(turn.said))
    invalid = ' <span class="verdict wrong">✗ invalid</span>' * (not turn.valid)
    named = f'<b>turn {turn.shown_number}</b> <span class="muted">{escape(" · ".join(facts))}</span>'
    head = f'<p class="turn">{named}{invalid}</p>'
    said = "".join(
        token_span(
            p.text,
            p.logp,
            p.entropy,
            {"advantage": p.advantage if p.trained else None},
            p.trained,
            {"advantage": strongest},
        )
        for p in turn.said
    )
    shown_below = follows is not None and follows.prompt is not None and several
    seen = f'<pre class="seen">{_text(turn.seen)}</pre>' if turn.seen and not shown_below else ""
    thinking = f'<p class="muted">thinking: {escape(turn.thinking)}</p>' if turn.thinking else ""
    return f'{begun}{head}{thinking}<pre class="said">{said}</pre>{seen}'


def _text(text: str) -> str:
    return escape(text if len(text) <= TEXT else f"{text[: TEXT * 2 // 3]} … {text[-TEXT // 3 :]}")


def _total(each: Trajectory) -> float:
    return sum(float(row["reward"]) for row in each.rows if row.get("reward") is not None)
