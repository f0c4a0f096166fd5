"""A run whose model is spread over the cards of a machine by FSDP2 (NCCL on GPUs), beside the run of one process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import yaml

from gpu_checks import REWARD, SIZES, Finding
from grouprl.storage.run_folder import RunFolder

LIMIT = 1e-5
"""Adam magnifies rounding where gradients are nearly 0: hence weights of 64 bits, whose norms round to 32."""
READ = ("reward_mean", "length_mean", "entropy", "grad_norm")
CONFIG = {
    "task": "addition",
    "method": "grpo",
    "steps": 4,
    "optim": {"lr": 1e-3},
    "warmup": {"steps": 40, "batch": 16},
    "batch": {"prompts": 4, "group_size": 8, "minibatches": 2},
    "eval": {"every": 0, "final_prompts": 4},
    "run": {"checkpoint_every": 2},
}


def ranks(device: str, count: int = 0) -> Iterator[Finding]:
    """Train on `count` ranks, by default one for each card, and alone; the metrics of every step are compared."""
    count = count or max(1, torch.cuda.device_count())
    what = f"a run on {count} rank{'s' * (count > 1)} of FSDP2, as a share of each metric"
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "run.yaml"
        (Path(place) / "reward.py").write_text(REWARD, encoding="utf-8")
        model = {"name": "tiny", "tiny": SIZES, "device": device, "dtype": "float64", "engine": "transformers"}
        reward = {"function": f"{place}/reward.py:digits", "workers": 0}
        file.write_text(yaml.safe_dump(CONFIG | {"model": model, "reward": reward}), encoding="utf-8")
        said = [
            _trained([*start, "train", str(file), "--folder", str(Path(place) / name), "-q"])
            for name, start in {"alone": [], "spread": ["launch", "-n", str(count)]}.items()
        ]
        if any(said):
            yield Finding("ranks", what, None, LIMIT, " ".join(" ".join(said).split())[-300:])
            return
        alone, spread = (_lines(Path(place) / name) for name in ("alone", "spread"))
    if not all(line[READ.index("grad_norm")] > 0 for line in alone):
        yield Finding("ranks", what, None, LIMIT, "there was a step without a gradient")
        return
    pairs = zip(alone, spread, strict=True)
    gaps = [abs(a - b) / max(abs(a), 1e-3) for one, other in pairs for a, b in zip(one, other, strict=True)]
    yield Finding("ranks", what, max(gaps), LIMIT)


def _trained(arguments: list[str]) -> str:
    """Run the command line; return what it said if it failed."""
    found = subprocess.run([sys.executable, "-m", "grouprl", *arguments], capture_output=True, text=True)
    return found.stderr + found.stdout if found.returncode else ""


def _lines(folder: Path) -> list[list[float]]:
    lines = [line for line in RunFolder(folder).read_metrics() if line["phase"] == "train"]
    return [[float(str(line[name])) for name in READ] for line in lines]
