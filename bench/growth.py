"""How seconds and memory of sampling and of updating grow, beside what the arithmetic says. Writes
docs/bench_growth.md.

Every point is measured in a forked process of its own, so that none finds memory that another has left.
"""

from __future__ import annotations

import json
import os
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import transformers
import typer
from rich.console import Console

import machine
import report
from grouprl.policy import CausalPolicy, Tokens, build_tiny
from grouprl.policy.allocator import keep_freed_memory
from grouprl.policy.language.arithmetic import Matrices, rate
from grouprl.policy.passes import bytes_per_token
from grouprl.rollout import generate
from grouprl.storage.run_folder import write_json, write_text
from grouprl.training.profile import Work
from timing import take

ALPHABET = "".join(map(chr, range(33, 91)))
MB = 2**20
PASS = 4096
"""Most tokens of a pass of the update: beyond, its memory no longer grows."""


@dataclass(frozen=True)
class Point:
    """Sizes of one measurement; `vocabulary` is that of the output layer."""

    prompts: int = 8
    group: int = 8
    prompt: int = 32
    completion: int = 32
    hidden: int = 128
    layers: int = 4
    vocabulary: int = 61

    @property
    def rows(self) -> int:
        """Completions."""
        return self.prompts * self.group


BASE = Point()
AXES: dict[str, tuple[str, list[Point]]] = {
    "group": ("completions per prompt", [replace(BASE, group=n) for n in (4, 8, 16, 32, 64)]),
    "prompt": ("tokens of a prompt", [replace(BASE, prompt=n) for n in (16, 64, 128, 256, 512)]),
    "completion": ("tokens of a completion", [replace(BASE, completion=n) for n in (16, 32, 64, 128, 256)]),
    "hidden": ("hidden size (parameters grow with its square)", [replace(BASE, hidden=n) for n in (64, 128, 256, 384)]),
    "vocabulary": ("tokens in the vocabulary", [replace(BASE, vocabulary=n) for n in (61, 1_000, 8_000, 32_000)]),
}
KEYS = (
    "sample_s",
    "sample_products_s",
    "update_s",
    "update_products_s",
    "sample_mb",
    "cache_mb",
    "update_mb",
    "kept_mb",
)
HEAD = ["", "sample, s", "products, s", "update, s", "products, s", "sample, MB", "cache, MB", "update, MB", "kept, MB"]
WORDS = {
    "group": "Sampled and trained tokens grow with the group, the prompts are read and trained once whatever its size: "
    "both grow a little less than in proportion. The update's memory ends where a pass is full.",
    "prompt": "A prompt is read and trained once for all its completions, so its tokens count an eighth of theirs: "
    "small exponents that rise with the prompt's share. Beyond the products each completion attends to the prompt's "
    "keys; for an update those are laid out once per completion, which is what long prompts cost besides.",
    "completion": "Every token costs the same products, and attention in proportion to its place. For an update the "
    "attention is a product of matrices and stays near the arithmetic. For sampling it is one query per row: it reads "
    "all keys and values for each token, is bound by the memory and not by products, and is why the measured exponent "
    "rises towards 2 while that of the products stays near 1.",
    "hidden": "Products grow with the square of the hidden size, elementwise operations in proportion, calls not at "
    "all: the measured exponent lies below that of the products and approaches it with size.",
    "vocabulary": "Only the output layer grows: its products, and softmax, entropy and choice over [rows, vocabulary]. "
    "An update holds one chunk of logits and computes it anew in the backward pass: a third more products of the "
    "output layer, and a memory that does not grow with the vocabulary beyond the weights' gradient.",
}


Measure = Callable[[Point, int], dict[str, float]]


def policy_of(point: Point) -> CausalPolicy:
    """A fresh tiny model that never ends by itself; a wider output layer than its tokenizer where requested."""
    sizes = {"hidden": point.hidden, "layers": point.layers, "heads": 4, "intermediate": 11 * point.hidden // 4}
    model, tokenizer = build_tiny(ALPHABET, max_positions=1024, **sizes)
    if point.vocabulary > len(tokenizer):
        model.resize_token_embeddings(point.vocabulary)
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    return CausalPolicy(model, tokenizer, token_budget=PASS)


def measure_sampling(point: Point, repeats: int) -> dict[str, float]:
    """Median processor seconds, memory beyond what stood before, and what the arithmetic says of both."""
    policy, prompts = policy_of(point), examples(point)

    def sample() -> Tokens:
        return generate(policy, prompts, n=point.group, max_new_tokens=point.completion, seeds=range(point.rows)).tokens

    needed, work = peak(sample), Work(Matrices.of(policy.model))
    work.sample(sample())
    cache = numbers(point) * point.layers * 2 * point.hidden * 4 / MB
    products = sum(work.seconds(rate).values())
    return {"sample_s": median(sample, repeats), "sample_products_s": products, "sample_mb": needed, "cache_mb": cache}


def measure_updating(point: Point, repeats: int) -> dict[str, float]:
    """The same of forward and backward of all log-probs."""
    policy, rng = policy_of(point), np.random.default_rng(1)
    requested = [prompt for prompt in examples(point) for _ in range(point.group)]
    tokens = Tokens.of(requested, [rng.integers(3, 60, point.completion).tolist() for _ in requested])
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    cotangent_bt, work = torch.ones(point.rows, point.completion), Work(Matrices.of(policy.model))

    def update() -> None:
        policy.backward(tokens, {"log_prob": cotangent_bt})

    needed = peak(update)
    work.run(tokens, gradient=True)
    activation_mb = (
        min(policy.pass_tokens, numbers(point)) * bytes_per_token(policy.model.config.get_text_config(), 4) / MB
    )
    products = sum(work.seconds(rate).values())
    return {
        "update_s": median(update, repeats),
        "update_products_s": products,
        "update_mb": needed,
        "kept_mb": activation_mb,
    }


def numbers(point: Point) -> int:
    """Tokens, each prompt once."""
    return point.prompts * point.prompt + point.rows * point.completion


def examples(point: Point) -> list[list[int]]:
    """Random prompts."""
    rng = np.random.default_rng(0)
    return [[1, *rng.integers(3, 60, point.prompt - 1).tolist()] for _ in range(point.prompts)]


def median(call: Callable[[], object], repeats: int) -> float:
    """Median processor seconds of some calls, the first left out."""
    return statistics.median([take(call).cpu for _ in range(repeats + 1)][1:])


def peak(call: Callable[[], object]) -> float:
    """MiB of resident memory that a call needed at most beyond what was there before."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status("VmHWM")
    call()
    return (status("VmHWM") - before) / 1024


def status(name: str) -> int:
    """A number of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def apart(measure: Measure, point: Point, repeats: int) -> dict[str, float]:
    """Measure in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "w") as answer:
                json.dump(measure(point, repeats), answer)
        except BaseException:
            traceback.print_exc()
        finally:  # whatever happens, what the parent was doing is not done twice
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"measuring {point} failed")
    return json.loads(text)


def exponent(sizes: list[float], values: list[float]) -> float:
    """Slope of log(value) over log(size), least squares."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def table(axis: str, found: list[dict[str, float]]) -> str:
    """The points of one axis, and the exponents of all columns."""
    sizes = [float(getattr(point, axis)) for point in AXES[axis][1]][: len(found)]
    rows = [[f"{size:g}", *cells(x)] for size, x in zip(sizes, found, strict=True)]
    whole, upper = ([f"{exponent(s, [x[k] for x in f]):.2f}" for k in KEYS] for s, f in halves(sizes, found))
    rows += [["**exponent**", *whole], ["**of the last two**", *upper]]
    return report.markdown([AXES[axis][0], *HEAD[1:]], rows)


def halves(sizes: list[float], found: list[dict[str, float]]) -> list[tuple[list[float], list[dict[str, float]]]]:
    """All points, and the last two."""
    return [(sizes, found), (sizes[-2:], found[-2:])]


def cells(found: dict[str, float]) -> list[str]:
    """Seconds with three digits behind the point, MiB with none."""
    return [f"{found[key]:.3f}" if key.endswith("_s") else f"{found[key]:.0f}" for key in KEYS]


PAGE = """# How cost grows

Measured by `make bench` (`bench/growth.py`): processor seconds on one thread, medians of {repeats}, and the most
resident memory beyond what stood there before, each point in a process of its own. Where an axis does not say
otherwise: 8 prompts of 32 tokens × 8 completions of 32 tokens, hidden size 128, 4 layers (0.8 million parameters), 61
tokens in the vocabulary.
{facts}

- *products*: what the matrix products and the attention alone would take at the rates of this machine (the arithmetic).
- *cache*: keys and values, each prompt once: (prompts × P + completions × R) × layers × 2 × hidden × 4 bytes.
- *kept*: what the layers keep for the backward pass of one pass through the model, which has at most {budget:,} tokens,
  and on a CPU no more than stay near its cache. What a measurement has beside it are temporaries.
- *exponent*: slope of log(cost) over log(size), over all points and over the last two. 1 is in proportion.

{sections}
"""


def main(
    repeats: Annotated[int, typer.Option(help="Measured calls of each point.")] = 3,
    docs: Annotated[Path, typer.Option(help="Where bench_growth.md and .json are written.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="Two points of the first axis.")] = False,
) -> None:
    """Measure every axis and write the tables."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    keep_freed_memory()
    console, found = Console(), dict[str, list[dict[str, float]]]()
    for axis in list(AXES)[:1] if quick else AXES:
        points = AXES[axis][1][:2] if quick else AXES[axis][1]
        rounds = 1 if quick else repeats
        found[axis] = [apart(measure_sampling, x, rounds) | apart(measure_updating, x, rounds) for x in points]
        console.print(f"{axis}: {[round(x['sample_s'] + x['update_s'], 3) for x in found[axis]]} s")
    facts = machine.describe(("torch", "transformers", "grouprl"))
    docs.mkdir(parents=True, exist_ok=True)
    write_json(docs / "bench_growth.json", {"machine": facts, "repeats": repeats, "axes": found})
    sections = "\n\n".join(f"## {AXES[a][0].capitalize()}\n\n{table(a, x)}\n\n{WORDS[a]}" for a, x in found.items())
    line = ", ".join(f"{name} {value}" for name, value in facts.items())
    write_text(docs / "bench_growth.md", PAGE.format(repeats=repeats, facts=line, sections=sections, budget=PASS))


if __name__ == "__main__":
    typer.run(main)
