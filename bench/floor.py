"""What a step would take if it were nothing but its matrix products, at the rates this machine reaches on their shapes.

Counted, for one step (d = hidden size, f = intermediate size, V = vocabulary, n = layers):

- every token that is run forward: the products [M,d]x[d,3d], [M,d]x[d,d], [M,d]x[d,2f], [M,f]x[f,d] of each layer,
  and 4 c d operations of attention per layer, c being the mean number of tokens it looks back on;
- the output product [M,d]x[d,V] where a token is predicted;
- sampling: each prompt once, then one product per sampled token (the first comes from the prompt, the last is not
  read again), with as many rows at a time as are unfinished on average;
- training: the prompts and completions of the rows that are trained on, once forward and twice backward (gradients of
  the
  input and of the weight); nothing is computed anew.

Attention is charged at the rate of the largest product, which is more than small batched products reach.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from grouprl.policy.language.arithmetic import PASS_TOKENS, Shape, backward, counted, operations, timed
from grouprl.policy.language.arithmetic import rate as measured_rate
from jobs import Job


@dataclass(frozen=True)
class Work:
    """Means per step of what was really sampled and trained on."""

    sampled: float
    """Tokens sampled."""
    trained: float
    """Tokens in the rows that were trained on."""
    rows_trained: float
    prompts_trained: float
    prompt_tokens: int
    """Tokens of one prompt."""
    vocabulary: int


@dataclass(frozen=True)
class Floor:
    """Seconds and floating-point operations of the matrix products of one step."""

    rollout: float
    training: float
    operations: float

    @property
    def seconds(self) -> float:
        """Seconds of all of them."""
        return self.rollout + self.training


def floor_of(job: Job, work: Work) -> Floor:
    """Count the products of a step and time them."""
    reading = float(job.prompts * work.prompt_tokens)
    decoded = work.sampled - job.rows
    at_once = max(1, round(decoded / (job.max_new_tokens - 1)))
    completions = work.trained - work.rows_trained
    learning = work.prompts_trained * work.prompt_tokens + completions
    rows = min(PASS_TOKENS, max(1, round(learning)))

    read = layers(job, round(reading), 1.0) + head(job, work, job.prompts, 1.0)
    sampling = layers(job, at_once, decoded / at_once) + head(job, work, at_once, decoded / at_once)
    forward = layers(job, rows, learning / rows) + head(job, work, rows, work.trained / rows)
    training = forward + backward(forward)

    context = work.prompt_tokens + work.sampled / job.rows / 2
    attention = 4 * context * job.hidden * job.layers
    peak = rate((PASS_TOKENS, job.hidden, 2 * job.intermediate))
    rollout_s = timed(read, rate) + timed(sampling, rate) + attention * (reading / 2 + decoded) / peak
    training_s = timed(training, rate) + 3 * attention * learning / peak
    done = operations(read + sampling + training)
    return Floor(rollout_s, training_s, done + attention * (reading / 2 + decoded + 3 * learning))


def layers(job: Job, rows: int, times: float) -> Counter[Shape]:
    """The products of all layers for `rows` tokens, `times` times."""
    d, f = job.hidden, job.intermediate
    shapes = [(rows, d, 3 * d), (rows, d, d), (rows, d, 2 * f), (rows, f, d)]
    return counted(dict.fromkeys(shapes, times * job.layers))


def head(job: Job, work: Work, rows: int, times: float) -> Counter[Shape]:
    """The output product."""
    return counted({(rows, job.hidden, work.vocabulary): times})


def rate(shape: Shape) -> float:
    """Operations per second of a product of this shape on one thread, by the processor's time."""
    return measured_rate(shape, clock=time.process_time)
