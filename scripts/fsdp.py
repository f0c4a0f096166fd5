"""Runs on several processes (FSDP2): equality with one process, checkpoints, kills, signals and other faults.

Everything is run with gloo on the CPU of this machine; what was found is written to docs/fsdp.json, and
docs/fsdp.md sums it up. `python scripts/fsdp.py [steps] [runs] [rewards] [catalogue] [resumes] [kills] [signals]
[faults] [memory] [long_rows] [pretrained]` runs some sections only, and leaves what is recorded of the others;
`steps=grpo,ppo+lora` runs some cases of the optimiser step, `rewards=gpm` some reward models, `catalogue=kto` some
entries, and leaves what is recorded of the other cases.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import rank_catalogue  # noqa: E402
import rank_long_rows  # noqa: E402
import rank_memory  # noqa: E402
import rank_rewards  # noqa: E402
import rank_runs  # noqa: E402
from ranks import run_on_ranks  # noqa: E402

Found = tuple[str, Any]
"""What was tried, and what came of it."""
CACHE = Path.home() / ".cache" / "grouprl" / "gguf"
RECORD = ROOT / "docs" / "fsdp.json"
CASES = (
    *("grpo", "dapo", "dr_grpo", "grpo@nemo_rl", "intellect2", "ppo", "clip_cov", "gvpo"),
    *("grpo+lora", "ppo+lora", "grpo+anew", "clip_cov+anew", "grpo+offload", "ppo+lora+offload"),
    *("grpo+tensor", "ppo+tensor", "clip_cov+tensor+anew", "dapo+tensor+offload"),
    *("grpo+context", "ppo+lora+context+offload", "clip_cov+context+anew", "intellect2+context+all"),
    *("grpo+compiled", "grpo+compiled+anew"),
    *("minillm", "minillm+lora+offload", "minillm+tensor", "minillm+context+packed+anew"),
    *("grpo+mixed", "grpo+mixed+small", "ppo+mixed+small+tensor", "grpo+mixed+lora"),
    *(f"grpo:{name}" for name in ("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop")),
    *("grpo:rprop", "grpo:sgd"),
)
KILLS = (
    *("1 sampling 3 kill", "0 sampled 3 kill", "1 sampled 3 kill", "1 passes 8 kill", "1 forward 21 kill"),
    *("0 backward 9 kill", "1 gradients of a layer 30 kill", "0 gradient 8 kill", "1 clip 5 kill"),
    *("1 step begins 6 kill", "0 step begins 6 kill", "1 step 6 kill", "0 step 9 kill", "1 weights to samplers 4 kill"),
    *("1 checkpoint begins 3 kill", "0 checkpoint begins 3 kill", "1 tensor written 150 kill"),
    *("0 tensor written 150 kill", "1 part written 3 kill", "0 metadata 3 kill", "0 manifest 9 kill"),
    *("0 checkpoint whole 2 kill", "0 metrics 7 kill"),
)
"""Rank, point, arrival at it: while sampling, in a forward and a backward pass, while gradients of one layer are added
up, in the optimiser's step, while weights go to the copies, and through a checkpoint to its manifest and behind it."""
MOMENTS = 6
"""How often a rank, in turn, is killed after a time that a seed chooses, wherever it is."""
FAULTS = (
    *("1 passes 8 memory", "1 passes 8 starve", "0 passes 8 starve", "1 checkpoint begins 3 full"),
    *("0 checkpoint begins 3 full", "1 checkpoint begins 3 fill", "1 passes 8 stop", "1 sampling 3 stop"),
    *("1 passes 8 pause", "1 passes 8 unplug", "1 checkpoint begins 3 unplug", "1 passes 8 slow"),
)
SIGNALS = (
    *("0 metrics 5 parent-term", "0 metrics 5 parent-int", "0 metrics 5 parent-kill", "0 metrics 5 int"),
    *("0 sampling 3 term", "1 passes 6 term", "1 passes 6 int", "1 passes 8 kill", "0 step 6 kill"),
)
"""Of torchrun (`parent`) and of ranks that it has started."""
PRETRAINED = "SmolLM2-135M-Instruct.Q4_1"


def steps(folder: Path, cases: Sequence[str] = CASES) -> Iterator[Found]:
    """Optimiser steps on 2 and 4 ranks beside those of one process."""
    script = ROOT / "tests" / "support" / "rank_steps.py"
    for ranks in (2, 4):
        said = run_on_ranks(script, ranks, *cases, timeout=3000)
        yield str(ranks), json.loads(said.splitlines()[-1])["found"]


def runs(folder: Path) -> Iterator[Found]:
    """Whole runs on 1, 2 and 4 ranks; episodes of several turns; matrices cut by two ranks."""
    config = rank_runs.write_config(folder)
    for ranks in (1, 2, 4):
        rank_runs.train_on(ranks, config, folder / f"r{ranks}", "-q")
        if ranks > 1:
            yield str(ranks), rank_runs.apart(folder / "r1", folder / f"r{ranks}")
    episodes = rank_runs.write_episodes(folder)
    for ranks in (1, 2):
        rank_runs.train_on(ranks, episodes, folder / f"e{ranks}", "-q")
    yield "2, episodes", rank_runs.apart(folder / "e1", folder / "e2")
    cut = rank_runs.write_config(folder, model={"name": str(rank_runs.save_cut_model(folder)), "dtype": "float64"})
    rank_runs.train_on(1, cut, folder / "c1", "-q")
    for ranks, by in ((2, 2), (4, 2)):
        run = folder / f"c{ranks}"
        rank_runs.train_on(ranks, cut, run, "-q", "--set", f"model.tensor_parallel={by}")
        yield f"{ranks}, matrices cut by {by}", rank_runs.apart(folder / "c1", run)


def rewards(folder: Path, cases: Sequence[str] = rank_rewards.CASES) -> Iterator[Found]:
    """Runs of reward models on 2 and 3 ranks beside one process, with the scores that are kept of their rows."""
    for case in cases:
        config, found = rank_rewards.write_case(folder, case), {}
        for ranks in (1, 2, 3):
            own = config if ranks > 1 else rank_rewards.of_one_process(config)
            rank_runs.train_on(ranks, own, folder / f"{case}-{ranks}", "-q")
            if ranks > 1:
                found[str(ranks)] = rank_rewards.apart(folder / f"{case}-1", folder / f"{case}-{ranks}")
        yield case, found


def catalogue(folder: Path, cases: Sequence[str] = rank_catalogue.CASES) -> Iterator[Found]:
    """Entries of the catalogue on two ranks and on three: which metrics differ from those of one process."""
    for number, case in enumerate(cases):
        ranks = 2 + number % 2
        yield case, {"ranks": ranks, **rank_catalogue.apart(case, folder, ranks)}


def resumes(folder: Path) -> Iterator[Found]:
    """Runs begun on one number of ranks and ended on another."""
    config = rank_runs.write_config(
        folder, model={"name": str(rank_runs.save_cut_model(folder)), "dtype": "float64"}, **rank_runs.RUN
    )
    rank_runs.train_on(1, config, folder / "whole", "-q")
    for number, (first, by, then) in enumerate(((1, 1, 2), (2, 1, 4), (4, 1, 1), (2, 2, 1), (1, 1, 4))):
        run, cut = folder / f"r{number}", ["--set", f"model.tensor_parallel={by}"]
        codes, said = rank_runs.on_ranks(first, config, run, "-q", *(cut if by > 1 else []), fault="0 metrics 7 int")
        assert codes[0] == 130, said
        rank_runs.train_on(
            then, config, run, "--resume", "-q", *(["--set", "model.tensor_parallel=1"] if by > 1 else [])
        )
        yield f"{first}{', matrices cut,' if by > 1 else ''} → {then}", rank_runs.apart(folder / "whole", run)


def kills(folder: Path) -> Iterator[Found]:
    """Ranks killed at points of the code and at moments; the resumed run is held against a whole one, byte for byte."""
    config, begun = rank_runs.write_config(folder), time.monotonic()
    rank_runs.train_on(2, config, folder / "whole", "-q")
    seconds, whole, dice = time.monotonic() - begun, rank_runs.evidence(folder / "whole"), random.Random(0)
    for number, fault in enumerate(KILLS):
        codes, said = rank_runs.on_ranks(2, config, folder / f"k{number}", "-q", fault=fault)
        yield fault, {"codes": codes, "said": _words(said), **_resumed(config, folder / f"k{number}", whole)}
    for number in range(MOMENTS):
        moment = dice.uniform(0.1, 0.95) * seconds
        codes, said = rank_runs.on_ranks(2, config, folder / f"m{number}", "-q", killed=(number % 2, moment))
        again = _resumed(config, folder / f"m{number}", whole)
        yield f"{number % 2} moment {number}", {"codes": codes, "said": _words(said), **again}


def _resumed(config: Path, run: Path, whole: dict[str, object]) -> dict[str, Any]:
    """End a run on two ranks, and say what of it differs from a whole one; one that has not begun begins anew."""
    more = ["--resume"] if (run / "config.yaml").is_file() else []
    again, said = rank_runs.on_ranks(2, config, run, "-q", *more)
    end = rank_runs.evidence(run) if again == [0, 0] else {}
    different = [name for name, value in whole.items() if end.get(name) != value]
    return {"resumed": again, "different": different} | ({} if again == [0, 0] else {"why": _words(said)})


def signals(folder: Path) -> Iterator[Found]:
    """Runs by torchrun, and signals to it and to its ranks; none of their processes is left."""
    config = rank_runs.write_config(folder)
    code, said = rank_runs.torchrun(2, config, folder / "whole", "-q")
    rank_runs.train_on(2, config, folder / "launched", "-q")
    whole, launched = rank_runs.evidence(folder / "whole"), rank_runs.evidence(folder / "launched")
    different = [name for name, value in whole.items() if launched[name] != value]
    yield "torchrun beside grouprl launch", {"code": code, "different": different}
    for number, fault in enumerate(SIGNALS):
        run = folder / f"s{number}"
        code, said = rank_runs.torchrun(2, config, run, fault=fault)
        done = [record["step"] for record in rank_runs.metrics(run) if record["phase"] == "train"]
        over = (run / "summary.json").is_file() and code == 0
        again = {} if over else _resumed(config, run, whole)
        yield fault, {"code": code, "steps": len(done), "said": _words(said), **again}


def faults(folder: Path) -> Iterator[Found]:
    """Ranks that fail, hang, are slow or cut off, a full disk; then the run is resumed and held against a whole one."""
    config = rank_runs.write_config(folder, run={**rank_runs.RUN["run"], "rank_timeout": 20})
    rank_runs.train_on(2, config, folder / "whole", "-q")
    whole = rank_runs.evidence(folder / "whole")
    for number, fault in enumerate(FAULTS):
        run, begun = folder / f"f{number}", time.monotonic()
        with _small_disk(run) if fault.endswith("fill") else nullcontext() as there:
            if there is False:
                yield fault, {"said": "not run: this user may not mount a file system"}
                continue
            codes, said = rank_runs.on_ranks(2, config, run, "-q", fault=fault)
            seconds = round(time.monotonic() - begun)
            halves = [path.name for path in (run / "checkpoints").glob(".*")]
            (run / "ballast").unlink(missing_ok=True)
            again = _resumed(config, run, whole) if codes != [0, 0] else {"different": _different(run, whole)}
        yield fault, {"codes": codes, "seconds": seconds, "said": _words(said), "halves": halves, **again}


def _different(run: Path, whole: dict[str, object]) -> list[str]:
    end = rank_runs.evidence(run)
    return [name for name, value in whole.items() if end.get(name) != value]


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Let `folder` be a file system of its own of 12 MB; False where that is not allowed."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)], capture_output=True)
    try:
        yield made.returncode == 0
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def pretrained(folder: Path) -> Iterator[Found]:
    """Two steps of SmolLM2-135M on one process, two ranks, and three that cut its matrices; memory of each rank."""
    (model, *_) = [*CACHE.glob(f"{PRETRAINED}-*"), None]
    if model is None:
        yield "SmolLM2-135M", {"said": f"not run: {CACHE} holds no {PRETRAINED} (make real brings it there)"}
        return
    config = rank_runs.write_pretrained(folder, model)
    cut = ["--set", "model.tensor_parallel=3"]
    for name, ranks, more in (("1", 1, []), ("2", 2, []), ("3, matrices cut by 3", 3, cut)):
        run, begun = folder / f"p{ranks}", time.monotonic()
        rank_runs.train_on(ranks, config, run, "-q", *more, timeout=1800)
        peak = [rank_runs.peak_mb(run, rank) for rank in range(ranks)]
        beside = {} if ranks == 1 else rank_runs.apart(folder / "p1", run)
        yield f"SmolLM2-135M on {name}", {"seconds": round(time.monotonic() - begun), "peak_mb": peak, **beside}


MODELS = ("50M", "110M", "190M")
RANKS = (1, 2, 4, 8)


def memory(folder: Path) -> Iterator[Found]:
    """Peak memory of each rank as a random model is built and steps, beside what is allowed and what a plan says.

    Each in processes of its own: what an earlier model leaves in the allocator would count as there before.
    """
    script = ROOT / "tests" / "support" / "rank_memory.py"
    for size in MODELS:
        model = str(rank_memory.write_model(folder, size))
        (one,) = json.loads(run_on_ranks(script, 1, model, "alone", timeout=3000).splitlines()[-1]).values()
        a_pass = max(one["step"][0] - one["weights"] - 3 * one["trained"], 0)
        for ranks in RANKS:
            said = run_on_ranks(script, ranks, model, *(["save"] if ranks > 1 else []), timeout=3000)
            (found,) = json.loads(said.splitlines()[-1]).values()
            planned = {"planned": rank_memory.planned(f"model-{size}", ranks)}
            yield f"{size}, {ranks}", rank_memory.row(found, ranks, a_pass) | planned | {"alone": one["step"][0]}
    write_table(json.loads(RECORD.read_text())["memory"])


PLAN_ERROR = 0.1
"""By which share a plan may be off."""
TABLE = ("<!-- memory of ranks, by scripts/fsdp.py memory -->", "<!-- end -->")


def write_table(found: dict[str, Any]) -> None:
    """Write the table of peaks into docs/fsdp.md, in MiB."""
    head = ("model", "ranks", "build", "may be", "two steps", "rank 0", "may be", "planned", "plan's error", "within")
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * 8} --- |"]
    for key, row in sorted(found.items(), key=lambda each: (MODELS.index(each[0].split(", ")[0]), each[0])):
        mib = {name: f"{value / 2**20:,.0f}" for name, value in row.items()}
        error = row["planned"] / row["step"] - 1
        names = ("build", "build_most", "step", "step_0", "step_most", "planned")
        within = all(row[what] <= row[f"{what}_most"] for what in ("build", "step")) and abs(error) <= PLAN_ERROR
        cells = [*key.split(", "), *(mib[name] for name in names), f"{error:+.0%}", "yes" if within else "**no**"]
        lines.append(f"| {' | '.join(cells)} |")
    write_between(TABLE, lines)


def write_between(marks: tuple[str, str], lines: list[str]) -> None:
    """Write lines into docs/fsdp.md between two marks."""
    page = RECORD.with_suffix(".md")
    before, rest = page.read_text().split(marks[0])
    page.write_text(before + marks[0] + "\n\n" + "\n".join(lines) + "\n\n" + marks[1] + rest.split(marks[1])[1])


LONG = 32_768
"""Tokens of a long row."""


def long_rows(folder: Path) -> Iterator[Found]:
    """Peak memory of a pass over one row that all ranks share, beside one process, and how far its log-probs are."""
    script, model = ROOT / "tests" / "support" / "rank_long_rows.py", str(rank_long_rows.write_model(folder, LONG))
    plain = 0.0
    for ranks in RANKS:
        said = run_on_ranks(script, ranks, model, str(LONG), *(["alone"] if ranks == 1 else []), timeout=3000)
        found = json.loads(said.splitlines()[-1])
        plain = found["logp"] if ranks == 1 else plain
        yield str(ranks), found | {"apart": abs(found["logp"] - plain)}
        write_long_rows(json.loads(RECORD.read_text())["long_rows"])


LONG_TABLE = ("<!-- memory of a long row, by scripts/fsdp.py long_rows -->", "<!-- end of the long row -->")


def write_long_rows(found: dict[str, Any]) -> None:
    """Write the table of a long row into docs/fsdp.md, in MiB."""
    lines = ["| ranks | peak | planned |", "| ---: | ---: | ---: |"]
    for ranks, row in sorted(found.items(), key=lambda each: int(each[0])):
        lines.append(f"| {ranks} | {max(row['grown']) / 2**20:,.0f} | {row['planned'] / 2**20:,.0f} |")
    write_between(LONG_TABLE, lines)


def _words(said: str) -> str:
    """Return the lines of errors."""
    return " ".join(line for line in said.splitlines() if line.startswith(("error", "rank", "Stopping")))


SECTIONS: dict[str, Callable[..., Iterator[Found]]] = {
    each.__name__: each
    for each in (steps, runs, rewards, catalogue, resumes, kills, signals, faults, memory, long_rows, pretrained)
}


def main(names: list[str]) -> None:
    """Run sections, and record each thing that they find as it is found."""
    for each in names or list(SECTIONS):
        name, _, cases = each.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            chosen = [cases.split(",")] if cases else []
            for key, value in SECTIONS[name](Path(folder), *chosen):
                record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
                kept = record.setdefault(name, {})
                kept[key] = {**kept.get(key, {}), **value} if chosen else value
                RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
                print(name, key, value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
