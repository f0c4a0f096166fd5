"""The self-test of a reward on known-right and known-wrong completions."""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.core.errors import InputError
from grouprl.rewards.contract import KnownExample, Reward, reward_name
from grouprl.rewards.scoring import score


def check_reward(reward: Reward, examples: Sequence[KnownExample] | None = None, *, correct_at: float = 1.0) -> int:
    """Check a reward on completions whose correctness is known, and return their number.

    Args:
        reward: any form of the contract.
        examples: known-right and known-wrong completions; by default those declared with `known_examples`.
        correct_at: as in `score`.

    Raises:
        InputError: if the reward fails or is wrong on a completion; the message names the first one.
    """
    if examples is None:
        examples = getattr(reward, "examples", ())
    if not examples:
        return 0
    ids = [f"example {n}" for n in range(len(examples))]
    scores = score(
        reward, [e.completion for e in examples], [e.columns for e in examples], ids=ids, correct_at=correct_at
    )
    name = reward_name(reward)
    if scores.problems:
        raise InputError(f"Reward '{name}' fails its self-test: {scores.problems[0]}")
    for example, total, correct in zip(examples, scores.reward_b, scores.correct_b, strict=True):
        if correct != example.correct:
            raise InputError(
                f"Reward '{name}' gives {total:g} to {example.completion!r} with {dict(example.columns)}",
                f"this completion is known to be {'right' if example.correct else 'wrong'}",
            )
    return len(examples)
