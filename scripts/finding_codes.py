"""The page of all codes of findings, made from their declarations."""

from __future__ import annotations

import grouprl.envs.findings
import grouprl.methods.check
import grouprl.monitor.health_codes
import grouprl.plan.codes
import grouprl.rewards.catalogue.attacks  # noqa: F401  each declares codes
from grouprl.core.finding import CODES, Code, Source

ROOMS: dict[Source, tuple[str, str]] = {
    "plan": (
        "Plans",
        "`grouprl plan --json` has them under `findings`; `grouprl train` refuses a run that has a refusal.",
    ),
    "health": (
        "Health reports",
        "In `health.json` of a run folder, on the page of the run, and told to listeners as the run goes on.",
    ),
    "check": (
        "Checks",
        "`--json` of `grouprl methods check`, `check-env` and `check-reward` has them under `findings`.",
    ),
}
HEAD = """<!-- Made from the declarations by scripts/generate_docs.py. -->
# Codes of findings

A finding has a `code`, a `severity` (refusal, alarm, warning or note), a `key` (the setting, metric, part or rule
that it is about), a `text` and a `remedy`. Codes are stable: filter and test by them, not by texts. A text says what
holds in your run; the meaning and remedy here are those of the kind. Where a finding has an empty remedy its text
says everything.
"""


def codes_page() -> str:
    """Return the page."""
    return HEAD + "".join(_room(source) for source in ROOMS)


def _room(source: Source) -> str:
    title, words = ROOMS[source]
    rows = [_row(code) for name, code in sorted(CODES.items()) if code.source == source]
    head = ["| code | severity | about | meaning | usual remedy |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([f"\n## {title}\n", words, "", *head, *rows, ""])


def _row(code: Code) -> str:
    about = f"`{code.key}`" if code.key else ""
    return f"| `{code.name}` | {', '.join(code.severities)} | {about} | {code.meaning} | {code.remedy} |"
