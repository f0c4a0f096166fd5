"""A composed method as one plain function of tensors, written from the lines of its parts.

The lines of a part read and assign these variables: `reward_b`, `active_bt` (tokens in the loss), `counts_b` (rows that
count in group statistics), `same_bb` (rows of the same group that count), `adv_bt`, `weight_bt`
(aggregation), `loss_bt` (objective; token weights and gates multiply it) and `loss` (regularisers add to it).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.core.errors import InputError

GIVEN = ("mask_bt", "group_b", "reward_b")
ASKED = re.compile(r"\b(?:old|behavior|ref|entropy|value)_bt\b|\bcorrect_b\b|\bgreedy_reward_b\b|\bmax_length\b")
DIFFERS = '''
def differs(value_b, same_bb):
    """[B] bool: whether the values of the rows marked in each row of `same_bb` [B,B] differ."""
    highest_b = torch.where(same_bb, value_b, -torch.inf).amax(1)
    return highest_b > torch.where(same_bb, value_b, torch.inf).amin(1)

'''


def as_function(method: Method) -> str:
    """Return the Python source of a function that computes the loss of one optimiser step with all rows of a rollout.

    Raises:
        InputError: a part of the method has no lines of plain torch.
    """
    body = "\n".join(_body(method))
    asked = dict.fromkeys(ASKED.findall(body))
    name = re.sub(r"\W", "_", method.name)
    head = f"def {name}({', '.join(('logp_bt', *GIVEN, *asked))}):"
    doc = [f'"""Return the loss of {method.name} for one optimiser step with all rows of a rollout.']
    doc += ["", "Tensors are [B,T] or [B]; `mask_bt` marks the tokens that the policy wrote.", *_around(method), '"""']
    lines = "\n".join([*doc, body, "return loss"]).split("\n")
    function = "\n".join([head, *(f"    {line}".rstrip() for line in lines)])
    return f"import torch\n\n{DIFFERS if 'differs(' in body else ''}\n{function}\n"


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
    yield from _lines(method, *method.reward_transform, *method.filter, method.advantage, *method.advantage_transform)
    yield from _lines(method, *method.prune)
    yield "adv_bt = torch.where(active_bt, adv_bt, 0)"
    yield from _lines(method, method.aggregate, method.objective, *method.token_weight, *method.token_gate)
    yield "loss = (weight_bt * loss_bt).sum()"
    yield from _lines(method, *method.regularize)


def _lines(method: Method, *parts: Part) -> Iterator[str]:
    for part in parts:
        if not (code := part.code()):
            raise InputError(
                f"{method.name} has the {part.kind} part '{part.name}', which has no lines of plain torch",
                "every part of a method shown as one function must have them",
                f"Read {type(part).__module__}, or see: grouprl parts {part.name}",
            )
        said = f"{part.kind} {part.name}: {part.words()}"
        yield textwrap.fill(said, 100, initial_indent="# ", subsequent_indent="# ")
        yield code
