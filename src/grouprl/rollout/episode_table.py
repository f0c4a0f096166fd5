"""Rules of episodes that are played together: which may act, how actions are recorded, and where observations are
put.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.chat.turn_content import Call, Spoken
from grouprl.core.errors import InputError
from grouprl.envs.environment_pool import Stage
from grouprl.records.examples import Message
from grouprl.records.rollout import Rollout
from grouprl.rollout.episode import Context, Episode
from grouprl.rollout.turn_text import History, Onward, TurnText

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide

_Beginning = tuple[Episode, str | tuple[Message, ...], Context | None]
"""An episode, the prompt of the row that it begins, and the row that this one continues."""
UNSHOWN = "the first observation cannot be shown"
"""Beginning of the failure message of an episode whose prompt the chat template or the tokenizer refuses."""


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of episodes: positions of the model (None: unlimited), turns of all agents, tokens of a turn."""

    positions: int | None
    max_turns: int
    max_new_tokens: int


@dataclass(frozen=True)
class NextTurns:
    """The next turn of each of several episodes; what is beyond the end of a turn in its numbers is not read."""

    ids: Sequence[Sequence[int]]
    logp: Sequence[Sequence[float]]
    entropy: Sequence[Sequence[float]]
    versions: Sequence[Sequence[int]] | None = None
    """Versions of the policy that sampled each token, if they are known."""
    exact: bool = True
    """Whether the log-probs are the policy's own."""

    @classmethod
    def sampled(cls, rollout: Rollout) -> NextTurns:
        """Return turns that a policy sampled."""
        versions = None if rollout.version_bt is None else rollout.version_bt.tolist()
        return cls(rollout.response_ids, rollout.logp_bt.tolist(), rollout.entropy_bt.tolist(), versions, rollout.exact)

    @classmethod
    def written(cls, ids: Sequence[Sequence[int]]) -> NextTurns:
        """Return turns that no policy sampled: log-probs are 0."""
        zeros = [[0.0] * len(own) for own in ids]
        return cls(ids, zeros, zeros)


class EpisodeTable:
    """The shared settings of episodes in one environment pool: the policy that reads and writes, the limits, the chat
    template.
    """

    def __init__(self, policy: TextSide, stage: Stage, history: History, limits: EpisodeLimits) -> None:
        self.policy, self.stage, self.limits = policy, stage, limits
        self.turn_text = TurnText(policy, history)

    def room(self, episodes: Iterable[Episode]) -> dict[int, list[Episode]]:
        """Return running episodes by the number of tokens that their next turn may have; end those with none left.

        Raises:
            InputError: a first observation that leaves no room to act.
        """
        living: dict[int, list[Episode]] = {}
        positions, limits = self.limits.positions, self.limits
        for episode in episodes:
            budget = min(episode.start.budget or limits.max_new_tokens, limits.max_new_tokens)
            left = None if positions is None else positions - episode.acting.length
            budget = budget if left is None else min(budget, left)
            if len(episode.turns) >= min(limits.max_turns, episode.start.turns or limits.max_turns):
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
        return living

    def act(self, rows: Sequence[Episode], turns: NextTurns) -> list[str]:
        """Record the next turns of episodes; return the actions as environments take them."""
        texts = list(self.policy.decode_all(turns.ids))
        for i, (episode, own) in enumerate(zip(rows, turns.ids, strict=True)):
            ids = list(own)
            of_turn = None if turns.versions is None else list(turns.versions[i][: len(ids)])
            episode.act(ids, list(turns.logp[i][: len(ids)]), list(turns.entropy[i][: len(ids)]), texts[i], of_turn)
            self.turn_text.think(episode.acting, episode.turns[-1], ids)
        return [self._told(e, text, ids) for e, text, ids in zip(rows, texts, turns.ids, strict=True)]

    def _told(self, episode: Episode, text: str, ids: Sequence[int]) -> str:
        """Return an action as its environment takes it."""
        counted = (episode.acting.length - len(ids), len(ids)) if episode.shown.counting else None
        told = self.turn_text.spoken(episode.acting, text, counted)
        tools = getattr(episode.acting.messages, "tools", ())
        if tools and isinstance(told, Spoken):
            episode.turns[-1].calls = [str(call) for call in told.said.calls if isinstance(call, Call)]
        return told

    def see(self, answered: Sequence[tuple[Episode, object]]) -> None:
        """Record the answers of environments to `reset` or to the last action, and show them to the episodes that
        continue.
        """
        for episode, answer in answered:
            if episode.turns:
                episode.see(answer)
            else:
                episode.see_first(answer)
        self._show([episode for episode, _ in answered if episode.alive])

    def _show(self, episodes: Sequence[Episode]) -> None:
        """Put the last observation of each episode where it belongs: at the end of a row, or at the beginning of one.

        Characters of a later observation that the policy cannot read are removed, and the turn is invalid, so that no
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
        begun: list[_Beginning] = []
        grown: list[tuple[Episode, Context, Onward]] = []
        for episode in [each for each in episodes if each.alive]:
            context, shown = episode.addressed, episode.shown
            if unable := self.turn_text.unable(shown):
                episode.fail(unable, who="the observation cannot be shown")
            elif context is None:
                first = (
                    self.turn_text.first(episode.start.example, shown) if episode.opening is None else episode.opening
                )
                begun.append((episode, first, None))
            elif (onward := self.turn_text.onward(context, shown)).prompt is not None:
                begun.append((episode, onward.prompt, context))
            elif onward.text is not None:
                grown.append((episode, context, onward))
            else:
                episode.fail(onward.refused, who="the episode cannot be continued")
        begun, prompts = self._prompts(begun)
        later = self.turn_text.encode([context for _, context, _ in grown], [onward.text or "" for *_, onward in grown])
        for (episode, prompt, before), ids in zip(begun, prompts, strict=True):
            episode.begin(prompt, list(ids), before)
        for (episode, context, onward), ids in zip(grown, later, strict=True):
            onward.keep(context)
            episode.go_on(context, ids)

    def _prompts(self, begun: list[_Beginning]) -> tuple[list[_Beginning], Sequence[Sequence[int]]]:
        """Return the rows that can begin, and the tokens of their prompts.

        An episode whose first observation cannot be shown fails, and its prompt is set aside; the other episodes
        continue.

        Raises:
            InputError: a later observation that cannot be shown.
        """
        try:
            return begun, self.policy.encode_prompts([prompt for _, prompt, _ in begun]) if begun else []
        except InputError:
            found: list[tuple[_Beginning, Sequence[int]]] = []
            for beginning in begun:
                try:
                    found.append((beginning, self.policy.encode_prompts([beginning[1]])[0]))
                except InputError as error:
                    if beginning[0].turns:
                        raise
                    beginning[0].fail(str(error), who=UNSHOWN, lost=True)
            return [each for each, _ in found], [ids for _, ids in found]
