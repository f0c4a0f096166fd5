"""The profile of a run's steps as a table and as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table

from grouprl.core.json_types import JsonObject
from grouprl.envs.call_times import CallTimes
from grouprl.policy.language.arithmetic import rate
from grouprl.storage.run_folder import RunFolder, write_json, write_text
from grouprl.training.profile import PARTS, SKIPPED, Profile, product_kind
from grouprl.training.session import Session

R = TypeVar("R")

WORDS = {
    "choose": "choosing prompts, bookkeeping of the curriculum",
    "prefill": "weights laid out, prompts read",
    "decode: products": "matrix products of sampled tokens",
    "decode: attention": "attention and its cache",
    "decode: sampling": "softmax, entropy, choosing tokens",
    "decode: other": "norms, activations, positions, rows that leave",
    "environments": "environments of this process, and the dialogue with all of them",
    "waiting for environments": "no episode could act: environments in workers, or that wait for something outside",
    "score": "rewards",
    "log-probs, statistics": "reference, old log-probs, values, statistics",
    "advantages": "reward transforms, filters, advantages",
    "forward": "log-probs of the update",
    "loss": "the method's loss and its gradient by log-probs",
    "backward": "gradients of the weights",
    "optimiser": "clipping, the optimiser's step",
    "update: other": "cutting into minibatches and passes",
    "records": "metrics, rollouts, display",
    "other": "everything else",
}


def profile_data(profile: Profile, times: CallTimes | None = None) -> JsonObject:
    """Return the seconds per step by part, those of its products alone, and the share of useful arithmetic.

    `times` are the times of calls of environments.
    """
    steps = max(1, profile.taken)
    kind, device = product_kind(profile.policy), str(profile.policy.device)
    alone = profile.work.seconds(lambda shape: rate(shape, device, kind=kind))
    seconds = {part: profile.clock.seconds.get(part, 0.0) / steps for part in PARTS}
    total, products = sum(seconds.values()), sum(alone.values()) / steps
    return {
        "steps": profile.taken,
        "threads": torch.get_num_threads(),
        "engine": profile.policy.engine,
        "dtype": "float32 by oneDNN" if kind == "onednn" else str(kind).removeprefix("torch."),
        "seconds": seconds,
        "products_alone": {part: alone[part] / steps for part in PARTS if part in alone},
        "operations": profile.work.operations() / steps,
        "total": total,
        "useful": products / total if total else 0.0,
        "environments": "" if times is None else times.words(),
    }


def profile_rows(data: JsonObject) -> list[list[str]]:
    """Return one row per part that took time, and a row with the sum."""
    total, alone, rows = data["total"], data["products_alone"], []
    for part, seconds in data["seconds"].items():
        if seconds:
            own = alone.get(part)
            useful = ["", ""] if own is None else [f"{1000 * own:.1f}", f"{own / seconds:.0%}"]
            rows.append([part, f"{1000 * seconds:.1f}", f"{seconds / total:.1%}", *useful, WORDS[part]])
    whole = [f"{1000 * sum(alone.values()):.1f}", f"{data['useful']:.0%}"]
    return [*rows, ["a step", f"{1000 * total:.1f}", "100%", *whole, ""]]


HEAD = ("part", "ms/step", "share", "products alone, ms", "useful", "what it is")


def profile_table(data: dict[str, object]) -> Table:
    """Return the profile as a table for the terminal."""
    table = Table(title=f"Where {data['steps']} steps went", box=None, header_style="bold", title_justify="left")
    for name in HEAD[:-1]:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", no_wrap=True)
    rows = profile_rows(data)
    for row in rows:
        table.add_row(*row[:-1], style="bold" if row is rows[-1] else None)
    return table


def profile_words(data: JsonObject) -> str:
    """Explain the table in sentences."""
    rate = data["operations"] / max(1e-9, sum(data["products_alone"].values())) / 1e9
    return (
        f"Useful arithmetic: {data['operations'] / 1e9:.2f} GFLOP per step of matrix products and attention that a "
        f"step cannot do without, at the {rate:.0f} GFLOP/s this machine reaches on their shapes in {data['dtype']} "
        f"with {data['threads']} thread{'s' if data['threads'] > 1 else ''}: {data['useful']:.0%} of the time "
        f"({data['engine']} engine). Times are exclusive; what each part is stands in profile.md."
    ) + _environment_words(data)


def _environment_words(data: dict[str, object]) -> str:
    """Say how long environments took, if there are any."""
    words = data.get("environments", "")
    return f" Environments: {words}." if words else ""


def write_profile(run: RunFolder, data: dict[str, object]) -> None:
    """Write profile.json and profile.md into the run folder."""
    lines = [HEAD, ["---"] * len(HEAD), *profile_rows(data)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in lines)
    write_json(run.path / "profile.json", data)
    write_text(run.path / "profile.md", f"# Where {data['steps']} steps went\n\n{table}\n\n{profile_words(data)}\n")


def profiled(session: Session, console: Console, steps: int, run: Callable[[], R]) -> R:
    """Return `run()` with `steps` of its steps profiled; print the table and write it into the run folder."""
    stage = session.row_source.stage
    with Profile(session.policy, steps) as profile:
        outcome = run()
    if not profile.taken:
        console.print(f"No step was profiled: the first {SKIPPED} of a process are left out.", highlight=False)
        return outcome
    data = profile_data(profile, None if stage is None else stage.times)
    write_profile(session.run, data)
    console.print(profile_table(data))
    console.print(profile_words(data), highlight=False)
    return outcome
