"""The precision of products of float32 matrices: by torch, by oneDNN, or in bfloat16 ("mixed precision").

In mixed precision weights, optimiser, norms, softmax, log-probs and losses stay in float32 (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.1; bfloat16 needs no scaling of the loss: Kalamkar et al. 2019, arXiv:1905.12322). Weights
are rounded again for each pass, so that updates far below bfloat16's relative precision of 1/256 are not lost. Logits
are not rounded to bfloat16 on a CPU: a logit of 20 would be off by 0.06. Their product is computed in bfloat16 if the
processor has AMX; on others oneDNN computes it in float32.

oneDNN's products are float32 throughout, and differ from those of torch's default library in the last bits. On some
processors only oneDNN uses the widest instructions, and its products take half the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch

from grouprl.core.errors import InputError, suggest
from grouprl.policy.devices import Precision

PRECISIONS = ("auto", "float32", "onednn", "mixed")
FASTER = 1.25
"""Speed-up from which `auto` chooses other products, so that the rounding, or different last bits, are worth it."""
WIDE = 256
"""Hidden size from which products are most of a step; below, `auto` keeps float32, whatever the machine."""
ROWS = 512
"""Rows of the products that are timed: about the tokens of a pass through a model of a hundred million parameters."""
FEW_ROWS = 16
"""Rows of the first products, which show what is too slow to be timed further."""
SERIES, ENOUGH = 8, 3
"""The most series of timed products, and how many are made however long they take."""
LONGEST = 0.5
"""Seconds after which no further series begins: on a crowded machine, products wait for each other's threads."""
HOPELESS = 8
"""Multiple of the fastest product's time, on few rows, from which another product is not timed further."""


@dataclass(frozen=True)
class Probe:
    """Measured operations per second of a product in float32, in bfloat16 (rounding included), and by oneDNN."""

    float32: float
    bfloat16: float
    onednn: float = 0.0
    """Rate of oneDNN's float32 product; 0 if this torch cannot be told to use it."""

    @property
    def onednn_ratio(self) -> float:
        """Speed of oneDNN's float32 products relative to torch's default."""
        return self.onednn / self.float32

    @property
    def pays(self) -> bool:
        """True if oneDNN is fast enough to accept different last bits."""
        return self.onednn_ratio >= FASTER

    @property
    def ratio(self) -> float:
        """Speed of bfloat16 products relative to the faster of the other two."""
        return self.bfloat16 / max(self.float32, self.onednn if self.pays else 0.0)


def probe(hidden: int, intermediate: int) -> Probe:
    """Measure the rates of products on this machine's CPU with torch's threads, once per shape; this takes a fraction
    of a second.
    """
    return _probe(hidden, intermediate, torch.get_num_threads())


@cache
def _probe(hidden: int, intermediate: int, threads: int) -> Probe:
    """Return the best rates of several alternating series, since other processes that use the cores may disturb some of
    them.

    A CPU without a unit for bfloat16 may need sixty times as long for it: what is far behind on few rows keeps the rate
    that it has there.
    """
    width = min(intermediate, 4096)
    x, weight = torch.ones(ROWS, hidden), torch.ones(hidden, width)
    runs = _products(weight)
    few = {name: min(_seconds(partial(run, x[:FEW_ROWS])) for _ in range(3)) for name, run in runs.items()}
    racing = {name: run for name, run in runs.items() if few[name] < HOPELESS * min(few.values())}
    best = {name: few[name] * ROWS / FEW_ROWS for name in runs} | dict.fromkeys(racing, float("inf"))
    begun = time.perf_counter()
    for series in range(SERIES + 1):  # the first lets the libraries choose their kernels
        if series > ENOUGH and time.perf_counter() - begun > LONGEST:
            break
        for name, run in racing.items():
            best[name] = min(best[name], _seconds(partial(run, x)))
    return Probe(**{name: 2.0 * ROWS * hidden * width / seconds for name, seconds in best.items()})


def _products(weight: torch.Tensor) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    from grouprl.policy.products import has_onednn, times

    rounded = weight.bfloat16()
    runs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "float32": lambda x: x @ weight,
        "bfloat16": lambda x: (x.bfloat16() @ rounded).float(),
    }
    if has_onednn():
        runs["onednn"] = lambda x: times(x, weight, "onednn")
    return runs


def _seconds(run: Callable[[], torch.Tensor]) -> float:
    # On one thread its own time, which other processes on a crowded machine do not lengthen.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    run()
    return clock() - begun


@dataclass(frozen=True)
class PrecisionChoice:
    """The chosen precision of products, and the reason in words."""

    precision: Precision
    why: str


def choose_precision(
    requested: str, dtype: str, device: str, hidden: int, intermediate: int, obstacle: str | None
) -> PrecisionChoice:
    """Return how a model's products are computed.

    Args:
        requested: "auto" (mixed if that makes products at least `FASTER` times as fast, else onednn under the same
            condition), "float32" (products in the type of the weights), "onednn" or "mixed".
        dtype: name of the type of the weights, such as "float32".
        device: name of the device of the weights, such as "cpu" or "cuda:0".
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layers.
        obstacle: why the lean engine, which alone supports these precisions, does not run the model; None if it does.

    Raises:
        InputError: an unknown name, or a precision that is not possible: weights of another type than float32, another
            engine, or for onednn another device than a CPU or a torch without oneDNN.
    """
    if requested not in PRECISIONS:
        raise InputError(f"precision={requested!r}", "No precision has this name", suggest(str(requested), PRECISIONS))
    impossible = f"the weights are {dtype}" if dtype != "float32" else obstacle
    if requested == "onednn" and impossible is None:
        impossible = _no_onednn(device)
    chosen = CHOSEN.get(requested)
    if chosen is not None and impossible is not None:
        remedy = "Set dtype: float32" if dtype != "float32" else "Use precision: float32"
        raise InputError(f"precision={requested!r}, but {impossible}", RULES[chosen], remedy)
    if chosen is not None:
        return PrecisionChoice(chosen, "requested")
    if requested == "float32" or impossible is not None:
        return PrecisionChoice("float32", f"products are in the type of the weights, {dtype}")
    return _probed(device, hidden, intermediate)


CHOSEN: dict[str, Precision] = {"mixed": "mixed", "onednn": "onednn"}
"""Precisions other than that of the weights' type, by requested name."""
RULES: dict[Precision, str] = {
    "mixed": "Mixed precision keeps float32 weights and is computed by the lean engine",
    "onednn": "oneDNN multiplies float32 weights on a CPU, for the lean engine",
}


def _no_onednn(device: str) -> str | None:
    from grouprl.policy.products import has_onednn

    if device != "cpu":
        return f"the weights are on {device}"
    return None if has_onednn() else "this torch has no oneDNN"


def _probed(device: str, hidden: int, intermediate: int) -> PrecisionChoice:
    if device != "cpu":
        return PrecisionChoice("float32", "on a GPU mixed precision is taken where it is requested")
    if hidden < WIDE:
        return PrecisionChoice("float32", f"hidden {hidden} is below {WIDE}: products are a small part of a step")
    found = probe(hidden, intermediate)
    if found.ratio >= FASTER:
        return PrecisionChoice("mixed", f"bfloat16 products are {_measured(found)}")
    if found.pays:
        return PrecisionChoice("onednn", f"{_by_onednn(found)}; in bfloat16 they are {_measured(found)}")
    return PrecisionChoice("float32", f"bfloat16 products are {_measured(found)}: not worth their rounding")


def told(requested: str, dtype: str, device: str, hidden: int, intermediate: int, lean: bool) -> Iterator[str]:
    """Say what a plan should show: the result of `auto`, a choice that costs time, or one that would save time.

    `lean` says whether the lean engine, which alone has a choice, runs the model.
    """
    if dtype in ("bfloat16", "float16"):
        what = f"weights in {dtype} are stepped as float32 copies, so that small updates are not lost"
        if lean:
            what += "; precision: mixed keeps float32 weights alone"
        if device == "cpu" and dtype == "bfloat16":
            what += f". Its products are {_measured(probe(hidden, intermediate))}"
        yield what
    elif requested == "auto":
        chosen = choose_precision(requested, dtype, device, hidden, intermediate, None if lean else "another engine")
        yield f"precision auto is {chosen.precision}: {chosen.why}"
    elif device == "cpu" and lean and hidden >= WIDE and dtype == "float32":
        yield from _told_on_a_cpu(requested, probe(hidden, intermediate))


def _told_on_a_cpu(requested: str, found: Probe) -> Iterator[str]:
    if requested == "mixed" and found.ratio < 1:
        yield f"precision mixed slows this run down: bfloat16 products are {_measured(found)}"
    elif requested == "onednn" and found.onednn_ratio < 1:
        yield f"precision onednn slows this run down: {_by_onednn(found)}"
    elif requested in ("float32", "onednn") and found.ratio >= FASTER:
        yield f"bfloat16 products are {_measured(found)}: model.precision mixed (or auto) takes them"
    if requested == "float32" and found.pays:
        yield f"{_by_onednn(found)}: model.precision onednn takes them, with other last bits"


def _by_onednn(found: Probe) -> str:
    return f"float32 products by oneDNN are {found.onednn_ratio:.2g} times as fast here as torch's default"


def _measured(found: Probe) -> str:
    best = found.bfloat16 / found.ratio
    return f"{found.ratio:.2g} times as fast here ({found.bfloat16 / 1e9:.0f} against {best / 1e9:.0f} GFLOP/s)"
