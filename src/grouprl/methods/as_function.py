"""A composed method as one plain function of tensors, written from the lines of its parts.

The lines of a part read and assign these variables: `reward_b`, `token_reward_bt` (rewards of tokens besides),
`active_bt` (tokens in the loss), `counts_b` (rows that count in group statistics), `same_bb` (rows of the same group
that count), `adv_bt`, `factor_bt` (token weights), `weight_bt` (aggregation), `loss_bt` (objective; gates multiply it)
and `loss` (regularisers add to it). What they read besides becomes an argument, and functions of tensors that they call
are printed above.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.core.errors import InputError
from grouprl.methods.plain_names import constants, printed, read_first

GIVEN = ("logp_bt", "mask_bt", "group_b", "reward_b")
MAPPINGS = ("keys", "marks", "past", "refs", "rewards", "row_outputs", "stats")


def as_function(method: Method) -> str:
    """Return the Python source of a function that computes the loss of one optimiser step with all rows of a rollout.

    Raises:
        InputError: a part of the method has no lines of plain torch.
    """
    body = "\n".join(_body(method))
    names = read_first(body)
    helpers = printed(names, [base.__module__ for part in method.parts() for base in type(part).__mro__])
    asked = [name for name in names if name not in GIVEN and name not in helpers and name not in constants()]
    called = re.sub(r"\W", "_", method.name)
    given = [name for name in GIVEN if name in names or method.reads_log_probs]
    head = f"def {called}({', '.join((*given, *asked))}):"
    lines = "\n".join([*_documented(method, asked), body, "return loss"]).split("\n")
    function = "\n".join([head, *(f"    {line}".rstrip() for line in lines)])
    numbers = [source for source in helpers.values() if not source.startswith("def ")]
    functions = [source for source in helpers.values() if source.startswith("def ")]
    below = "\n\n\n".join([*(["\n".join(numbers)] if numbers else []), *functions, function])
    modules = [f"import {name}" for name in ("math", "torch") if f"{name}." in below]
    typed = ["from torch import Tensor"] if functions else []
    return "\n".join([*modules, *typed, "" if numbers else "\n", below, ""])


def _documented(method: Method, asked: list[str]) -> Iterator[str]:
    """Yield the lines of the function's docstring."""
    yield f'"""Return the loss of {method.name} for one optimiser step with all rows of a rollout.'
    yield ""
    yield "Names end in the axes: b rows, t tokens, s turns. `mask_bt` marks the tokens that the policy wrote."
    if "old_entropy_bt" in asked:
        yield "`old_entropy_bt` are the entropies at the start of the update, which carry no gradient."
    if mappings := [f"`{name}`" for name in asked if name in MAPPINGS]:
        yield f"{', '.join(mappings)}: tensors by name."
    yield from _around(method)
    yield '"""'


def _around(method: Method) -> Iterator[str]:
    """Yield what the method does outside this loss, a line per part."""
    outside = (method.curriculum, method.allocation, method.sampling, *method.augment, method.refill, method.buffer)
    parts = [part for part in (*outside, *method.pretrain, method.critic, method.update) if part is not None]
    if parts:
        yield "Besides this loss the method has:"
        said = (f"{part.kind} {part.name}: {part.words()}" for part in parts)
        yield from (textwrap.fill(each, 100, initial_indent="- ", subsequent_indent="  ") for each in said)
        yield "This function counts all rows and all tokens of the mask, even those that these parts leave out."


def _body(method: Method) -> Iterator[str]:
    """Yield the lines of the function, each part under a comment that says what it does."""
    yield "active_bt, counts_b = mask_bt, torch.ones_like(group_b, dtype=torch.bool)"
    yield "same_bb = group_b[:, None] == group_b"
    yield from _advantages(method)
    yield from _lines(method, *method.prune)
    yield "adv_bt = torch.where(active_bt, adv_bt, 0)"
    if method.token_weight:
        yield "factor_bt = torch.ones_like(adv_bt)"
    yield from _lines(method, *method.token_weight, method.aggregate, method.objective)
    if method.token_weight:
        yield "loss_bt = loss_bt * factor_bt"
    yield from _lines(method, *method.token_gate)
    yield "loss = (weight_bt * loss_bt).sum()"
    yield from _lines(method, *method.regularize)


def _advantages(method: Method) -> Iterator[str]:
    """Yield the lines up to the advantages; tokens have rewards of their own only where a transform gives them."""
    rewards = list(_lines(method, *method.reward_transform))
    whole = "token_reward_bt" not in own_code(method.advantage)
    lines = [*_lines(method, *method.filter, method.advantage, *method.advantage_transform)]
    if not any("token_reward_bt" in line for line in rewards):
        yield from rewards
        yield from (re.sub(r" \+ token_reward_bt(\[:, t\])?", "", line) for line in lines)
        return
    yield "token_reward_bt = torch.zeros_like(logp_bt)"
    yield from rewards
    if whole:
        yield "reward_b = reward_b + token_reward_bt.sum(1)"
    yield from lines


def own_code(part: Part) -> str:
    """Return the lines of a part; '' for a part that derives from another and has no lines of its own."""
    kind = type(part)
    # members of parts of the user's are wrapped in their own class, inherited ones too: the name says whose they are
    written = inspect.unwrap(vars(kind).get("code", Part.code)).__qualname__ == f"{kind.__qualname__}.code"
    return part.code() if written or "plain" in vars(kind) else ""


def _lines(method: Method, *parts: Part) -> Iterator[str]:
    for part in parts:
        if not (code := own_code(part)):
            raise InputError(
                f"{method.name} has the {part.kind} part '{part.name}', which has no lines of plain torch",
                "every part of a method shown as one function must have them",
                f"Read {type(part).__module__}, or see: grouprl parts {part.name}",
            )
        said = f"{part.kind} {part.name}: {part.words()}"
        yield textwrap.fill(said, 100, initial_indent="# ", subsequent_indent="# ")
        yield code
