"""The examples of README and docs, run as the pages show them: recorded in docs/examples.json and docs/examples.md.

A model that the Hub would have to send is replaced by a tiny one, and data that a reader would bring is made here; both
are said in the table. A run that is recorded is not repeated while the example stays as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from finished import finished
from grouprl.config.run import Config, parse_config
from grouprl.storage.run_folder import write_json, write_text
from held_out import figures, rose

Settings = dict[str, Any]
ROOT = Path(__file__).parents[1]
JSON, PAGE = ROOT / "docs" / "examples.json", ROOT / "docs" / "examples.md"
HELD_OUT = 512
"""Held-out prompts before and after, where an example does not say how many."""


@dataclass(frozen=True)
class Example:
    """One configuration of a page: its YAML block, the code it needs, what a reader would bring."""

    name: str
    page: str
    block: int
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Files and the Python blocks of the page, in order, that they hold."""
    brought: Settings = field(default_factory=dict)
    """What stands in for the reader's own model and data: settings that replace those of the block."""
    rows: Callable[[], list[Settings]] | None = None
    needs: str = ""
    """The package without which it cannot run."""
    unrecorded: str = ""
    """Why it is not trained to its end, but run small, by a test."""
    partner: int | None = None
    """The block that says how the configuration of a second trainer differs, which runs at the same time."""
    server: str = ""
    """The file of an OpenEnv server that runs beside it, in the Python that `OPENENV_PYTHON` names, or in this one."""


def letters() -> list[Settings]:
    """Return prompts of three letters, to be written backwards, and demonstrations that are mostly wrong."""
    luck, rows = random.Random(0), []
    for prompt in sorted({"".join(luck.choices("abcdefghij", k=3)) for _ in range(2000)}):
        answer = prompt[::-1]
        shown = "".join(luck.choice("abcdefghij") if luck.random() < 0.25 else letter for letter in answer)
        rows.append({"question": f"{prompt}>", "answer": answer, "demonstration": shown})
    return rows


def purchases() -> list[Settings]:
    """Return how much so many apples or pears are."""
    prices = {"apple": 3, "pear": 4}
    return [
        {"prompt": f"{item} {count}", "answer": str(count * price)}
        for item, price in prices.items()
        for count in range(2, 200)
    ]


TINY = {"name": "tiny", "tiny": {"layers": 2}}
PLAIN: Settings = {"model": "tiny", "steps": 1}
"""For blocks that show a task alone."""
ROOMY: Settings = {"model": {"name": "tiny", "tiny": {"layers": 1, "hidden": 16, "max_positions": 8192}}, "steps": 1}
TERSE: Settings = {"method": {"name": "r3l", "form": "my_reviews.py:Terse"}}
LETTERS: Settings = {
    "model": TINY,
    "task": {
        "name": "jsonl:questions.jsonl",
        "prompt": "question",
        "demonstration": "demonstration",
        "eval_fraction": 0.4,
    },
    "warmup": {"steps": 200, "batch": 64},
    "optim": {},
    "steps": 40,
}
"""What stands in for a pretrained model and a reader's prompts."""
EXAMPLES = (
    Example(
        "own data and reward",
        "README.md",
        0,
        {"my_rewards.py": (0,)},
        LETTERS,
        letters,
    ),
    Example("environment of thirty lines", "docs/environments.md", 0, {"nim.py": (0,)}),
    Example("Gymnasium", "docs/environments.md", 1, needs="gymnasium"),
    Example("own tool", "docs/tools.md", 1, {"my_tools.py": (0, 1)}, rows=purchases),
    Example(
        "agent program",
        "docs/agents.md",
        0,
        {"my_agent.py": (0,)},
        needs="openai",
    ),
    Example(
        "utterances above tokens",
        "docs/agents.md",
        3,
    ),
    Example("first data and reward", "docs/getting_started.md", 0, {"my_rewards.py": (0,)}, LETTERS, letters),
    Example("policy over vectors", "docs/policies.md", 0, needs="gymnasium"),
    Example("episodes that are reviewed", "docs/reviews.md", 0),
    Example(
        "form of reviews",
        "docs/reviews.md",
        0,
        {"my_reviews.py": (0,)},
        TERSE,
        unrecorded="another form for the run above it, which is recorded",
    ),
    Example("trainers for two agents", "docs/teams.md", 1, partner=2),
    Example("Gymnasium, tuned", "docs/adapters.md", 4, needs="gymnasium"),
    Example("PettingZoo", "docs/adapters.md", 5, {"meet.py": (0,)}, needs="pettingzoo"),
    Example("TextArena", "docs/adapters.md", 6, needs="textarena"),
    Example("MCP", "docs/adapters.md", 7, {"shop.py": (1,), "expert.py": (2,)}, needs="mcp"),
    Example(
        "OpenEnv",
        "docs/adapters.md",
        8,
        {"guess_server.py": (3,)},
        needs="openenv",
        server="guess_server.py",
    ),
    Example(
        "TextArena, two players",
        "docs/adapters.md",
        0,
        brought=ROOMY,
        needs="textarena",
        unrecorded="what the setting looks like: a policy that plays itself needs far more games than a minute holds",
    ),
    Example(
        "PettingZoo, turns",
        "docs/adapters.md",
        1,
        brought=PLAIN,
        needs="pettingzoo",
        unrecorded="the same: forty steps are far too few, see adapters.md",
    ),
    Example(
        "MCP, any prompts",
        "docs/adapters.md",
        3,
        {"my_server.py": (1,)},
        ROOMY,
        purchases,
        "mcp",
        unrecorded="what the setting looks like, on the reader's own model and server",
    ),
    Example(
        "tools, any prompts",
        "docs/tools.md",
        0,
        {"my_tools.py": (0,)},
        ROOMY,
        purchases,
        unrecorded="what the setting looks like, on the reader's own model and tools",
    ),
)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language, in order; those of a list's items without its margin."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return list(map(textwrap.dedent, re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)))


def stage(example: Example, folder: Path) -> Settings:
    """Write the files of an example into a folder and return its configuration, with paths relative to that folder."""
    code = blocks(example.page, "python")
    for name, numbers in example.files.items():
        (folder / name).write_text("\n\n".join(code[i] for i in numbers), encoding="utf-8")
    if example.rows is not None:
        lines = "\n".join(map(json.dumps, example.rows()))
        (folder / "questions.jsonl").write_text(lines, encoding="utf-8")
    return {**yaml.safe_load(blocks(example.page, "yaml")[example.block]), **example.brought}


def partner(example: Example, data: Settings) -> Settings:
    """Return the configuration of the second trainer."""
    assert example.partner is not None
    return {**data, **yaml.safe_load(blocks(example.page, "yaml")[example.partner])}


def lacking(example: Example) -> str:
    """Return the package for whose lack an example cannot run here; empty if it can."""
    if example.server:
        found = subprocess.run([server_python(), "-c", f"import {example.needs}"], capture_output=True).returncode == 0
        return "" if found else example.needs
    return example.needs if example.needs and importlib.util.find_spec(example.needs) is None else ""


def server_python() -> str:
    """Return the Python that has openenv-core."""
    return os.environ.get("OPENENV_PYTHON", sys.executable)


@contextmanager
def served(example: Example, data: Settings) -> Iterator[Settings]:
    """Run an example's server in the current folder; yield its configuration, with the server's address."""
    if not example.server:
        yield data
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([server_python(), example.server, str(port)], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield json.loads(json.dumps(data).replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server did not begin to listen within a minute")


def version(example: Example) -> str:
    """Return a hash of everything the example is made of."""
    code = blocks(example.page, "python")
    shown = blocks(example.page, "yaml")
    parts = [shown[n] for n in (example.block, example.partner) if n is not None]
    parts += (code[i] for ids in example.files.values() for i in ids)
    parts += [json.dumps(example.brought, sort_keys=True), json.dumps(example.rows() if example.rows else None)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def own_python_first() -> str:
    """Return a PATH on which `python`, as commands of the pages say, is the one that runs this."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def run(example: Example, seed: int = 0) -> Settings:
    """Train an example on one thread and return what came of it; seconds are of processor time."""
    before = Path.cwd()
    os.environ["PATH"] = own_python_first()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with served(example, stage(example, Path(folder))) as data:
                return trained(example, data, seed, Path(folder) / "run")
        finally:
            os.chdir(before)


def trained(example: Example, data: Settings, seed: int, folder: Path) -> Settings:
    """Train, beside the second trainer where there is one, and return the record."""
    config, begun = configured(data, seed), seconds_used()
    other = None if example.partner is None else beside(partner(example, data), seed)
    outcome = finished(config, folder)
    assert other is None or other.wait() == 0
    return record(example, config, seed, outcome.folder, seconds_used() - begun)


def beside(data: Settings, seed: int) -> subprocess.Popen[bytes]:
    """Start the second trainer, in the current folder."""
    Path("partner.yaml").write_text(configured(data, seed).dump(), encoding="utf-8")
    command = [sys.executable, "-m", "grouprl", "train", "partner.yaml", "--folder", "partner", "-q"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def seconds_used() -> float:
    """Return the processor time of this process and of those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def configured(data: Settings, seed: int) -> Config:
    """Return the configuration of a recorded run: one thread, evaluation before and after."""
    held_out = {"every": 0, "final_prompts": HELD_OUT, **data.get("eval", {})}
    return parse_config({**data, "seed": seed, "eval": held_out, "run": {"threads": 1}})


def record(example: Example, config: Config, seed: int, folder: Path, seconds: float) -> Settings:
    """Return the numbers of a finished run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    held_out = [line for line in lines if line["phase"] == "eval"]
    return {
        "name": example.name,
        "version": version(example),
        "seed": seed,
        "steps": config.steps,
        "measure": "reward" if held_out[0]["eval/graded"] else "pass@1",
        "before": numbers(held_out[0]),
        "after": numbers(held_out[-1]),
        "seconds": round(seconds),
    }


def numbers(line: Settings) -> Settings:
    """Return the figures of an evaluation that the table shows."""
    return figures(line, ("reward", "pass@1", "greedy"), digits=4)


def learned(found: Settings) -> bool:
    """Whether the run's measure rose."""
    return rose(found, found["measure"])


def page(records: list[Settings]) -> str:
    """Return docs/examples.md."""
    by_name = {found["name"]: found for found in records}
    lines = [
        "<!-- Made from docs/examples.json by scripts/examples.py. -->",
        "# What the examples do",
        "",
        "Examples of these pages, run and recorded by `scripts/examples.py`: seed 0, one core that did other things",
        "beside, seconds of processor time with warm-up and evaluation. Where a page names a model of the Hub, a tiny",
        "one stands in its place, warmed up on demonstrations that are mostly wrong. Sampled completions to held-out",
        "prompts, 95 % intervals in brackets; a run *learned* if the interval of the gain lies above 0.",
        "",
        "| example | page | steps | measure | before | after | learned | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(row(example, by_name[example.name]) for example in EXAMPLES if example.name in by_name),
    ]
    lines += [
        "",
        "Not recorded: each is run, small and as its page shows it, by a test, but what it learns is not shown.",
        "",
    ]
    lines += ["| example | page | why not |", "| --- | --- | --- |"]
    lines += [f"| {each.name} | {link(each)} | {each.unrecorded} |" for each in EXAMPLES if each.unrecorded]
    return "\n".join(
        [*lines, "", "Recipes are recorded [elsewhere](recipes.md), and so are [methods](learning.md).", ""]
    )


def link(example: Example) -> str:
    """Return a link to an example's page."""
    if not example.page.startswith("docs/"):
        return example.page  # the site holds the pages of docs alone
    return f"[{example.page}]({os.path.relpath(ROOT / example.page, PAGE.parent)})"


def row(example: Example, found: Settings) -> str:
    """Return one example's line of the table."""
    measure = found["measure"]
    cells = [
        "{:.3f} [{:.3f}, {:.3f}]".format(*(found[side][f"{measure}{end}"] for end in ("", "_low", "_high")))
        for side in ("before", "after")
    ]
    yes = "yes" if learned(found) else "no"
    cells = [example.name, link(example), found["steps"], measure, *cells, yes, found["seconds"]]
    return f"| {' | '.join(map(str, cells))} |"


def main(names: Annotated[list[str] | None, typer.Argument(help="Examples; all if none is named.")] = None) -> None:
    """Run what is not recorded as it is, and write docs/examples.json and docs/examples.md."""
    records: list[Settings] = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    current = {example.name: version(example) for example in EXAMPLES}
    records = [found for found in records if current.get(found["name"]) == found["version"]]
    for example in EXAMPLES:
        if (
            example.unrecorded
            or (names and example.name not in names)
            or any(found["name"] == example.name for found in records)
        ):
            continue
        records.append(run(example))
        write_json(JSON, records)
        write_text(PAGE, page(records))
        typer.echo(row(example, records[-1]))


if __name__ == "__main__":
    typer.run(main)
