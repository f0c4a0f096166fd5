"""Rewards of environments that compare the episodes of a group: they are known only when the whole group has ended."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from grouprl.envs.async_methods import awaited
from grouprl.protocols import GroupScored
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start

Verdict = dict[str, float] | Failure


def with_group_scores(
    task: object, episodes: Episodes, starts: Sequence[Start], groups: Sequence[Hashable]
) -> Episodes:
    """Return E episodes with the rewards that their task gives by comparing the episodes of a group.

    Args:
        task: task of the episodes; if it is not `GroupScored`, they are returned unchanged.
        starts: starts of the E episodes.
        groups: the group of each; episodes of equal groups are compared.
    """
    if not isinstance(task, GroupScored) or not task.scores_groups:
        return episodes
    members: dict[Hashable, list[int]] = {}
    for number, (group, outcome) in enumerate(zip(groups, episodes.outcomes, strict=True)):
        if not isinstance(outcome, Failure):
            members.setdefault(group, []).append(number)
    found: dict[int, Verdict | None] = {}
    for numbers in members.values():
        names = [(starts[number].example.id, starts[number].seed) for number in numbers]
        found |= dict(zip(numbers, awaited(task.score_group(names)), strict=True))
    rows = zip(episodes.verdicts, episodes.episode_b.tolist(), strict=True)
    return replace(
        episodes,
        verdicts=tuple(_merged(verdict, found.get(number)) for verdict, number in rows),
        outcomes=tuple(_merged(outcome, found.get(number)) for number, outcome in enumerate(episodes.outcomes)),
    )


def _merged(verdict: Verdict, more: Verdict | None) -> Verdict:
    if isinstance(verdict, Failure) or more is None:
        return verdict
    return more if isinstance(more, Failure) else {**verdict, **more}
