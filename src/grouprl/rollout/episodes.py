"""Playing episodes: environments at different turns share the decoder, and each ends on its own.

Token-in token-out: what the policy samples is kept as sampled, an observation is encoded once and appended; nothing is
decoded and encoded again. Each agent of an episode has rows of its own: one, and one more for each fresh beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.core.hashing import content_number
from grouprl.envs.environment import Environment
from grouprl.envs.stage import HereStage, Stage
from grouprl.protocols import EntropyScaling, Request, Sampler, SamplingSession
from grouprl.records.examples import Message
from grouprl.records.rollout import Rollout
from grouprl.records.turns import Record, Turn
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import ENDINGS, LATE, Context, Episode, Start
from grouprl.rollout.sampler import KEPT_GB, LocalSampler, as_rollout
from grouprl.rollout.turn_text import History, Onward, TurnText


@dataclass(frozen=True)
class Episodes:
    """E played episodes in B rows; T is the longest row behind its prompt, S the most turns of a row.

    The rows of an episode stand next to each other, in the order in which they were begun.
    """

    rollout: Rollout
    """`response_ids` holds actions and environment text in order; log-probs and entropies are 0 on the latter."""
    mask_bt: np.ndarray
    """[B,T] bool: tokens of actions, their end tokens included; without those of an untrained prefix."""
    turn_bt: np.ndarray
    """[B,T] int64: turn within the row of each action token, -1 elsewhere."""
    turn_reward_bs: np.ndarray
    """[B,S] float64: reward of each turn, 0 behind the last."""
    state_bs: np.ndarray
    """[B,S] int64: number of the state in which each turn began, the same wherever the key is; -1 for none."""
    valid_bs: np.ndarray
    """[B,S] bool: whether each action was understood and allowed; False behind the last."""
    episode_b: np.ndarray
    """[B] int64: which episode a row belongs to, in the order of the starts."""
    agent_b: np.ndarray
    """[B] int64: number of the agent among the task's."""
    context_b: np.ndarray
    """[B] int64: which row of its episode it is."""
    caller_b: np.ndarray
    """[B] int64: which row of its episode was active when it was begun afresh, -1 for none."""
    ended: tuple[str, ...]
    """[B] one of `ENDINGS`."""
    verdicts: tuple[dict[str, float] | Failure, ...]
    """[B] components of the reward (`turn_rewards` of the row and the agent's scores), or why there are none."""
    prompts: tuple[str | tuple[Message, ...], ...]
    """[B] first observations, as the policy sees them."""
    texts: tuple[str, ...]
    """[B] the exchange that followed, for readers."""
    records: tuple[Record, ...]
    """[B] who acted, turn by turn."""
    outcomes: tuple[dict[str, float] | Failure, ...]
    """[E] components of the whole episode's reward for its first agent, or why there are none."""
    transcripts: tuple[str, ...]
    """[E] the whole exchange, for readers."""

    def __len__(self) -> int:
        return len(self.ended)

    @property
    def failures(self) -> list[Failure]:
        """What went wrong in the episodes that ended as errors."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Failure)]

    @property
    def turns_b(self) -> np.ndarray:
        """[B] int64 turns of each row."""
        return self.turn_bt.max(1, initial=-1) + 1

    def per_episode(self, values_b: np.ndarray) -> np.ndarray:
        """[E] sums of `values_b` over the rows of each episode."""
        return np.bincount(self.episode_b, weights=values_b, minlength=len(self.outcomes))


def play(
    policy: Any,
    make: Callable[[], Environment],
    starts: Sequence[Start],
    *,
    max_turns: int,
    max_new_tokens: int,
    agents: Sequence[str] = ("",),
    greedy: bool = False,
    top_p: float = 1.0,
    top_k: int = 0,
    entropy_scaling: EntropyScaling | None = None,
    stop: Sequence[str] = (),
    history: History = "refuse",
    stage: Stage | None = None,
    sampler: Sampler[Any, int] | None = None,
    kept_gb: float = KEPT_GB,
) -> Episodes:
    """Let `policy` act, as every one of `agents`, in one fresh environment for each of `starts`.

    An episode depends on its start and the policy alone, not on its neighbours. A turn has at most `max_new_tokens`
    tokens and ends with an end token or one of the texts `stop`; an action that reaches them is acted on as it is.
    `max_turns` counts the turns of all agents together.
    Environments that raise end their episode as an error, and so does a chat template that rewrites what was said,
    where `history` is 'refuse'. `stage` holds the environments; None: they run in-process.
    `sampler` samples the turns, each in a session with those before it; None: a `LocalSampler` of the policy, which
    keeps keys and values from turn to turn, up to `kept_gb` GiB of them; 0: what was said is read anew in every turn.

    Raises:
        InputError: a first observation that leaves no room to act, or that the chat template cannot render.
    """

    def sample(session: SamplingSession[Any, int], living: list[Episode], budget: int) -> Rollout:
        requests = [
            Request(
                (*episode.acting.prompt_ids, *episode.acting.ids),
                budget,
                (episode.start.action_seed + len(episode.turns)) % 2**64,
                episode.start.temperature,
                greedy=greedy,
                top_p=top_p,
                top_k=top_k,
                stop_texts=tuple(stop),
                entropy_scaling=entropy_scaling,
                name=(episode.number, episode.acting.number),
                agent=agents.index(episode.acting.agent),
            )
            for episode in living
        ]
        return as_rollout(requests, session.sample(requests))

    end = list(policy.eos_ids[:1])
    sampler, exact = sampler or LocalSampler(policy, kept_gb=kept_gb), True
    begun = _begun(policy, stage or HereStage(make), starts, agents, history)
    with sampler.session() as session, begun as table:
        while living := table.room(policy.max_positions, max_turns, max_new_tokens):
            if led := [episode for rows in living.values() for episode in rows if episode.led is not None]:
                table.take(led, _written([list(episode.led or ()) for episode in led]))
                continue
            for budget, rows in living.items():
                sampled = sample(session, rows, budget)
                exact = exact and sampled.exact
                table.take(rows, sampled)
        return laid_out(end, getattr(policy, "score_dtype", torch.float32), table.episodes, exact=exact)


def demonstrate(
    policy: Any,
    make: Callable[[], Environment],
    starts: Sequence[Start],
    *,
    max_turns: int,
    max_new_tokens: int,
    agents: Sequence[str] = ("",),
    positions: int | None = None,
    history: History = "refuse",
    stage: Stage | None = None,
) -> Episodes:
    """Let each environment demonstrate (`grouprl.envs.environment.Demonstrator`); actions get an end token.

    `policy` encodes; log-probs are 0. One that fails or cannot demonstrate ends its episode as an error.
    """
    end = list(policy.eos_ids[:1])
    stage = stage or HereStage(make)
    with _begun(policy, stage, starts, agents, history) as table:
        while living := table.room(positions, max_turns, max_new_tokens):
            for budget, rows in living.items():
                shown = stage.call("demonstrate", [(e.number, (e.start.example.id, e.start.seed)) for e in rows])
                acts = [act if isinstance(act, str) else "" for act in shown]
                ids = [[*x[: budget - len(end)], *end] for x in policy.encode_all(acts)]
                for episode, act in zip(rows, shown, strict=True):
                    _check_demonstration(episode, act)
                alive = [i for i, episode in enumerate(rows) if episode.alive]
                table.take([rows[i] for i in alive], _written([ids[i] for i in alive]))
        return laid_out(end, getattr(policy, "score_dtype", torch.float32), table.episodes)


def _check_demonstration(episode: Episode, act: Any) -> None:
    if isinstance(act, Failure):
        episode.fail(act.what, act.trace, act.status)
    elif not isinstance(act, str):
        episode.fail(f"demonstrate() is {type(act).__name__}, not str")


def _written(ids: list[list[int]]) -> Rollout:
    """Return turns that no policy sampled: log-probs are 0."""
    zeros_bt = torch.zeros(len(ids), max(map(len, ids), default=0))
    return Rollout((), tuple(map(tuple, ids)), zeros_bt, zeros_bt, torch.zeros(len(ids)))


class _Table:
    """Episodes that are played together on one stage."""

    def __init__(self, policy: Any, stage: Stage, episodes: list[Episode], history: History) -> None:
        self.policy, self.stage, self.episodes = policy, stage, episodes
        self.between = TurnText(policy, history)

    def begin(self) -> None:
        """Begin every episode."""
        firsts = self.stage.call("reset", [(e.number, (e.start.example, e.start.seed)) for e in self.episodes])
        for episode, first in zip(self.episodes, firsts, strict=True):
            episode.see_first(first)
        self._show([episode for episode in self.episodes if episode.alive])

    def room(self, positions: int | None, max_turns: int, max_new_tokens: int) -> dict[int, list[Episode]]:
        """Return the living episodes by the tokens that their next turn may have; end those with none left."""
        living: dict[int, list[Episode]] = {}
        for episode in (episode for episode in self.episodes if episode.alive):
            budget = min(episode.start.budget or max_new_tokens, max_new_tokens)
            left = None if positions is None else positions - episode.acting.length
            budget = budget if left is None else min(budget, left)
            if len(episode.turns) >= min(max_turns, episode.start.turns or max_turns):
                episode.ended = "out_of_turns"
            elif budget > 0 and (left is None or len(episode.led or ()) <= left):
                living.setdefault(budget, []).append(episode)
            elif episode.turns:
                episode.ended = "out_of_room"
            else:
                raise InputError(
                    f"the first observation of prompt '{episode.start.example.id}' has {episode.acting.length} tokens",
                    f"the model has room for {positions} positions, and the policy needs some to act",
                    "Use a model with more positions, or shorter observations",
                )
        self._settle()
        return living

    def take(self, rows: Sequence[Episode], sampled: Rollout) -> None:
        """Let the environments act on the sampled actions, and append what they show to those that continue."""
        texts = self.policy.decode_all(sampled.response_ids)
        logp, entropy = sampled.logp_bt.tolist(), sampled.entropy_bt.tolist()
        for i, episode in enumerate(rows):
            ids = list(sampled.response_ids[i])
            episode.act(ids, logp[i][: len(ids)], entropy[i][: len(ids)], texts[i])
            self.between.think(episode.acting, episode.turns[-1], ids)
        told = [self.between.spoken(e.acting, text) for e, text in zip(rows, texts, strict=True)]
        steps = self.stage.call("step", [(e.number, (text,)) for e, text in zip(rows, told, strict=True)])
        for episode, step in zip(rows, steps, strict=True):
            episode.see(step)
        self._show([episode for episode in rows if episode.alive])

    def _show(self, episodes: Sequence[Episode]) -> None:
        """Put the last observation of each episode where it belongs: at the end of a row, or at the beginning of one.

        What an action led to and the policy cannot read is removed from the observation, and the turn is invalid: no
        action can end the run.
        """
        try:
            self._place(episodes)
        except InputError:
            if not [episode for episode in episodes if episode.turns and episode.leave_out(self._unreadable)]:
                raise
            self._place(episodes)

    def _unreadable(self, text: str) -> bool:
        try:
            self.policy.encode_all([text])
        except InputError:
            return True
        return False

    def _place(self, episodes: Sequence[Episode]) -> None:
        begun: list[tuple[Episode, str | tuple[Message, ...], Context | None]] = []
        grown: list[tuple[Episode, Context, Onward]] = []
        for episode in [each for each in episodes if each.alive]:
            context, shown = episode.addressed, episode.shown
            if unable := self.between.unable(shown):
                episode.fail(unable, who="the observation cannot be shown")
            elif context is None:
                first = self.between.first(episode.start.example, shown) if episode.opening is None else episode.opening
                begun.append((episode, first, None))
            elif (onward := self.between.onward(context, shown)).prompt is not None:
                begun.append((episode, onward.prompt, context))
            elif onward.text is not None:
                grown.append((episode, context, onward))
            else:
                episode.fail(onward.refused, who="the episode cannot be continued")
        prompts = self.policy.encode_prompts([prompt for _, prompt, _ in begun]) if begun else []
        later = self.between.encode([context for _, context, _ in grown], [onward.text or "" for *_, onward in grown])
        for (episode, prompt, before), ids in zip(begun, prompts, strict=True):
            episode.begin(prompt, list(ids), before)
        for (episode, context, onward), ids in zip(grown, later, strict=True):
            onward.keep(context)
            episode.go_on(context, ids)

    def _settle(self) -> None:
        """Request the scores of episodes that are over, and release their environments."""
        over = [episode for episode in self.episodes if not episode.alive and not episode.settled]
        well = [episode for episode in over if episode.failure is None]
        for episode, found in zip(well, self.stage.call("score", [(e.number, ()) for e in well]), strict=True):
            episode.record_scores(found)
        for episode, found in zip(over, self.stage.call("close", [(e.number, ()) for e in over]), strict=True):
            episode.settled = True
            if isinstance(found, Failure):
                episode.fail(found.what, found.trace, found.status)


@contextmanager
def _begun(
    policy: Any, stage: Stage, starts: Sequence[Start], agents: Sequence[str], history: History
) -> Iterator[_Table]:
    """Begin the episodes; close every environment whatever happens."""
    table = _Table(policy, stage, [Episode(i, start, agents) for i, start in enumerate(starts)], history)
    try:
        table.begin()
        yield table
    finally:
        stage.clear()


def laid_out(end: list[int], kind: torch.dtype, episodes: Sequence[Episode], *, exact: bool = True) -> Episodes:
    """Put finished episodes into rows, numbers of type `kind`.

    One whose environment failed before the first action has a row of `end`, which no policy wrote. `exact`: every
    turn was sampled with exact log-probs.
    """
    rows = [(e, c) for e in episodes for c in _rows_of(e, end)]
    ids = [tuple(c.ids) or tuple(end) for _, c in rows]
    width, turns = max(map(len, ids)), max(1, *(len(c.turns) for _, c in rows))
    rollout = Rollout(
        prompt_ids=tuple(tuple(c.prompt_ids) for _, c in rows),
        response_ids=tuple(ids),
        logp_bt=torch.tensor([_padded(c.logp, width, 0.0) for _, c in rows], dtype=kind),
        entropy_bt=torch.tensor([_padded(c.entropy, width, 0.0) for _, c in rows], dtype=kind),
        truncated_b=torch.tensor([e.ended in LATE for e, _ in rows]),
        exact=exact,
    )
    states = [[content_number(t.state) >> 1 if t.state else -1 for t in c.turns] for _, c in rows]
    return Episodes(
        rollout=rollout,
        mask_bt=np.array([_padded(c.mask, width, False) for _, c in rows], dtype=bool),
        turn_bt=np.array([_padded(c.turn_of, width, -1) for _, c in rows], dtype=np.int64),
        turn_reward_bs=np.array([_padded([t.reward for t in c.turns], turns, 0.0) for _, c in rows]),
        state_bs=np.array([_padded(row, turns, -1) for row in states], dtype=np.int64),
        valid_bs=np.array([_padded([t.valid for t in c.turns], turns, False) for _, c in rows], dtype=bool),
        episode_b=np.array([e.number for e, _ in rows], dtype=np.int64),
        agent_b=np.array([e.agents.index(c.agent) for e, c in rows], dtype=np.int64),
        context_b=np.array([c.number for _, c in rows], dtype=np.int64),
        caller_b=np.array([c.caller for _, c in rows], dtype=np.int64),
        ended=tuple(str(e.ended) for e, _ in rows),
        verdicts=tuple(e.verdict(c) for e, c in rows),
        prompts=tuple(c.messages for _, c in rows),
        texts=tuple(e.transcript(c) for e, c in rows),
        records=tuple(e.record(c) for e, c in rows),
        outcomes=tuple(e.outcome() for e in episodes),
        transcripts=tuple(e.transcript() for e in episodes),
    )


def _rows_of(episode: Episode, end: list[int]) -> list[Context]:
    """Return the contexts that were acted in; where there is none the first that was begun, or one of `end`."""
    acted = [context for context in episode.contexts if context.turns]
    return acted or episode.contexts[:1] or [Context(episode.agents[0], 0, -1, "", end)]


def _padded(values: Sequence[Any], width: int, fill: Any) -> list[Any]:
    return [*values, *[fill] * (width - len(values))]


__all__ = ["ENDINGS", "Episodes", "Record", "Start", "Turn", "demonstrate", "play"]
