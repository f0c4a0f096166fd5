"""Playing episodes whose observations are vectors and whose actions are numbers or vectors.

Every episode is one row with one position per action; what a policy scores it from are the observations and actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.envs.environment import Observation, Step
from grouprl.envs.environment_pool import HereStage, Stage
from grouprl.policy.arrays import ArrayInputs
from grouprl.protocols import Discrete, Request, RunSampler, SamplingSession, Spaces
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import Episode, Start
from grouprl.rollout.episodes import Episodes, laid_out

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NOBODY = [0]
"""Ids of a prompt, and of the row of an episode that failed before its first action: no policy wrote them."""


@dataclass
class _Play:
    """An episode with the numbers that its texts are made of."""

    episode: Episode
    seen: list[np.ndarray] = field(default_factory=list)
    """Observations before each action, and the current one."""
    actions: list[int | np.ndarray] = field(default_factory=list)
    exact: bool = True
    """Whether every action was sampled with exact log-probs."""


def play_arrays(
    sampler: RunSampler,
    make: Callable[[], object],
    starts: Sequence[Start],
    *,
    spaces: Spaces,
    max_turns: int,
    greedy: bool = False,
    stage: Stage | None = None,
) -> Episodes:
    """Act in one fresh environment for each of `starts`, all at the same time.

    Vectors are not clipped here: an environment with bounds clips its actions itself. An environment that raises, or
    shows an observation outside its space, ends its episode as an error.
    """
    stage = stage or HereStage(make)
    plays = [_Play(Episode(number, start, ("",))) for number, start in enumerate(starts)]
    try:
        _begin(plays, stage, spaces)
        with sampler.session() as session:
            while living := _living(plays, max_turns):
                _turn(living, session, stage, spaces, greedy=greedy)
        _settle([play.episode for play in plays], stage)
    finally:
        stage.clear()
    return _rows(plays, spaces)


def _begin(plays: Sequence[_Play], stage: Stage, spaces: Spaces) -> None:
    calls = [(p.episode.number, (p.episode.start.example, p.episode.start.seed)) for p in plays]
    for play, first in zip(plays, stage.call("reset", calls), strict=True):
        if (shown := _observed(play, first, spaces)) is not None:
            play.episode.see_first(shown)
            play.episode.begin(play.episode.start.example.prompt, list(NOBODY), None)


def _living(plays: Sequence[_Play], max_turns: int) -> list[_Play]:
    for play in plays:
        limit = play.episode.start.turns or max_turns
        if play.episode.alive and len(play.actions) >= min(max_turns, limit):
            play.episode.ended = "out_of_turns"
    return [play for play in plays if play.episode.alive]


def _turn(
    plays: Sequence[_Play],
    session: SamplingSession[np.ndarray, int | np.ndarray],
    stage: Stage,
    spaces: Spaces,
    *,
    greedy: bool,
) -> None:
    """Let every living episode act once."""
    requests = [
        Request(
            prompt=play.seen[-1],
            budget=1,
            seed=(play.episode.start.action_seed + len(play.actions)) % 2**64,
            temperature=play.episode.start.temperature,
            greedy=greedy,
            name=play.episode.number,
        )
        for play in plays
    ]
    samples = session.sample(requests)
    entropy_bt = np.zeros_like(samples.logp_bt) if samples.entropy_bt is None else samples.entropy_bt
    for play, (action,), logp, entropy in zip(plays, samples.actions, samples.logp_bt, entropy_bt, strict=True):
        number = int(action) if isinstance(spaces.action, Discrete) else len(play.actions)
        play.actions.append(action)
        play.exact = play.exact and samples.exact
        play.episode.act([number], [float(logp[0])], [float(entropy[0])], _spelt(action))
    steps = stage.call("step", [(play.episode.number, (play.actions[-1],)) for play in plays])
    for play, step in zip(plays, steps, strict=True):
        if not isinstance(step, Step):
            play.episode.see(step)
        elif (shown := _observed(play, step.observation, spaces)) is not None:
            play.episode.see(replace(step, observation=shown))
            play.episode.go_on(play.episode.acting, [])


def _observed(play: _Play, found: object, spaces: Spaces) -> Observation | None:
    """Take an observation; None, and the episode is over, where it is not of the space."""
    size = spaces.observation.size
    if isinstance(found, Failure):
        play.episode.fail_as(found)
        return None
    try:
        seen_d = np.asarray(found, dtype=np.float32)
    except (TypeError, ValueError):
        play.episode.fail(f"an observation is {type(found).__name__}, not {size} numbers")
        return None
    if seen_d.shape != (size,) or not np.isfinite(seen_d).all():
        what = f"has the shape {seen_d.shape}" if seen_d.shape != (size,) else f"is {_spelt(seen_d)}"
        play.episode.fail(f"an observation {what}; the space is {size} finite numbers")
        return None
    play.seen.append(seen_d)
    return Observation(_spelt(seen_d), state=seen_d.tobytes().hex())


def _settle(episodes: Sequence[Episode], stage: Stage) -> None:
    """Request the scores of episodes that ended well, and release every environment."""
    well = [episode for episode in episodes if episode.failure is None]
    for episode, found in zip(well, stage.call("score", [(e.number, ()) for e in well]), strict=True):
        episode.record_scores(found)
    for episode, found in zip(episodes, stage.call("close", [(e.number, ()) for e in episodes]), strict=True):
        if isinstance(found, Failure):
            episode.fail_as(found)


def _rows(plays: Sequence[_Play], spaces: Spaces) -> Episodes:
    """Lay the episodes out; one that failed before its first action has a row of zeros that no policy wrote."""
    episodes = laid_out(NOBODY, torch.float32, [p.episode for p in plays], exact=all(p.exact for p in plays))
    nothing = np.zeros((1, spaces.observation.size), dtype=np.float32)
    still: list[int] | np.ndarray = (
        [0] if isinstance(spaces.action, Discrete) else np.zeros((1, spaces.action.size), dtype=np.float32)
    )
    inputs = ArrayInputs.of(
        [np.stack(play.seen[: len(play.actions)]) if play.actions else nothing for play in plays],
        [np.stack(play.actions) if play.actions else still for play in plays],
    )
    return replace(episodes, rollout=replace(episodes.rollout, inputs=inputs))


def _spelt(value: ArrayLike) -> str:
    """Write an observation or action for a reader."""
    return " ".join(f"{float(x):.4g}" for x in np.atleast_1d(value))
