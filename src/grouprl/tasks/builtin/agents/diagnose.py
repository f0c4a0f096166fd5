"""The task of asking before diagnosing."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.diagnose import FINDINGS, SIGNS, Diagnose
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task


@register_task("diagnose")
class DiagnoseTask(EnvironmentTask):
    """Find out the cause of a complaint by asking for findings; the reward of a question is what it reveals.

    The prompt is "3:a+d->": the number of the complaint and the known findings. "?b" asks, "=3" answers. The two
    findings that matter for a complaint are generated once and never shown.
    """

    levels = tuple(
        {"complaints": complaints, "told": told}
        for complaints, told in ((2, 3), (4, 3), (4, 2), (6, 2), (8, 2), (10, 1))
    )

    complaints: int = Field(6, ge=1, le=10, description="number of complaints")
    told: int = Field(2, ge=0, le=4, description="findings that are given, at most")
    spare: int = Field(1, ge=0, description="turns beyond two questions and the answer")
    corpus: int = Field(0, description="seed of the findings that matter for each complaint")
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 4
    """The token budget of a turn: two signs, the end, and one more."""
    alphabet: ClassVar[str] = f"{FINDINGS}0123456789{SIGNS}:?=>!"
    """Findings, digits and signs."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: two questions, the answer, and spare turns."""
        return 3 + self.spare

    def environment(self) -> Diagnose:
        """Return a fresh episode."""
        return Diagnose(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a complaint, and findings of which some are known."""
        complaint = rng.randrange(self.complaints)
        findings = {finding: rng.choice(SIGNS) for finding in FINDINGS}
        named = sorted(rng.sample(FINDINGS, rng.randint(0, self.told)))
        told = {finding: findings[finding] for finding in named}
        shown = "".join(f"{finding}{sign}" for finding, sign in told.items())
        matters = what_matters(self.corpus)[complaint]
        return f"{complaint}:{shown}>", {"matters": matters, "told": told, "findings": findings}

    def solve(self, example: Example) -> str:
        """Return the questions that are needed and the diagnosis, one per line."""
        patient = self.environment()
        patient.begin(example.columns, random.Random(0))
        missing = [f"?{finding}" for finding in patient.matters if finding not in patient.known]
        return "\n".join([*missing, f"={patient.right}"])


@cache
def what_matters(corpus: int) -> tuple[str, ...]:
    """Return the two findings that decide each complaint, different ones for each."""
    pairs = ["".join(pair) for pair in combinations(FINDINGS, 2)]
    return tuple(generator("complaints", corpus).sample(pairs, 10))
