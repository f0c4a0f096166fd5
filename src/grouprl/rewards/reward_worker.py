"""The reward in a worker process: it answers jobs with verdicts, which its parent reads and checks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.json_types import JsonObject
from grouprl.processes.frames import BadReply, Replies
from grouprl.processes.parcel import unpack
from grouprl.records.scores import Status
from grouprl.rewards.clock import each_within
from grouprl.rewards.validation import Verdict, verdicts_each, verdicts_of
from grouprl.rewards.verifier_calls import ALLOWANCE


def serve(given: tuple[JsonObject, Sequence[Any]], jobs: Iterator[Any], reply: Replies) -> None:
    """Answer jobs: each is (number, mode, completions, columns, ids, terms), with a timeout."""
    parcel, all_examples = given
    reward = unpack(parcel)
    reply("loaded")
    for examples in all_examples:  # a first call outside the time limit imports what the reward imports lazily
        with contextlib.suppress(GrouprlError):
            verdicts_of(reward, *examples)
    reply("ready")
    for number, mode, texts, columns, ids, terms in jobs:
        ALLOWANCE.timeout = terms.timeout
        try:
            if mode == "each":
                found = each_within(terms.timeout, verdicts_each(reward, texts, columns, ids, terms))
            else:
                found = iter(verdicts_of(reward, texts, columns, ids, terms))
            for place, v in enumerate(found):
                parts = dict(v.components)
                reply("verdict", number, place, v.status, v.reward, parts, v.correct, v.what, v.trace, v.graded)
        except InputError as error:
            reply("refused", number, error.what, error.rule, error.remedy)
        except GrouprlError as error:
            reply("refused", number, str(error), "", "")


def read_verdict(values: list[Any]) -> tuple[int, Verdict]:
    """Return the position and the verdict in a reply.

    Raises:
        BadReply: if the reply does not hold them.
    """
    if len(values) != 8:
        raise BadReply(repr(values)[:60])
    place, status, reward, components, correct, what, trace, graded = values
    sound = (
        isinstance(place, int)
        and status in get_args(Status)
        and isinstance(reward, float)
        and math.isfinite(reward) == (status == "ok")
        and isinstance(components, dict)
        and all(isinstance(number, float) for number in components.values())
        and isinstance(correct, bool)
        and isinstance(what, str)
        and isinstance(trace, str)
        and isinstance(graded, bool)
    )
    if not sound:
        raise BadReply(repr(values)[:60])
    return place, Verdict(status, reward, components, correct, what, trace, graded=graded)
