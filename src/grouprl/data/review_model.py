"""A reward model of reviews: what a review is likely to bring, learnt from those that another trial followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grouprl.data.desk import Desk
from grouprl.policy.text_encoders import Ids, build_encoder
from grouprl.policy.utterance_critic import UtteranceCritic

GRAD_CLIP = 1.0


class ReviewModel:
    """Two heads on [enc(prompt); enc(review)] fitted to what reviews brought; their mean is the reward.

    Weights, optimiser and all reviews that were tried lie in `store`, which a checkpoint holds.
    """

    def __init__(self, store: dict[str, Any], desk: Desk, encoder: str, width: int, lr: float, seed: int) -> None:
        """Build it, with what `store` holds already.

        Args:
            store: what the part remembers.
            desk: whose policy's tokens are read.
            encoder: as `grouprl.policy.text_encoders.build_encoder` takes it.
            width: of the encoder gru.
            lr: learning rate of Adam.
            seed: for the first weights.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = UtteranceCritic(build_encoder(encoder, desk.policy, width))
        self.critic, self.store = made.to(desk.policy.device), store
        self.optimizer = torch.optim.Adam(self.critic.parameters(), lr=lr)
        if "critic" in store:
            self.critic.load_state_dict(store["critic"])
            self.optimizer.load_state_dict(store["optimizer"])

    @torch.no_grad()
    def __call__(self, prompts: Ids, reviews: Ids) -> np.ndarray:
        """Return what each review is expected to bring, [N]."""
        return np.asarray(self.critic(prompts, reviews)[0].mean(0).double().cpu().numpy())

    def add(self, prompts: Ids, reviews: Ids, gain_n: np.ndarray) -> None:
        """Remember reviews and what they brought, [N]."""
        tried = self.store.setdefault("tried", [])
        pairs = zip(prompts, reviews, gain_n.tolist(), strict=True)
        tried.extend([list(prompt), list(review), gain] for prompt, review, gain in pairs)

    def fit(self, updates: int, size: int, rng: np.random.Generator) -> None:
        """Take `updates` steps down the squared error of `size` remembered reviews each, drawn with repetition."""
        tried = self.store["tried"]
        for _ in range(updates):
            prompts, reviews, gains = zip(*(tried[i] for i in rng.integers(len(tried), size=size)), strict=True)
            gain_n = torch.tensor(gains, device=next(self.critic.parameters()).device)
            loss = (self.critic(prompts, reviews)[0] - gain_n).square().mean(1).sum()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.critic.parameters(), GRAD_CLIP)
            self.optimizer.step()
        self.store["critic"], self.store["optimizer"] = self.critic.state_dict(), self.optimizer.state_dict()
