"""Rollouts on the page: completions token by token, coloured by advantage, log-prob, entropy or log-ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.json_types import JsonObject
from grouprl.core.numbers import is_number
from grouprl.records.episode_records import UNDER_WAY
from grouprl.view.charts import number
from grouprl.view.pairs import is_pair, pair_words, score_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GROUPS, COMPLETIONS, TOKENS = 3, 4, 240
"""Largest number of groups on the page, completions of a group and tokens of a completion, to keep the page small."""
PROBABILITY_LEVELS = (0.9, 0.6, 0.3, 0.1)
ENTROPY_LEVELS = (0.05, 0.3, 0.7, 1.5)
"""Thresholds of the colours: a token below the first probability (above the first entropy) gets the first tint."""
COMPARED = {"advantage": ("up", "down"), "log_ratio": ("more", "less")}
"""Numbers whose colours are relative to the largest of their group, and the tints of those above and below 0."""
SIDES = {"better, pushed up": 1.0, "worse, pushed down": -1.0}
"""What the loss of a pair does with its completions, and the sign of their colours."""
CONTEXT = 8
"""Number of tokens decoded together, so that leading spaces and characters of several tokens are right."""

Pieces = Callable[[JsonObject], list[str] | None]


def rollout_groups(rows: Sequence[dict[str, object]], folder: Path, *, compared: bool = False) -> list[str]:
    """Return the HTML of a few groups, mixed ones first, with the best and worst completions of each.

    `compared`: the loss is one of pairs, which push one completion up and the other down.
    """
    mixed_first = sorted(_by_group(rows), key=lambda group: len({_reward(r) for r in group}) == 1)
    pieces = token_texts(folder)
    return [_group(_sides(group) if compared else group, pieces) for group in mixed_first[:GROUPS]]


def _sides(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a pair with the way in which its loss pushes each row; other groups as they are."""
    ranked = sorted(rows, key=_reward, reverse=True)
    return [{**row, "side": side} for row, side in zip(ranked, SIDES, strict=True)] if is_pair(ranked) else rows


def all_pairs(rows: Sequence[dict[str, object]]) -> bool:
    """Return whether every group of stored rows is a pair of compared completions."""
    return all(is_pair(sorted(group, key=_reward, reverse=True)) for group in _by_group(rows))


def _by_group(rows: Sequence[dict[str, object]]) -> list[list[dict[str, object]]]:
    groups: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault(row.get("group"), []).append(row)
    return list(groups.values())


def token_texts(folder: Path) -> Pieces:
    """Return a function from a rollout row to the text of each token, or to None if that is unknown.

    It uses the run's own tokenizer (model/tokenizer.json), or characters if a completion has one per token.
    """
    tokenizer = _tokenizer(folder / "model" / "tokenizer.json")

    def pieces(row: JsonObject) -> list[str] | None:
        ids, text = row.get("completion_ids"), str(row.get("completion") or "")
        if not ids:
            return None
        if tokenizer is not None:
            return [_piece(tokenizer, ids, i) for i in range(len(ids))]
        ended = 0 if row.get("truncated") else 1  # a truncated completion has no end token, which would have no text
        if 0 <= len(ids) - len(text) <= ended:
            return list(text) + ["⟨end⟩"] * (len(ids) - len(text))
        return None

    return pieces


def _tokenizer(path: Path) -> Tokenizer | None:
    """Return the tokenizer of the run if it is stored in the fast format, else None."""
    if not path.is_file():
        return None
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception:  # the library raises bare Exception on an unreadable file; characters are used instead
        return None


def _piece(tokenizer: Tokenizer, ids: Sequence[int], i: int) -> str:
    before = ids[max(0, i - CONTEXT) : i]
    known = tokenizer.decode(before, skip_special_tokens=False)
    both = tokenizer.decode([*before, ids[i]], skip_special_tokens=False)
    if both.startswith(known) and len(both) > len(known):
        return str(both[len(known) :])
    return str(tokenizer.id_to_token(ids[i]) or f"⟨{ids[i]}⟩")


def _group(rows: Sequence[dict[str, object]], pieces: Pieces) -> str:
    ranked = sorted(rows, key=_reward, reverse=True)
    half = COMPLETIONS // 2
    shown = ranked if len(ranked) <= COMPLETIONS else [*ranked[:half], *ranked[-(COMPLETIONS - half) :]]
    largest = {name: max((abs(x) for row in shown for x in _list(row, name)), default=0.0) for name in COMPARED}
    prompt = escape(_cut(str(rows[0].get("prompt") or ""), 1200))
    completions = "".join(_completion(row, pieces(row), largest) for row in shown)
    head = f"{len(rows)} completions, {right_among(rows)}{len(shown)} shown"
    if is_pair(ranked):
        head, completions = escape(pair_words(*ranked)), f'<div class="beside">{completions}</div>'
    return (
        f'<article class="group"><pre class="prompt">{prompt}</pre><p class="muted">{head}</p>{completions}</article>'
    )


def right_among(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the number of right rows as text; "" if rewards are graded, or all are pieces of episodes under way."""
    known = [row.get("correct") for row in rows if row.get("ended") != UNDER_WAY] or [None]
    return "" if None in known else f"{sum(map(bool, known))} right; "


def verdict(correct: bool | None) -> str:
    """Return the mark of a completion; "" if rewards are graded, or its episode is under way."""
    if correct is None:
        return ""
    kind, sign = ("right", "✓ right") if correct else ("wrong", "✗ wrong")
    return f'<span class="verdict {kind}">{sign}</span> '


def _completion(row: JsonObject, pieces: list[str] | None, largest: Mapping[str, float]) -> str:
    advantage = _list(row, "advantage")
    facts = [f"reward {number(_reward(row))}" if row.get("reward") is not None else "no reward"]
    trained = str(row.get("side") or f"advantage {sum(advantage) / len(advantage):+.3g}") if advantage else ""
    facts += score_words(row)
    facts.append(trained or "not trained on")
    facts += ["cut off"] * bool(row.get("truncated"))
    facts.append(f"{len(row.get('completion_ids') or [])} tokens")
    head = f'{verdict(row.get("correct"))}<span class="muted">{escape(" · ".join(facts))}</span>'
    body = escape(_cut(str(row.get("completion") or ""), 2000)) if pieces is None else _tokens(row, pieces, largest)
    return f'<div class="completion"><p>{head}</p><pre>{body}</pre></div>'


def _tokens(row: JsonObject, pieces: list[str], largest: Mapping[str, float]) -> str:
    columns = [_list(row, name) for name in ("behavior_logp", "entropy", "advantage", "log_ratio", "mask")]
    head = TOKENS * 2 // 3
    gap = len(pieces) - TOKENS
    spans = []
    for i, piece in enumerate(pieces):
        if gap > 0 and head <= i < head + gap:
            if i == head:
                spans.append(f'<span class="gap"> … {gap} tokens left out … </span>')
            continue
        logp, entropy, *compared, mask = (column[i] if i < len(column) else None for column in columns)
        spans.append(token_span(piece, logp, entropy, dict(zip(COMPARED, compared, strict=True)), mask, largest))
    return "".join(spans)


def token_span(
    piece: str,
    logp: float | None,
    entropy: float | None,
    compared: Mapping[str, float | None],
    mask: object,
    largest: Mapping[str, float],
) -> str:
    """Return the HTML of a token with its colours and numbers; a false `mask` means that it was not trained on.

    `compared` are the numbers named by `COMPARED`, whose colours are relative to the `largest` sizes.
    """
    classes = ["t"]
    if mask is False:
        classes.append("outside")
    for name, (above, below) in COMPARED.items():
        value, most = compared.get(name), largest.get(name, 0.0)
        if value and most > 0:
            classes.append(f"{above if value > 0 else below}{max(1, min(4, round(4 * abs(value) / most)))}")
    if logp is not None and (level := sum(exp(min(logp, 0.0)) < edge for edge in PROBABILITY_LEVELS)):
        classes.append(f"p{level}")
    if entropy is not None and (level := sum(entropy > edge for edge in ENTROPY_LEVELS)):
        classes.append(f"e{level}")
    values = "|".join("" if v is None else f"{v:.3g}" for v in (logp, entropy, *map(compared.get, COMPARED)))
    visible = piece.replace("\n", "⏎\n")
    return f'<span class="{" ".join(classes)}" data-v="{values}">{escape(visible)}</span>'


def _list(row: JsonObject, name: str) -> list[float]:
    """Return a per-token column as a list; a single number applies to every token."""
    value = SIDES[str(row["side"])] if name == "advantage" and row.get("side") and row.get(name) else row.get(name)
    if is_number(value):
        return [float(value)] * len(row.get("completion_ids") or [0])
    return list(value) if isinstance(value, list) else []


def _reward(row: JsonObject) -> float:
    value = row.get("reward")
    return float(value) if isinstance(value, (int, float)) else float("-inf")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} … {text[-limit // 3 :]}"
