"""The screen of the live display: fits a terminal of 80 columns and 24 rows, and uses more space if available."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grouprl.core.display_nouns import worded
from grouprl.core.finding import RunFinding, gravest_first
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.evaluation.gain import SUFFIXES
from grouprl.monitor.history import percent
from grouprl.monitor.outcome import mean_first
from grouprl.protocols.run_events import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

TITLES = {"warmup": "warm-up", "pretraining": "pretraining", "train": "training", "eval": "evaluation"}
BARS = "▁▂▃▄▅▆▇█"
SEVERITY_STYLE = {"note": "cyan", "warning": "yellow", "alarm": "bold red"}
SEVERITY_SIGN = {"note": "·", "warning": "!", "alarm": "‼"}
PACE_STEPS = 30
"""Number of last steps whose mean duration predicts the time left; recent ones, as lengths change."""


@dataclass
class RunScreen:
    """State of the display; rendering it draws the picture. Safe to render from another thread."""

    clock: Callable[[], float]
    name: str = "train"
    done: int = 0
    total: int = 0
    began: float = 0.0
    train_began: float | None = None
    record: JsonObject = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    evaluation: JsonObject = field(default_factory=dict)
    first_evaluation: dict[str, object] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    held: dict[str, RunFinding] = field(default_factory=dict)
    """Findings that currently hold, by code."""
    marks: list[tuple[int, float]] = field(default_factory=list)
    lock: RLock = field(default_factory=RLock)
    actions: bool = False
    """Whether the policy takes actions instead of writing tokens."""
    graded: bool = False
    """Whether rewards are known to be graded: then the share of rewards of at least 1 is not shown."""

    @property
    def title(self) -> str:
        """The displayed name of the phase."""
        return TITLES.get(self.name, self.name)

    def begin(self, name: str, total: int, done: int) -> None:
        """Start a phase; training that continues after an evaluation keeps its time."""
        with self.lock:
            now = self.clock()
            self.train_began = now if name == "train" and self.train_began is None else self.train_began
            self.began = self.train_began if name == "train" and self.train_began is not None else now
            self.name, self.total, self.done = name, total, done
            self.marks = [(done, now)]
            if name != "eval":
                self.record = {}

    def move(self, done: int, total: int) -> None:
        """Set the progress of the phase."""
        with self.lock:
            self.done, self.total = done, total
            self.marks = [*self.marks[-PACE_STEPS:], (done, self.clock())]

    def judge(self, finding: RunFinding) -> None:
        """Update a finding; one that no longer holds is removed."""
        with self.lock:
            self.held.pop(finding.code, None)
            if finding.persists:
                self.held[finding.code] = finding

    def take(self, record: JsonMapping, samples: Sequence[Sample] | None) -> None:
        """Add a record of any phase."""
        with self.lock:
            if samples is not None:
                self.samples = tuple(samples)
            if record.get("phase") == "eval":
                self.evaluation = dict(record)
                self.graded = self.graded or bool(record.get("eval/graded"))
                self.first_evaluation = self.first_evaluation or dict(record)
                return
            self.record = dict(record)
            self.move(int(record.get("step", self.done + 1)), self.total)
            for name in ("reward_mean", "pass@1", "loss", "pair_accuracy"):
                if isinstance(value := record.get(name), (int, float)):
                    self.curves.setdefault(f"{self.name}/{name}", []).append(float(value))

    def seconds_left(self) -> float | None:
        """Estimate from the pace of the last steps; None while unknown."""
        (first, start), (last, end) = (self.marks or [(0, 0.0)])[0], (self.marks or [(0, 0.0)])[-1]
        if last <= first or not self.total:
            return None
        return max(0.0, (self.total - last) * (end - start) / (last - first) - (self.clock() - end))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the screen at the current size of the console."""
        with self.lock:
            yield self._picture(options.max_width, console.size.height)

    def _picture(self, width: int, height: int) -> RenderableType:
        width = min(width, 120)
        rows: list[RenderableType] = [self._bar(width), Text("")]
        rows += self._curves(width)
        if self.evaluation:
            rows.append(_labelled("eval", Text(_evaluation(self.evaluation, self.first_evaluation)), width))
        numbers = [(worded(label, actions=self.actions), value) for label, value in _numbers(self.record, self.graded)]
        if numbers:
            rows += [Text(""), *_columns(numbers, width)]
        room = height - 2 - len(rows)
        health = _findings(gravest_first(self.held.values()), width, min(8, room - 2 - (5 if self.samples else 0)))
        room -= (len(health) + 2 if health else 0) + 2
        if self.samples and room > 0:
            rows += [Text(""), Text(worded("completions", actions=self.actions), style="bold")]
            rows += [sample_line(s, width) for s in self.samples[: min(room, 6)]]
        if health:
            rows += [Text(""), Text("health", style="bold"), *health]
        return Group(*rows)

    def _bar(self, width: int) -> RenderableType:
        left = self.seconds_left()
        times = f"{clock_text(self.clock() - self.began)} elapsed"
        times += f" · {clock_text(left)} left" if left is not None else ""
        count = f"{self.done}/{self.total}" if self.total else str(self.done)
        grid = Table.grid(padding=(0, 1), expand=False)
        for _ in range(4):
            grid.add_column(no_wrap=True)
        used = sum(cell_len(x) for x in (self.title, count, times)) + 4
        bar = ProgressBar(total=self.total or None, completed=self.done, width=max(10, width - used))
        grid.add_row(Text(self.title, style="bold"), Text(count), bar, Text(times, style="dim"))
        return grid

    def _curves(self, width: int) -> list[RenderableType]:
        wanted = {"reward_mean": "reward", "pass@1": "pass@1"}
        if self.name == "warmup" or "train/reward_mean" not in self.curves:  # of stored rows no reward is told
            wanted = {"loss": "loss", "pair_accuracy": "accuracy"}
        if self.graded:
            wanted.pop("pass@1", None)
        phase = "warmup" if self.name == "warmup" else "train"
        rows: list[RenderableType] = []
        for name, label in wanted.items():
            values = self.curves.get(f"{phase}/{name}")
            if values:
                text = Text(f"{values[-1]:<7.3f}", style="bold")
                text.append(spark(values, min(40, width - 37)), style="cyan")
                text.append(f"  from {values[0]:.3f}", style="dim")
                rows.append(_labelled(label, text, width))
        return rows


def clock_text(seconds: float | None) -> str:
    """Write a duration as 0:07, 12:05 or 3:02:11."""
    whole = max(0, round(seconds or 0))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def spark(values: Sequence[float], width: int) -> str:
    """Draw values as a line of blocks, averaged down to `width` cells."""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[min(7, int(8 * (v - low) / span))] for v in values)


def plain(text: str) -> str:
    """Make model-written text safe for one terminal line: line ends as ⏎, tabs as spaces, other controls as ·."""
    return "".join({"\n": "⏎", "\t": " "}.get(c, c if c.isprintable() else "·") for c in text)


def shorten(text: str, width: int) -> str:
    """Cut to `width` characters, keeping the beginning and the end (which has the result of a completion)."""
    if len(text) <= width:
        return text
    tail = max(0, (width - 1) * 2 // 5)
    return text[: width - 1 - tail] + "…" + (text[-tail:] if tail else "")


def verdict_mark(correct: bool | None) -> tuple[str, str]:
    """Return the sign of a completion and its style; a dot without a style if rewards are graded."""
    return ("·", "") if correct is None else ("✓", "green") if correct else ("✗", "red")


def sample_line(sample: Sample, width: int) -> Text:
    """Return a completion as one line: sign, reward, prompt → completion; green if right, red if wrong, else plain."""
    sign, style = verdict_mark(sample.correct)
    line = Text().append(f"{sign} ", style=style)
    line.append(f"{sample.reward:>5.2f}  ", style="dim")
    room = width - cell_len(line.plain) - 3
    example = shorten(plain(sample.prompt.strip()), max(room // 3, room - len(sample.completion)))
    line.append(example).append(" → ", style="dim")
    line.append(shorten(plain(sample.completion.strip()), room - cell_len(example)), style=style)
    line.truncate(width, overflow="ellipsis")
    return line


def thousands(value: float) -> str:
    """Write a count as 950, 5.2k or 1.3M."""
    number = float(value)
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def line(screen: RunScreen, record: JsonMapping) -> Text:
    """Write a record as one line of a log."""
    if record.get("phase") == "eval":
        return Text(f"eval at step {record.get('step', '?')}: {_evaluation(record, {})}")
    left = screen.seconds_left()
    names = {"reward/return": "return {:.1f}", "reward_mean": "reward {:.3f}", "pass@1": "pass@1 {:.3f}"}
    names |= {"length_mean": "length {:.1f}"}
    names |= {"entropy": "entropy {:.3f}", "kl_old": "kl {:.1g}", "clip_fraction": "clip {:.1%}"}
    names |= {"groups_zero_variance": "dead {:.0%}", "tokens_per_second": "{:.0f} tok/s"}
    if "reward_mean" not in record:
        stored = {"loss": "loss {:.3f}", "pair_accuracy": "accuracy {:.3f}", "rewards/margins": "margin {:.3g}"}
        names = {**stored, "tokens_per_second": names["tokens_per_second"]}
    if screen.name == "warmup":
        names = {"loss": "loss {:.3f}", "tokens_per_second": "{:.0f} tok/s"}
    if screen.name == "pretraining":
        names = {"value_loss": "value loss {:.4f}", "loss": "loss {:.3f}", "pass@1": "pass@1 {:.3f}"}
    if screen.graded or "reward/return" in record:  # a return says more than the share of rewards of at least 1
        names.pop("pass@1", None)
    found = {name: form for name, form in names.items() if record.get(name) is not None}
    parts = [worded(form.format(record[name]), actions=screen.actions) for name, form in found.items()]
    step = f"{screen.title} {screen.done}/{screen.total}"
    return Text("  ".join([step, *parts, *([f"{clock_text(left)} left"] if left is not None else [])]))


def _labelled(label: str, value: Text, width: int) -> Text:
    row = Text(f"{label:<9}", style="dim").append_text(value)
    row.truncate(width, overflow="ellipsis")
    return row


def _evaluation(record: Mapping[str, object], first: Mapping[str, object]) -> str:
    """Return an evaluation's greedy and sampled numbers, with the first one's; for graded rewards the mean is first."""
    shares = {"eval/pair_accuracy": "pair accuracy", "eval/greedy": "greedy"} | {
        k: k[5:] for k in record if k.startswith("eval/pass@") and k[10:].isdigit()
    }
    rewards = {"eval/reward": "reward"} | {
        name: name[5:] for name in record if name.startswith("eval/reward/") and not name.endswith(SUFFIXES)
    }
    names = {**rewards, **shares} if mean_first(record) else {**shares, **rewards}
    if record.get("eval/graded"):  # shares count rewards of at least 1, which graded rewards may never reach
        names = {"eval/reward": "reward", "eval/greedy_reward": "greedy reward", **rewards}
    parts = []
    for name, label in names.items():
        if name in record:
            before = f" (was {first[name]:.3f})" if name in first and first.get("step") != record.get("step") else ""
            parts.append(f"{label} {record[name]:.3f}{before}")
    return "   ".join(parts) + (f"   at step {record['step']}" if first and "step" in record else "")


def _numbers(record: JsonMapping, graded: bool) -> list[tuple[str, str]]:
    """Return the figures below the curves as (label, value)."""
    rows: list[tuple[str, str]] = []

    def add(label: str, name: str, form: Callable[[float], str], more: str = "") -> None:
        if isinstance(record.get(name), (int, float)):
            rows.append((label, form(record[name]) + more))

    longest = f" (longest {record['length_max']:.0f})" if "length_max" in record else ""
    kinds = {kind: record.get(f"groups_all_{kind}") for kind in (() if graded else ("right", "wrong"))}
    dead = ", ".join(f"{100 * x:.0f} {kind}" for kind, x in kinds.items() if isinstance(x, (int, float)))
    add("length", "length_mean", "{:.1f}".format, longest)
    add("zero-var.", "groups_zero_variance", percent, f" ({dead})" if dead else "")
    add("truncated", "truncated_fraction", percent)
    add("clipped", "clip_fraction", percent)
    add("capped", "capped_fraction", percent)
    add("entropy", "entropy", "{:.3f} nats".format)
    add("margin", "rewards/margins", "{:.3g}".format)
    add("KL old→new", "kl_old", "{:.2g}".format)
    add("KL to ref", "kl_ref", "{:.2g}".format)
    add("grad norm", "grad_norm", "{:.3g}".format)
    add("tokens/s", "tokens_per_second", thousands)
    return rows


def _columns(rows: list[tuple[str, str]], width: int) -> list[Text]:
    """Lay the figures out in two columns."""
    half = (len(rows) + 1) // 2
    lines = []
    for i in range(half):
        line = Text()
        for label, value in rows[i::half]:
            line.append(f"{label:<12}", style="dim").append(f"{value:<{max(18, width // 2 - 13)}} ")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _findings(findings: Sequence[RunFinding], width: int, room: int) -> list[RenderableType]:
    """Return at most `room` lines: one or two per finding, and the number of findings that did not fit."""
    lines: list[RenderableType] = []
    for i, finding in enumerate(findings):
        sign = Text(f"{SEVERITY_SIGN[finding.severity]} ", style=SEVERITY_STYLE[finding.severity])
        words = textwrap.wrap(plain(finding.text), width - 2, max_lines=2, placeholder=" …")
        if len(lines) + len(words) > room - (i + 1 < len(findings)):
            lines.append(Text(f"  and {len(findings) - i} more, in the report", style="dim"))
            break
        lines += [(sign if j == 0 else Text("  ")) + Text(part) for j, part in enumerate(words)]
    return lines
