"""Peak memory of the log-prob step against the size of the vocabulary, each measured in a process of its own.

As a script: `vocabulary.py MODE VOCABULARY` prints the MiB that forward and backward of the log-probs needed beyond
hidden states, weight and their gradients. MODE is `chunked` (this library) or `whole` (log_softmax of all logits).
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from gate import peak_mb
from grouprl.policy.logprobs import token_logprobs

POSITIONS, HIDDEN = 2048, 64
SIZES = (1_000, 8_000, 64_000)
MODES = ("chunked", "whole")


def measure(mode: str, vocabulary: int) -> float:
    """Run the measurement in a fresh process; returns MiB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, mode, str(vocabulary)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def step(mode: str, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> None:
    """Forward and backward of the summed log-probs."""
    if mode == "chunked":
        logp = token_logprobs(hidden, weight, None, target).logp_m
    else:
        logp = torch.log_softmax(hidden @ weight.T, -1).gather(1, target[:, None])[:, 0]
    logp.sum().backward()


def main(mode: str, vocabulary: int) -> None:
    hidden = torch.randn(POSITIONS, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    hidden.grad, weight.grad = torch.zeros_like(hidden), torch.zeros_like(weight)
    target = torch.randint(vocabulary, (POSITIONS,))
    # What any gradient of the weight needs: a second buffer of its size, and the kernels themselves.
    spare = torch.randn(vocabulary, HIDDEN)
    step(mode, hidden[:1].detach().requires_grad_(), torch.randn(8, HIDDEN, requires_grad=True), target[:1] % 8)
    del spare
    before = peak_mb()
    step(mode, hidden, weight, target)
    print(peak_mb() - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
