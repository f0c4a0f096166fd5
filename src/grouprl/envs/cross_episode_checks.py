"""Rules that are checked over many episodes together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import Observation
from grouprl.envs.findings import CheckedEpisode, Findings

CHOOSERS = ("demonstrated", "legal", "random", "nonsense")
FEW_STATES = 40
"""Visits below which the absence of repeated states proves nothing."""
FEW_TOTALS = 20
"""Episodes below which equal returns may be due to chance."""
FEW_TURNS = 6
"""Turns below which a growing observation may be due to chance."""


def examine_episodes(played: Sequence[CheckedEpisode], findings: Findings) -> None:
    """Add findings on all episodes together."""
    for episode in played:
        findings.episode = f"example {episode.example}, seed {episode.seed}"
        _examine_growth(episode, findings)
    findings.episode = "all episodes"
    _examine_beginnings(played, findings)
    _examine_states(played, findings)
    _examine_returns(played, findings)


def examine_agents(played: Sequence[CheckedEpisode], findings: Findings, agents: Sequence[str]) -> None:
    """Add findings on agents that never act, and on a first agent that never gets a score."""
    acted = {seen.agent for episode in played for seen in episode.observations[: len(episode.steps)]}
    idle = [agent for agent in agents if agent not in acted]
    if played and idle:
        what = f"In {len(played)} episodes {', '.join(map(repr, idle))} never acted"
        rule = "every agent of the task acts; the first agent's reward is that of the episode"
        findings.advise("idle agents", what, rule, "Leave it out of `agents`, or let an observation name it.")


def summary(played: Sequence[CheckedEpisode]) -> dict[str, object]:
    """Return numbers for a reader: turns, returns, validity and states, each by the source of the actions."""
    visits = [key for key, _ in _visits(played)]
    facts: JsonObject = {"episodes": len(played), "states": len(set(visits)), "visits": len(visits)}
    if played:
        facts["longest_episode"] = max(len(episode.steps) for episode in played)
        facts["longest_text"] = max(len(each.text) for episode in played for each in episode.observations)
        facts["lowest_return"] = min(episode.total for episode in played)
        facts["highest_return"] = max(episode.total for episode in played)
    for chooser in CHOOSERS:
        theirs = [episode for episode in played if episode.chooser == chooser]
        if theirs:
            steps = [step for episode in theirs for step in episode.steps]
            facts[chooser] = {
                "episodes": len(theirs),
                "turns": fmean(len(episode.steps) for episode in theirs),
                "return": fmean(episode.total for episode in theirs),
                "correct": fmean(episode.score.get("correct", 0.0) for episode in theirs),
                "valid": fmean(step.valid for step in steps) if steps else 0.0,
            }
    return facts


def _examine_growth(episode: CheckedEpisode, findings: Findings) -> None:
    lengths = [len(step.observation.text) for step in episode.steps]
    if len(lengths) >= FEW_TURNS and all(a < b for a, b in pairwise(lengths)):
        what = f"The observation grew on each of {len(lengths)} turns, from {lengths[0]} to {lengths[-1]} characters"
        rule = "an observation holds only what is new; the earlier text already precedes it"
        findings.add("growing text", what, rule, "Leave the history out of the text.")


def _examine_beginnings(played: Sequence[CheckedEpisode], findings: Findings) -> None:
    firsts: dict[str, set[str]] = defaultdict(set)
    for episode in played:
        firsts[episode.example].add(episode.first.text)
    for example, texts in firsts.items():
        if len(texts) > 1:
            one, two, *_ = sorted(texts)
            what = f"Example {example} began with {_cut(one)} and, with another seed, with {_cut(two)}"
            rule = "the example alone decides the first observation: the completions of a group begin alike"
            findings.add("beginning", what, rule, "Use the example for the beginning, the seed for what follows.")
            return


def _visits(played: Sequence[CheckedEpisode]) -> Iterator[tuple[tuple[str, str], Observation]]:
    """Yield (example, state key) and observation of every state that has a key and was reached by a valid action."""
    for episode in played:
        for step in episode.steps:
            if step.observation.state and step.valid and not (step.terminated or step.truncated):
                yield (episode.example, step.observation.state), step.observation


def _examine_states(played: Sequence[CheckedEpisode], findings: Findings) -> None:
    seen: dict[tuple[str, str], Observation] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for key, observation in _visits(played):
        counts[key] += 1
        before = seen.setdefault(key, observation)
        if before.legal != observation.legal:
            what = f"State {key[1]!r} had the legal actions {before.legal} and then {observation.legal}"
            findings.add("state differs", what, "equal keys are equal states", "Put what is missing into the key.")
        elif before.text != observation.text:
            what = f"State {key[1]!r} was shown as {_cut(before.text)} and as {_cut(observation.text)}"
            rule = "equal keys are equal states; texts may differ only in how the state was reached"
            findings.advise("state texts", what, rule, "If more differs, put it into the key.")
    if sum(counts.values()) >= FEW_STATES and max(counts.values()) == 1:
        what = f"None of {len(counts)} state keys came twice, such as {next(iter(counts))[1]!r}"
        rule = "credit by states compares what followed the same state; keys that never repeat compare nothing"
        findings.add("states never repeat", what, rule, "Leave counters and history out of the key, or give no key.")
    keyed = {bool(each.state) for episode in played for each in episode.observations[: len(episode.steps)]}
    if len(keyed) > 1:
        findings.advise("some keys", "Some observations have a state key and some have none", "all have one or none")


def _examine_returns(played: Sequence[CheckedEpisode], findings: Findings) -> None:
    totals = [episode.total for episode in played]
    if len(totals) >= FEW_TOTALS and min(totals) == max(totals):
        what = f"All {len(totals)} episodes gave {totals[0]:g}"
        rule = "learning needs some completions that do better than others"
        findings.advise(
            "equal returns", what, rule, "If chance never succeeds, begin with demonstrations or something easier."
        )
    by_chooser = {name: [e.total for e in played if e.chooser == name] for name in CHOOSERS}
    _examine_nonsense(by_chooser, findings)
    shown, others = by_chooser["demonstrated"], by_chooser["legal"] + by_chooser["random"]
    if len(shown) < 5 or not others:
        return
    error = pstdev(totals) * (1 / len(shown) + 1 / len(others)) ** 0.5
    if fmean(shown) < fmean(others) - 2 * error:
        what = f"Demonstrations gave {fmean(shown):.3g} on average, random actions {fmean(others):.3g}"
        findings.advise("demonstrations", what, "demonstrations are imperfect but better than chance")


def _examine_nonsense(by_chooser: dict[str, list[float]], findings: Findings) -> None:
    """Check that nonsense was not the best policy tried."""
    means = {name: fmean(totals) for name, totals in by_chooser.items() if totals}
    nonsense = means.pop("nonsense", None)
    if nonsense is not None and means and nonsense > max(means.values()):
        best = max(means, key=lambda name: means[name])
        what = f"Nonsense gave {nonsense:.3g} on average, {best} actions {means[best]:.3g}"
        rule = "the policy learns whatever earns most"
        findings.advise("nonsense pays", what, rule, "Let an invalid action cost at least what a turn costs.")


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
