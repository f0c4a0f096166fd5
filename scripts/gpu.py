"""What only a GPU can show: `make gpu` holds every path on it against the CPU, and records what was found.

Parity in float32 and bfloat16, attention kernels, a compiled update, sampling, a short run, every entry of the
catalogue, ranks over NCCL, models of billions of weights, the same run with a server of vLLM on the GPU
(`--vllm PROGRAM`), and a race with TRL (`--trl PYTHON`). Writes the tables of docs/gpu.md and docs/gpu.json. Exit code
0: everything was compared and agrees; 1: something does not; 5: nothing differs, but something could not be compared;
4: no GPU here, and nothing was run or written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import gpu_catalogue
import gpu_checks
import gpu_page
import gpu_ranks
import gpu_sizes
from gpu_checks import Finding
from grouprl.storage.run_folder import write_json

ROOT = Path(__file__).resolve().parents[1]
NO_GPU, NOT_COMPARED = 4, 5
"""Exit codes where torch sees no GPU, and where something could not be compared, which is not the same as passed."""
Check = Callable[[str], Iterator[Finding]]
CHECKS: dict[str, tuple[Check, ...]] = {
    "parity": (gpu_checks.parity,),
    "attention": (gpu_checks.attention, gpu_checks.shared_heads),
    "compile": (gpu_checks.compiled,),
    "sampling": (gpu_checks.sampling,),
    "run": (gpu_checks.learning,),
    "ranks": (gpu_ranks.ranks,),
    "sizes": (gpu_sizes.agreement,),
    "catalogue": (partial(gpu_catalogue.entries, workers=max(1, (os.cpu_count() or 2) - 2)),),
}
SERVED = {"run": (gpu_checks.servers, gpu_checks.sent), "sleep": (gpu_checks.sleeping,)}
"""Those that need a program vllm."""
MEASURED = {"steps": gpu_sizes.measured, "decoding": gpu_sizes.decoding}


def main(
    device: Annotated[str, typer.Option(help="The device that is held against the CPU.")] = "cuda",
    vllm: Annotated[str, typer.Option(help="The program vllm of an environment of its own; none: not run.")] = "",
    trl: Annotated[str, typer.Option(help="The Python of an environment with TRL; none: no race.")] = "",
    docs: Annotated[Path, typer.Option(help="Where gpu.md and gpu.json are.")] = ROOT / "docs",
    only: Annotated[str, typer.Option(help="Only these checks, separated by commas; others stay as recorded.")] = "",
) -> None:
    """Run the checks and write the record."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        print("No GPU: torch sees none on this machine, so nothing was run and nothing was written.", file=sys.stderr)
        raise typer.Exit(NO_GPU)
    names, found = chosen(only), list[Finding]()
    results = gpu_page.read(docs)
    for name in names:
        for result in checked(name, device, vllm):
            if isinstance(result, Finding):
                found.append(result)
                print(line(result), flush=True)
            else:
                print(f"measured      {name}: {result}", flush=True)
            results = gpu_page.joined(results, name, result, machine_of(device))
            write_json(docs / "gpu.json", results)
    gpu_page.write(docs, results)
    if trl:
        race(device, trl, docs)
    raise typer.Exit(code_of(found))


def chosen(only: str) -> list[str]:
    """Return the names of the checks to run.

    Raises:
        BadParameter: a name that no check has.
    """
    known = list(dict.fromkeys([*CHECKS, *SERVED, *MEASURED]))
    names = only.split(",") if only else known
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"there is no check {name!r}. Use {', '.join(known)}", param_hint="--only")
    return names


def checked(name: str, device: str, vllm: str) -> Iterator[Finding | dict[str, Any]]:
    """Yield what a check finds or measures."""
    for check in CHECKS.get(name, ()):
        yield from check(device)
    if vllm:
        for served in SERVED.get(name, ()):
            yield from served(device, vllm)
    if name in MEASURED:
        yield from MEASURED[name](device)


def code_of(found: Sequence[Finding]) -> int:
    """Return the exit code: whatever differs counts first, then what was not compared."""
    if any(finding.apart is not None and not finding.passed for finding in found):
        return 1
    return 0 if found and all(finding.passed for finding in found) else NOT_COMPARED


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


if __name__ == "__main__":
    typer.run(main)
