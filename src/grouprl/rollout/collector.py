"""Collecting experience: ask, answer, score.

Every answer has a seed made from (run, ordinal of the question, number of the answer), so it does not depend on which
other questions are asked beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.core.stopwatch import Stopwatch
from grouprl.envs.stage import Stage
from grouprl.envs.stage_workers import open_stage
from grouprl.orchestrator.stored import stored
from grouprl.protocols import EntropyScaling, Request, Sampler, StoredRows
from grouprl.rewards.contract import reward_name
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.scoring import Scores, score
from grouprl.rollout.array_episodes import play_arrays
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import Record, Turn
from grouprl.rollout.episode_rows import (
    environments,
    extras_of,
    extras_of_texts,
    score_episodes,
    start_of,
    with_function,
)
from grouprl.rollout.episodes import Episodes, play
from grouprl.rollout.requests import Ask, Prompt
from grouprl.rollout.sampler import Rollout, as_rollout
from grouprl.rollout.samples import Collected, subset_scores
from grouprl.rollout.seeds import answer_seed
from grouprl.tasks.task import Task

GREEDY = -1
"""Answer number of the greedy answer, which needs no seed of its own."""


Rows = Sequence[tuple[Ask, int]]
"""Asks with the number of the answer that each row is."""


class Collector:
    """Draws and scores answers, or episodes where the task has an environment; `watch` adds up the seconds of both.

    `max_new_tokens` is the budget of an answer, or of one turn of an episode. Every sample comes from `sampler`; None:
    one of this process (`local_engine`).
    """

    def __init__(
        self,
        config: Config,
        policy: Any,
        reward: Any,
        max_new_tokens: int,
        errors: ErrorPolicy,
        task: Task,
        sampler: Sampler[Any, int] | None = None,
    ) -> None:
        self.config, self.policy, self.reward = config, policy, reward
        self.sampler: Sampler[Any, int] = sampler or local_engine(policy)
        self.max_new_tokens, self.errors = max_new_tokens, errors
        self.make, self.task = environments(task), task
        self.stage: Stage | None = None
        self.notes: list[str] = []
        if self.make is not None:
            acting = config.environment
            self.stage, note = open_stage(task, acting.workers, timeout=acting.timeout, memory_gb=acting.memory_gb)
            self.notes = [note] if note else []
        self.watch = Stopwatch()

    @property
    def _stop(self) -> tuple[str, ...]:
        """Texts that end an answer or a turn."""
        return (*self.task.stop, *self.config.sampling.stop)

    def close(self) -> None:
        """End the processes in which environments act."""
        if self.stage is not None:
            self.stage.close()

    @contextmanager
    def acting(self, policy: Any) -> Iterator[None]:
        """Let another policy of this process draw."""
        before, self.policy, self.sampler = (self.policy, self.sampler), policy, local_engine(policy)
        try:
            yield
        finally:
            self.policy, self.sampler = before

    def draw(
        self,
        asks: Sequence[Ask],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> Collected:
        """Draw and score the answers that `asks` ask for; `count_failures` is off for probes nobody trains on."""
        if isinstance(self.task, StoredRows):
            return stored(self.task, self.policy, asks, self.max_new_tokens)
        rows = [(ask, ask.first + i) for ask in asks for i in range(ask.answers)]
        if greedy:
            rows = [(ask, GREEDY) for ask in asks]
        heat = self.config.sampling.temperature
        foreign_b = np.array(
            [ask.temperature not in (None, heat) or scaling is not None for ask, _ in rows], dtype=bool
        )
        if self.make is not None:
            return self._played(rows, foreign_b, greedy=greedy, scaling=scaling, count_failures=count_failures)
        budgets = [min(ask.max_new_tokens or self.max_new_tokens, self.max_new_tokens) for ask, _ in rows]
        rollout = self._generate(rows, budgets, greedy=greedy, scaling=scaling)
        return self.scored(rows, rollout, foreign_b, count_failures=count_failures)

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Draw one answer or turn behind each of these token ids, drawn as in training; nothing comes of it."""
        sampling = self.config.sampling
        with self.watch("rollout"):
            requests = [
                Request(
                    tuple(ids),
                    self.max_new_tokens,
                    seed,
                    sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    stop_texts=self._stop,
                )
                for ids, seed in zip(beginnings, seeds, strict=True)
            ]
            return as_rollout(requests, self.sampler.sample(requests))

    def spoken(self, asks: Sequence[Ask]) -> Collected:
        """Draw an answer to each of `asks` beside the environment: rows of one turn that nobody scored, reward 0."""
        rows = [(ask, ask.first) for ask in asks]
        budgets = [ask.max_new_tokens or self.max_new_tokens for ask, _ in rows]
        rollout = self._generate(rows, budgets, greedy=False, scaling=None)
        texts = tuple(self.policy.decode_all(rollout.response_ids))
        zero_b, none_b = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        scores = Scores(zero_b, {}, none_b, np.full(len(rows), "ok"), [])
        collected = self._collected(rows, rollout, texts, scores, none_b)
        agent, ended = self.task.agents[0], rollout.truncated_b.tolist()
        return replace(
            collected,
            group_b=collected.group_b * len(self.task.agents),
            extras={**collected.extras, **extras_of_texts(rows, rollout)},
            records=tuple(
                Record(agent, "truncated" if late else "terminated", (Turn(0, "", text),))
                for text, late in zip(texts, ended, strict=True)
            ),
        )

    def written(self, asks: Sequence[Ask], texts: Sequence[str]) -> Collected:
        """Lay texts that the policy did not write out as rows, one per ask: scored, log-probs foreign.

        Raises InputError where the task has an environment: an episode is more than a text.
        """
        if self.make is not None:
            raise InputError(
                "texts written by the task are to join the rows",
                "an episode is acted out in its environment, it has no text of its own",
                "Leave out the part that writes answers, or take a task that is answered at once",
            )
        rows = [(ask, ask.first) for ask in asks]
        end = self.policy.eos_ids[:1]
        response_ids = tuple((*ids[: self.max_new_tokens - 1], *end) for ids in self.policy.encode_all(list(texts)))
        width = max(map(len, response_ids))
        zeros_bt = torch.zeros(len(rows), width, dtype=self.policy.score_dtype)
        complete_b = torch.zeros(len(rows), dtype=torch.bool)
        rollout = Rollout(self._prompt_ids(rows), response_ids, zeros_bt, zeros_bt.clone(), complete_b)
        written = self.scored(rows, rollout, np.ones(len(rows), dtype=bool), count_failures=False)
        return written.with_source("demonstration")

    def scored(self, rows: Rows, rollout: Rollout, foreign_b: np.ndarray, *, count_failures: bool) -> Collected:
        """Score the answers of a rollout; each row belongs to (ask, number of the answer)."""
        questions = [ask.question for ask, _ in rows]
        whole = [(*ask.lead, *ids) for (ask, _), ids in zip(rows, rollout.response_ids, strict=True)]
        texts = tuple(self.policy.decode_all(whole))
        scores = self._score(texts, questions, [sample_id(ask.question.id, number) for ask, number in rows])
        collected = self._collected(rows, rollout, texts, scores, foreign_b)
        if not count_failures:
            return collected
        return replace(collected, kept_b=self.errors.apply(scores, collected.group_b))

    def _played(
        self, rows: Rows, foreign_b: np.ndarray, *, greedy: bool, scaling: EntropyScaling | None, count_failures: bool
    ) -> Collected:
        """Play the episodes asked for; rows without a token of the policy's own cannot be trained on."""
        episodes = self._play(rows, greedy=greedy, scaling=scaling)
        which = [rows[e] for e in episodes.episode_b.tolist()]
        names = [sample_id(ask.question.id, n, c) for (ask, n), c in zip(which, episodes.context_b, strict=True)]
        with self.watch("score"):
            scores = score_episodes(episodes, names, self.config.reward.correct_at)
        if self.config.reward.function is not None:
            more = self._score(episodes.texts, [ask.question for ask, _ in which], names)
            scores = with_function(scores, more, reward_name(self.reward))
        rollout = episodes.rollout
        if any(ask.lead_trained for ask, _ in rows):
            rollout = self._with_led(rollout, episodes, which)
        foreign_b = foreign_b[episodes.episode_b]
        collected = self._collected(which, rollout, episodes.texts, scores, foreign_b)
        collected = replace(
            collected,
            prompts=episodes.prompts,
            group_b=collected.group_b * len(self.task.agents) + episodes.agent_b,
            extras={**collected.extras, **extras_of(episodes, rows)},
            records=episodes.records,
        )
        kept_b = self._kept(collected, count_failures) & episodes.mask_bt.any(1)
        return replace(collected, kept_b=kept_b)

    def counted(self, collected: Collected) -> Collected:
        """Return rows that were drawn with `count_failures` off, as if it had been on."""
        if self.make is None:
            return replace(collected, kept_b=self.errors.apply(collected.scores, collected.group_b))
        kept_b = self._kept(collected, count_failures=True)
        return replace(collected, kept_b=kept_b & collected.extras["mask_bt"].any(1))

    def _kept(self, collected: Collected, count_failures: bool) -> np.ndarray:
        """[B] which rows may be trained on. An episode is one sample of the error policy, and is kept or not whole."""
        scores = collected.scores
        if not count_failures:
            return scores.ok_b
        episodes, of_b = np.unique(collected.extras["keys.episode"], return_inverse=True)
        worst_e = np.full(len(episodes), -1)
        for row in np.flatnonzero(~scores.ok_b)[::-1]:
            worst_e[of_b[row]] = row
        one_e = np.where(worst_e >= 0, worst_e, [int((of_b == e).argmax()) for e in range(len(episodes))])
        order = np.argsort(one_e)
        kept_e = np.zeros(len(episodes), dtype=bool)
        kept_e[order] = self.errors.apply(subset_scores(scores, one_e[order]), collected.ordinal_b[one_e[order]])
        if self.errors.mode == "zero":
            scores.reward_b[scores.failed_b] = 0.0
        return kept_e[of_b] & np.isfinite(scores.reward_b)

    def _with_led(self, rollout: Rollout, episodes: Episodes, which: Rows) -> Rollout:
        """Return the rollout with the policy's own log-probs and entropies on the tokens of trained leads."""
        rows = [i for i, (ask, _) in enumerate(which) if ask.lead_trained and ask.lead_turns]
        out = self.policy.logp(rollout.tokens.of_agents(episodes.agent_b).rows(rows), entropy=True)
        logp_bt, entropy_bt = rollout.logp_bt.clone(), rollout.entropy_bt.clone()
        for place, row in enumerate(rows):
            led = len(which[row][0].lead_turns)
            numbers = [turn.number for turn in episodes.records[row].turns]
            turns = [place for place, number in enumerate(numbers) if number < led]
            where = torch.from_numpy(np.isin(episodes.turn_bt[row], turns)).nonzero()[:, 0]
            logp_bt[row, where] = out.logp_bt[place, where].cpu().to(logp_bt)
            entropy_bt[row, where] = out.entropy_bt[place, where].cpu().to(entropy_bt)
        return replace(rollout, logp_bt=logp_bt, entropy_bt=entropy_bt)

    def _play(self, rows: Rows, *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        assert self.make is not None
        sampling, seed = self.config.sampling, self.config.seed
        starts = [start_of(ask, number, seed, sampling.temperature) for ask, number in rows]
        with self.watch("rollout"):
            if self.task.spaces is not None:
                return play_arrays(
                    self.sampler,
                    self.make,
                    starts,
                    spaces=self.task.spaces,
                    max_turns=self.task.max_turns,
                    greedy=greedy,
                    stage=self.stage,
                )
            return play(
                self.policy,
                self.make,
                starts,
                max_turns=self.task.max_turns,
                max_new_tokens=self.max_new_tokens,
                agents=self.task.agents,
                greedy=greedy,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                entropy_scaling=scaling,
                stop=self._stop,
                history=sampling.history,
                stage=self.stage,
                sampler=self.sampler,
            )

    def _collected(
        self,
        rows: Rows,
        rollout: Rollout,
        texts: tuple[str, ...],
        scores: Scores,
        foreign_b: np.ndarray,
    ) -> Collected:
        """Put scored rows together, those that have a score kept; each belongs to (ask, number of the answer)."""
        group_b = np.array([ask.ordinal for ask, _ in rows], dtype=np.int64)
        names = list(dict.fromkeys(name for ask, _ in rows for name in ask.keys))
        columns = {f"keys.{n}": np.array([ask.keys.get(n, 0) for ask, _ in rows], dtype=np.int64) for n in names}
        return Collected(
            questions=tuple(ask.question for ask, _ in rows),
            prompts=tuple(ask.shown for ask, _ in rows),
            group_b=group_b,
            index_b=np.array([ask.index for ask, _ in rows], dtype=np.int64),
            answer_b=np.array([n for _, n in rows], dtype=np.int64),
            rollout=rollout,
            texts=texts,
            scores=scores,
            kept_b=scores.ok_b,
            source_b=np.array([ask.source for ask, _ in rows], dtype=np.int64),
            foreign_b=foreign_b,
            extras=columns,
        )

    def greedy_reward(self, asks: Sequence[Ask], group_b: np.ndarray) -> np.ndarray:
        """[B] reward of the greedy answer to the question of each row; NaN where it could not be scored."""
        greedy = self.draw(asks, greedy=True, count_failures=False)
        found = dict(zip(greedy.group_b.tolist(), greedy.scores.reward_b.tolist(), strict=True))
        return np.array([found.get(group, np.nan) for group in group_b.tolist()])

    def _generate(self, rows: Rows, budgets: Sequence[int], *, greedy: bool, scaling: EntropyScaling | None) -> Rollout:
        sampling = self.config.sampling
        with self.watch("rollout"):
            requests = [
                Request(
                    ids,
                    budget,
                    answer_seed("train", self.config.seed, ask.ordinal, number),
                    ask.temperature or sampling.temperature,
                    greedy=greedy,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    stop_texts=self._stop,
                    entropy_scaling=scaling,
                )
                for (ask, number), ids, budget in zip(rows, self._prompt_ids(rows), budgets, strict=True)
            ]
            return as_rollout(requests, self.sampler.sample(requests))

    def _prompt_ids(self, rows: Rows) -> tuple[tuple[int, ...], ...]:
        """Token ids that stand before each answer: the prompt and the ask's lead."""
        asks = list({id(ask): ask for ask, _ in rows}.values())
        encoded = self.policy.encode_prompts([ask.shown for ask in asks])
        ids_of = {id(ask): (*ids, *ask.lead) for ask, ids in zip(asks, encoded, strict=True)}
        return tuple(ids_of[id(ask)] for ask, _ in rows)

    def _score(self, texts: Sequence[str], questions: Sequence[Any], ids: Sequence[str]) -> Scores:
        columns = [question.columns for question in questions]
        with self.watch("score"):
            return score(self.reward, texts, columns, ids=ids, correct_at=self.config.reward.correct_at)


def under(policy: Any, collected: Collected, prompts: Sequence[Prompt]) -> Collected:
    """Return the rows of `collected` shown under other prompts, [B]; their log-probs become foreign."""
    prompt_ids = tuple(tuple(ids) for ids in policy.encode_prompts(list(prompts)))
    rollout = replace(collected.rollout, prompt_ids=prompt_ids)
    return replace(collected, prompts=tuple(prompts), rollout=rollout, foreign_b=np.ones(len(collected), dtype=bool))


def sample_id(question_id: str, answer: int, context: int = 0) -> str:
    """Return the name by which messages and records of failures speak of an answer, or of a further row of it."""
    return f"{question_id}#{'greedy' if answer == GREEDY else answer}" + (f".{context}" if context else "")
