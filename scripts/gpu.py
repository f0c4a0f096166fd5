"""What only a GPU can show: `make gpu` holds every path on it against the CPU, and records what was found.

Parity in float32 and bfloat16, attention kernels, a compiled update, sampling, a short run, the same with a server of
vLLM on the GPU (`--vllm PROGRAM`), and a race with TRL (`--trl PYTHON`). Writes docs/gpu.md and docs/gpu.json. Exit
code 0: everything was compared and agrees; 1: something does not; 5: nothing differs, but something could not be
compared; 4: no GPU here, and nothing was run or written.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gpu_checks import (
    Finding,
    attention,
    compiled,
    learning,
    parity,
    sampling,
    sent,
    servers,
    shared_heads,
    sleeping,
)
from grouprl.storage.run_folder import write_json, write_text

ROOT = Path(__file__).resolve().parents[1]
NO_GPU, NOT_COMPARED = 4, 5
"""Exit codes where torch sees no GPU, and where something could not be compared, which is not the same as passed."""
CHECKS = (parity, attention, shared_heads, compiled, sampling, learning)
SERVED = (servers, sent, sleeping)
"""Those that need a program vllm."""


def main(
    device: Annotated[str, typer.Option(help="The device that is held against the CPU.")] = "cuda",
    vllm: Annotated[str, typer.Option(help="The program vllm of an environment of its own; none: not run.")] = "",
    trl: Annotated[str, typer.Option(help="The Python of an environment with TRL; none: no race.")] = "",
    docs: Annotated[Path, typer.Option(help="Where gpu.md and gpu.json are written.")] = ROOT / "docs",
) -> None:
    """Run the checks and write the record."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        print("No GPU: torch sees none on this machine, so nothing was run and nothing was written.", file=sys.stderr)
        raise typer.Exit(NO_GPU)
    found = []
    for finding in findings(device, vllm):
        found.append(finding)
        print(line(finding), flush=True)
    results = {"machine": machine_of(device), "findings": [finding.row() for finding in found]}
    write_json(docs / "gpu.json", results)
    write_text(docs / "gpu.md", page(results))
    if trl:
        race(device, trl, docs)
    raise typer.Exit(code_of(found))


def code_of(found: Sequence[Finding]) -> int:
    """Return the exit code: whatever differs counts first, then what was not compared."""
    if any(finding.apart is not None and not finding.passed for finding in found):
        return 1
    return 0 if found and all(finding.passed for finding in found) else NOT_COMPARED


def findings(device: str, vllm: str) -> Iterator[Finding]:
    """Yield what each check finds."""
    for check in CHECKS:
        yield from check(device)
    if vllm:
        for check in SERVED:
            yield from check(device, vllm)


def line(finding: Finding) -> str:
    """One finding in words."""
    if finding.apart is None:
        return f"not compared  {finding.check}: {finding.what}: {finding.why}"
    word = "agrees" if finding.passed else "DIFFERS"
    return f"{word:12}  {finding.check}: {finding.what}: {finding.apart:.2g} of {finding.limit:g}"


def machine_of(device: str) -> dict[str, str]:
    """The device and the versions."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    versions = {package: metadata.version(package) for package in ("torch", "transformers", "grouprl")}
    return {"device": name, **versions, "date": time.strftime("%Y-%m-%d", time.gmtime())}


def race(device: str, trl: str, docs: Path) -> None:
    """Let TRL and this library take turns on the pretrained model of `bench/pretrained.py`, on the device."""
    bench = ROOT / "bench" / "pretrained.py"
    command = [sys.executable, str(bench), "--device", device, "--trl", trl, "--docs", str(docs), "--name", "gpu_race"]
    subprocess.run(command, check=True, cwd=bench.parent)


PAGE = """# On a GPU

Written by `make gpu` (`scripts/gpu.py`): {machine}.

| check | what | apart | may be | |
| --- | --- | ---: | ---: | --- |
{rows}

`apart`: the largest difference of a log-prob or an entropy in nats, or of a gradient as a share of its norm, from the
CPU's in float32; of a run: how far the sampler's log-probs were from the trainer's, on average.
"""


def page(results: dict[str, Any]) -> str:
    """The text of docs/gpu.md."""
    rows = []
    for found in results["findings"]:
        apart = "" if found["apart"] is None else f"{found['apart']:.2g}"
        said = "agrees" if found["passed"] else found["why"] or "**differs**"
        rows.append(f"| {found['check']} | {found['what']} | {apart} | {found['limit']:g} | {said} |")
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    return PAGE.format(machine=facts, rows="\n".join(rows))


if __name__ == "__main__":
    typer.run(main)
