"""Rewards of choosing tools for another model, which then answers with their results."""

from __future__ import annotations

HELPED, HARMED, KEPT, MISSED = 1.0, -1.0, 0.2, 0.0


def helped(alone: bool, with_tools: bool) -> float:
    """Return the reward of a choice of tools: 1 if it makes the reasoner right, -1 if it makes it wrong, else 0.2 or 0.

    After VisTA (VisualToolAgent, 2025), whose numbers are not known to us. 0.2 is paid if the reasoner is right with
    the tools and without them.
    """
    return {(False, True): HELPED, (True, False): HARMED, (True, True): KEPT, (False, False): MISSED}[alone, with_tools]
