"""Playing episodes: environments at different turns share the decoder, and each ends on its own.

Token-in token-out: sampled tokens are kept as they are, an observation is encoded once and appended; nothing is decoded
and encoded again. Each agent of an episode has rows of its own: one, and one more for each fresh beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.core.hashing import content_number
from grouprl.envs.environment import Environment
from grouprl.envs.environment_pool import HereStage, Stage
from grouprl.policy.language.text import encode_after
from grouprl.protocols import NO_VERSION, EntropyScaling, Request, RunSampler, SamplingSession
from grouprl.records.episode_records import ENDINGS, Record, Turn
from grouprl.records.examples import Message
from grouprl.records.rollout import Rollout, as_rollout
from grouprl.records.tokens import Tokens
from grouprl.rewards.contract import Failure
from grouprl.rollout.deterministic_episodes import LockstepRounds
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import LATE, Context, Episode, Start
from grouprl.rollout.episode_scheduler import Player, Settling
from grouprl.rollout.episode_table import EpisodeLimits, EpisodeTable, NextTurns
from grouprl.rollout.turn_text import History

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide, TokenPolicy


@dataclass(frozen=True)
class Episodes:
    """E played episodes in B rows; T is the length of the longest row after its prompt, S the most turns of a row.

    The rows of an episode are next to each other, in the order in which they began.
    """

    tokens: Tokens
    """First observations, each followed by the actions and the environment's text in order."""
    laid_out: Callable[[], Rollout]
    """Function that makes `rollout`."""
    mask_bt: np.ndarray
    """[B,T] bool: tokens of actions, their end tokens included; without those of an untrained prefix."""
    turn_bt: np.ndarray
    """[B,T] int64: turn within the row of each action token, -1 elsewhere."""
    turn_reward_bs: np.ndarray
    """[B,S] float64: reward of each turn, 0 after the last."""
    state_bs: np.ndarray
    """[B,S] int64: number of the state in which each turn began, equal for equal keys; -1 for none."""
    valid_bs: np.ndarray
    """[B,S] bool: whether each action was understood and allowed; False after the last."""
    episode_b: np.ndarray
    """[B] int64: number of the row's episode, in the order of the starts."""
    agent_b: np.ndarray
    """[B] int64: number of the agent among the task's."""
    context_b: np.ndarray
    """[B] int64: number of the row within its episode."""
    caller_b: np.ndarray
    """[B] int64: number of the row of its episode that was active when it began, -1 for none."""
    ended: tuple[str, ...]
    """[B] one of `ENDINGS`."""
    verdicts: tuple[dict[str, float] | Failure, ...]
    """[B] components of the reward (`turn_rewards` of the row and the agent's scores), or the failure."""
    prompts: tuple[str | tuple[Message, ...], ...]
    """[B] first observations, as the policy sees them."""
    texts: tuple[str, ...]
    """[B] the exchange that followed, for readers."""
    records: tuple[Record, ...]
    """[B] the record of each row: its turns and their agent."""
    outcomes: tuple[dict[str, float] | Failure, ...]
    """[E] components of the whole episode's reward for its first agent, or the failure."""
    transcripts: tuple[str, ...]
    """[E] the whole exchange, for readers."""

    def __len__(self) -> int:
        return len(self.ended)

    @cached_property
    def rollout(self) -> Rollout:
        """The rows as tensors; log-probs and entropies are 0 on the environment's text."""
        return self.laid_out()

    @property
    def first_rows(self) -> list[int]:
        """Index of the row with which each episode began."""
        return np.unique(self.episode_b, return_index=True)[1].tolist()

    @property
    def failures(self) -> list[Failure]:
        """Failures of the episodes that ended with errors."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Failure)]

    @property
    def turns_b(self) -> np.ndarray:
        """[B] int64 turns of each row."""
        return self.turn_bt.max(1, initial=-1) + 1

    def per_episode(self, values_b: np.ndarray) -> np.ndarray:
        """Return the sums [E] of `values_b` over the rows of each episode."""
        return np.bincount(self.episode_b, weights=values_b, minlength=len(self.outcomes))


def play(
    policy: TokenPolicy,
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
    sampler: RunSampler | None = None,
    reproducible: bool = True,
) -> Episodes:
    """Let `policy` act, as every one of `agents`, in one fresh environment for each of `starts`.

    An episode depends only on its start and the policy, not on other episodes; if `reproducible`, bitwise, no matter
    how long environments take. A turn has at most `max_new_tokens` tokens and ends with an end token or one of the
    texts `stop`; an action that reaches them is acted on as it is. `max_turns` counts the turns of all agents together.
    An episode ends as an error if its environment raises, if the chat template rewrites earlier turns and `history` is
    'refuse', or if the policy cannot read the first observation. `stage` is the environment pool; None: environments
    run in this process. `sampler` samples the turns, each in a session with those before it; None: the policy's
    own, in this process.

    Raises:
        InputError: a first observation that leaves no room to act.
    """
    settings = TurnSettings(tuple(agents), greedy, top_p, top_k, tuple(stop), entropy_scaling)
    sampler = sampler or local_engine(policy)
    table = EpisodeTable(
        policy, stage or HereStage(make), history, EpisodeLimits(policy.max_positions, max_turns, max_new_tokens)
    )
    episodes = [Episode(number, start, agents) for number, start in enumerate(starts)]
    with ExitStack() as open_sessions:
        open_sessions.callback(table.stage.clear)
        turns = TurnSampling(sampler, settings, open_sessions)
        if reproducible:
            LockstepRounds(table, turns, TurnSampling(sampler, settings, open_sessions), episodes).play()
        else:
            player = Player(table, turns)
            player.begin(episodes)
            while player.busy:
                player.advance()
        return laid_out(list(policy.eos_ids[:1]), partial(score_type, policy), episodes, exact=turns.exact)


@dataclass(frozen=True)
class TurnSettings:
    """Settings for sampling turns; see `play`."""

    agents: tuple[str, ...] = ("",)
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    entropy_scaling: EntropyScaling | None = None


class TurnSampling:
    """Samples the next turns of episodes in its own session, which is opened at the first turn."""

    def __init__(self, sampler: RunSampler, settings: TurnSettings, open_sessions: ExitStack) -> None:
        self.sampler, self.settings, self._open = sampler, settings, open_sessions
        self._session: SamplingSession[object, int] | None = None
        self.exact = True
        """Whether every turn so far was sampled with exact log-probs."""

    def __call__(self, episodes: Sequence[Episode], budget: int) -> NextTurns:
        """Sample a turn of at most `budget` tokens for each episode."""
        if self._session is None:
            self._session = self._open.enter_context(self.sampler.session())
        requests = [self._request(episode, budget) for episode in episodes]
        sampled = as_rollout(requests, self._session.sample(requests))
        self.exact = self.exact and sampled.exact
        return NextTurns.sampled(sampled)

    def _request(self, episode: Episode, budget: int) -> Request[tuple[int, ...]]:
        s = self.settings
        return Request(
            (*episode.acting.prompt_ids, *episode.acting.ids),
            budget,
            (episode.start.action_seed + len(episode.turns)) % 2**64,
            episode.start.temperature,
            greedy=s.greedy,
            top_p=s.top_p,
            top_k=s.top_k,
            stop_texts=s.stop,
            entropy_scaling=s.entropy_scaling,
            name=(episode.number, episode.acting.number),
            agent=s.agents.index(episode.acting.agent),
        )


def score_type(policy: object) -> torch.dtype:
    """Return the type of a policy's log-probs."""
    kind: torch.dtype = getattr(policy, "score_dtype", torch.float32)
    return kind


def demonstrate(
    policy: TextSide,
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

    `policy` encodes the actions; log-probs are 0. If an environment fails or cannot demonstrate, its episode ends as an
    error.
    """
    end = list(policy.eos_ids[:1])
    stage = stage or HereStage(make)
    table = EpisodeTable(policy, stage, history, EpisodeLimits(positions, max_turns, max_new_tokens))
    episodes = [Episode(number, start, agents) for number, start in enumerate(starts)]
    with closing_stage(stage):
        firsts = stage.call("reset", [(e.number, (e.start.example, e.start.seed)) for e in episodes])
        table.see(list(zip(episodes, firsts, strict=True)))
        while living := table.room(episode for episode in episodes if episode.alive):
            _settle(episodes, stage)
            for budget, rows in living.items():
                shown = stage.call("demonstrate", [(e.number, (e.start.example.id, e.start.seed)) for e in rows])
                acts = [act if isinstance(act, str) else "" for act in shown]
                before = [e.acting.ids or e.acting.prompt_ids for e in rows]
                ids = [[*x[: budget - len(end)], *end] for x in encode_after(policy, before, acts)]
                for episode, act in zip(rows, shown, strict=True):
                    _check_demonstration(episode, act)
                alive = [i for i, episode in enumerate(rows) if episode.alive]
                _step([rows[i] for i in alive], NextTurns.written([ids[i] for i in alive]), table)
        _settle(episodes, stage)
        return laid_out(end, partial(score_type, policy), episodes)


def _check_demonstration(episode: Episode, act: object) -> None:
    if isinstance(act, Failure):
        episode.fail_as(act)
    elif not isinstance(act, str):
        episode.fail(f"demonstrate() returned {type(act).__name__}, but it must return str")


def _step(rows: Sequence[Episode], given: NextTurns, table: EpisodeTable) -> None:
    """Play given turns, and wait for the environments' answers."""
    texts = table.act(rows, given)
    steps = table.stage.call("step", [(e.number, (text,)) for e, text in zip(rows, texts, strict=True)])
    table.see(list(zip(rows, steps, strict=True)))


def _settle(episodes: Sequence[Episode], stage: Stage) -> None:
    """Settle the episodes that are over, and wait until it is done."""
    settling = Settling(stage)
    for episode in episodes:
        if not episode.alive and not episode.settled:
            settling.begin(episode, episode.number)
    while len(settling):
        for number, answer in stage.receive():
            settling.hear(number, answer)


@contextmanager
def closing_stage(stage: Stage) -> Iterator[None]:
    """Close every environment in the end, whatever happens."""
    try:
        yield
    finally:
        stage.clear()


def laid_out(
    end: list[int], kind: Callable[[], torch.dtype], episodes: Sequence[Episode], *, exact: bool = True
) -> Episodes:
    """Arrange finished episodes as rows; `kind` is called for the type of their log-probs when these are read.

    One whose environment failed before the first action has a row of `end`, which no policy wrote. `exact` says that
    every turn was sampled with exact log-probs.
    """
    rows = [(e, c) for e in episodes for c in _rows_of(e, end)]
    ids = [tuple(c.ids) or tuple(end) for _, c in rows]
    width, turns = max(map(len, ids)), max(1, *(len(c.turns) for _, c in rows))
    tokens = Tokens(tuple(tuple(c.prompt_ids) for _, c in rows), tuple(ids))
    states = [[content_number(t.state) >> 1 if t.state else -1 for t in c.turns] for _, c in rows]
    return Episodes(
        tokens=tokens,
        laid_out=partial(_as_rollout, tokens, rows, width, kind, exact=exact),
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


def _as_rollout(
    tokens: Tokens, rows: Sequence[tuple[Episode, Context]], width: int, kind: Callable[[], torch.dtype], *, exact: bool
) -> Rollout:
    return Rollout(
        tokens,
        logp_bt=torch.tensor([_padded(c.logp, width, 0.0) for _, c in rows], dtype=kind()),
        entropy_bt=torch.tensor([_padded(c.entropy, width, 0.0) for _, c in rows], dtype=kind()),
        truncated_b=torch.tensor([e.ended in LATE for e, _ in rows]),
        exact=exact,
        version_bt=_versions([c.version for _, c in rows], width),
    )


def _rows_of(episode: Episode, end: list[int]) -> list[Context]:
    """Return the contexts with actions; if there are none, the first context, or a placeholder of the tokens `end`."""
    acted = [context for context in episode.contexts if context.turns]
    return acted or episode.contexts[:1] or [Context(episode.agents[0], 0, -1, "", end)]


def _versions(versions: Sequence[Sequence[int]], width: int) -> torch.Tensor | None:
    """Return the version [B,T] that sampled each token; None if no version is known."""
    if not any(version != NO_VERSION for row in versions for version in row):
        return None
    return torch.tensor([_padded(row, width, NO_VERSION) for row in versions], dtype=torch.int64)


def _padded(values: Sequence[object], width: int, fill: object) -> list[object]:
    return [*values, *[fill] * (width - len(values))]


__all__ = ["ENDINGS", "Episodes", "Record", "Start", "Turn", "demonstrate", "play"]
