"""A finding on the model before training: whether it knows the task well enough for rewards without a verifier."""

from __future__ import annotations

from grouprl.core.finding import Finding
from grouprl.core.json_types import JsonMapping
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History

KNOWN = 0.5
"""Share of prompts that a model which knows the task solves in its tries. The level is ours: the paper that found that
such rewards need a model already good at the task (Model-Task Alignment Drives Distinct RL Outcomes) names none here.
"""


def weak_start(past: History, facts: HealthFacts) -> Finding | None:
    """Report a reward without a verifier on a model whose pass@k before training is below `KNOWN`."""
    before = next((each for each in past.evaluations if each.get("step") == 0), None)
    name = "" if before is None else most_tries(before)
    if before is None or not facts.blind or not name or before[name] >= KNOWN:
        return None
    words = (
        f"What is rewarded is {' and '.join(facts.blind)}, not what is right, and the model solved {before[name]:.2f} "
        f"of the prompts before training ({name.removeprefix('eval/')}): such rewards have helped only models that "
        "already knew the task."
    )
    return codes.WEAK_START(words, key=name)


def most_tries(record: JsonMapping) -> str:
    """Return the name of the pass@k with the largest k in the record of an evaluation; "" if it has none."""
    found = {int(name.rpartition("@")[2]): name for name in record if _is_pass_rate(name)}
    return found[max(found)] if found else ""


def _is_pass_rate(name: str) -> bool:
    return name.startswith("eval/pass@") and name.rpartition("@")[2].isdigit()
