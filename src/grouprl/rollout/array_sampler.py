"""Sampling actions from a policy over vectors, one for each request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.policy.array_policy import ArrayPolicy
from grouprl.protocols import NO_VERSION, Request, Samples

if TYPE_CHECKING:
    from grouprl.protocols import Policy


class ArraySampler:
    """The sampler of an `ArrayPolicy` in this process: an observation in, one action out.

    An action depends on its observation, seed, temperature and the weights alone, whatever is sampled beside it.
    Nothing is kept between requests, so a session is the sampler itself.
    """

    exact = True

    def __init__(self, policy: ArrayPolicy) -> None:
        self.policy = policy
        self.version = NO_VERSION

    def sample(self, requests: Sequence[Request[np.ndarray]]) -> Samples[int | np.ndarray]:
        """Return one action for each request.

        Raises:
            InputError: a setting of text (top_p, top_k, stop …), which actions that are not tokens do not have.
        """
        for request in requests:
            _check_plain(request)
        if not requests:
            return Samples((), np.zeros((0, 0)), np.zeros(0, dtype=bool), True, np.zeros((0, 0)))
        seen_rd = torch.as_tensor(np.stack([request.prompt for request in requests]))
        seeds, temperatures = [r.seed for r in requests], [r.temperature for r in requests]
        likeliest = {request.greedy for request in requests}
        if len(likeliest) > 1:
            raise InputError("greedy requests beside others", "all are, or none is", "Request them in two calls")
        sampled = self.policy.act(seen_rd, seeds, temperatures, greedy=likeliest.pop())
        rows = len(requests)
        versions = None if self.version == NO_VERSION else np.full((rows, 1), self.version, dtype=np.int64)
        return Samples(
            actions=tuple((action,) for action in sampled.actions),
            logp_bt=sampled.logp_r[:, None].numpy(),
            truncated_b=np.zeros(rows, dtype=bool),
            exact=True,
            entropy_bt=sampled.entropy_r[:, None].numpy(),
            version_bt=versions,
        )

    def session(self) -> AbstractContextManager[ArraySampler]:
        """Return this sampler: nothing is kept between requests."""
        return nullcontext(self)

    def publish(self, version: int, policy: Policy) -> None:
        """Note the version; a policy other than the sampler's own lends it its weights.

        Raises:
            InputError: a version below the last one.
        """
        if version < self.version:
            raise InputError(f"version {version} after {self.version}", "versions never go back")
        if policy is not self.policy:
            self.policy.load_trainable_state(policy.trainable_state())
        self.version = version


def _check_plain(request: Request[object]) -> None:
    given = {
        "top_p": request.top_p < 1,
        "top_k": request.top_k > 0,
        "stop": bool(request.stop),
        "stop_texts": bool(request.stop_texts),
        "entropy_scaling": request.entropy_scaling is not None,
        "sampled": request.sampled > 0,
    }
    if named := [name for name, there in given.items() if there]:
        raise InputError(f"{named[0]} is set", "actions that are not tokens do not have it", "Leave it out")
