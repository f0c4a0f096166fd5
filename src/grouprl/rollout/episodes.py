"""Playing episodes: environments at different turns share the decoder, and each finishes on its own.

Token-in token-out: what the policy draws is kept as drawn, an observation is encoded once and appended; nothing is
decoded and encoded again. Environments run in this process; one that never returns stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grouprl.envs.environment import Environment
from grouprl.errors import InputError
from grouprl.rewards.contract import Failure
from grouprl.rollout.between import Between
from grouprl.rollout.episode import ENDINGS, Episode, Start
from grouprl.rollout.sampler import Adapt, Rollout, generate
from grouprl.tasks.task import Message, content_number, generator


@dataclass(frozen=True)
class Episodes:
    """B played episodes, one row each; T is the longest row behind its prompt, S the most turns."""

    rollout: Rollout
    """`response_ids` holds actions and environment text in order; log-probs and entropies are 0 on the latter."""
    mask_bt: np.ndarray
    """[B,T] bool: tokens of actions, their end tokens included."""
    turn_bt: np.ndarray
    """[B,T] int64: turn of each action token, -1 elsewhere."""
    turn_reward_bs: np.ndarray
    """[B,S] float64: reward of each turn, 0 behind the last."""
    state_bs: np.ndarray
    """[B,S] int64: number of the state in which each turn began, the same wherever the key is; -1 for none."""
    valid_bs: np.ndarray
    """[B,S] bool: whether each action was understood and allowed; False behind the last."""
    ended: tuple[str, ...]
    """[B] one of `ENDINGS`."""
    verdicts: tuple[dict[str, float] | Failure, ...]
    """[B] components of the reward (`turn_rewards` and those of `score`), or why there are none."""
    prompts: tuple[str | tuple[Message, ...], ...]
    """[B] first observations, as the policy is shown them."""
    texts: tuple[str, ...]
    """[B] the exchange that followed, for people."""

    def __len__(self) -> int:
        return len(self.ended)

    @property
    def failures(self) -> list[Failure]:
        """What went wrong in the episodes that ended as errors."""
        return [verdict for verdict in self.verdicts if isinstance(verdict, Failure)]

    @property
    def turns_b(self) -> np.ndarray:
        """[B] int64 turns of each episode."""
        return self.turn_bt.max(1, initial=-1) + 1


def play(
    policy: Any,
    make: Callable[[], Environment],
    starts: Sequence[Start],
    *,
    max_turns: int,
    max_new_tokens: int,
    greedy: bool = False,
    top_p: float = 1.0,
    top_k: int = 0,
    adapt: Adapt | None = None,
) -> Episodes:
    """Let `policy` act in one fresh environment for each of `starts`.

    An episode depends on its start and the policy alone, not on its neighbours. A turn has at most `max_new_tokens`
    tokens; an action that reaches them is acted on as it is. Environments that raise end their episode as an error.

    Raises:
        InputError: a first observation that leaves no room to act, or a chat template that rewrites history.
    """

    def draw(living: list[Episode], budget: int) -> Rollout:
        return generate(
            policy,
            [[*episode.prompt_ids, *episode.ids] for episode in living],
            n=1,
            max_new_tokens=budget,
            temperature=[episode.start.temperature for episode in living],
            seeds=[(episode.start.draws + len(episode.turns)) % 2**64 for episode in living],
            greedy=greedy,
            top_p=top_p,
            top_k=top_k,
            adapt=adapt,
        )

    with _begun(policy, make, starts) as (episodes, between):
        while living := _room(episodes, policy.max_positions, max_turns, max_new_tokens):
            for budget, rows in living.items():
                _take(policy, between, rows, draw(rows, budget))
    return _laid_out(policy, episodes)


def demonstrate(
    policy: Any,
    make: Callable[[], Environment],
    starts: Sequence[Start],
    *,
    max_turns: int,
    max_new_tokens: int,
    positions: int | None = None,
) -> Episodes:
    """Let each environment act in itself (`grouprl.envs.environment.Demonstrator`); actions get an end token.

    `policy` encodes; log-probs are 0. One that fails or cannot demonstrate ends its episode as an error.
    """
    end = list(policy.eos_ids[:1])
    with _begun(policy, make, starts) as (episodes, between):
        rngs = {id(e): generator("demonstrate", e.start.question.id, e.start.seed) for e in episodes}
        while living := _room(episodes, positions, max_turns, max_new_tokens):
            for budget, rows in living.items():
                acts = [episode.demonstration(rngs[id(episode)]) or "" for episode in rows]
                ids = [[*x[: budget - len(end)], *end] for x in policy.encode_all(acts)]
                zeros_bt = torch.zeros(len(rows), budget)
                drawn = Rollout((), tuple(map(tuple, ids)), zeros_bt, zeros_bt, torch.zeros(len(rows)))
                _take(policy, between, rows, drawn)
    return _laid_out(policy, episodes)


@contextmanager
def _begun(
    policy: Any, make: Callable[[], Environment], starts: Sequence[Start]
) -> Iterator[tuple[list[Episode], Between]]:
    """Begin the episodes; close every environment whatever happens."""
    between = Between(policy)
    episodes: list[Episode] = []
    try:
        for start in starts:
            episodes.append(Episode(start, make))
        for episode in episodes:
            episode.prompt = between.first(episode.start.question, episode.shown)
        encoded = iter(policy.encode_prompts([e.prompt for e in episodes if e.alive]) if episodes else [])
        for episode in episodes:
            episode.prompt_ids = list(next(encoded)) if episode.alive else list(policy.eos_ids[:1])
        yield episodes, between
    finally:
        for episode in episodes:
            episode.close()


def _room(
    episodes: Sequence[Episode], positions: int | None, max_turns: int, max_new_tokens: int
) -> dict[int, list[Episode]]:
    """Return the living episodes by the tokens that their next turn may have; end those that have none left."""
    living: dict[int, list[Episode]] = {}
    for episode in (episode for episode in episodes if episode.alive):
        budget = min(episode.start.budget or max_new_tokens, max_new_tokens)
        budget = budget if positions is None else min(budget, positions - episode.length)
        if len(episode.turns) >= max_turns:
            episode.finish("out_of_turns")
        elif budget > 0:
            living.setdefault(budget, []).append(episode)
        elif episode.turns:
            episode.finish("out_of_room")
        else:
            raise InputError(
                f"the first observation of question '{episode.start.question.id}' has {episode.length} tokens",
                f"the model has room for {positions} positions, and the policy needs some to act",
                "Use a model with more positions, or shorter observations",
            )
    return living


def _take(policy: Any, between: Between, rows: Sequence[Episode], drawn: Rollout) -> None:
    """Let the environments act on what was drawn, and append what they show to those that go on."""
    ends = policy.eos_ids
    texts = policy.decode_all(drawn.response_ids)
    logp, entropy = drawn.logp_bt.tolist(), drawn.entropy_bt.tolist()
    going: list[tuple[Episode, str]] = []
    for i, episode in enumerate(rows):
        ids = list(drawn.response_ids[i])
        seen = episode.act(ids, logp[i][: len(ids)], entropy[i][: len(ids)], texts[i])
        if episode.alive:
            going.append((episode, between.later(seen, ids[-1] if ids[-1] in ends else None)))
    for (episode, _), seen_ids in zip(going, policy.encode_all([text for _, text in going]), strict=True):
        episode.append_seen(list(seen_ids))


def _laid_out(policy: Any, episodes: Sequence[Episode]) -> Episodes:
    """Put finished episodes into rows. One whose environment failed before the first action has a row of its end."""
    end = [tuple(policy.eos_ids[:1]) if not e.ids else tuple(e.ids) for e in episodes]
    width, turns = max(map(len, end)), max(1, *(len(e.turns) for e in episodes))
    kind = getattr(policy, "score_dtype", torch.float32)
    late = ("truncated", "out_of_turns", "out_of_room")
    rollout = Rollout(
        prompt_ids=tuple(tuple(e.prompt_ids) for e in episodes),
        response_ids=tuple(end),
        logp_bt=torch.tensor([_padded(e.logp, width, 0.0) for e in episodes], dtype=kind),
        entropy_bt=torch.tensor([_padded(e.entropy, width, 0.0) for e in episodes], dtype=kind),
        truncated_b=torch.tensor([e.ended in late for e in episodes]),
    )
    states = [[content_number(t.state) >> 1 if t.state else -1 for t in e.turns] for e in episodes]
    return Episodes(
        rollout=rollout,
        mask_bt=np.array([_padded(e.mask, width, False) for e in episodes], dtype=bool),
        turn_bt=np.array([_padded(e.turn_of, width, -1) for e in episodes], dtype=np.int64),
        turn_reward_bs=np.array([_padded([t.reward for t in e.turns], turns, 0.0) for e in episodes]),
        state_bs=np.array([_padded(row, turns, -1) for row in states], dtype=np.int64),
        valid_bs=np.array([_padded([t.valid for t in e.turns], turns, False) for e in episodes], dtype=bool),
        ended=tuple(str(e.ended) for e in episodes),
        verdicts=tuple(e.verdict() for e in episodes),
        prompts=tuple(e.prompt for e in episodes),
        texts=tuple(e.transcript() for e in episodes),
    )


def _padded(values: Sequence[Any], width: int, fill: Any) -> list[Any]:
    return [*values, *[fill] * (width - len(values))]


__all__ = ["ENDINGS", "Episodes", "Start", "demonstrate", "play"]
