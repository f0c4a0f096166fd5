"""The glossary: the meaning and unit of every logged number, and its healthy values. Each topic has a module."""

from grouprl.monitor.glossary import (
    completions as completions,
)
from grouprl.monitor.glossary import critic, evaluation, groups, outcome, policy, record, speed, updates
from grouprl.monitor.glossary.entry import GLOSSARY, GROUPS, Metric, check_names, define, lookup

TOPICS = (record, outcome, completions, groups, policy, updates, critic, speed, evaluation)
"""The modules in which metrics are defined, in the order in which they are shown."""

__all__ = ["GLOSSARY", "GROUPS", "TOPICS", "Metric", "check_names", "define", "lookup"]
