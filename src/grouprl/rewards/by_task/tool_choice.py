"""Rewards of choosing tools for somebody else, who then answers with what they say."""

from __future__ import annotations

HELPED, HARMED, KEPT, MISSED = 1.0, -1.0, 0.2, 0.0


def helped(alone: bool, with_tools: bool) -> float:
    """Return what a choice of tools is worth by whether the reasoner is right without and with them.

    VisTA (VisualToolAgent, 2025): full for making it right, a penalty for misleading it, little for what
    changes nothing. The paper's table is not known to us: 1, -1, and 0.2 where it is right anyhow.
    """
    return {(False, True): HELPED, (True, False): HARMED, (True, True): KEPT, (False, False): MISSED}[alone, with_tools]
