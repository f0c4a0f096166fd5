"""The policy's probability of the correct answer at the beginning of each turn."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.records.examples import Example
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import as_text
from grouprl.records.tokens import Tokens

Ids = tuple[int, ...]
Requested = tuple[Ids, Ids, int]
"""The text that the policy had seen, the correct answer, and the agent whose belief is read."""


@part("augment")
class AnswerBelief(Augmentation):
    """Give `stats.answer`: the mean log-prob of the correct answer, if it were given at the beginning of each turn
    (IGPO).

    The policy that sampled the rows reads what it had read when the turn began, then `before` (closing a thought,
    opening an answer), then the task's solution; the solution's tokens count. Equal beginnings are read once. The rows
    stay as they are.
    """

    needs_text = True

    before: str = ""
    says = "read, at the beginning of each turn, how likely the policy finds the task's correct answer"
    equation = "stats.answer = mean_j log π(a_j | before the turn, a_{{<j}})"
    fills = ("stats.answer",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.answer`, [B,T]: the same on all tokens of a turn."""
        turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), -1)
        examples = {example.id: example for example in samples.examples}
        answer_ids = {name: self._answer(example, context) for name, example in examples.items()}
        requested: dict[Requested, int] = {}
        number_bt = torch.full_like(turn_bt, -1)
        tokens = as_text(samples).tokens
        for b, example in enumerate(samples.examples):
            agent = 0 if tokens.agents is None else tokens.agents[b]
            for turn in range(int(turn_bt[b].max()) + 1):
                of_turn_t = (turn_bt[b] == turn).nonzero()[:, 0]
                if len(of_turn_t):
                    seen = (
                        *tokens.prompt_ids[b],
                        *tokens.response_ids[b][: int(of_turn_t[0])],
                        *self._prefix(context),
                    )
                    number_bt[b, of_turn_t] = requested.setdefault(
                        (seen, answer_ids[example.id], agent), len(requested)
                    )
        mean_n = self._believed(list(requested), tokens.agents is not None, context).to(batch.dtype)
        belief_bt = torch.where(number_bt >= 0, mean_n[number_bt.clamp(min=0)], 0)
        return batch.replace(stats={**batch.stats, "answer": belief_bt})

    def _prefix(self, context: RunContext) -> Ids:
        return tuple(context.text.encode(self.before)) if self.before else ()

    def _answer(self, example: Example, context: RunContext) -> Ids:
        answer = context.task.solution(example)
        if not answer:
            raise InputError(
                f"prompt '{example.id}' has no correct answer",
                "answer_belief measures how likely the policy finds the task's solution",
                "Take a task with solutions, or leave answer_belief out",
            )
        return tuple(context.text.encode(answer))

    def _believed(self, requested: list[Requested], apart: bool, context: RunContext) -> Tensor:
        """Return [N] the mean log-prob of each answer after what was seen; with `apart` each uses the weights of its
        agent.
        """
        seen, answers, agents = zip(*requested, strict=True)
        tokens = Tokens(seen, answers, agents if apart else None)
        logp_nt = context.text.policy.logp(tokens).cpu()
        present_nt = tokens.present_bt()
        return torch.where(present_nt, logp_nt, 0).sum(1) / present_nt.sum(1)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without correct answers."""
        if run.demonstrations:
            return []
        return [
            "answer_belief measures how likely the correct answer is, but the task has no correct answers to show. "
            "Use a task with solutions, or leave answer_belief out"
        ]
