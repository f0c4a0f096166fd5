"""Some of the claims of claims.py on a pretrained model of 135 million parameters: docs/effects_pretrained.md.

`run` compares each method with its rival as effects.py does it, each at its own rate, all claims at the same time from
one queue of runs in which the more important claims come first. It may be cut off at any time: what is finished is kept
in the folder of runs and not repeated, and a claim whose runs are all there is in the file of results. `report` writes
the record and the page from that file.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import real
from claims import CLAIMS, PASS, Claim
from effects import Arena, compared, ground
from effects_report import (
    MARGIN,
    OWN_HEAD,
    UNSHOWN,
    VERDICTS,
    Row,
    key,
    key_of,
    markdown,
    own_cells,
    sentence,
    setup_words,
)
from grouprl.config.run import Config, load_config
from grouprl.storage.run_folder import write_json, write_text
from pooled_runs import QueuedStore, RunQueue, silent

RUNS = real.RUNS / "claims"
RESULTS = "real_claims.json"
"""The file of results: what the runs were, and a row per claim that is decided."""
RECORD, PAGE = "effects_pretrained.json", "effects_pretrained.md"
SUMS = (
    *("task.largest=50", "batch.prompts=16", "optim.warmup_steps=2", "run.checkpoint_every=1000000"),
    *("eval.every=0", "eval.final_prompts=128", "eval.samples=4", "model.dtype=float32"),
)
ARENAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain": (
        "sums up to 50 + 50, asked in a sentence: who learns more from 20 rollouts of 128 completions",
        ("steps=20",),
    ),
    "stale": (
        "the same sums with sixteen updates per rollout and 8 rollouts: the data soon are off-policy",
        ("steps=8", "batch.minibatches=4", "batch.epochs=4"),
    ),
}
"""What stands for an arena of effects.py here, and its changes of the recipe `sums`."""
CHOSEN = (
    *(("grpo", "plain"), ("rloo", "plain"), ("dr_grpo", "plain"), ("gspo", "stale"), ("cispo", "stale")),
    *(("opo", "plain"), ("reinforce_pp_baseline", "plain"), ("sapo", "stale"), ("remax", "plain"), ("gpg", "plain")),
    *(("apa", "stale"), ("raft_pp", "plain"), ("dapo", "stale")),
)
"""Method and arena of the claims that are compared, the most important first: those at the end may be cut off."""


def chosen(names: Sequence[tuple[str, str]] = CHOSEN) -> list[Claim]:
    """Return the claims about pass@1 of these methods in these arenas."""
    known = {(claim.name, claim.arena): claim for claim in CLAIMS if claim.measure == PASS}
    return [known[name] for name in names]


def arena_of(name: str, model: str, changes: Sequence[str] = ()) -> Arena:
    """Return an arena on a pretrained model."""
    words, own = ARENAS[name]
    given = [f"model.name={model}", *SUMS, *own, *changes]
    return Arena(words, load_config(str(real.RECIPES / "sums.yaml"), given).model_dump(mode="json"), common={})


def decide(claims: Sequence[Claim], arenas: Mapping[str, Arena], seeds: int, jobs: int, runs: Path, out: Path) -> None:
    """Compare the claims at the same time, and write each into the file of results once its runs are there."""
    results = out / RESULTS
    rows: list[Row] = []
    with RunQueue(jobs) as queue, ThreadPoolExecutor(len(claims)) as threads:
        stores = [QueuedStore(runs, jobs, queue=queue, rank=rank) for rank in range(len(claims))]
        waiting = [
            threads.submit(compared, claim, arenas[claim.arena], seeds, store, silent)
            for claim, store in zip(claims, stores, strict=True)
        ]
        for each in as_completed(waiting):
            if each.exception() is not None:  # its claim is not run; the others are
                traceback.print_exception(each.exception())
                continue
            rows.append(each.result())
            write_json(results, {"made": made(arenas, seeds), "rows": in_order(rows)})
            print(sentence(rows[-1]), flush=True)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows in the order of the claims."""
    keys = [key(claim) for claim in chosen()]
    return sorted(rows, key=lambda row: keys.index(key_of(row)))


def made(arenas: Mapping[str, Arena], seeds: int) -> dict[str, Any]:
    """Return what the runs were, as it is recorded."""
    configs = {name: ground(name, arena).config() for name, arena in arenas.items()}
    any_of = next(iter(configs.values()))
    return {
        "device": device(any_of.model.device),
        "precision": any_of.model.precision,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "seeds": seeds,
        "rates": {n: [f"{configs[n].optim.lr * factor:.2g}" for factor in arenas[n].factors] for n in arenas},
        "batches": {name: batch_of(config) for name, config in configs.items()},
        "held_out": [any_of.eval.final_prompts, any_of.eval.samples],
    }


def batch_of(config: Config) -> dict[str, int]:
    """Return the sizes of a run."""
    batch = config.batch
    sizes = {"prompts": batch.prompts, "group_size": batch.group_size, "epochs": batch.epochs}
    return {"steps": config.steps, **sizes, "minibatches": batch.minibatches}


def device(name: str) -> str:
    """Return the name of what a run is made on."""
    if name.startswith("cuda") or (name == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name()
    return f"CPU, {platform.machine()}"


def page(found: Mapping[str, Any]) -> str:
    """Return the text of the page: what was not shown first."""
    rows, claims = found.get("rows", []), chosen()
    missing = [claim for claim in claims if key(claim) not in {key_of(row) for row in rows}]
    parts = [HEAD.format(count=len(claims)), summary(rows, missing)]
    if rows:
        parts += [how(found["made"]), *(section(arena, rows) for arena in ARENAS)]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(rows: Sequence[Row], missing: Sequence[Claim]) -> str:
    """Return which claims were not shown, then the others by verdict, then those that were not run."""
    if not rows:
        return f"**Not run yet.** These are to be compared: {', '.join(map(named, missing))}."
    order = [*UNSHOWN, *(name for name in VERDICTS if name not in UNSHOWN)]
    lines = [
        f"- **{name}** ({len(of)}; {VERDICTS[name]}): {', '.join(map(listed, of))}"
        for name in order
        if (of := [row for row in rows if row["verdict"] == name]) or name in UNSHOWN
    ]
    rest = [f"- **not run** ({len(missing)}): {', '.join(map(named, missing))}"] if missing else []
    return "\n".join([*lines, *rest]).replace("): \n", "): none\n")


def named(claim: Claim) -> str:
    """Return a claim in a list."""
    return f"{setup_words(claim.method)} ({claim.arena})"


def listed(row: Row) -> str:
    """Return the claim of a row in a list."""
    return f"{setup_words(row['setup'])} ({row['arena']})"


def how(made: Mapping[str, Any]) -> str:
    """Return how the runs were made."""
    rates = "; ".join(f"{name}: {', '.join(values)}" for name, values in made["rates"].items())
    prompts, samples = made["held_out"]
    return HOW.format(**made, each=rates, prompts=prompts, samples=samples, margin=MARGIN)


def section(arena: str, rows: Sequence[Row]) -> str:
    """Return the claims of an arena with their outcomes."""
    here = [row for row in rows if row["arena"] == arena]
    words = ARENAS[arena][0]
    return f"## {arena}\n\n{words[0].upper()}{words[1:]}.\n\n{markdown(OWN_HEAD, map(own_cells, here))}" if here else ""


HEAD = """# Claims at 135 million parameters

{count} of the [claims of papers](effects.md) are chosen to be compared on SmolLM2-135M-Instruct ([how it is
obtained](real.md)) by `scripts/real_claims.py`, each method and each rival at its own learning rate. One task and one
size of model: where nothing is shown, the idea may still be right where it was meant to be."""
HOW = """**How.** {seeds} seeds each on one {device}, products in {precision}, torch {torch}, transformers
{transformers}. Nothing is warmed up. Each method and each rival has the best of three rates by `eval/pass@1` ({each}),
tried on one seed that is none of those compared; a rate with a * is the end of its sweep, so that a better one may lie
beyond. `eval/pass@1` is measured after training, on {prompts} held-out sums with {samples} completions each. Intervals
are 95 % of the mean paired difference over seeds (Student), of each claim by itself: of so many one may be shown by
chance. "No worse" allows {margin} of pass@1. A method that is right only on-policy makes one update of a rollout, its
rival more."""
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    model: Annotated[str, typer.Option(help="The folder of the model; none: it is fetched.")] = "",
    runs: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = real.RUNS
    / "claims",
    out: Annotated[Path, typer.Option(help="Where the file of results is written.")] = real.RUNS,
    device: Annotated[str, typer.Option(help="cpu, cuda …")] = "auto",
    precision: Annotated[str, typer.Option(help="Of products: float32 or mixed.")] = "float32",
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 5,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of all runs, key=value.")] = None,
    most: Annotated[int, typer.Option(help="Only so many claims, the most important.")] = len(CHOSEN),
) -> None:
    """Compare the claims, and write what is decided as it comes."""
    given = [f"model.device={device}", f"model.precision={precision}", *(changes or [])]
    make = partial(arena_of, model=model or real.fetch(real.RUNS / "model")[0], changes=given)
    decide(chosen()[:most], {name: make(name) for name in ARENAS}, seeds, jobs, runs, out)


@app.command()
def report(
    results: Annotated[
        Path | None, typer.Argument(help="The file of results; none: the record as it is.", exists=True, dir_okay=False)
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where the page and the record are.")] = real.DOCS,
) -> None:
    """Write the record and the page."""
    found = json.loads((results or docs / RECORD).read_text(encoding="utf-8"))
    write_json(docs / RECORD, found)
    write_text(docs / PAGE, page(found))


if __name__ == "__main__":
    app()
