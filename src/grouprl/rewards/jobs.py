"""What a worker process does with the jobs it is sent: it loads the reward and scores."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.json_types import JsonObject
from grouprl.rewards.clock import each_within
from grouprl.rewards.isolated import ALLOWANCE
from grouprl.rewards.transport import unpack
from grouprl.rewards.validation import verdicts_each, verdicts_of


def serve(hello: JsonObject, jobs: Iterator[Any], replies: int) -> None:
    """Answer jobs: each is (number, mode, completions, columns, ids, weights, correct_at, timeout)."""
    reward, own = unpack(hello["parcel"]), os.getpid()

    def reply(*values: object) -> None:
        if os.getpid() != own:  # a child that the reward forked and that returned from it
            os._exit(0)
        rest = (json.dumps(values) + "\n").encode()
        while rest:
            rest = rest[os.write(replies, rest) :]

    reply("loaded")
    for examples in hello["examples"]:  # what is imported at the first call is imported before the clock runs
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
