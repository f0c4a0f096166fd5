"""A small perceptron that a part trains for itself, kept with its optimiser in the part's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from grouprl.core.json_types import State


class KeptPerceptron:
    """A perceptron with two hidden layers of tanh and its Adam, which continue from the part's memory.

    Args:
        store: the part's memory, which checkpoints hold.
        sizes: numbers read, of each hidden layer, and given.
        lr: learning rate of Adam.
        seed: seed of the first weights.
    """

    def __init__(self, store: State, sizes: Sequence[int], lr: float, seed: int) -> None:
        self.store = store
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first, second, third = (nn.Linear(*pair) for pair in pairwise(sizes))
        self.net = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)
        self.adam = torch.optim.Adam(self.net.parameters(), lr)
        if "net" in store:
            self.net.load_state_dict(store["net"])
            self.adam.load_state_dict(store["adam"])
        else:
            self.remember()

    def descend(self, loss: Callable[[], Tensor], steps: int) -> float:
        """Take steps on a loss; return its value before them."""
        first = 0.0
        for number in range(steps):
            error = loss()
            first = float(error.detach()) if number == 0 else first
            self.adam.zero_grad()
            error.backward()
            self.adam.step()
        self.remember()
        return first

    def remember(self) -> None:
        """Keep the weights and the moments of Adam."""
        weights = {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}
        self.store.update(net=weights, adam=self.adam.state_dict())
