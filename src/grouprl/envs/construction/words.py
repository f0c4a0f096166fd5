"""A complete solution as a sentence for a reader, and its choices read from one."""

from __future__ import annotations

import re

from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance

CHOICES = re.compile(r"\b\d+(?:-\d+)+")
"""Choices in their order: 0-3-1."""


def sentence(problem: ConstructionProblem, instance: Instance, building: Building) -> str:
    """Return a complete solution in words: its choices, its cost and, where the best one is known, its gap."""
    sign, best = (-1 if problem.gain else 1), instance.get("best")
    what, measure = problem.words
    said = f"{what} {'-'.join(map(str, problem.closed(building)))}, {measure} {sign * building.cost():.4g}"
    if best is None:
        return said
    gap = problem.gap(instance, building.cost())
    return f"{said}, best {sign * float(best[0]):.4g}, gap {gap:.1f} %"


def choices(text: str) -> list[int]:
    """Return the choices that the last sentence in a text states; [] if there is none."""
    found = CHOICES.findall(text)
    return [int(number) for number in found[-1].split("-")] if found else []
