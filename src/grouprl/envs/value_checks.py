"""Rules for the values that an environment returns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from grouprl.envs.environment import Observation, Step, unwritable
from grouprl.envs.findings import Findings

LARGEST_REWARD = 1000.0
LONGEST_TEXT = 20_000


def examine_observation(
    found: object, turn: int | None, findings: Findings, agents: Collection[str] = ("",), *, first: bool = False
) -> bool:
    """Add findings on an observation; return whether an episode can continue with it.

    `agents` are the names of the agents that may act; `first` means that the observation begins a context and is a
    prompt.
    """
    whence = "reset()" if turn is None else "step()"
    if not isinstance(found, Observation):
        rule = f"{whence} gives a grouprl.envs.Observation"
        findings.add("observation type", f"{whence} gave {_shown(found)}", rule, "Observation(text).", turn=turn)
        return False
    if not isinstance(found.text, str):
        rule = "an observation's text is a str"
        findings.add("text type", f"The text is {_shown(found.text)}", rule, "Write it out as text.", turn=turn)
        return False
    if (turn is None or first) and not found.text and not found.messages:
        whose = f" of agent {found.agent!r}" if found.agent else ""
        what = f"The first observation{whose} is ''"
        findings.add("empty prompt", what, "it is the prompt, which has at least a token", turn=turn)
    if (half := unwritable(found.text)) is not None:
        what = f"The text holds {half!r}, half of a character"
        findings.add(
            "text characters", what, "a text can be written as UTF-8", "Decode it with the right encoding.", turn=turn
        )
        return False
    if len(found.text) > LONGEST_TEXT:
        rule = f"a model reads at most a few thousand tokens; {LONGEST_TEXT} characters are the limit"
        findings.add("long text", f"An observation has {len(found.text)} characters", rule, "Shorten it.", turn=turn)
    if not isinstance(found.state, str) or not isinstance(found.agent, str):
        what = f"state is {_shown(found.state)}, agent is {_shown(found.agent)}"
        findings.add("state type", what, "both must be str, '' if there is none", "str(…).", turn=turn)
        return False
    if not isinstance(found.fresh, bool):
        findings.add("fresh type", f"fresh is {_shown(found.fresh)}", "fresh is True or False", "bool(…).", turn=turn)
        return False
    return _known(found.agent, "observation", agents, turn, findings) and _examine_legal(found.legal, turn, findings)


def _known(agent: object, where: str, agents: Collection[str], turn: int | None, findings: Findings) -> bool:
    if agent in agents:
        return True
    what = f"The agent {agent!r} is named in an {where}; known are {', '.join(map(repr, agents))}"
    rule = "every agent is one of the task's `agents`"
    findings.add(
        "unknown agent", what, rule, "Add it there (on the class of an env:… task), or use only ''.", turn=turn
    )
    return False


def _examine_legal(legal: object, turn: int | None, findings: Findings) -> bool:
    if not isinstance(legal, tuple) or not all(isinstance(action, str) for action in legal):
        what = f"legal is {_shown(legal)}"
        findings.add("legal type", what, "legal is a tuple of str", "tuple(map(str, …)).", turn=turn)
        return False
    if len(set(legal)) < len(legal):
        findings.add("legal repeats", f"legal is {_shown(legal)}", "every legal action is listed once", turn=turn)
    return True


def examine_step(
    found: object,
    action: str,
    legal: tuple[str, ...],
    turn: int,
    findings: Findings,
    agents: Collection[str] = ("",),
    begun: Collection[str] = (),
) -> bool:
    """Add findings on a step; return whether an episode can continue. `begun` are the agents with a context."""
    if not isinstance(found, Step):
        rule = "step() gives a grouprl.envs.Step"
        findings.add("step type", f"step() gave {_shown(found)}", rule, "Step(observation, reward, …).", turn=turn)
        return False
    for name in ("terminated", "truncated", "valid"):
        if not isinstance(getattr(found, name), bool):
            what = f"{name} is {_shown(getattr(found, name))}"
            findings.add(f"{name} type", what, f"{name} is True or False", "bool(…).", turn=turn)
            return False
    if not isinstance(found.info, Mapping):
        findings.add("info type", f"info is {_shown(found.info)}", "info is a mapping", turn=turn)
    if found.terminated and found.truncated:
        rule = "an episode reaches its end or is cut off; the value of what would follow is 0 only at an end"
        findings.add(
            "two ends", "terminated and truncated are both True", rule, "At an end, set truncated to False.", turn=turn
        )
    if legal and found.valid != (action in legal):
        said = "valid" if found.valid else "invalid"
        what = f"Action {action!r} was called {said}, with legal {_shown(legal)}"
        findings.add("validity", what, "exactly the actions in legal are valid, where legal is given", turn=turn)
    fine = is_number(found.reward, "reward", f"The reward of action {action!r}", turn, findings)
    fine = fine and _examine_rewards(found.rewards, turn, findings, agents)
    over = found.terminated or found.truncated
    seen = found.observation
    first = not over and isinstance(seen, Observation) and (seen.fresh is True or seen.agent not in begun)
    return examine_observation(seen, turn, findings, agents, first=first) and fine


def _examine_rewards(found: object, turn: int, findings: Findings, agents: Collection[str]) -> bool:
    if not isinstance(found, Mapping):
        rule = "rewards is a mapping of agents to numbers"
        findings.add("rewards type", f"rewards is {_shown(found)}", rule, "{} where there are none.", turn=turn)
        return False
    return all(
        _known(agent, "entry of rewards", agents, turn, findings)
        and is_number(value, "reward", f"The reward of agent {agent!r}", turn, findings)
        for agent, value in found.items()
    )


def examine_scores(found: object, findings: Findings, agents: Collection[str]) -> bool:
    """Add findings on the scores of the agents; return whether they can be used."""
    if not isinstance(found, dict):
        findings.add("scores type", f"scores() gave {_shown(found)}", "it gives a dict of agent to dict of floats")
        return False
    known = [_known(agent, "entry of scores()", agents, None, findings) for agent in found]
    fine = [examine_score(each, findings) for each in found.values()]
    return all(known) and all(fine)


def examine_score(found: object, findings: Findings) -> bool:
    """Add findings on the score of an episode; return whether it can be used."""
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        findings.add("score type", f"score() gave {_shown(found)}", "it gives a dict of str to float", "{} at least.")
        return False
    fine = all(is_number(value, "score", f"Score '{name}'", None, findings) for name, value in found.items())
    if fine and found.get("correct", 0) not in (0, 1):
        findings.add(
            "correct", f"correct is {found['correct']!r}", "it is 0 or 1", "Put partial success into the reward."
        )
    if "correct" not in found:
        rule = "evaluation counts the episodes whose score says correct: 1"
        findings.advise("no correct", f"score() gave {_shown(found)}", rule, "Return {'correct': …} with it.")
    return fine


def is_number(value: object, name: str, what: str, turn: int | None, findings: Findings) -> bool:
    """Add findings on a reward; return whether it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        rule, remedy = "it is a float", "float(…)."
        if not isinstance(value, bool) and hasattr(value, "__float__"):
            remedy = "float(…): this is a number of an array library."
        findings.add(f"{name} type", f"{what} is {_shown(value)}", rule, remedy, turn=turn)
        return False
    if not math.isfinite(value):
        rule = "it is finite; one such number ruins the group, the batch and the weights"
        findings.add(f"{name} finite", f"{what} is {value}", rule, "Find the division or logarithm.", turn=turn)
        return False
    if abs(value) > LARGEST_REWARD:
        rule = f"rewards are within ±{LARGEST_REWARD:g}, best within ±1"
        findings.add(f"{name} size", f"{what} is {value:g}", rule, "Divide by its scale.", turn=turn)
    return True


def _shown(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= 80 else text[:79] + "…"
    return text if isinstance(value, (str, bool, tuple, dict, type(None))) else f"{text} ({type(value).__name__})"
