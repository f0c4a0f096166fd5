"""Prompts in several equivalent wordings, and completions shown under each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from grouprl.algorithms.data_part import Allocation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.examples import Example, Prompt
from grouprl.records.requests import RolloutRequest

if TYPE_CHECKING:
    from grouprl.tasks.task import Task


def shares(completions: int, parts: int) -> list[int]:
    """Split `completions` into `parts` numbers that differ by at most one, the larger first."""
    return [completions // parts + (i < completions % parts) for i in range(parts)]


@part("allocation")
class Variants(Allocation):
    """Spread a prompt's completions evenly over equivalent forms of it (EIS-GRPO, arXiv:2505.13346; Share-GRPO).

    The forms come from the task, at most `limit` of them, the prompt itself first; together their completions are one
    group. `keys.variant` numbers the wording of a row's prompt, `keys.own` is 1.
    """

    needs_text = True

    limit: Annotated[int, Field(ge=1)] = 2
    says = "spread the completions of a prompt over up to {limit} equivalent forms of it"
    fills = ("keys.variant", "keys.own")
    idle_at = ("limit", 1, "variants has no effect: limit is 1")

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return one request per form, with numbers of completions of their own."""
        return [part for request in requests for part in self._spread(request, context)]

    def _spread(self, request: RolloutRequest, context: RunContext) -> list[RolloutRequest]:
        forms = context.task.variants(request.example)[: self.limit]
        counts = shares(request.completions, len(forms))
        return [
            replace(
                request,
                example=form,
                completions=count,
                first=request.first + sum(counts[:i]),
                keys={**request.keys, "variant": i, "own": 1},
            )
            for i, (form, count) in enumerate(zip(forms, counts, strict=True))
        ]

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the other forms of the prompt."""
        return [form.prompt for form in task.variants(example)[: self.limit]]


@part("allocation")
class Strategies(Variants):
    """Spread a prompt's completions evenly over the policy's strategies, whose number the task tells it.

    The strategies are the task's variants of the prompt (`construct:` with `task.strategies`), `limit` of them;
    together their completions are one group. `keys.variant` numbers the strategy (Poppy, arXiv:2210.03475).
    """

    needs_text = False

    limit: Annotated[int, Field(ge=1)] = 4
    says = "spread the completions of a prompt over {limit} strategies of the policy"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse tasks with another number of strategies, and groups in which a strategy has no completion."""
        found = []
        if run.variants == 1 and self.limit > 1:
            found.append(
                "strategies has nothing to spread over: the task tells the policy of no strategies. Set "
                "task.strategies (construct:…), or task.config.strategies of a world such as "
                "envs.builtin.meeting:MeetingPlaces"
            )
        elif run.variants not in (None, self.limit):
            found.append(
                f"strategies trains {self.limit}, but the task tells the policy of {run.variants}, and evaluations "
                "draw all of those. Set method.strategies and task.strategies (or task.config.strategies) to one number"
            )
        if run.group_size < self.limit:
            found.append(
                f"strategies spreads {run.group_size} completions over {self.limit} strategies. "
                f"Use batch.group_size of {self.limit} or more, or fewer strategies (method.strategies)"
            )
        return found
