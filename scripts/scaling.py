"""Where a run stops scaling: the plan and its simulation from 8 to 1,024 accelerators, as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from grouprl.plan.cluster.hardware import Cluster, accelerators
from grouprl.plan.cluster.placement import Placement, placements
from grouprl.plan.cluster.public_records import MISSED, public_records
from grouprl.plan.cluster.roofline import Efficiency
from grouprl.plan.cluster.simulation import simulate
from grouprl.plan.cluster.workload import Workload, grown
from grouprl.storage.run_folder import replacing, write_text

ROOT = Path(__file__).parents[1]
TABLES = ("<!-- scaling -->", "<!-- /scaling -->")
RECORDS = ("<!-- records -->", "<!-- /records -->")
COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
KINDS = ("colocated", "asynchronous")
WORK = Workload(
    parameters=8_030_000_000,
    trainable=8_030_000_000,
    layers=32,
    hidden=4096,
    kv_width=1024,
    vocabulary=128_256,
    prompts=128,
    group_size=16,
    prompt_tokens=300,
    completion_tokens=2000,
    longest=8192,
    updates=4,
    passes=1,
    scorings=1,
    steps=500,
    tied=False,
)
"""A model of 8 G parameters (the shape of Llama 3.1 8B), 2,048 completions of 2,000 tokens on average a step."""


@dataclass(frozen=True)
class Point:
    """One cluster and one kind of placement."""

    count: int
    kind: str
    placement: Placement
    seconds: float
    """Of a simulated step."""
    rate: float
    """Tokens per second and accelerator."""


def points(weak: bool) -> Iterator[Point]:
    """Yield the quickest placement of each kind on each cluster; with `weak` the batch grows with the cluster."""
    for count in COUNTS:
        cluster = Cluster(count // 8, 8, accelerators()["H100"])
        work = grown(WORK, count / 8) if weak else WORK
        found = placements(work, cluster, Efficiency())
        for kind in KINDS:
            best = next(each for each in found if each.kind == kind)
            simulated = simulate(work, cluster, best, Efficiency())
            yield Point(count, kind, best, simulated.step_seconds, simulated.tokens_per_second / count)


def table(found: list[Point]) -> str:
    """Return a row per cluster and kind."""
    head = "| H100 | placement | sample / train | s a step, planned | simulated | tokens/s each | waits for |\n"
    rows = "".join(
        f"| {p.count:,} | {p.kind} | {p.placement.samplers} / {p.placement.learners} | {p.placement.seconds:,.3g} | "
        f"{p.seconds:,.3g} | {p.rate:,.0f} | {p.placement.waits_for} |\n"
        for p in found
    )
    return head + "| ---: | --- | --- | ---: | ---: | ---: | --- |\n" + rows


def records() -> str:
    """The published step times beside the arithmetic's, each predicted by the ratio of the other configurations."""
    lines = [
        "| record | release | measured (s) | planned (s) | by the others | error | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for each in public_records():
        missed = f"missed by more than {MISSED:g}" if each.missed else ""
        numbers = f"{each.measured:g} | {each.planned:.3g} | {each.predicted:.3g} | {each.error:+.0%}"
        lines.append(f"| {each.configuration} | {each.release} | {numbers} | {missed} |")
    return "\n".join(lines) + "\n"


def between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Write a text between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(marks[0])
    write_text(page, f"{before}{marks[0]}\n{text}{marks[1]}{rest.partition(marks[1])[2]}")


def draw(fixed: list[Point], growing: list[Point], path: Path) -> None:
    """Draw tokens per second and accelerator, relative to 8, for a fixed batch and for one that grows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.6), dpi=130, layout="constrained")
    titles = ("the batch stays: 128 prompts × 16", "the batch grows with the cluster")
    for axes, found, title in zip(figure.subplots(1, 2, sharey=True), (fixed, growing), titles, strict=True):
        for kind, colour in zip(KINDS, ("#1f6feb", "#d29922"), strict=True):
            rates = [(p.count, p.rate) for p in found if p.kind == kind]
            axes.plot(*zip(*rates, strict=True), color=colour, marker="o", ms=4, label=kind)
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, [f"{count:,}" for count in COUNTS])
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("H100")
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    figure.supylabel("sampled tokens per second and accelerator", fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def main(page: Path = ROOT / "docs" / "scaling.md") -> None:
    """Plan, simulate, and write the tables between the marks of the page and the picture beside it."""
    fixed, growing = list(points(weak=False)), list(points(weak=True))
    text = f"The batch stays:\n\n{table(fixed)}\nThe batch grows with the cluster:\n\n{table(growing)}"
    between(page, TABLES, text)
    between(page, RECORDS, records())
    draw(fixed, growing, page.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
