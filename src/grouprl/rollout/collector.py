"""Collecting samples: request, complete, score.

Every completion has a seed made from (run, ordinal of the prompt, number of the completion), so it does not depend on
which other prompts are sampled beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB
from grouprl.core.spans import span, spanned
from grouprl.core.stopwatch import Stopwatch
from grouprl.envs.stage import Stage
from grouprl.envs.stage_workers import open_stage
from grouprl.protocols import EntropyScaling, Request, RunSampler, StoredRows
from grouprl.records.examples import Prompt
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples, subset_scores
from grouprl.records.scores import Scores
from grouprl.records.turns import Record, Turn
from grouprl.rewards.contract import Failure, reward_name
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.judge import GroupPlace, placed
from grouprl.rewards.scoring import score
from grouprl.rollout.array_episodes import play_arrays
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode_rows import (
    environments,
    extras_of,
    extras_of_texts,
    score_episodes,
    start_of,
    with_function,
)
from grouprl.rollout.episodes import Episodes, Start, TurnSettings, play
from grouprl.rollout.group_scores import with_group_scores
from grouprl.rollout.sampler import as_rollout
from grouprl.rollout.seeds import sample_seed
from grouprl.rollout.stored import stored
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy
    from grouprl.rewards.contract import Reward

GREEDY_TOKENS = "past.greedy_tokens"
"""Column of `ScoredSamples.extras`: [B] int64, the length of the greedy completion to the row's prompt."""
GREEDY = -1
"""Number of the greedy completion, which needs no seed of its own."""


Rows = Sequence[tuple[RolloutRequest, int]]
"""Requests, each with the number of the completion that the row is."""


class Collector:
    """Samples and scores completions, or episodes where the task has an environment; `watch` adds up the seconds
    spent on both.

    `max_new_tokens` is the budget of a completion, or of one turn of an episode. Every sample comes from `sampler`;
    None: one of this process (`local_engine`). Environments act on `stage`; None: on one that this opens.
    """

    def __init__(
        self,
        config: Config,
        policy: Any,
        reward: Reward,
        max_new_tokens: int,
        errors: ErrorPolicy,
        task: Task,
        sampler: RunSampler | None = None,
        stage: Stage | None = None,
    ) -> None:
        self.config, self.policy, self.reward = config, policy, reward
        self.sampler: RunSampler = sampler or local_engine(policy)
        self.max_new_tokens, self.errors = max_new_tokens, errors
        self.make, self.task = environments(task), task
        self.stage = stage
        self.notes: list[str] = []
        if self.make is not None and stage is None:
            acting = config.environment
            self.stage, note = open_stage(task, acting.workers, timeout=acting.timeout, memory_gb=acting.memory_gb)
            self.notes = [note] if note else []
        self.watch = Stopwatch()

    @property
    def _stop(self) -> tuple[str, ...]:
        """Texts that end a completion or a turn."""
        return (*self.task.stop, *self.config.sampling.stop)

    def close(self) -> None:
        """End the processes in which environments act."""
        if self.stage is not None:
            self.stage.close()

    @contextmanager
    def acting(self, policy: Any) -> Iterator[None]:
        """Let another policy of this process sample."""
        before, self.policy, self.sampler = (self.policy, self.sampler), policy, local_engine(policy)
        try:
            yield
        finally:
            self.policy, self.sampler = before

    def sample(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Sample and score the completions that `requests` ask for; `count_failures` is off for probes that are not
        trained on."""
        if isinstance(self.task, StoredRows):
            return stored(self.task, self.policy, requests, self.max_new_tokens)
        rows = [(request, request.first + i) for request in requests for i in range(request.completions)]
        if greedy:
            rows = [(request, GREEDY) for request in requests]
        foreign_b = self.foreign(rows) | (scaling is not None)
        if self.make is not None:
            return self._played(rows, foreign_b, greedy=greedy, scaling=scaling, count_failures=count_failures)
        budgets = [min(request.max_new_tokens or self.max_new_tokens, self.max_new_tokens) for request, _ in rows]
        rollout = self._generate(rows, budgets, greedy=greedy, scaling=scaling)
        return self.scored(rows, rollout, foreign_b, count_failures=count_failures)

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Sample one completion or turn behind each of these token ids, as in training; it is not scored."""
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

    def sample_texts(self, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Sample a completion to each of `requests` without its environment: rows of one turn, unscored, with reward
        0."""
        rows = [(request, request.first) for request in requests]
        budgets = [request.max_new_tokens or self.max_new_tokens for request, _ in rows]
        rollout = self._generate(rows, budgets, greedy=False, scaling=None)
        texts = tuple(self.policy.decode_all(rollout.response_ids))
        zero_b, none_b = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        scores = Scores(zero_b, {}, none_b, np.full(len(rows), "ok"), [])
        samples = self._scored_samples(rows, rollout, texts, scores, none_b)
        agent, ended = self.task.agents[0], rollout.truncated_b.tolist()
        return replace(
            samples,
            group_b=samples.group_b * len(self.task.agents),
            extras={**samples.extras, **extras_of_texts(rows, rollout)},
            records=tuple(
                Record(agent, "truncated" if late else "terminated", (Turn(0, "", text),))
                for text, late in zip(texts, ended, strict=True)
            ),
        )

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> ScoredSamples:
        """Lay texts that the policy did not write out as rows, one per request: scored, log-probs foreign.

        Raises InputError where the task has an environment: an episode is more than a text.
        """
        if self.make is not None:
            raise InputError(
                "texts written by the task are to be added to the rows",
                "an episode is acted out in its environment, it has no text of its own",
                "Leave out the part that writes completions, or take a task of a single turn",
            )
        rows = [(request, request.first) for request in requests]
        end = self.policy.eos_ids[:1]
        response_ids = tuple((*ids[: self.max_new_tokens - 1], *end) for ids in self.policy.encode_all(list(texts)))
        width = max(map(len, response_ids))
        zeros_bt = torch.zeros(len(rows), width, dtype=self.policy.score_dtype)
        complete_b = torch.zeros(len(rows), dtype=torch.bool)
        rollout = Rollout(self._prompt_ids(rows), response_ids, zeros_bt, zeros_bt.clone(), complete_b)
        written = self.scored(rows, rollout, np.ones(len(rows), dtype=bool), count_failures=False)
        return written.with_source("demonstration")

    def scored(self, rows: Rows, rollout: Rollout, foreign_b: np.ndarray, *, count_failures: bool) -> ScoredSamples:
        """Score the completions of a rollout; each row belongs to (request, number of the completion)."""
        whole = [(*request.prefix, *ids) for (request, _), ids in zip(rows, rollout.response_ids, strict=True)]
        texts = tuple(self.policy.decode_all(whole))
        names = [sample_id(request.example.id, number) for request, number in rows]
        scores = self._score(texts, rows, names, [request.shown for request, _ in rows])
        samples = self._scored_samples(rows, rollout, texts, scores, foreign_b)
        if not count_failures:
            return samples
        return replace(samples, valid_b=self.errors.apply(scores, samples.group_b))

    def _played(
        self, rows: Rows, foreign_b: np.ndarray, *, greedy: bool, scaling: EntropyScaling | None, count_failures: bool
    ) -> ScoredSamples:
        """Play the requested episodes."""
        episodes = self._play(rows, greedy=greedy, scaling=scaling)
        return self.played(rows, episodes, foreign_b, count_failures=count_failures)

    def played(self, rows: Rows, episodes: Episodes, foreign_b: np.ndarray, *, count_failures: bool) -> ScoredSamples:
        """Score played episodes; rows without a token of the policy's own cannot be trained on."""
        groups = [request.ordinal for request, _ in rows]
        episodes = with_group_scores(self.task, episodes, self.starts(rows), groups)
        which = [rows[e] for e in episodes.episode_b.tolist()]
        names = [sample_id(request.example.id, n, c) for (request, n), c in zip(which, episodes.context_b, strict=True)]
        with self.watch("score"):
            scores = score_episodes(episodes, names, self.config.reward.correct_at)
        if self.config.reward.replaced:
            more = self._score(episodes.texts, which, names, episodes.prompts)
            scores = with_function(scores, more, reward_name(self.reward))
        scores = replace(scores, lost_b=_lost_prompts(scores, episodes, which))
        rollout = episodes.rollout
        if any(request.train_prefix for request, _ in rows):
            rollout = self._with_prefix_logps(rollout, episodes, which)
        foreign_b = foreign_b[episodes.episode_b]
        samples = self._scored_samples(which, rollout, episodes.texts, scores, foreign_b)
        samples = replace(
            samples,
            prompts=episodes.prompts,
            group_b=samples.group_b * len(self.task.agents) + episodes.agent_b,
            extras={**samples.extras, **extras_of(episodes, rows)},
            records=episodes.records,
        )
        valid_b = self._valid(samples, count_failures) & episodes.mask_bt.any(1)
        return replace(samples, valid_b=valid_b)

    def counted(self, samples: ScoredSamples) -> ScoredSamples:
        """Return rows that were sampled with `count_failures` off, as if it had been on."""
        if self.make is None:
            return replace(samples, valid_b=self.errors.apply(samples.scores, samples.group_b))
        valid_b = self._valid(samples, count_failures=True)
        return replace(samples, valid_b=valid_b & samples.extras["mask_bt"].any(1))

    def _valid(self, samples: ScoredSamples, count_failures: bool) -> np.ndarray:
        """[B] which rows may be trained on. An episode is one sample of the error policy, kept or dropped whole."""
        scores = samples.scores
        if not count_failures:
            return scores.ok_b
        episodes, of_b = np.unique(samples.extras["keys.episode"], return_inverse=True)
        worst_e = np.full(len(episodes), -1)
        for row in np.flatnonzero(~scores.ok_b)[::-1]:
            worst_e[of_b[row]] = row
        one_e = np.where(worst_e >= 0, worst_e, [int((of_b == e).argmax()) for e in range(len(episodes))])
        order = np.argsort(one_e)
        valid_e = np.zeros(len(episodes), dtype=bool)
        valid_e[order] = self.errors.apply(subset_scores(scores, one_e[order]), samples.ordinal_b[one_e[order]])
        if self.errors.mode == "zero":
            scores.reward_b[scores.failed_b] = 0.0
        return valid_e[of_b] & np.isfinite(scores.reward_b)

    def _with_prefix_logps(self, rollout: Rollout, episodes: Episodes, which: Rows) -> Rollout:
        """Return the rollout with the policy's own log-probs and entropies on the tokens of trained turn prefixes."""
        rows = [i for i, (request, _) in enumerate(which) if request.train_prefix and request.prefix_turns]
        found = self.policy.evaluate(rollout.tokens.of_agents(episodes.agent_b).rows(rows), (LOG_PROB, ENTROPY))
        logp_bt, entropy_bt = rollout.logp_bt.clone(), rollout.entropy_bt.clone()
        for place, row in enumerate(rows):
            led = len(which[row][0].prefix_turns)
            numbers = [turn.number for turn in episodes.records[row].turns]
            turns = [place for place, number in enumerate(numbers) if number < led]
            where = torch.from_numpy(np.isin(episodes.turn_bt[row], turns)).nonzero()[:, 0]
            logp_bt[row, where] = found[LOG_PROB][place, where].cpu().to(logp_bt)
            entropy_bt[row, where] = found[ENTROPY][place, where].cpu().to(entropy_bt)
        return replace(rollout, logp_bt=logp_bt, entropy_bt=entropy_bt)

    def starts(self, rows: Rows) -> list[Start]:
        """Return the episodes that rows are, with seeds of their own."""
        temperature = self.config.sampling.temperature
        return [start_of(request, number, self.config.seed, temperature) for request, number in rows]

    def turn_settings(self) -> TurnSettings:
        """How the turns of episodes are sampled."""
        sampling = self.config.sampling
        return TurnSettings(self.task.agents, False, sampling.top_p, sampling.top_k, self._stop)

    def foreign(self, rows: Rows) -> np.ndarray:
        """[B] bool: rows that are sampled at another temperature than the run's."""
        temperature = self.config.sampling.temperature
        return np.array([request.temperature not in (None, temperature) for request, _ in rows], dtype=bool)

    def _play(self, rows: Rows, *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        assert self.make is not None
        sampling = self.config.sampling
        starts = self.starts(rows)
        with self.watch("rollout"), span("environments"):
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
                reproducible=self.config.run.async_steps == 0,
            )

    def _scored_samples(
        self,
        rows: Rows,
        rollout: Rollout,
        texts: tuple[str, ...],
        scores: Scores,
        foreign_b: np.ndarray,
    ) -> ScoredSamples:
        """Concatenate scored rows, keeping those with a score; each belongs to (request, number of the completion)."""
        group_b = np.array([request.ordinal for request, _ in rows], dtype=np.int64)
        names = list(dict.fromkeys(name for request, _ in rows for name in request.keys))
        columns = {
            f"keys.{n}": np.array([request.keys.get(n, 0) for request, _ in rows], dtype=np.int64) for n in names
        }
        return ScoredSamples(
            examples=tuple(request.example for request, _ in rows),
            prompts=tuple(request.shown for request, _ in rows),
            group_b=group_b,
            index_b=np.array([request.index for request, _ in rows], dtype=np.int64),
            sample_b=np.array([n for _, n in rows], dtype=np.int64),
            rollout=rollout,
            texts=texts,
            scores=scores,
            valid_b=scores.ok_b,
            source_b=np.array([request.source for request, _ in rows], dtype=np.int64),
            foreign_b=foreign_b,
            extras=columns,
        )

    def with_greedy(self, requests: Sequence[RolloutRequest], samples: ScoredSamples) -> ScoredSamples:
        """Return `samples` with the reward of the greedy completion of each row's prompt, NaN where it could not be
        scored, and with its length in tokens, for the account of whoever receives them."""
        greedy = self.sample(requests, greedy=True, count_failures=False)
        tokens = Counter[int]()
        for group, count in zip(greedy.group_b.tolist(), greedy.acted_bt.sum(1).tolist(), strict=True):
            tokens[group] += count
        tokens_b = np.array([tokens[group] for group in samples.group_b.tolist()], dtype=np.int64)
        reward_b = reward_of_groups(greedy, samples.group_b)
        return replace(samples, greedy_reward_b=reward_b).with_extras(**{GREEDY_TOKENS: tokens_b})

    def _generate(self, rows: Rows, budgets: Sequence[int], *, greedy: bool, scaling: EntropyScaling | None) -> Rollout:
        sampling = self.config.sampling
        with self.watch("rollout"):
            requests = [
                Request(
                    ids,
                    budget,
                    sample_seed("train", self.config.seed, request.ordinal, number),
                    request.temperature or sampling.temperature,
                    greedy=greedy,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    stop_texts=self._stop,
                    entropy_scaling=scaling,
                )
                for (request, number), ids, budget in zip(rows, self._prompt_ids(rows), budgets, strict=True)
            ]
            return as_rollout(requests, self.sampler.sample(requests))

    def _prompt_ids(self, rows: Rows) -> tuple[tuple[int, ...], ...]:
        """Token ids that stand before each completion: the prompt and the request's prefix."""
        requests = list({id(request): request for request, _ in rows}.values())
        encoded = self.policy.encode_prompts([request.shown for request in requests])
        ids_of = {id(request): (*ids, *request.prefix) for request, ids in zip(requests, encoded, strict=True)}
        return tuple(ids_of[id(request)] for request, _ in rows)

    @spanned("score")
    def _score(self, texts: Sequence[str], rows: Rows, ids: Sequence[str], prompts: Sequence[Prompt]) -> Scores:
        shown = zip(rows, prompts, strict=True)
        places = [GroupPlace(request.ordinal, number, prompt) for (request, number), prompt in shown]
        columns = placed(self.reward, [request.example.columns for request, _ in rows], places)
        with self.watch("score"):
            return score(self.reward, texts, columns, ids=ids, correct_at=self.config.reward.correct_at)


def _lost_prompts(scores: Scores, episodes: Episodes, which: Rows) -> np.ndarray | None:
    """[B] rows that their environment took with it, and those of prompts on all of whose episodes it failed."""
    failed_b = np.array([isinstance(verdict, Failure) for verdict in episodes.verdicts], dtype=bool)
    if not failed_b.any():
        return scores.lost_b
    prompt_b = np.array([request.ordinal for request, _ in which])
    several_b = np.array([len(set(episodes.episode_b[prompt_b == prompt].tolist())) > 1 for prompt in prompt_b])
    return scores.gone_b | (failed_b & several_b & ~np.isin(prompt_b, prompt_b[~failed_b]))


def reward_of_groups(greedy: ScoredSamples, group_b: np.ndarray) -> np.ndarray:
    """[B] reward of the one completion in `greedy` of each row's group; NaN where there is none."""
    found = dict(zip(greedy.group_b.tolist(), greedy.scores.reward_b.tolist(), strict=True))
    return np.array([found.get(group, np.nan) for group in group_b.tolist()])


def with_prompts(policy: TokenPolicy, samples: ScoredSamples, prompts: Sequence[Prompt]) -> ScoredSamples:
    """Return the rows of `samples` with other prompts [B] in place of their own; their log-probs become foreign."""
    prompt_ids = tuple(tuple(ids) for ids in policy.encode_prompts(list(prompts)))
    rollout = replace(samples.rollout, prompt_ids=prompt_ids)
    return replace(samples, prompts=tuple(prompts), rollout=rollout, foreign_b=np.ones(len(samples), dtype=bool))


def sample_id(prompt_id: str, completion: int, context: int = 0) -> str:
    """Return the name by which messages and records of failures refer to a completion, or of a further row of it."""
    return f"{prompt_id}#{'greedy' if completion == GREEDY else completion}" + (f".{context}" if context else "")
