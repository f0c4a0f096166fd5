"""Prompts that state a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.allocation.variants import shares
from grouprl.algorithms.data_part import Allocation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.records.examples import Example, Prompt
from grouprl.records.requests import RolloutRequest

if TYPE_CHECKING:
    from grouprl.tasks.task import Task

Budgets = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]


def in_tokens(budget: float, longest: int) -> int:
    """Return a budget in tokens: one of at most 1 is a share of `longest`."""
    return max(1, round(budget * longest)) if budget <= 1 else int(budget)


def in_words(budgets: Sequence[float]) -> str:
    """Name budgets: '25%, 50% of the completion limit' or '512, 1024 tokens'."""
    if budgets[-1] <= 1:
        return ", ".join(f"{budget:.0%}" for budget in budgets) + " of the completion limit"
    return ", ".join(f"{budget:g}" for budget in budgets) + " tokens"


def check_rising(name: str, budgets: Sequence[float]) -> None:
    """Raise InputError unless budgets rise and are all in tokens or all shares."""
    if list(budgets) != sorted(set(budgets)) or (budgets[0] <= 1) != (budgets[-1] <= 1):
        raise InputError(
            f"{name} has the budgets {list(budgets)}",
            "budgets must rise, and be all in tokens or all shares (at most 1)",
        )


def misfits(name: str, budgets: Sequence[float], run: RunFacts) -> list[str]:
    """Return why budgets do not fit a run: equal in tokens, or longer than a completion may be."""
    limits = [in_tokens(budget, run.max_length) for budget in budgets] if run.max_length else []
    if len(set(limits)) < len(limits):
        return [f"{name} has budgets of {limits} tokens. Use fewer of them, or allow longer completions"]
    if limits and limits[-1] > run.max_length:
        return [
            f"{name} has a budget of {limits[-1]} tokens, but completions have at most {run.max_length}. "
            "Lower the budgets, or allow longer completions (sampling.max_new_tokens)"
        ]
    return []


@part("allocation")
class BudgetPrompts(Allocation):
    """Request each prompt with every budget, its completions spread evenly over them (HBPO, arXiv:2507.15844).

    The budget is stated in the prompt (`Task.with_budget`) and in `keys.budget`, in tokens; completions are not cut off
    at the budget. `budgets` are in tokens, at most 1 means a share of the run's completion limit. The paper: 16
    completions over budgets of 512, 1024, 2048 and 2560 tokens of at most 4096, which are the default's shares.
    """

    needs_text = True

    budgets: Budgets = (0.125, 0.25, 0.5, 0.625)
    fills = ("keys.budget",)

    def __post_init__(self) -> None:
        """Refuse budgets that do not rise."""
        check_rising("budget_prompts", self.budgets)

    def allot(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return one request per budget, with numbers of completions of their own."""
        return [part for request in requests for part in self._spread(request, context)]

    def _spread(self, request: RolloutRequest, context: RunContext) -> list[RolloutRequest]:
        counts = shares(request.completions, len(self.budgets))
        limits = [in_tokens(budget, context.max_new_tokens) for budget in self.budgets]
        return [
            replace(
                request,
                completions=count,
                first=request.first + sum(counts[:i]),
                prompt=context.task.with_budget(request.example, budget),
                keys={**request.keys, "budget": budget},
            )
            for i, (budget, count) in enumerate(zip(limits, counts, strict=True))
        ]

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the prompt with each budget."""
        return [task.with_budget(example, in_tokens(budget, run.max_length)) for budget in self.budgets]

    @override
    def words(self) -> str:
        return f"sample each prompt with budgets of {in_words(self.budgets)}, completions spread evenly"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse budgets that are more than the completions of a prompt, or that do not fit."""
        reasons = []
        if run.group_size < len(self.budgets):
            reasons.append(
                f"budget_prompts spreads {run.group_size} completions over {len(self.budgets)} budgets. "
                f"Use batch.group_size of {len(self.budgets)} or more, or fewer budgets"
            )
        return reasons + misfits(self.name, self.budgets, run)
