"""Off-policy learning of the values of utterances, and fresh actions of the current policy at stored observations
(ArCHer).
"""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.buffer.papers.stored_turns import Turns, add_turns, read_turns, turns_stored
from grouprl.algorithms.critic.papers.text_encoders import build_encoder
from grouprl.algorithms.critic.papers.utterance_critic import UtteranceCritic, follow, prepared, td_losses
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, Positive, Share, Whole
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples, as_text

GRAD_CLIP = 1.0
APART = 1 << 40
"""Number of the first group of fresh actions, larger than the number of any prompt."""


@part("buffer")
class UtteranceReplay(Buffer):
    """ArCHer: sampled rows train a critic of utterances, and the policy learns from fresh actions (arXiv:2402.19446).

    All sampled turns go to a store of `capacity`. In each step `pool` of them are chosen at random (None: as many as
    the critic's updates read), the policy samples a fresh action at the observation of each, and the critic takes
    `critic_steps` updates on `critic_batch` of them: Q(o,a) towards r + gamma·V'(o'), V(o) towards Q'(o, fresh action),
    Q' and V' of a copy that follows by `tau` after each update. Then the policy samples actions at `actions` stored
    observations (None: as many as the run asks for completions); these are the rows of the step, with min Q (`past.q`,
    also their reward) and min V (`past.v`). In the first `warmup` steps only the critic learns, and the step keeps the
    sampled rows.

    `encoder` is "gru" (of `width`, over the policy's tokens), "policy" (a copy of its trunk) or any encoder of
    transformers by name. Weights, optimiser and turns are in the part's store.
    """

    one_policy: ClassVar[bool] = True
    takes: ClassVar[str] = "buffered"

    gamma: Share = 0.95
    tau: Annotated[float, Field(gt=0, le=1)] = 0.1
    capacity: Count = 100_000
    critic_steps: Count = 50
    critic_batch: Count = 256
    critic_lr: Positive = 1e-3
    pool: Count | None = None
    actions: Count | None = None
    warmup: Whole = 20
    encoder: str = "gru"
    width: Count = 64
    fills = ("past.q", "past.v")

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Store the new rows, train the critic, return the actions to learn from."""
        if samples is None:
            return None
        store, held, rng = context.state_of(self), context.cache_of(self), context.rng(self)
        seed = int(rng.integers(2**31))  # sampled whether it is used or not, so that a resumed run samples alike
        positions = context.text.policy.max_positions
        room = None if positions is None else positions - context.max_new_tokens
        add_turns(store, as_text(samples), context.batch(samples), self.capacity, room)
        context.note("turns_stored", turns_stored(store))
        if not turns_stored(store):
            return self._waiting(samples)
        if "critic" not in held:
            self._build(store, held, context, seed)
        self._teach(held, context, rng)
        store["critic"], store["target"] = held["critic"].state_dict(), held["target"].state_dict()
        store["optimizer"] = held["optimizer"].state_dict()
        if context.step < self.warmup:
            return self._waiting(samples)
        return self._act(held["critic"], context, rng)

    def _waiting(self, samples: ScoredSamples) -> ScoredSamples:
        """Return the sampled rows with critic values of 0, as during the warm-up."""
        zero_b = np.zeros(len(samples))
        return samples.with_extras(past__q=zero_b, past__v=zero_b)

    def _build(self, store: State, held: State, context: RunContext, seed: int) -> None:
        """Build critic, target and optimiser, and restore their stored state if there is one."""
        policy = context.text.policy
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            critic = UtteranceCritic(build_encoder(self.encoder, policy, self.width)).to(policy.device)
        target = copy.deepcopy(critic, {id(policy): policy}).requires_grad_(False)
        optimizer = torch.optim.Adam(critic.parameters(), lr=self.critic_lr)
        if "critic" in store:
            critic.load_state_dict(store["critic"])
            target.load_state_dict(store["target"])
            optimizer.load_state_dict(store["optimizer"])
        held["critic"], held["target"], held["optimizer"] = critic, target, optimizer

    def _teach(self, held: dict[str, object], context: RunContext, rng: np.random.Generator) -> None:
        """Take the critic's updates of a step."""
        turns = self._choose(self.pool or self.critic_steps * self.critic_batch, context, rng)
        fresh = self._fresh(turns, context, rng).response_ids
        order = np.concatenate([rng.permutation(len(turns)) for _ in range(self._passes(len(turns)))])
        for step in range(self.critic_steps):
            rows = order[step * self.critic_batch : (step + 1) * self.critic_batch]
            self._update(held, turns.take(rows), [fresh[i] for i in rows], context)

    def _passes(self, pool: int) -> int:
        """Return the number of passes over the pool; the last one may be partial."""
        return -(-self.critic_steps * self.critic_batch // pool)

    def _update(self, held: State, turns: Turns, fresh: list[tuple[int, ...]], context: RunContext) -> None:
        critic, target, device = held["critic"], held["target"], context.text.policy.device
        reward_n, over_n = turns.reward_n.to(device), turns.over_n.to(device)
        q_loss, v_loss = td_losses(
            critic, target, turns.seen, turns.done, reward_n, turns.later, over_n, fresh, self.gamma
        )
        held["optimizer"].zero_grad()
        (q_loss + v_loss).backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), GRAD_CLIP)
        held["optimizer"].step()
        follow(target, critic, self.tau)
        context.note("critic_q_loss", float(q_loss.detach()), "mean")
        context.note("critic_v_loss", float(v_loss.detach()), "mean")

    def _choose(self, count: int, context: RunContext, rng: np.random.Generator) -> Turns:
        """Return `count` stored turns, sampled with repetition."""
        store = context.state_of(self)
        return read_turns(store, rng.integers(turns_stored(store), size=count))

    def _fresh(self, turns: Turns, context: RunContext, rng: np.random.Generator) -> Rollout:
        """Return an action of the current policy at each observation."""
        return context.text.act(turns.seen, rng.integers(2**63, size=len(turns)).tolist())

    def _act(self, critic: UtteranceCritic, context: RunContext, rng: np.random.Generator) -> TextSamples:
        """Sample actions at stored observations and let the critic judge them; each is a group of its own."""
        turns = self._choose(self.actions or context.prompts * context.group_size, context, rng)
        rollout, count = self._fresh(turns, context, rng), len(turns)
        q_n, v_n = (x.double().cpu().numpy() for x in prepared(critic, turns.seen, rollout.response_ids))
        context.note("critic_q", float(q_n.mean()))
        context.note("critic_v", float(v_n.mean()))
        numbers, no_b = turns.prompt_n, np.zeros(count, dtype=bool)
        return TextSamples(
            examples=tuple(context.task.example("train", i) for i in numbers.tolist()),
            prompts=tuple(context.text.decode(turns.seen)),
            group_b=APART + np.arange(count),
            index_b=numbers,
            sample_b=np.zeros(count, dtype=np.int64),
            rollout=rollout,
            texts=tuple(context.text.decode(rollout.response_ids)),
            scores=Scores(q_n, {}, no_b, np.full(count, "ok"), []),
            valid_b=~no_b,
            source_b=np.full(count, SOURCES["extra"], dtype=np.int64),
            foreign_b=no_b,
            extras={"past.q": q_n, "past.v": v_n},
        )

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many actions are sampled besides the completions of the run."""
        pool, rows = self.pool or self.critic_steps * self.critic_batch, self.actions or run.prompts * run.group_size
        return f"{pool:,} actions a step for the critic, and {rows:,} for the policy, of one turn each, never acted out"

    @override
    def words(self) -> str:
        late = f"; {self.warmup} steps of the critic alone come first" if self.warmup else ""
        return (
            f"the last {self.capacity:,} turns teach a critic of utterances ({self.encoder}, {self.critic_steps} "
            f"updates a step); the policy learns from fresh actions at stored observations{late}"
        )

    @override
    def formula(self) -> str:
        return f"Q(o,a) → r + {self.gamma:g}·V'(o'),  V(o) → Q'(o, a'~π),  θ' ← {self.tau:g}·θ + {1 - self.tau:g}·θ'"

    def idle(self, run: RunFacts) -> list[str]:
        """Say which settings have no effect, and when the policy never learns."""
        found = (
            [] if self.gamma == 0 or run.turns > 1 else ["utterance_replay.gamma has no effect: episodes have one turn"]
        )
        if self.warmup >= run.steps:
            found.append(f"the policy never learns: utterance_replay.warmup is {self.warmup} of {run.steps} steps")
        return found
