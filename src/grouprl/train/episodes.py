"""Episodes as scored rows: what training, evaluation, warm-up and plan share of tasks that are acted in over turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grouprl.data.ask import Ask
from grouprl.envs.environment import Demonstrator, Environment
from grouprl.errors import InputError
from grouprl.rewards.scoring import Scores, score
from grouprl.rollout.episodes import ENDINGS, Episodes, Start, demonstrate
from grouprl.rollout.seeds import answer_seed
from grouprl.tasks.task import Question, Task

ANSWERS = 2**20
"""More answers than any question gets: what parts the numbers of episodes of different questions."""


def environments(task: Task) -> Callable[[], Environment] | None:
    """Return what makes a fresh environment of `task`; None for tasks that are answered at once."""
    example = task.environment()
    if example is None:
        return None
    if not isinstance(example, Environment):
        raise InputError(
            f"the environment of the task '{task.name}' is {type(example).__name__}",
            "an environment has reset, step, score and close (grouprl.envs.Environment)",
        )
    example.close()
    return task.environment


def demonstrates(task: Task) -> bool:
    """Whether the environments of `task` can act in themselves."""
    example = task.environment()
    if example is not None:
        example.close()
    return isinstance(example, Demonstrator)


def start_of(ask: Ask, number: int, run_seed: int, temperature: float) -> Start:
    """Return the episode that is answer `number` of `ask`, with seeds of its own: the question says how it begins.

    Raises InputError for an ask that shows another prompt, or begins the answer with tokens.
    """
    if ask.prompt is not None or ask.lead:
        raise InputError(
            f"question '{ask.question.id}' is asked in another form, or with a beginning of its answer",
            "an environment writes its own prompt, and the policy every action",
            "Leave out the part that gives hints, beginnings or other wordings (explore, sampling)",
        )
    luck = number if ask.luck is None else ask.luck
    return Start(
        question=ask.question,
        seed=answer_seed("environment", run_seed, ask.ordinal, luck),
        draws=answer_seed("train", run_seed, ask.ordinal, number),
        budget=ask.max_new_tokens,
        temperature=ask.temperature or temperature,
        lead=ask.lead_turns,
        lead_seen=ask.lead_seen,
        lead_trained=ask.lead_trained,
        turns=ask.max_turns,
    )


def score_episodes(episodes: Episodes, ids: Sequence[str], correct_at: float) -> Scores:
    """Score the rows of episodes: the reward is the sum of the turns' rewards and of the components but `correct`."""
    columns = [{"verdict": verdict} for verdict in episodes.verdicts]
    return score(_stated, episodes.texts, columns, ids=ids, correct_at=correct_at)


def score_outcomes(episodes: Episodes, ids: Sequence[str], correct_at: float) -> Scores:
    """Score E whole episodes, each by its first agent's reward over all its rows."""
    columns = [{"verdict": outcome} for outcome in episodes.outcomes]
    return score(_stated, episodes.transcripts, columns, ids=ids, correct_at=correct_at)


def _stated(completion: str, *, verdict: Any) -> Any:
    """Return what the environment said of an episode."""
    return verdict


def extras_of(episodes: Episodes, asked: Sequence[tuple[Ask, int]]) -> dict[str, np.ndarray]:
    """Return the Batch fields of rows by name; episode e is answer number `asked[e][1]` to its question."""
    which_b = episodes.episode_b
    ordinal_e, answer_e = (np.array(x, dtype=np.int64) for x in zip(*((a.ordinal, n) for a, n in asked), strict=True))
    luck_e = np.array([n if a.luck is None else a.luck for a, n in asked], dtype=np.int64)
    return {
        "mask_bt": episodes.mask_bt,
        "turn_bt": episodes.turn_bt,
        "turn_reward_bs": episodes.turn_reward_bs,
        "state_bs": episodes.state_bs,
        "valid_bs": episodes.valid_bs,
        "agent_b": episodes.agent_b,
        "keys.ended": np.array([ENDINGS.index(why) for why in episodes.ended], dtype=np.int64),
        "keys.question": ordinal_e[which_b],
        "keys.episode": (ordinal_e * ANSWERS + answer_e)[which_b],
        "keys.context": episodes.context_b,
        "keys.caller": episodes.caller_b,
        "keys.luck": luck_e[which_b],
    }


def turn_metrics(extras: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Metrics of turns, where the rows have any."""
    if "valid_bs" not in extras:
        return {}
    turns_b = np.where(extras["mask_bt"], extras["turn_bt"], -1).max(1) + 1
    turns, episodes = max(1, int(turns_b.sum())), len(np.unique(extras["keys.episode"]))
    metrics = {
        "turns_mean": float(turns_b.sum()) / episodes,
        "invalid_fraction": 1 - float(extras["valid_bs"].sum()) / turns,
    }
    if len(turns_b) > episodes:
        metrics["rows_per_episode"] = len(turns_b) / episodes
    return metrics


def measured(
    encoder: Any, task: Task, questions: Sequence[Question], max_new_tokens: int
) -> tuple[int, int, list[str]]:
    """Return the longest first observation in tokens, the most tokens behind it, and what is wrong with either.

    The environments act in themselves to show how much they say; one that cannot is asked for its beginning alone.
    Without an encoder only the policy's own tokens are counted.
    """
    own = task.max_turns * max_new_tokens
    if encoder is None or not questions:
        return 0, own, []
    starts = [Start(question, i) for i, question in enumerate(questions)]
    turns = task.max_turns if demonstrates(task) else 0
    limits: dict[str, Any] = {"max_turns": turns, "max_new_tokens": max_new_tokens, "agents": task.agents}
    try:
        seen = demonstrate(encoder, task.environment, starts, **limits)
    except InputError as error:
        return 0, own, [str(error)]
    if len(seen.failures) == len(starts):
        return 0, own, [f"{seen.failures[0].what}. Mend the environment: it failed on every question that was tried"]
    between_b = np.array(seen.rollout.tokens.response_lengths) - seen.mask_bt.sum(1)
    text = max(-(-between_b // np.maximum(seen.turns_b, 1))) if turns else 0
    return max(seen.rollout.tokens.prompt_lengths), own + task.max_turns * int(text), []
