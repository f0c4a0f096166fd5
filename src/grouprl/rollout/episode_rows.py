"""Episodes as scored rows, for training, evaluation, warm-up and plan of multi-turn tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.async_methods import close_or_warn
from grouprl.envs.environment import Demonstrator, Environment
from grouprl.envs.environment_pool import Stage
from grouprl.records.episode_records import ENDINGS, SAMPLES
from grouprl.records.examples import Example
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.scores import Scores
from grouprl.rewards.scoring import score
from grouprl.rollout.episode_table import UNSHOWN
from grouprl.rollout.episodes import Episodes, Start, demonstrate
from grouprl.rollout.row_settings import RowSettings
from grouprl.rollout.template_check import check_template
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide

SLOW = 0.001
"""Seconds per call from which slow environments are mentioned to the user."""


def environments(task: Task) -> Callable[[], Environment] | None:
    """Return a function that makes a fresh environment of `task`; None for single-turn tasks."""
    example = task.environment()
    if example is None:
        return None
    if not isinstance(example, Environment):
        raise InputError(
            f"the environment of the task '{task.name}' is {type(example).__name__}",
            "an environment needs reset, step, score and close (grouprl.envs.Environment)",
        )
    close_or_warn(example, f"an environment of '{task.name}'")
    return task.environment


def demonstrates(task: Task) -> bool:
    """Return whether the environments of `task` can demonstrate."""
    example = task.environment()
    if example is not None:
        close_or_warn(example, f"an environment of '{task.name}'")
    return isinstance(example, Demonstrator)


def start_of(request: RolloutRequest, number: int, settings: RowSettings) -> Start:
    """Return the start of the episode that is completion `number` of `request`, with its own seeds; the prompt
    determines how it begins.

    Raises InputError for a request that shows another prompt, or begins the completion with tokens.
    """
    if request.prompt is not None or request.prefix:
        raise InputError(
            f"prompt '{request.example.id}' is requested in another form, or with a beginning of its completion",
            "the environment writes the prompt, and the policy every action",
            "Remove the part that gives hints, beginnings or other wordings (augment, sampling)",
        )
    luck = number if request.luck is None else request.luck
    return Start(
        example=request.example,
        seed=settings.seeds.of_environment(request.ordinal, luck),
        action_seed=settings.seeds.of_actions(request.ordinal, number),
        budget=request.max_new_tokens,
        temperature=request.temperature or settings.temperature,
        prefix=request.prefix_turns,
        prefix_observations=request.prefix_observations,
        train_prefix=request.train_prefix,
        turns=request.max_turns,
        opening=request.opening,
    )


def score_episodes(episodes: Episodes, ids: Sequence[str], correct_at: float) -> Scores:
    """Score the rows of episodes: the reward is the sum of the turns' rewards and of all components except
    `correct`.
    """
    columns = [{"verdict": verdict} for verdict in episodes.verdicts]
    return score(_stated, episodes.texts, columns, ids=ids, correct_at=correct_at)


def score_outcomes(episodes: Episodes, ids: Sequence[str], correct_at: float) -> Scores:
    """Score E whole episodes, each by its first agent's reward over all its rows."""
    columns = [{"verdict": outcome} for outcome in episodes.outcomes]
    return score(_stated, episodes.transcripts, columns, ids=ids, correct_at=correct_at)


def with_function(scores: Scores, more: Scores, name: str) -> Scores:
    """Add what a reward function `name` returned for the transcripts to what the environments returned.

    If the function does not apply, only the environment's reward counts; if it failed, there is no reward. `correct` is
    still that of the environment.
    """
    silent_b = more.status_b == "not_applicable"
    added_b = np.where(silent_b, 0.0, more.reward_b)
    own = more.components or {name: more.reward_b}
    renamed = {key if key not in scores.components else f"{name}.{key}": values for key, values in own.items()}
    said = [problem for problem in more.problems if problem.status != "not_applicable"]
    return Scores(
        reward_b=scores.reward_b + added_b,
        components={**scores.components, **renamed},
        correct_b=scores.correct_b & (more.ok_b | silent_b),
        status_b=np.where(scores.ok_b & ~silent_b, more.status_b, scores.status_b),
        problems=[*scores.problems, *said],
        graded=scores.graded,
        lost_b=scores.lost_b,
    )


def _stated(completion: str, *, verdict: object) -> object:
    """Return the environment's own score of an episode."""
    return verdict


def extras_of(episodes: Episodes, requested: Sequence[tuple[RolloutRequest, int]]) -> dict[str, np.ndarray]:
    """Return the Batch fields of rows by name; episode e is completion number `requested[e][1]` of its request."""
    which_b = episodes.episode_b
    ordinal_e, sample_e = (
        np.array(x, dtype=np.int64) for x in zip(*((a.ordinal, n) for a, n in requested), strict=True)
    )
    luck_e = np.array([n if a.luck is None else a.luck for a, n in requested], dtype=np.int64)
    return {
        "mask_bt": episodes.mask_bt,
        "turn_bt": episodes.turn_bt,
        "turn_reward_bs": episodes.turn_reward_bs,
        "state_bs": episodes.state_bs,
        "valid_bs": episodes.valid_bs,
        "agent_b": episodes.agent_b,
        "keys.ended": np.array([ENDINGS.index(why) for why in episodes.ended], dtype=np.int64),
        "keys.prompt": ordinal_e[which_b],
        "keys.episode": (ordinal_e * SAMPLES + sample_e)[which_b],
        "keys.context": episodes.context_b,
        "keys.caller": episodes.caller_b,
        "keys.luck": luck_e[which_b],
    }


def extras_of_texts(requested: Sequence[tuple[RolloutRequest, int]], rollout: Rollout) -> dict[str, np.ndarray]:
    """Return the Batch fields of completions sampled without the environment: rows of one turn without reward."""
    size_b = np.array([len(ids) for ids in rollout.response_ids])
    present_bt = np.arange(size_b.max()) < size_b[:, None]
    ordinal_b, number_b = (
        np.array(x, dtype=np.int64) for x in zip(*((a.ordinal, n) for a, n in requested), strict=True)
    )
    endings = np.where(rollout.truncated_b.numpy(), ENDINGS.index("truncated"), ENDINGS.index("terminated"))
    return {
        "mask_bt": present_bt,
        "turn_bt": np.where(present_bt, 0, -1),
        "turn_reward_bs": np.zeros((len(requested), 1)),
        "state_bs": np.full((len(requested), 1), -1),
        "valid_bs": np.ones((len(requested), 1), dtype=bool),
        "agent_b": np.zeros(len(requested), dtype=np.int64),
        "keys.ended": endings.astype(np.int64),
        "keys.prompt": ordinal_b,
        "keys.episode": ordinal_b * SAMPLES + number_b,
        "keys.context": np.zeros(len(requested), dtype=np.int64),
        "keys.caller": np.full(len(requested), -1),
        "keys.luck": number_b,
    }


def turn_metrics(extras: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the metrics of turns, if the rows have any."""
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


@dataclass(frozen=True)
class Measured:
    """Measurements of a few episodes before the run: tokens of the longest prompt, and the most tokens that may follow
    it.
    """

    prompt: int
    behind: int
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def measured(
    encoder: TextSide | None,
    task: Task,
    examples: Sequence[Example],
    max_new_tokens: int,
    history: History = "refuse",
    stage: Stage | None = None,
) -> Measured:
    """Measure the rows of demonstrated episodes of `examples`.

    Environments demonstrate, which shows the length of their texts; an environment that cannot demonstrate only shows
    its first observation. Without an encoder only the policy's own tokens are counted.
    """
    own = task.max_turns * max_new_tokens
    if encoder is None or not examples:
        return Measured(0, own)
    starts = [Start(example, i) for i, example in enumerate(examples)]
    turns = task.max_turns if demonstrates(task) else 0
    try:
        seen = demonstrate(
            encoder,
            task.environment,
            starts,
            max_turns=turns,
            max_new_tokens=max_new_tokens,
            agents=task.agents,
            history=history,
            stage=stage,
        )
    except InputError as error:
        return Measured(0, own, (str(error),))
    between_b = np.array(seen.tokens.response_lengths) - seen.mask_bt.sum(1)
    text = max(-(-between_b // np.maximum(seen.turns_b, 1))) if turns else 0
    behind = own + task.max_turns * int(text)
    told = check_template(encoder, seen.prompts, history, turns=True, task=task)
    if not told.refusals and len(seen.failures) == len(starts):
        first = seen.failures[0].what.rstrip(".")
        remedy = "It is so" if first.startswith(UNSHOWN) else "Fix the environment: it failed"
        what = f"{first}. {remedy} on every prompt that was tried"
        return Measured(0, own, (what,), told.notes)
    notes = (*_time_note(stage), *_rows_note(seen), *told.notes)
    if not getattr(encoder.tokenizer, "chat_template", None) and history != "refuse":
        notes += (f"sampling.history {history} has no effect: nothing rewrites what was said in earlier turns",)
    return Measured(max(seen.tokens.prompt_lengths), behind, told.refusals, notes)


def _time_note(stage: Stage | None) -> Iterator[str]:
    """Yield a note on slow environments and their slowest prompt."""
    if stage is not None and stage.times.whole.mean >= SLOW:
        yield stage.times.words()


def _rows_note(seen: Episodes) -> Iterator[str]:
    """Yield a note on the number of rows per episode, if it is more than one."""
    rows = len(seen) / max(1, len(seen.outcomes))
    if rows > 1:
        yield f"an episode becomes {rows:.3g} rows on average when its environment demonstrates; memory grows likewise"
