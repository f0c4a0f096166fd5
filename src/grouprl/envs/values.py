"""Rules for the values that an environment returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grouprl.envs.environment import Observation, Step
from grouprl.envs.findings import Findings

LARGEST_REWARD = 1000.0
LONGEST_TEXT = 20_000


def examine_observation(found: Any, turn: int | None, findings: Findings) -> bool:
    """Note what is wrong with an observation; return whether an episode can go on with it."""
    whence = "reset()" if turn is None else "step()"
    if not isinstance(found, Observation):
        rule = f"{whence} gives a grouprl.envs.Observation"
        findings.add("observation type", f"{whence} gave {_shown(found)}", rule, "Observation(text).", turn=turn)
        return False
    if not isinstance(found.text, str):
        rule = "an observation's text is a str"
        findings.add("text type", f"The text is {_shown(found.text)}", rule, "Write it out in words.", turn=turn)
        return False
    if turn is None and not found.text:
        findings.add("empty prompt", "The first observation is ''", "it is the prompt, which has at least a token")
    if len(found.text) > LONGEST_TEXT:
        rule = f"a model reads at most a few thousand tokens; {LONGEST_TEXT} characters are the limit"
        findings.add("long text", f"An observation has {len(found.text)} characters", rule, "Shorten it.", turn=turn)
    if not isinstance(found.state, str) or not isinstance(found.agent, str):
        what = f"state is {_shown(found.state)}, agent is {_shown(found.agent)}"
        findings.add("state type", what, "both are str, '' where there is none", "str(…).", turn=turn)
        return False
    return _examine_legal(found.legal, turn, findings)


def _examine_legal(legal: Any, turn: int | None, findings: Findings) -> bool:
    if not isinstance(legal, tuple) or not all(isinstance(action, str) for action in legal):
        what = f"legal is {_shown(legal)}"
        findings.add("legal type", what, "legal is a tuple of str", "tuple(map(str, …)).", turn=turn)
        return False
    if len(set(legal)) < len(legal):
        findings.add("legal repeats", f"legal is {_shown(legal)}", "every legal action is listed once", turn=turn)
    return True


def examine_step(found: Any, action: str, legal: tuple[str, ...], turn: int, findings: Findings) -> bool:
    """Note what is wrong with a step; return whether the episode can go on."""
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
        findings.add("two ends", "terminated and truncated are both True", rule, "Let the end go before.", turn=turn)
    if legal and found.valid != (action in legal):
        said = "valid" if found.valid else "invalid"
        what = f"Action {action!r} was called {said}, with legal {_shown(legal)}"
        findings.add("validity", what, "exactly the actions in legal are valid, where legal is given", turn=turn)
    fine = is_number(found.reward, "reward", f"The reward of action {action!r}", turn, findings)
    return examine_observation(found.observation, turn, findings) and fine


def examine_score(found: Any, findings: Findings) -> bool:
    """Note what is wrong with the score of an episode; return whether it can be used."""
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        findings.add("score type", f"score() gave {_shown(found)}", "it gives a dict of str to float", "{} at least.")
        return False
    fine = all(is_number(value, "score", f"Score '{name}'", None, findings) for name, value in found.items())
    if fine and found.get("correct", 0) not in (0, 1):
        findings.add("correct", f"correct is {found['correct']!r}", "it is 0 or 1", "Put shades into the reward.")
    if "correct" not in found:
        rule = "evaluation counts the episodes whose score says correct: 1"
        findings.advise("no correct", f"score() gave {_shown(found)}", rule, "Return {'correct': …} with it.")
    return fine


def is_number(value: Any, name: str, what: str, turn: int | None, findings: Findings) -> bool:
    """Note what is wrong with a reward; return whether it is a finite number."""
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


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 80 else text[:79] + "…"
    return text if isinstance(value, (str, bool, tuple, dict, type(None))) else f"{text} ({type(value).__name__})"
