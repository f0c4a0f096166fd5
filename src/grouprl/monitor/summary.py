"""The end of a run's output: the numbers before and after, and completions of the same prompts before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from grouprl.core.display_nouns import worded
from grouprl.core.json_types import JsonMapping
from grouprl.evaluation.gain import SUFFIXES
from grouprl.monitor.outcome import mean_first
from grouprl.monitor.screen import plain, shorten, verdict_mark
from grouprl.protocols.run_events import Sample

COMPLETION_WIDTH, EPISODE_WIDTH = 200, 60
"""Characters of a completion, and of an episode without text, shown in the side-by-side table."""

RISING = ("eval/pair_accuracy", "eval/greedy", "eval/pass@", "eval/reward")
"""Prefixes of the rows in which larger is better: their change is coloured."""


def summary_table(before: JsonMapping, after: JsonMapping, *, actions: bool = False) -> Table:
    """Tabulate two evaluation records: `eval/reward`, `eval/greedy`, `eval/pass@k`, their intervals, the length.

    `actions`: whether the policy takes actions instead of writing tokens.
    """
    examples = after.get("eval/prompts")
    caption = f"{examples:.0f} held-out prompts, " if examples else ""
    table = Table(box=box.SIMPLE_HEAD, caption=f"{caption}95 % intervals in brackets", caption_style="dim")
    # Numbers of returns are wide: where there is no room, they are wrapped, and their labels stay whole.
    table.add_column("", no_wrap=True)
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right", no_wrap=column == "change", overflow="fold")
    for name, label in _rows(after):
        old, new = before.get(name), after[name]
        gain = "" if old is None else f"{new - old:+.{_decimals(name, new - old)}f}"
        better = 0 if old is None or not name.startswith(RISING) else new - old
        style = "green" if better > 0 else "red" if better < 0 else ""
        found = Text(_number(after, name), style="bold")
        words = Text(worded(label, actions=actions))
        table.add_row(words, Text(_number(before, name)), found, Text(gain, style=style))
    return table


def side_by_side(before: Sequence[Sample], after: Sequence[Sample], limit: int = 6, *, actions: bool = False) -> Table:
    """Tabulate completions before and after training of the prompts that are in both, in order.

    If a prompt occurs several times, its first completion before stands beside the first one after, and so on.
    """
    width = EPISODE_WIDTH if actions else COMPLETION_WIDTH
    table = Table(box=box.SIMPLE_HEAD, expand=False)
    for column in ("prompt", "completion before", "completion after"):
        table.add_column(worded(column, actions=actions), overflow="fold")
    later = dict(_counted(after))
    pairs = [(old, later[place]) for place, old in _counted(before) if place in later]
    for old, new in pairs[:limit]:
        prompt = Text(shorten(plain(old.prompt.strip()), width))
        table.add_row(prompt, _completion(old, width), _completion(new, width))
    return table


def _counted(samples: Sequence[Sample]) -> list[tuple[tuple[str, int], Sample]]:
    """Return the samples, each with its prompt and how often that occurred before."""
    seen = Counter[str]()
    found = []
    for sample in samples:
        found.append(((sample.prompt, seen[sample.prompt]), sample))
        seen[sample.prompt] += 1
    return found


def _rows(record: Mapping[str, object]) -> list[tuple[str, str]]:
    rewards, shares = _of_rewards(record), [("eval/pair_accuracy", "pair accuracy"), ("eval/greedy", "greedy pass@1")]
    ks = sorted(int(name[10:]) for name in record if name.startswith("eval/pass@") and name[10:].isdigit())
    shares += [(f"eval/pass@{k}", f"sampled pass@{k}") for k in ks]
    if record.get("eval/graded"):
        shares = [(name, f"{label} (reward ≥ 1)") for name, label in shares]
    rows = [*rewards, *shares] if mean_first(record) else [*shares, *rewards]
    rows += [("eval/truncated", "truncated"), ("eval/length_mean", "length (tokens)")]
    return [(name, label) for name, label in rows if name in record]


def _of_rewards(record: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the rows of mean rewards: sampled, greedy, then components."""
    parts = [name for name in record if name.startswith("eval/reward/") and not name.endswith(SUFFIXES)]
    rows = [("eval/reward", "mean reward"), ("eval/greedy_reward", "greedy reward")]
    return rows + [(name, f"  {name.removeprefix('eval/reward/')}") for name in parts]


def _number(record: JsonMapping, name: str) -> str:
    if record.get(name) is None:
        return "—"
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    known = [x for x in (record[name], low, high) if x is not None]
    value, *ends = (f"{x:.{_decimals(name, max(map(abs, known)))}f}" for x in known)
    return f"{value} [{ends[0]}, {ends[1]}]" if len(ends) == 2 and "length" not in name else value


def _decimals(name: str, value: float) -> int:
    """Return how many decimals are shown: of lengths, and of returns in the hundreds, one."""
    return 1 if "length" in name or abs(value) >= 100 else 3


def _completion(sample: Sample, width: int) -> Text:
    sign, style = verdict_mark(sample.correct)
    text = shorten(plain(sample.completion.strip()), width)
    return Text(f"{sign} {text}", style=style) if sign != "·" else Text(f"{sample.reward:.3g}  {text}")
