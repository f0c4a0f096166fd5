"""Rewards: plain functions that score a completion, and the checked way to call them."""

from grouprl.core.importing import import_object
from grouprl.records.scores import Problem, Scores
from grouprl.rewards.builtin import contains_answer_tag, exact_match, math_equal, numeric_match, regex_format
from grouprl.rewards.by_task.puzzles import number_after_bar, reaches_target
from grouprl.rewards.contract import Columns, KnownExample, Reward, known_examples
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.loading import load_reward, reward_names
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
