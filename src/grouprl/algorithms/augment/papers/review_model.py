"""A reward model of reviews: it predicts the reward of a review from reviews that another trial followed."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from grouprl.algorithms.critic.papers.text_encoders import Ids, build_encoder
from grouprl.algorithms.data_part import RunContext
from grouprl.core.json_types import State

GRAD_CLIP = 1.0


class ReviewModel:
    """A linear head on enc(prompt and review), fitted to the rewards of reviews.

    Weights, optimiser and all reviews that a trial followed are in `store`, which checkpoints save.
    """

    def __init__(self, store: State, context: RunContext, encoder: str, width: int, lr: float, seed: int) -> None:
        """Build the model, with the weights and reviews that `store` already holds.

        Args:
            store: the part's memory, saved in checkpoints.
            context: the run, whose policy's tokens the model reads.
            encoder: as `grouprl.algorithms.critic.papers.text_encoders.build_encoder` takes it.
            width: of the encoder gru.
            lr: learning rate of Adam.
            seed: for the first weights.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            reader = build_encoder(encoder, context.text.policy, width)
            self.network = nn.Sequential(reader, nn.Linear(reader.width, 1)).to(context.text.policy.device)
        self.store, self.optimizer = store, torch.optim.Adam(self.network.parameters(), lr=lr)
        if "network" in store:
            self.network.load_state_dict(store["network"])
            self.optimizer.load_state_dict(store["optimizer"])

    @torch.no_grad()
    def __call__(self, prompts: Ids, reviews: Ids) -> np.ndarray:
        """Return the predicted reward of each review, [N]."""
        rows = [[*prompt, *review] for prompt, review in zip(prompts, reviews, strict=True)]
        return np.asarray(self.network(rows)[:, 0].double().cpu().numpy())

    def add(self, prompts: Ids, reviews: Ids, gain_n: np.ndarray) -> None:
        """Remember reviews and their rewards, [N]."""
        tried = self.store.setdefault("tried", [])
        pairs = zip(prompts, reviews, gain_n.tolist(), strict=True)
        tried.extend([[*prompt, *review], gain] for prompt, review, gain in pairs)

    def fit(self, updates: int, size: int, rng: np.random.Generator) -> None:
        """Take `updates` steps down the squared error of `size` remembered reviews each, sampled with repetition."""
        tried = self.store["tried"]
        for _ in range(updates):
            rows, gains = zip(*(tried[i] for i in rng.integers(len(tried), size=size)), strict=True)
            said_n = self.network(rows)[:, 0]
            loss = (said_n - torch.tensor(gains).to(said_n)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), GRAD_CLIP)
            self.optimizer.step()
        self.store["network"], self.store["optimizer"] = self.network.state_dict(), self.optimizer.state_dict()
