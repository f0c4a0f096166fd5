"""The handling of samples whose reward or environment failed, within a budget of errors."""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError, RunError, suggest
from grouprl.core.json_types import State
from grouprl.records.scores import Problem, Scores

Mode = Literal["drop_row", "drop_group", "zero", "raise"]


PROMPTS = 16
"""The run stops if more than this many recent prompts lost a sample to their environment, and they are the majority."""
PROMPT_WINDOW = 64
"""Number of recent prompts that are counted; all prompts of the current step if they are more."""
ALIKE = 4
"""The run stops if all samples of this many prompts in a row fail alike: the code is to blame, not the prompts."""
ALIKE_AT_FIRST = 2
"""The limit `ALIKE` as long as no sample has been scored."""
VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
LINE = re.compile(r'File "[^"]+", line \d+')


class ErrorPolicy:
    """Decide which samples stay when a reward or environment failed on some, and stop the run if that is too often.

    Modes: "drop_row" leaves out the sample; "drop_group" leaves out its whole group, so that no group is compared by
    the part that happened to be scored; "zero" gives the sample reward 0 and keeps it; "raise" stops at the first
    failure. A sample to which the reward does not apply (None) is always left out alone and is not a failure, unless
    the reward applies to no sample of the batch.

    The budget: the run stops when `max_consecutive` samples in a row failed, or more than `max_fraction` of the last
    `window` samples (counted against the full window, so that a few early failures do not stop a run). Samples lost
    with their environment (`Scores.lost_b`) do not count, because one bad prompt loses its whole group; instead the run
    stops when more than `PROMPTS` of the recent prompts lost one, and they are the majority. With a `max_fraction` of 0
    they count like the others.

    The run also stops if all samples of `ALIKE` prompts in a row fail alike (the same line raises, or the same kind of
    value is returned), or of `ALIKE_AT_FIRST` prompts before any sample was scored, so that a short run that lost
    everything does not count as a success. A single bad prompt is only left out. A `max_fraction` of 1 turns this off.
    """

    def __init__(
        self,
        mode: Mode = "drop_group",
        *,
        max_consecutive: int = 64,
        max_fraction: float = 0.1,
        window: int = 1024,
    ) -> None:
        if mode not in get_args(Mode):
            raise InputError(f"There is no error policy '{mode}'", remedy=suggest(str(mode), get_args(Mode)))
        if max_consecutive < 1 or window < 1 or not 0 <= max_fraction <= 1:
            raise InputError(
                f"The error budget is max_consecutive={max_consecutive}, max_fraction={max_fraction}, window={window}",
                "max_consecutive and window must be at least 1, and max_fraction within 0..1",
                "Pass values in these ranges",
            )
        self.mode = mode
        self.max_consecutive = max_consecutive
        self.max_fraction = max_fraction
        self.window = window
        self._consecutive = 0
        self._recent: list[bool] = []
        self._prompts: list[bool] = []
        """For each recent prompt, whether it lost a sample to its environment."""
        self._scored = False
        self._last = ""
        self._way = ""
        """The common failure of the last batch; empty unless all its samples failed alike."""
        self._alike = 0
        """Number of prompts in a row with that failure."""

    def apply(self, scores: Scores, group_b: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which of the B samples to keep: bool [B]; `group_b` [B] holds the prompt of each.

        In mode "zero", failed entries of `scores.reward_b` are set to 0 in place.

        Raises:
            InputError: if `group_b` is not of shape [B].
            RunError: when the budget is spent, naming a sample.
        """
        group_b = np.asarray(group_b)
        if group_b.shape != scores.reward_b.shape:
            raise InputError(
                f"group_b has shape {group_b.shape} for {len(scores.reward_b)} scores",
                "it needs one entry per score",
                "Pass the prompt of each sample",
            )
        nowhere = len(scores.status_b) > 0 and bool((scores.status_b == "not_applicable").all())
        failed_b = scores.failed_b | nowhere
        self.spend(failed_b, scores.problems, scores.gone_b if self.max_fraction > 0 else None, group_b)
        self._spend_alike(scores, group_b)
        if self.mode == "zero":
            scores.reward_b[scores.failed_b] = 0.0
            return scores.ok_b | scores.failed_b
        if self.mode == "drop_group":
            return scores.ok_b & ~np.isin(group_b, group_b[scores.failed_b])
        return scores.ok_b

    def spend(
        self,
        failed_b: NDArray[np.bool_],
        problems: list[Problem],
        lost_b: NDArray[np.bool_] | None = None,
        group_b: NDArray[np.integer] | None = None,
    ) -> None:
        """Count failed samples against the budget: `failed_b` is bool [B], `problems` describes the failures.

        Samples of `lost_b` [B] were lost with their environment and count only through their prompts, `group_b` [B].

        Raises:
            RunError: when the budget is spent, naming a sample.
        """
        if self.mode == "raise" and failed_b.any():
            raise _stop("", problems)
        if lost_b is not None and group_b is not None:
            self._spend_prompts(lost_b, group_b, problems)
            failed_b = failed_b[~lost_b]
        longest = self._consecutive
        for failed in failed_b.tolist():
            self._consecutive = self._consecutive + 1 if failed else 0
            longest = max(longest, self._consecutive)
        self._recent = (self._recent + failed_b.tolist())[-self.window :]
        if not failed_b.any():
            return
        if longest >= self.max_consecutive:
            raise _stop(f" on {longest} samples in a row", problems)
        failures = sum(self._recent)
        if failures > self.max_fraction * self.window:
            raise _stop(f" on {failures} of the last {len(self._recent)} samples", problems)

    def raise_if_all_failed(self) -> None:
        """Raise RunError if samples failed and none was ever scored, unless `max_fraction` is 1."""
        if self._last and not self._scored and self.max_fraction < 1:
            raise RunError(f"No sample of this run could be scored; for instance {self._last}")

    def _spend_alike(self, scores: Scores, group_b: NDArray[np.integer]) -> None:
        self._scored |= bool(scores.ok_b.any())
        self._last = str(scores.problems[-1]) if scores.problems else self._last
        failed_b = np.isin(scores.status_b, ("error", "bad_value")) & ~scores.gone_b
        ways = {_way(problem) for problem in scores.problems if problem.status in ("error", "bad_value")}
        if not failed_b.all() or len(ways) != 1 or self.max_fraction >= 1:
            self._way, self._alike = "", 0
            return
        (way,) = ways
        self._alike = len(set(group_b.tolist())) + (self._alike if way == self._way else 0)
        self._way = way
        if self._alike >= (ALIKE if self._scored else ALIKE_AT_FIRST):
            raise _stop(f" in one way on every sample of {self._alike} prompts in a row", scores.problems)

    def _spend_prompts(self, lost_b: NDArray[np.bool_], group_b: NDArray[np.integer], problems: list[Problem]) -> None:
        bad = set(group_b[lost_b].tolist())
        tried = dict.fromkeys(group_b.tolist())
        self._prompts = [*self._prompts, *(group in bad for group in tried)][-max(PROMPT_WINDOW, len(tried)) :]
        if bad and sum(self._prompts) > PROMPTS and 2 * sum(self._prompts) > len(self._prompts):
            raise _stop(f" on {sum(self._prompts)} of the last {len(self._prompts)} prompts", problems)

    def state_dict(self) -> State:
        """Return the spent budget for a checkpoint, JSON-serialisable."""
        budget = {"consecutive": self._consecutive, "recent": [int(failed) for failed in self._recent]}
        alike = {"scored": self._scored, "last": self._last, "way": self._way, "alike": self._alike}
        return {**budget, "prompts": [int(lost) for lost in self._prompts], **alike}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self._consecutive = int(state["consecutive"])
        self._recent = [bool(failed) for failed in state["recent"]][-self.window :]
        self._prompts = [bool(lost) for lost in state.get("prompts", ())]
        # A checkpoint without the entry counts as scored: the stricter limit is for runs that have just begun.
        self._scored, self._last = bool(state.get("scored", True)), str(state.get("last", ""))
        self._way = str(state.get("way", ""))
        self._alike = int(state.get("alike", 0))


def _way(problem: Problem) -> str:
    """Return the key by which failures are alike: the part that failed, the kind of error and its line."""
    # The message of an exception often quotes the completion; its type and the innermost line do not.
    what = problem.what.partition(":")[0] if problem.trace else problem.what
    return " ".join((problem.by, VARIES.sub("…", what), *LINE.findall(problem.trace)[-1:]))


def _stop(how_often: str, problems: list[Problem]) -> RunError:
    failures = [problem for problem in problems if problem.status != "not_applicable"] or problems
    who = " or ".join(sorted({problem.by for problem in failures}, reverse=True))
    trace = f"\n{failures[0].trace}" if failures[0].trace else ""
    return RunError(f"The {who} failed{how_often}; for instance {failures[0]}{trace}")
