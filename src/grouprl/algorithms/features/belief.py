"""How likely the policy finds the right answer at the beginning of each turn."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.policy.tokens import Tokens
from grouprl.rollout.samples import Collected
from grouprl.tasks.task import Question

Ids = tuple[int, ...]
Asked = tuple[Ids, Ids, int]
"""What was seen, the right answer, and the agent that is to believe in it."""


@part("explore")
class AnswerBelief(Exploration):
    """Give `stats.answer`: the mean log-prob of the right answer, were it given at the beginning of each turn (IGPO).

    The policy that drew the rows reads what it had read when the turn began, then `before` (closing a thought, opening
    an answer), then the task's solution; the solution's tokens count. Equal beginnings are read once. The rows stay as
    they are.
    """

    before: str = ""

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Change nothing."""
        return collected

    def fill(self, batch: Batch, collected: Collected, desk: Desk) -> Batch:
        """Set `stats.answer`, [B,T]: the same on all tokens of a turn."""
        turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), -1)
        asked_for = {question.id: question for question in collected.questions}
        answer_ids = {name: self._answer(question, desk) for name, question in asked_for.items()}
        asked: dict[Asked, int] = {}
        number_bt = torch.full_like(turn_bt, -1)
        rollout, agents = collected.rollout, collected.tokens.agents
        for b, question in enumerate(collected.questions):
            agent = 0 if agents is None else agents[b]
            for turn in range(int(turn_bt[b].max()) + 1):
                of_turn_t = (turn_bt[b] == turn).nonzero()[:, 0]
                if len(of_turn_t):
                    seen = (*rollout.prompt_ids[b], *rollout.response_ids[b][: int(of_turn_t[0])], *self._lead(desk))
                    number_bt[b, of_turn_t] = asked.setdefault((seen, answer_ids[question.id], agent), len(asked))
        mean_n = self._believed(list(asked), agents is not None, desk).to(batch.dtype)
        belief_bt = torch.where(number_bt >= 0, mean_n[number_bt.clamp(min=0)], 0)
        return batch.replace(stats={**batch.stats, "answer": belief_bt})

    def _lead(self, desk: Desk) -> Ids:
        return tuple(desk.encode(self.before)) if self.before else ()

    def _answer(self, question: Question, desk: Desk) -> Ids:
        answer = desk.task.solution(question)
        if not answer:
            raise InputError(
                f"question '{question.id}' has no right answer to believe in",
                "answer_belief reads how likely the policy finds the task's solution",
                "Take a task with solutions, or leave answer_belief out",
            )
        return tuple(desk.encode(answer))

    def _believed(self, asked: list[Asked], apart: bool, desk: Desk) -> Tensor:
        """[N] mean log-prob of each answer behind what was seen; `apart`: each by the weights of its agent."""
        seen, answers, agents = zip(*asked, strict=True)
        tokens = Tokens(seen, answers, agents if apart else None)
        logp_nt = desk.policy.logp(tokens).logp_bt.cpu()
        present_nt = tokens.present_bt()
        return torch.where(present_nt, logp_nt, 0).sum(1) / present_nt.sum(1)

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("stats.answer",)

    def words(self) -> str:
        """Describe."""
        return "read, at the beginning of each turn, how likely the policy finds the task's right answer"

    def formula(self) -> str:
        """Formula."""
        return "stats.answer = mean_j log π(a_j | before the turn, a_{<j})"

    def refuse(self, run: RunFacts) -> list[str]:
        """There must be right answers."""
        if run.demonstrations:
            return []
        return ["answer_belief reads how likely the right answer is, but the task has no right answers to show"]
