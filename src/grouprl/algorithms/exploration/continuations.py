"""Answers that go on from somewhere: from a beginning of their own, from a shared plan, from part of the solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration, SamplingRule
from grouprl.algorithms.exploration.guidance import needs_solutions
from grouprl.algorithms.exploration.resampling import again, drawn_rows, groups, leads, splice, through
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weights.prefix_mask import PrefixMask, Share
from grouprl.rollout.requests import Ask
from grouprl.rollout.sampler import Rollout
from grouprl.rollout.samples import Collected


@part("explore")
class Continuations(Exploration):
    """PPPO: how many of `count` continuations of the beginning of each answer are right (arXiv:2512.15274).

    The beginning is the first ⌊η|y|⌋ tokens, with the same growing η as `prefix_mask`. The number becomes the reward
    component `continuations`; the continuations themselves are not trained on. A finished answer is its own.
    """

    count: Annotated[int, Field(ge=1)] = 8
    start: Share = 0.15
    grow: Annotated[float, Field(ge=0)] = 0.05
    limit: Share = 0.35

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with the reward component `continuations`."""
        share = PrefixMask(start=self.start, grow=self.grow, limit=self.limit).share(desk.batch(collected))
        number_b = np.where(collected.kept_b, 0.0, np.nan)
        asked: list[int] = []
        asks: list[Ask] = []
        for rows in groups(collected, collected.kept_b):
            for place, (row, lead) in enumerate(zip(rows, leads(collected, rows, desk), strict=True)):
                ids = collected.rollout.response_ids[row]
                beginning = ids[: int(share * len(ids) + 1e-9)]
                if len(beginning) == len(ids):
                    number_b[row] = self.count * collected.scores.correct_b[row]
                    continue
                room = desk.max_new_tokens - len(beginning)
                changes = {"answers": self.count, "lead": (*lead, *beginning), "max_new_tokens": room}
                asks.append(again(collected, row, place * self.count, **changes))
                asked.append(row)
        if asks:
            right_b = desk.draw(asks, count_failures=False).scores.correct_b
            number_b[asked] = right_b.reshape(len(asks), self.count).sum(1)
            desk.note("continuations", len(right_b))
        components = {**collected.scores.components, "continuations": number_b}
        return replace(collected, scores=replace(collected.scores, components=components))

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("rewards.continuations",)

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        answers = run.prompts * run.group_size
        return f"up to {answers} × {self.count} = {answers * self.count} continuations per rollout, to measure"

    def words(self) -> str:
        """Describe."""
        return f"draw {self.count} continuations of the beginning of each answer and count the right ones"


@part("explore")
class PlanTree(Exploration):
    """PTA-GRPO: answers branch where their plan ends, each plan into `leaves` answers (arXiv:2510.01833).

    The plan is what an answer says up to the first `sign` (None: the task's `plan_end`). batch.group is the number of
    plans; the answer that wrote the plan is its first leaf, and the others are trained as a whole too. `keys.plan`
    numbers the plans of a question and `marks.plan` marks their tokens. An answer without the sign stays alone, without
    a plan.
    """

    sign: Annotated[str, Field(min_length=1)] | None = None
    leaves: Annotated[int, Field(ge=1)] = 4

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with the further leaves of every plan."""
        sign = self.sign or desk.task.plan_end
        ends_b = np.array([through(desk, ids, sign) or 0 for ids in collected.rollout.response_ids])
        marked = _planned(collected, collected.answer_b, ends_b)
        asks, roots = self._branches(collected, ends_b, desk)
        desk.note("plans", len(asks))
        if not asks:
            return marked
        leaves = desk.draw(asks)
        roots_b = np.repeat(np.array(roots), self.leaves - 1)
        whole = regrown(leaves, collected, roots_b, ends_b[roots_b])
        whole = _planned(whole, collected.answer_b[roots_b], ends_b[roots_b])
        return splice(marked, np.zeros(len(collected), dtype=bool), [whole])

    def _branches(self, collected: Collected, ends_b: np.ndarray, desk: Desk) -> tuple[list[Ask], list[int]]:
        """Return an ask for the further leaves of each plan, and the rows that wrote the plans."""
        more, asks, roots = self.leaves - 1, [], []
        for rows in groups(collected, drawn_rows(collected) & (ends_b > 0)):
            for place, (row, lead) in enumerate(zip(rows, leads(collected, rows, desk), strict=True)):
                room = desk.max_new_tokens - int(ends_b[row])
                if more == 0 or room < 1:
                    continue
                plan = collected.rollout.response_ids[row][: ends_b[row]]
                changes = {"answers": more, "lead": (*lead, *plan), "max_new_tokens": room}
                asks.append(again(collected, row, place * more, **changes))
                roots.append(row)
        return asks, roots

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("keys.plan", "marks.plan")

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        answers, more = run.prompts * run.group_size, self.leaves - 1
        total = answers * more
        return f"up to {answers} × {more} = {total} answers per rollout, which are trained on" if more else ""

    def words(self) -> str:
        """Describe."""
        end = "" if self.sign is None else f", up to '{self.sign}',"
        return f"every answer's plan{end} is carried out {self.leaves} times"

    def idle(self, run: RunFacts) -> list[str]:
        """One leaf is the answer itself."""
        return ["plan_tree draws nothing: leaves is 1"] if self.leaves == 1 else []


def _planned(collected: Collected, plan_b: np.ndarray, ends_b: np.ndarray) -> Collected:
    """Return the rows with the number of their plan and its tokens marked: the first `ends_b` ([B])."""
    width = max(map(len, collected.rollout.response_ids))
    return collected.with_extras(keys__plan=plan_b, marks__plan=np.arange(width) < ends_b[:, None])


def regrown(leaves: Collected, collected: Collected, roots: np.ndarray, size_b: np.ndarray) -> Collected:
    """Return continuations with what they go on from as tokens of their own.

    Row i continues the first `size_b[i]` tokens of row `roots[i]` of `collected`, which drew them with the log-probs
    that they have there.
    """
    old, new = collected.rollout, leaves.rollout
    begun = [old.response_ids[r][:n] for r, n in zip(roots, size_b, strict=True)]
    response_ids = tuple((*a, *b) for a, b in zip(begun, new.response_ids, strict=True))
    shape = (len(response_ids), max(map(len, response_ids)))
    logp_bt, entropy_bt = (torch.zeros(shape, dtype=x.dtype) for x in (new.logp_bt, new.entropy_bt))
    for i, (root, n) in enumerate(zip(roots.tolist(), size_b.tolist(), strict=True)):
        rest = len(new.response_ids[i])
        for whole_bt, begun_bt, rest_bt in (
            (logp_bt, old.logp_bt, new.logp_bt),
            (entropy_bt, old.entropy_bt, new.entropy_bt),
        ):
            whole_bt[i, :n] = begun_bt[root, :n]
            whole_bt[i, n : n + rest] = rest_bt[i, :rest]
    prompt_ids = tuple(old.prompt_ids[r] for r in roots)
    rollout = Rollout(prompt_ids, response_ids, logp_bt, entropy_bt, new.truncated_b, old.exact and new.exact)
    return replace(leaves, rollout=rollout, foreign_b=leaves.foreign_b | collected.foreign_b[roots])


@part("sampling")
class PrefixRestarts(SamplingRule):
    """Answers to a share `chance` of the questions begin with part of the right solution, ever less of it.

    How much is drawn evenly from 0 up to a share of the solution's tokens that falls from `most` to 0 in equal steps
    until the share `until` of the run: a curriculum from the end of the solution backwards (after Florensa et al.,
    arXiv:1707.05300; for language models R3, arXiv:2402.05808). What is given is scored with the answer and never
    trained on.
    """

    chance: Annotated[float, Field(ge=0, le=1)] = 0.5
    most: Share = 0.9
    until: Share = 1.0

    def adjust(self, asks: Sequence[Ask], desk: Desk) -> list[Ask]:
        """Return the asks, some with the beginning of their question's solution."""
        rng, share = desk.rng(self), self.share(desk.step, desk.steps)
        draws = {ordinal: rng.random(2) for ordinal in dict.fromkeys(ask.ordinal for ask in asks)}
        adjusted = [self._begun(ask, share, draws[ask.ordinal], desk) for ask in asks]
        desk.note("restarts", sum(bool(ask.lead) for ask in adjusted))
        return adjusted

    def share(self, step: int, steps: int) -> float:
        """Return the largest share of a solution that is given at a step of the run."""
        return self.most * max(0.0, 1 - step / (self.until * steps))

    def _begun(self, ask: Ask, share: float, draws: np.ndarray, desk: Desk) -> Ask:
        right = desk.task.solution(ask.question) if draws[0] < self.chance else None
        ids = desk.encode(right) if right else ()
        given = min(int(draws[1] * share * (len(ids) + 1)), len(ids), desk.max_new_tokens - 1)
        if given < 1:
            return ask
        room = min(ask.max_new_tokens or desk.max_new_tokens, desk.max_new_tokens - given)
        return replace(ask, lead=(*ask.lead, *ids[:given]), max_new_tokens=room)

    def words(self) -> str:
        """Describe."""
        until = "the end" if self.until == 1 else f"{self.until:.0%}"
        return (
            f"{self.chance:.0%} of the questions are answered from a beginning of the solution: up to {self.most:.0%} "
            f"of it at first, nothing at {until} of the run"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Nobody restarts."""
        return ["prefix_restarts has no effect: its chance is 0"] if self.chance == 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Prefixes are those of solutions."""
        return needs_solutions(self.name, run)
