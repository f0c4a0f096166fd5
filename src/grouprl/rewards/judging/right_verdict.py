"""The reward of a judge that says which of two completions is better."""

from __future__ import annotations

from grouprl.rewards.contract import known_examples
from grouprl.rewards.judging.judge_client import UnusableReply
from grouprl.rewards.judging.pair_text import read_better


@known_examples(
    ('{"better": "0a"}', {"better": "0a", "worse": "0b"}, True),
    ('{"why": "It is short.", "better": "0a"}', {"better": "0a", "worse": "0b"}, True),
    ('{"better": "0b"}', {"better": "0a", "worse": "0b"}, False),
    ('{"better": "unsure"}', {"better": "0a", "worse": "0b"}, False),
    ("0a", {"better": "0a", "worse": "0b"}, False),
)
def right_verdict(completion: str, better: str, worse: str) -> dict[str, float]:
    """Return 1 for a reply that a judge of pairs may give, and 1 for naming the better completion.

    The two rewards of UnifiedReward-Think ("Unified Multimodal Chain-of-Thought Reward Model through Reinforcement
    Fine-Tuning"). "neither" and "unsure" are replies, and name none.
    """
    try:
        said = read_better(completion, (better, worse))
    except UnusableReply:
        return {"format": 0.0, "accuracy": 0.0, "correct": 0.0}
    right = float(said == 1.0)
    return {"format": 1.0, "accuracy": right, "correct": right}
