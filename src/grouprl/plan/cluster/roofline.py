"""Roofline estimates of time: the work to compute, read and send, over the share of peak speed that is reached.

Products take 2 FLOPs per weight and token, the backward pass twice as many, and recomputation the same again.
Decoding a token reads all weights and the caches. Times are in seconds, sizes in bytes.

Sources: the FLOPs of passes from Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1; the limit by
the slowest resource from Williams et al. 2009, Roofline; transfers of shards from Zhao et al. 2023, PyTorch FSDP.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grouprl.plan.cluster.hardware import Cluster
from grouprl.plan.cluster.workload import Workload

USABLE = 0.9
"""Share of an accelerator's memory that a plan may use."""


@dataclass(frozen=True)
class Efficiency:
    """Reached shares of the data sheet's speeds, and fixed costs; assumptions unless a source is given.

    `training` is the model FLOPs utilisation of large runs: 0.38 to 0.43 (Grattafiori et al. 2024, The Llama 3 Herd of
    Models, table 4).
    """

    training: float = 0.4
    scoring: float = 0.5
    prefill: float = 0.5
    decoding: float = 0.5
    """Share of the peak FLOP/s of products when many sequences are decoded at once."""
    bandwidth: float = 0.7
    link: float = 0.7
    layer_seconds: float = 1e-5
    """Least seconds per layer and decoded token, for kernel launches and synchronisation."""
    hop_seconds: float = 1e-5
    """Least seconds of an all-reduce in a layer that is spread over accelerators."""


@dataclass(frozen=True)
class SamplingTime:
    """A rollout on `replicas` copies of the model, each over `ranks` accelerators."""

    seconds: float
    prefill: float
    decode: float
    replicas: int
    ranks: int
    at_once: int
    """Largest number of sequences that a copy decodes at once."""
    bound: str
    """The resource that limits decoding: memory, products, launches or links."""


@dataclass(frozen=True)
class TrainingTime:
    """The time of the optimiser steps on a rollout, and of scoring before them."""

    seconds: float
    compute: float
    scoring: float
    communication: float
    """Seconds of all transfers; only those beyond the computation of a pass (`exposed`) add to the time."""
    exposed: float
    ranks: int
    shard: int
    """Accelerators that share one copy of the weights."""
    memory: float
    """Peak memory of a rank, in bytes."""
    tokens_per_pass: int


def attention_flops(work: Workload, tokens: float, context: float) -> float:
    """Return the FLOPs of attention's own products for `tokens` that attend to `context` tokens on average."""
    return 4 * work.layers * work.hidden * tokens * context


def forward_flops(work: Workload) -> float:
    """Return the FLOPs of a forward pass over all rows; the output layer is computed only for completions."""
    own = attention_flops(work, work.tokens, work.row_tokens / 2)
    return 2 * work.body * work.tokens + 2 * work.head * work.sampled_tokens + own


def room_for(work: Workload, cluster: Cluster, ranks: int, share: float = 1.0) -> int:
    """Return the number of sequences that fit a copy over `ranks` accelerators, in a `share` of their memory."""
    free = ranks * cluster.accelerator.memory * USABLE * share - work.parameters * work.weight_bytes
    longest = work.prompt_tokens + min(work.longest, 1.5 * work.completion_tokens)
    return max(0, math.floor(free / work.cached_bytes(longest)))


def token_seconds(
    work: Workload, cluster: Cluster, ranks: int, rows: float, context: float, speed: Efficiency
) -> dict[str, float]:
    """Return the seconds of one more token of `rows` sequences, by resource; the largest counts, and links add."""
    kind = cluster.accelerator
    read = work.read_by(rows) * work.weight_bytes + rows * work.cached_bytes(context)
    flops = 2 * (work.body + work.head) * rows + attention_flops(work, rows, context)
    sent = 0.0
    if ranks > 1:
        each = 2 * rows * work.hidden * work.weight_bytes / (cluster.speed(ranks) * speed.link)
        sent = 2 * work.layers * (speed.hop_seconds + each)
    return {
        "memory": read / (ranks * kind.bandwidth * speed.bandwidth),
        "products": flops / (ranks * kind.flops * speed.decoding),
        "launches": work.layers * speed.layer_seconds,
        "links": sent,
    }


def sampling(
    work: Workload, cluster: Cluster, count: int, ranks: int, speed: Efficiency, share: float = 1.0
) -> SamplingTime | None:
    """Return the time of a rollout on `count` accelerators, `ranks` per copy; None if the model does not fit.

    Every copy gets an equal share of the completions, including the longest; prompts are computed once per group.
    """
    replicas = count // ranks
    at_once = room_for(work, cluster, ranks, share)
    if not replicas or not at_once:
        return None
    rows = math.ceil(work.rows / replicas)
    groups = math.ceil(work.prompts / replicas)
    flops = 2 * work.body * groups * work.prompt_tokens
    flops += attention_flops(work, groups * work.prompt_tokens, work.prompt_tokens / 2)
    prefill = flops / (ranks * cluster.accelerator.flops * speed.prefill)
    decode = _decode(work, cluster, ranks, rows, min(at_once, rows), speed)
    busy = min(at_once, rows)
    costs = token_seconds(work, cluster, ranks, busy, work.prompt_tokens + work.completion_tokens / 2, speed)
    return SamplingTime(
        prefill + decode, prefill, decode, replicas, ranks, at_once, max(costs, key=lambda name: costs[name])
    )


@lru_cache(maxsize=512)
def _decode(work: Workload, cluster: Cluster, ranks: int, rows: int, slots: int, speed: Efficiency) -> float:
    """Return the seconds in which a copy decodes its rows, `slots` at once; the next row takes a free slot."""

    return decoded(work.lengths(rows).tolist(), slots, lambda active: tick(work, cluster, ranks, active, speed))


def tick(work: Workload, cluster: Cluster, ranks: int, active: float, speed: Efficiency) -> float:
    """Return the seconds of one more token of `active` sequences that are half-way through their completions."""
    costs = token_seconds(work, cluster, ranks, active, work.prompt_tokens + work.completion_tokens / 2, speed)
    return max(costs["memory"], costs["products"], costs["launches"]) + costs["links"]


def decoded(lengths: Sequence[float], slots: int, tick: Callable[[int], float]) -> float:
    """Return the seconds until sequences of these lengths are decoded, `slots` at once.

    `tick(active)` is the time of one token of `active` sequences.
    """
    waiting = iter(lengths)
    ends = [length for _, length in zip(range(slots), waiting, strict=False)]
    heapq.heapify(ends)
    now = seconds = 0.0
    while ends:
        end = ends[0]
        seconds += (end - now) * tick(len(ends))
        now = end
        while ends and ends[0] <= now:
            heapq.heappop(ends)
            if (following := next(waiting, None)) is not None:
                heapq.heappush(ends, now + following)
    return seconds


def training(work: Workload, cluster: Cluster, ranks: int, shard: int, speed: Efficiency) -> TrainingTime | None:
    """Return the time of the optimiser steps on `ranks` accelerators, each copy of the weights spread over `shard`.

    Weights and moments are float32, gathered in bfloat16 for each pass, gradients summed in float32 (as FSDP2 with
    mixed precision does); activations are recomputed. None if they do not fit, or if `ranks` is not a multiple of the
    learners that share a row.
    """
    if ranks % work.context:
        return None
    kind = cluster.accelerator
    states, working, per_token = of_rank(work, shard)
    free = kind.memory * USABLE - states - working
    most = int(free / per_token)
    # A pass takes the longest row whole: only learners that share rows divide one.
    if most * work.context < work.prompt_tokens + work.longest:
        return None
    per_update = work.tokens * work.passes / work.updates / ranks
    passes = max(1, math.ceil(per_update / most))
    backward = 4 if work.trainable == work.parameters else 2
    ratio = (2 + backward + 2 * work.recomputed) / 2
    compute = ratio * forward_flops(work) * work.passes / (ranks * kind.flops * speed.training)
    sent = _sent(work, cluster, ranks, shard, speed, passes) + _keys_sent(work, cluster, per_update, speed)
    exposed = max(0.0, sent - compute / work.updates)
    scoring = work.scorings * forward_flops(work) / (ranks * kind.flops * speed.scoring)
    optimiser = 7 * 4 * work.trainable / shard / (kind.bandwidth * speed.bandwidth)
    return TrainingTime(
        seconds=compute + scoring + work.updates * (exposed + optimiser),
        compute=compute,
        scoring=scoring,
        communication=work.updates * sent,
        exposed=work.updates * exposed,
        ranks=ranks,
        shard=shard,
        memory=states + working + min(most, math.ceil(per_update)) * per_token,
        tokens_per_pass=min(most, math.ceil(per_update)),
    )


def of_rank(work: Workload, shard: int) -> tuple[float, float, float]:
    """Return the bytes of a training rank's states, of the layers that it gathers, and of each token of a pass."""
    inputs = 1 if work.offloads else work.layers
    per_token = inputs * work.hidden * 2 + 34 * work.hidden * 2 + 4 * 3 * min(work.vocabulary, 8192)
    return _states(work) / shard, 2 * work.layers_at_once, per_token  # layers are gathered in bfloat16


def _states(work: Workload) -> float:
    """Return the bytes of float32 weights, gradients and two moments, and of a reference, which is in float32, too."""
    return 4 * work.parameters + 12 * work.trainable + 4 * work.reference


def _sent(work: Workload, cluster: Cluster, ranks: int, shard: int, speed: Efficiency, passes: int) -> float:
    """Return the seconds of an update's transfers: weights gathered twice per pass, gradients scattered and summed."""
    if ranks == 1:
        return 0.0
    share = (shard - 1) / shard
    inside = cluster.speed(shard) * speed.link
    seconds = passes * (2 * 2 * work.parameters + 4 * work.trainable) * share / inside
    copies = ranks // shard
    if copies > 1:
        across = cluster.speed(ranks) * speed.link
        seconds += 2 * 4 * work.trainable / shard * (copies - 1) / copies / across
    return seconds


def _keys_sent(work: Workload, cluster: Cluster, tokens: float, speed: Efficiency) -> float:
    """Return the seconds in which learners that share rows send each other keys and values of `tokens` each.

    They are gathered in bfloat16 three times, for each pass and for layers computed anew, and their gradients are
    summed in float32.
    """
    if work.context == 1:
        return 0.0
    numbers = (work.context - 1) * tokens * 2 * work.kv_width * work.layers
    return (3 * 2 + 4) * numbers / (cluster.speed(work.context) * speed.link)


def syncing(work: Workload, cluster: Cluster, learners: int, samplers: int, speed: Efficiency) -> float:
    """Return the seconds until every sampler has new bfloat16 weights; `samplers` is 0 if they share memory."""
    size = 2.0 * work.parameters
    gather = size / (cluster.speed(learners) * speed.link) if learners > 1 else 0.0
    if not samplers:
        return gather
    return gather + size / (cluster.speed(learners + samplers) * speed.link)
