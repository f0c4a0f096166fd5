"""What a worker process does with the jobs it is sent: it loads the reward and scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.json_types import JsonObject
from grouprl.processes.frames import Replies
from grouprl.processes.parcel import unpack
from grouprl.rewards.clock import each_within
from grouprl.rewards.validation import verdicts_each, verdicts_of
from grouprl.rewards.verifier_calls import ALLOWANCE


def serve(given: tuple[JsonObject, Sequence[Any]], jobs: Iterator[Any], reply: Replies) -> None:
    """Answer jobs: each is (number, mode, completions, columns, ids, weights, correct_at, timeout)."""
    parcel, all_examples = given
    reward = unpack(parcel)
    reply("loaded")
    for examples in all_examples:  # what is imported at the first call is imported before the clock runs
        with contextlib.suppress(GrouprlError):
            verdicts_of(reward, *examples)
    reply("ready")
    for number, mode, texts, columns, ids, weights, correct_at, timeout in jobs:
        ALLOWANCE.timeout = timeout
        try:
            if mode == "each":
                found = each_within(timeout, verdicts_each(reward, texts, columns, ids, weights, correct_at))
            else:
                found = iter(verdicts_of(reward, texts, columns, ids, weights, correct_at, timeout))
            for place, v in enumerate(found):
                parts = dict(v.components)
                reply("verdict", number, place, v.status, v.reward, parts, v.correct, v.what, v.trace, v.graded)
        except InputError as error:
            reply("refused", number, error.what, error.rule, error.remedy)
        except GrouprlError as error:
            reply("refused", number, str(error), "", "")
