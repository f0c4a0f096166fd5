"""Rewards: plain functions that score a completion, and the checked way to call them.

The names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.core.late_import import lazy_names

if TYPE_CHECKING:
    from grouprl.core.importing import import_object
    from grouprl.records.scores import Problem, Scores
    from grouprl.rewards.by_task.puzzles import number_after_bar, reaches_target
    from grouprl.rewards.catalogue.builtin import (
        contains_answer_tag,
        exact_match,
        math_equal,
        numeric_match,
        regex_format,
    )
    from grouprl.rewards.catalogue.loading import load_reward, reward_names
    from grouprl.rewards.contract import Columns, KnownExample, Reward, known_examples
    from grouprl.rewards.error_policy import ErrorPolicy
    from grouprl.rewards.scoring import score
    from grouprl.rewards.self_test import check_reward
    from grouprl.rewards.validation import CombinedReward, VerdictReward, combine

__all__ = [
    "Columns",
    "CombinedReward",
    "ErrorPolicy",
    "KnownExample",
    "Problem",
    "Reward",
    "Scores",
    "VerdictReward",
    "check_reward",
    "combine",
    "contains_answer_tag",
    "exact_match",
    "import_object",
    "known_examples",
    "load_reward",
    "math_equal",
    "number_after_bar",
    "numeric_match",
    "reaches_target",
    "regex_format",
    "reward_names",
    "score",
]
_HOMES = {
    "import_object": "grouprl.core.importing",
    **dict.fromkeys(("Problem", "Scores"), "grouprl.records.scores"),
    **dict.fromkeys(
        ("contains_answer_tag", "exact_match", "math_equal", "numeric_match", "regex_format"),
        "grouprl.rewards.catalogue.builtin",
    ),
    **dict.fromkeys(("number_after_bar", "reaches_target"), "grouprl.rewards.by_task.puzzles"),
    **dict.fromkeys(("Columns", "KnownExample", "Reward", "known_examples"), "grouprl.rewards.contract"),
    "ErrorPolicy": "grouprl.rewards.error_policy",
    **dict.fromkeys(("load_reward", "reward_names"), "grouprl.rewards.catalogue.loading"),
    "score": "grouprl.rewards.scoring",
    "check_reward": "grouprl.rewards.self_test",
    **dict.fromkeys(("CombinedReward", "VerdictReward", "combine"), "grouprl.rewards.validation"),
}
__getattr__ = lazy_names(__name__, _HOMES)
