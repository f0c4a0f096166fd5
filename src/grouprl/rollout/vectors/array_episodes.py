"""Playing episodes whose observations are arrays and whose actions are numbers or arrays.

Every episode is one row with one position per action; a policy scores it from its observations and actions. If
`Spaces.chain` is above 1, a turn is a chain of actions that the policy takes by its own dynamics in one request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import cast

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import bounded, observed, observed_after, spelt, told, zeros
from grouprl.envs.environment import ArrayObservation, Observation, Step
from grouprl.envs.environment_pool import HereStage, Stage
from grouprl.policy.vectors.array_columns import SEEDS
from grouprl.policy.vectors.array_inputs import ArrayInputs
from grouprl.protocols import Discrete, Request, RunSampler, Samples, SamplingSession, Spaces
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import LATE, Episode, Start
from grouprl.rollout.episodes import Episodes, laid_out

NOBODY = [0]
"""Placeholder ids of a prompt, and of the row of an episode that failed before its first action."""
AGENT_SEEDS = 2**32
"""Distance between the seeds of the first actions of two agents."""
LONGEST_KEY = 1024
"""Bytes up to which an observation itself is its key; longer observations use their hash."""


@dataclass
class _Row:
    """The arrays of one agent in an episode."""

    seed: int
    context: Mapping[str, object]
    states: list[ArrayObservation] = field(default_factory=list)
    """The observation that each action responded to."""
    actions: list[int | np.ndarray] = field(default_factory=list)
    origins: list[np.ndarray | None] = field(default_factory=list)
    """The numbers that each action was made of; see `Samples.origins`."""
    final: ArrayObservation | None = None
    """The last observation that the agent was shown."""


@dataclass
class _Play:
    """An episode with its arrays; its texts are made from them."""

    episode: Episode
    shown: ArrayObservation | None = None
    """The observation of the agent that acts next."""
    rows: dict[str, _Row] = field(default_factory=dict)
    """The row of each agent that has been shown an observation."""
    cut: set[str] = field(default_factory=set)
    """Agents that a limit cut off."""
    exact: bool = True
    """Whether every action was sampled with exact log-probs."""
    kind: torch.dtype = torch.float32
    """The type of the log-probs."""

    def show(self, shown: ArrayObservation, *, first: bool) -> None:
        """Record an observation; the context of the episode comes with the first one."""
        agents, start = self.episode.agents, self.episode.start
        if shown.agent in agents and shown.agent not in self.rows:
            context = shown.context if first else next(iter(self.rows.values())).context
            seed = (start.action_seed + agents.index(shown.agent) * AGENT_SEEDS) % SEEDS
            self.rows[shown.agent] = _Row(seed, context)
        if shown.agent in self.rows:
            self.rows[shown.agent].final = shown
        self.shown = shown

    def request(self, budget: int, *, greedy: bool) -> Request[ArrayObservation]:
        """Return the request for the next turn; action t of an agent is sampled with the seed of its first action plus
        t.
        """
        start, now, row = self.episode.start, cast("ArrayObservation", self.shown), self._acting
        return Request(
            prompt=replace(now, context=row.context),
            budget=budget,
            seed=(row.seed + len(row.actions)) % SEEDS,
            temperature=start.temperature,
            greedy=greedy,
            name=self.episode.number,
            agent=self.episode.agents.index(now.agent),
        )

    def act(self, number: int, samples: Samples[int | np.ndarray], discrete: bool) -> None:
        """Record the actions of sample `number`."""
        actions, row = samples.actions[number], self._acting
        if samples.logp_bt is not None:
            self.kind = torch.from_numpy(samples.logp_bt).dtype
        ids = [int(action) if discrete else len(row.actions) + i for i, action in enumerate(actions)]
        logp, entropy = (
            [0.0] * len(ids) if column is None else column[number, : len(ids)].tolist()
            for column in (samples.logp_bt, samples.entropy_bt)
        )
        row.actions += actions
        row.origins += [None] * len(actions) if samples.origins is None else samples.origins[number]
        states = [self.shown] if samples.states is None else samples.states[number]
        row.states += cast("Sequence[ArrayObservation]", states)
        self.exact = self.exact and samples.exact
        self.episode.act(ids, logp, entropy, ", ".join(map(spelt, actions)))

    @property
    def _acting(self) -> _Row:
        return self.rows[cast("ArrayObservation", self.shown).agent]


def play_arrays(
    sampler: RunSampler,
    make: Callable[[], object],
    starts: Sequence[Start],
    *,
    spaces: Spaces,
    max_turns: int,
    agents: Sequence[str] = ("",),
    greedy: bool = False,
    stage: Stage | None = None,
) -> Episodes:
    """Play one episode in a fresh environment for each of `starts`, all at the same time.

    Each of `agents` that acts has a row of its own; `max_turns` counts the turns of all of them. Actions in a Box are
    clipped to its bounds when they are passed to environments. An environment that raises, or shows an observation
    outside its space, ends its episode as an error, and so does one of several agents that is cut off without the last
    observations of the agents that could still act.
    """
    stage = stage or HereStage(make)
    plays = [_Play(Episode(number, start, agents)) for number, start in enumerate(starts)]
    try:
        _begin(plays, stage, spaces)
        with sampler.session() as session:
            while living := _living(plays, max_turns):
                _turn(living, session, stage, spaces, greedy=greedy)
        _cut_off(plays)
        _settle([play.episode for play in plays], stage)
    finally:
        stage.clear()
    return _rows(plays, spaces)


def _begin(plays: Sequence[_Play], stage: Stage, spaces: Spaces) -> None:
    calls = [(p.episode.number, (p.episode.start.example, p.episode.start.seed)) for p in plays]
    for play, first in zip(plays, stage.call("reset", calls), strict=True):
        if (shown := _observed(play, first, spaces)) is not None:
            play.episode.see_first(shown)
            if play.episode.alive:
                play.episode.begin(play.episode.start.example.prompt, list(NOBODY), None)


def _living(plays: Sequence[_Play], max_turns: int) -> list[_Play]:
    for play in plays:
        limit = play.episode.start.turns or max_turns
        if play.episode.alive and len(play.episode.turns) >= min(max_turns, limit):
            play.episode.ended = "out_of_turns"
    return [play for play in plays if play.episode.alive]


def _turn(
    plays: Sequence[_Play],
    session: SamplingSession[ArrayObservation, int | np.ndarray],
    stage: Stage,
    spaces: Spaces,
    *,
    greedy: bool,
) -> None:
    """Let every running episode act once, or take a chain of actions."""
    samples = session.sample([play.request(spaces.chain, greedy=greedy) for play in plays])
    for number, play in enumerate(plays):
        play.act(number, samples, isinstance(spaces.action, Discrete))
    told = [_told(actions, spaces) for actions in samples.actions]
    steps = stage.call("step", [(play.episode.number, (action,)) for play, action in zip(plays, told, strict=True)])
    for play, step in zip(plays, steps, strict=True):
        if not isinstance(step, Step):
            play.episode.see(step)
        elif (shown := _observed(play, step, spaces)) is not None:
            play.episode.see(replace(step, observation=shown))
            _record_cuts(play, step.info.get("finals"), spaces)
            _pass_turn(play.episode)


def _pass_turn(episode: Episode) -> None:
    """Let the agent that was shown the last observation act next."""
    if episode.failure is not None:
        return
    if (row := episode.addressed) is not None:
        episode.go_on(row, [])
    elif episode.alive:
        episode.begin(episode.start.example.prompt, list(NOBODY), None)


def _record_cuts(play: _Play, finals: object, spaces: Spaces) -> None:
    """Record the last observations of agents that a limit cuts off."""
    if finals is None or play.episode.failure is not None:
        return
    if not isinstance(finals, Mapping):
        play.episode.fail(f"Step.info['finals'] is {type(finals).__name__}, not observations by agent")
        return
    for agent, values in finals.items():
        try:
            final = observed(spaces, values, first=False, cut=True)
        except InputError as error:
            play.episode.fail(f"the last observation of the agent {agent!r} {error.what}; {error.rule}")
            return
        if agent in play.rows:
            play.rows[agent].final = final
            play.cut.add(agent)


def _cut_off(plays: Sequence[_Play]) -> None:
    """Check that episodes of several agents which a limit ended have shown whom it cut off."""
    for play in plays:
        episode = play.episode
        if episode.ended in LATE and len(episode.agents) > 1 and not play.cut:
            episode.fail(
                "a limit ended it, and it shows no last observations. Give them by agent in Step.info['finals'] "
                "together with truncated, before task.turns is reached"
            )


def _told(actions: Sequence[int | np.ndarray], spaces: Spaces) -> int | np.ndarray:
    """Return a turn as the environment takes it: its action, or the array of all actions of its chain."""
    if spaces.chain > 1:
        return bounded(spaces.action, np.stack(actions))
    (action,) = actions
    # A copy: an environment may change what it is given, and the row keeps what was sampled.
    return int(action) if isinstance(spaces.action, Discrete) else bounded(spaces.action, np.array(action))


def _observed(play: _Play, found: object, spaces: Spaces) -> Observation | None:
    """Record the first observation, or that of a step; if it is not in its space, end the episode and return None."""
    if isinstance(found, Failure):
        play.episode.fail_as(found)
        return None
    first = play.shown is None
    try:
        shown = observed(spaces, found, first=True) if first else observed_after(spaces, cast("Step", found))
    except InputError as error:
        play.episode.fail(f"an observation {error.what}; {error.rule}")
        return None
    play.show(shown, first=first)
    return Observation(told(shown), state=_key(shown.values), agent=shown.agent)


def _settle(episodes: Sequence[Episode], stage: Stage) -> None:
    """Request the scores of episodes that ended well, and release every environment."""
    well = [episode for episode in episodes if episode.failure is None]
    for episode, found in zip(well, stage.call("score", [(e.number, ()) for e in well]), strict=True):
        episode.record_scores(found)
    for episode, found in zip(episodes, stage.call("close", [(e.number, ()) for e in episodes]), strict=True):
        if isinstance(found, Failure):
            episode.close_failed(found)


def _rows(plays: Sequence[_Play], spaces: Spaces) -> Episodes:
    """Arrange the episodes as rows; one that failed before its first action has a row of zeros that no policy wrote."""
    kind = reduce(torch.promote_types, [play.kind for play in plays], torch.float32)
    episodes = laid_out(NOBODY, lambda: kind, [p.episode for p in plays], exact=all(p.exact for p in plays))
    pairs = [(play, row) for play in plays for row in _acted(play, spaces)]
    rows, nothing = [row for _, row in pairs], ArrayObservation(zeros(spaces.observation))
    finals = [row.final or nothing for row in rows]
    inputs = ArrayInputs.of(
        [stacked([state.values for state in row.states]) for row in rows],
        [np.stack(row.actions) for row in rows],
        origin_bta=[row.origins for row in rows],
        context_b=[row.context for row in rows],
        legal_bta=[masks_of(row.states) for row in rows],
        final_b=[each.values for each in finals],
        final_legal_ba=[each.legal for each in finals],
        seed_b=[row.seed for row in rows],
    )
    rollout = replace(episodes.rollout, inputs=inputs)
    if plays and len(plays[0].episode.agents) > 1:
        names = [plays[0].episode.agents[number] for number in episodes.agent_b]
        cut_b = torch.tensor([name in play.cut for (play, _), name in zip(pairs, names, strict=True)])
        rollout = replace(rollout, truncated_b=cut_b)
    return replace(episodes, laid_out=lambda: rollout)


def _acted(play: _Play, spaces: Spaces) -> list[_Row]:
    """Return the rows of the agents that acted, in the order in which they began; if there are none, one of zeros."""
    acted = [row for row in play.rows.values() if row.actions]
    first = next(iter(play.rows.values()), None)
    context = zeros(spaces.context) if first is None else first.context
    nothing = ArrayObservation(zeros(spaces.observation))
    return acted or [
        _Row(
            play.episode.start.action_seed,
            cast("Mapping[str, object]", context),
            [nothing],
            [np.asarray(zeros(spaces.action))],
            [None],
            None if first is None else first.final,
        )
    ]


def stacked(values: Sequence[object]) -> object:
    """Return the T observations that actions responded to as [T,…], by name if they are named arrays."""
    if isinstance(values[0], Mapping):
        named = cast("Sequence[Mapping[str, np.ndarray]]", values)
        return {name: np.stack([value[name] for value in named]) for name in named[0]}
    return np.stack(cast("Sequence[np.ndarray]", values))


def masks_of(states: Sequence[ArrayObservation]) -> np.ndarray | None:
    """Return the masks [T,A] of legal actions; None if all actions are legal."""
    masks = [np.asarray(state.legal) for state in states if state.legal is not None]
    if not masks:
        return None
    return np.stack([np.ones_like(masks[0]) if s.legal is None else np.asarray(s.legal) for s in states])


def _key(values: object) -> str:
    """Return a key of an observation: equal keys are equal observations."""
    arrays = list(values.values()) if isinstance(values, Mapping) else [values]
    content: bytes = b"".join(np.asarray(array).tobytes() for array in arrays)
    return content.hex() if len(content) <= LONGEST_KEY else hashlib.blake2b(content).hexdigest()
