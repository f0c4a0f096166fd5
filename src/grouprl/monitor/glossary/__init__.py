"""The glossary: what every logged number means, its unit, and how a healthy run looks. One module for each topic."""

from grouprl.monitor.glossary import (
    completions as completions,
)
from grouprl.monitor.glossary import critic, evaluation, groups, outcome, policy, record, speed, updates
from grouprl.monitor.glossary.entry import GLOSSARY, GROUPS, Metric, check_names, define, lookup

TOPICS = (record, outcome, completions, groups, policy, updates, critic, speed, evaluation)
"""The modules in which metrics are defined, in the order in which they are shown."""

__all__ = ["GLOSSARY", "GROUPS", "TOPICS", "Metric", "check_names", "define", "lookup"]
