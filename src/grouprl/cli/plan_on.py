"""`grouprl plan --on`: the memory, time and cost of a run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grouprl.cli.results import put_data
from grouprl.cli.terminal_page import facts, heading
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.plan.cluster.hardware import Cluster
    from grouprl.plan.cluster.placement import Placement
    from grouprl.plan.cluster.simulation import Simulated
    from grouprl.plan.cluster.workload import Workload

SHOWN = 5
"""Number of placements in the table."""


def show_on(
    source: str, changes: Sequence[str], on: str, completion_tokens: float | None, price: float | None, *, as_json: bool
) -> None:
    """Print memory, time, placement and cost of a run on a cluster.

    Raises:
        InputError: the run cannot work, the cluster is unknown, or the run does not fit on it.
    """
    from grouprl.plan.cluster.hardware import parse_cluster

    cluster = parse_cluster(on)
    work = _workload(source, changes, completion_tokens)
    found, simulated = _placed(work, cluster)
    if as_json:
        put_data(_data(work, cluster, found, simulated, price))
        return
    console = Terminal()
    heading(console, f"{cluster.name}: {cluster.count} accelerator{'s' * (cluster.count > 1)}")
    console.print(facts(_subject(work, cluster)))
    heading(console, f"A step: {found[0].kind}, {found[0].seconds:,.3g} s")
    console.print(facts(_step(work, cluster, found[0], simulated)))
    heading(console, f"The run: {work.steps:,} steps")
    console.print(facts(_run(work, cluster, found[0], price)))
    heading(console, "Placements: the quickest of each kind, and the next best")
    console.print(Padding(_table(found), 0))
    console.print(Padding(Text(_trust(), style="dim"), (1, 2, 0, 0)))


def _workload(source: str, changes: Sequence[str], completion_tokens: float | None) -> Workload:
    """Return the work of a step, planned as if this machine had room for the run."""
    from grouprl.config.run import load_config
    from grouprl.plan.cluster.workload import workload
    from grouprl.plan.plan import plan

    # Accelerators multiply in bfloat16 whatever engine runs the model here: no precision of this machine refuses it.
    here = ["run.memory_check=false", "model.precision=float32"]
    planned = plan(load_config(source, [*changes, *here]), elsewhere=True)
    planned.raise_if_refused()
    return workload(planned, completion_tokens)


def _placed(work: Workload, cluster: Cluster) -> tuple[list[Placement], Simulated]:
    from grouprl.plan.cluster.placement import placements, why_no_room
    from grouprl.plan.cluster.roofline import Efficiency
    from grouprl.plan.cluster.simulation import simulate

    found = placements(work, cluster, Efficiency())
    if not found:
        raise InputError(
            f"The run has no room on {cluster.name}: {why_no_room(work, cluster)}",
            remedy="Take more or larger accelerators, LoRA, a smaller model or shorter completions",
        )
    return found, simulate(work, cluster, found[0], Efficiency())


def _subject(work: Workload, cluster: Cluster) -> Iterator[tuple[str, str]]:
    kind = cluster.accelerator
    yield (
        "each",
        f"{kind.memory / 1e9:,.0f} GB at {kind.bandwidth / 1e12:.3g} TB/s, {kind.flops / 1e12:,.0f} TFLOP/s bfloat16; "
        f"{kind.link / 1e9:,.0f} GB/s in a node, {kind.network / 1e9:,.3g} between nodes",
    )
    yield "source", kind.source
    yield (
        "a step",
        f"{work.prompts:,} prompts × {work.group_size} completions of {work.completion_tokens:,.0f} tokens on average "
        f"(≤ {work.longest:,}), prompts of {work.prompt_tokens:,.0f}; {work.parameters / 1e9:.3g} G parameters",
    )


def _step(work: Workload, cluster: Cluster, best: Placement, simulated: Simulated) -> Iterator[tuple[str, str]]:
    from grouprl.plan.cluster.placement import WORDS
    from grouprl.plan.cluster.public_records import likely, public_ratios, public_records

    rollout, learned = best.sampling, best.training
    yield "placement", f"{WORDS[best.kind]}: {best.samplers} sample, {best.learners} train"
    yield (
        "sampling",
        f"{rollout.seconds:,.3g} s = prefill {rollout.prefill:,.3g} + decoding {rollout.decode:,.3g}, which waits for "
        f"{rollout.bound}; {rollout.replicas} × the model, over {rollout.ranks} each, ≤ {rollout.at_once:,} "
        "sequences at once",
    )
    yield (
        "training",
        f"{learned.seconds:,.3g} s = products {learned.compute:,.3g} + scoring {learned.scoring:,.3g} + waiting for "
        f"the network {learned.exposed:,.3g} (sent: {learned.communication:,.3g}); weights over {learned.shard}",
    )
    yield "weights", f"{best.sync:,.3g} s to the samplers"
    yield (
        "memory",
        f"{learned.memory / 1e9:,.3g} GB of {cluster.accelerator.memory / 1e9:,.0f} per training rank, passes of "
        f"{learned.tokens_per_pass:,} tokens",
    )
    yield "waits for", best.waits_for
    yield (
        "simulated",
        f"{simulated.step_seconds:,.3g} s a step with lengths at random; samplers busy {simulated.sampler_busy:.0%}, "
        f"learners {simulated.learner_busy:.0%}; staleness {simulated.staleness:.1f} steps",
    )
    yield "tokens", f"{work.sampled_tokens / best.seconds:,.0f} sampled per second"
    found, records = likely(best.seconds, public_ratios()), public_records()
    factor = found.middle / best.seconds
    yield (
        "likely",
        f"{found.middle:,.3g} s a step, 90 % between {found.low:,.3g} and {found.high:,.3g}: {len(records)} published "
        f"records took {factor:.2g} times what is planned; each predicted by other configurations is off by up to "
        f"{max(abs(each.error) for each in records):.0%}",
    )


def _run(work: Workload, cluster: Cluster, best: Placement, price: float | None) -> Iterator[tuple[str, str]]:
    from grouprl.plan.cluster.public_records import likely, public_ratios

    hours = work.steps * best.seconds / 3600
    told = likely(hours, public_ratios())
    yield "time", f"{hours:,.3g} hours, {hours * cluster.count:,.3g} accelerator hours"
    yield "likely", f"{told.middle:,.3g} hours, 90 % between {told.low:,.3g} and {told.high:,.3g}"
    if price is not None:
        yield "cost", f"{hours * cluster.count * price:,.0f} at {price:g} an accelerator hour"


def _table(found: Sequence[Placement]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("placement", "on", "step (s)", "sample", "train", "sync", "stale", "idle", "waits for"):
        table.add_column(name, justify="left" if name in ("placement", "waits for") else "right", no_wrap=True)
    for each in shortlist(found):
        where = f"{each.samplers}" if each.kind == "colocated" else f"{each.samplers} + {each.learners}"
        times = (each.seconds, each.sampling.seconds, each.training.seconds, each.sync)
        waits = each.waits_for.partition(":")[0]
        table.add_row(each.kind, where, *(f"{t:,.3g}" for t in times), f"{each.staleness}", f"{each.idle:.0%}", waits)
    return table


def shortlist(found: Sequence[Placement]) -> list[Placement]:
    """Return the quickest placement of each kind, and the next best, from quickest to slowest."""
    first = {each.kind: each for each in reversed(found)}
    rest = [each for each in found if each is not first[each.kind]]
    return sorted([*first.values(), *rest][:SHOWN], key=lambda each: each.seconds)


def _trust() -> str:
    from grouprl.plan.cluster.calibration import calibration

    return calibration().words


def _data(
    work: Workload, cluster: Cluster, found: Sequence[Placement], simulated: Simulated, price: float | None
) -> dict[str, object]:
    import dataclasses

    from grouprl.plan.cluster.public_records import likely, public_ratios

    best = found[0]
    hours = work.steps * best.seconds / 3600 * cluster.count
    return {
        "cluster": dataclasses.asdict(cluster),
        "workload": dataclasses.asdict(work),
        "placements": [
            dataclasses.asdict(each)
            | {"seconds": each.seconds, "staleness": each.staleness, "idle": each.idle, "waits_for": each.waits_for}
            for each in shortlist(found)
        ],
        "simulated": dataclasses.asdict(simulated),
        "likely_seconds": dataclasses.asdict(likely(best.seconds, public_ratios())),
        "accelerator_hours": hours,
        "cost": None if price is None else hours * price,
        "trust": _trust(),
    }
