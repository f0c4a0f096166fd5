"""What became of everything that a step asked and drew: trained on, on its way elsewhere, or dropped, and why.

Two accounts, and both close: questions asked = trained on + elsewhere + lost, and answers drawn + answers from a store
= used + elsewhere + lost, where elsewhere is a store that is trained on later, or another trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grouprl.core.batch import Batch
from grouprl.rewards.validation import FAILED
from grouprl.rollout.samples import Collected

Fates = NDArray[np.str_]
"""[B] why each row was dropped; '' for those that were not."""

NO_ROWS: Fates = np.zeros(0, dtype="<U14")

Key = tuple[int, int, int]
"""Name of a row: see `Collected.row_keys`."""

REASONS = {
    "error": "the reward or environment failed on it",
    "bad_value": "the reward returned what is no reward",
    "timeout": "the reward or environment took too long on it",
    "not_applicable": "the reward does not apply to it",
    "group": "another answer of its group failed (reward.on_error = drop_group)",
    "no_action": "it holds no action: the episode ended before the policy's turn",
    "baseline": "the greedy answer to its question could not be scored",
    "late": "weights older than run.async_steps allows drew it",
    "exploration": "exploration put other answers in its place, or left it out",
    "refill": "dynamic sampling drew another question in its place",
    "replay": "the replay part left it out",
    "masked": "selection, pruning or a loss mask left no token of it",
}
"""Why an answer can be dropped, in the order in which it happens."""

ELSEWHERE = {"kept": "kept for later", "sent": "sent to another trainer"}
"""Where an answer can be that is neither used in the step nor lost."""

ENTRIES = (
    *("questions_asked", "questions_trained", "questions_kept", "questions_sent", "questions_lost/"),
    *("rows_drawn", "rows_stored", "rows_used", "rows_kept", "rows_sent", "rows_lost/"),
)
"""How the names of the account's metrics begin."""

NOT_ANSWERED = "not_answered"
"""Why a question can be dropped beside that: it was only probed, or passed over by curriculum or allocation."""


def dropped(collected: Collected, *, ahead: bool = False) -> Fates:
    """[B] why rows are not kept after scoring and exploration; `ahead`: they were drawn ahead of training."""
    status_b = collected.scores.status_b
    failed_b, gone_b = np.isin(status_b, FAILED), ~collected.kept_b
    fate_b = np.where(gone_b, "late" if ahead else "exploration", "").astype("<U14")
    fate_b[gone_b & np.isin(collected.ordinal_b, collected.ordinal_b[failed_b])] = "group"
    if collected.greedy_reward_b is not None:
        fate_b[gone_b & ~np.isfinite(collected.greedy_reward_b)] = "baseline"
    fate_b[gone_b & ~collected.acted_bt.any(1)] = "no_action"
    own_b = gone_b & (status_b != "ok")
    fate_b[own_b] = status_b[own_b]
    return fate_b


def account(
    asked: Iterable[int], drawn: Collected | None, fate_b: Fates, wanted: Collected | None, judged: Batch | None
) -> dict[str, float]:
    """Return the account of a step as metrics.

    Args:
        asked: ordinals of the questions asked.
        drawn: every row drawn in the step (None: none).
        fate_b: why rows of `drawn` were dropped before training, or where they are; '' where they were judged.
        wanted: the rows that were judged, stored ones included (None: none).
        judged: the batch of `wanted` (None: nothing was trained on).
    """
    fresh: list[Key] = [] if drawn is None else drawn.row_keys
    keys: list[Key] = [] if wanted is None else wanted.row_keys
    active_b = np.zeros(len(keys), dtype=bool) if judged is None else judged.active_bt.any(1).numpy()
    used = {key for key, active in zip(keys, active_b.tolist(), strict=True) if active}
    here = set(fresh)
    why = [fate or ("" if key in used else "masked") for key, fate in zip(fresh, fate_b.tolist(), strict=True)]
    stored = [key for key in keys if key not in here]
    lost = Counter(reason for reason in why if reason) + Counter("masked" for key in stored if key not in used)
    rows = {
        "rows_drawn": len(fresh),
        "rows_stored": len(stored),
        "rows_used": int(active_b.sum()),
        **_where("rows", lost),
    }
    return {name: float(count) for name, count in (rows | _questions(asked, fresh, why)).items()}


def totals(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the sums of the accounts of a run's records of training steps."""
    sums: Counter[str] = Counter()
    for record in records:
        if record.get("phase", "train") == "train":
            sums.update({name: int(n) for name, n in record.items() if name.startswith(ENTRIES)})
    return dict(sums)


def in_words(account: Mapping[str, int]) -> str:
    """Say what became of the questions and answers of a run; '' without an account."""
    if not {"questions_asked", "rows_drawn"} <= account.keys():
        return ""
    stored = f" and {account['rows_stored']:,} stored" if account["rows_stored"] else ""
    questions = f"{account['questions_asked']:,} questions asked: {account['questions_trained']:,} trained on"
    rows = f"{account['rows_drawn']:,} answers drawn{stored}: {account['rows_used']:,} used"
    return f"{questions}{_lost(account, 'questions')}. {rows}{_lost(account, 'rows')}."


def _lost(account: Mapping[str, int], what: str) -> str:
    elsewhere = [f", {n:,} {words}" for name, words in ELSEWHERE.items() if (n := account.get(f"{what}_{name}"))]
    names = (NOT_ANSWERED, *REASONS)
    return "".join(elsewhere) + "".join(
        f", {n:,} lost ({name})" for name in names if (n := account.get(f"{what}_lost/{name}"))
    )


def _where(what: str, fates: Mapping[str, int]) -> dict[str, int]:
    """Metrics of the fates of rows or questions, those that happened."""
    names = {name: f"{what}_{name}" for name in ELSEWHERE}
    names |= {name: f"{what}_lost/{name}" for name in (NOT_ANSWERED, *REASONS)}
    return {metric: fates[name] for name, metric in names.items() if fates.get(name)}


def _questions(asked: Iterable[int], rows: Sequence[Key], why: Sequence[str]) -> dict[str, int]:
    """Account of the questions: lost to whatever took away the last of their answers."""
    order = [*REASONS, *ELSEWHERE, ""]
    last: dict[int, int] = {}
    for (ordinal, *_), reason in zip(rows, why, strict=True):
        last[ordinal] = max(last.get(ordinal, 0), order.index(reason))
    fates = Counter(order[last[ordinal]] if ordinal in last else NOT_ANSWERED for ordinal in asked)
    trained, total = fates.pop("", 0), fates.total()
    return {"questions_asked": trained + total, "questions_trained": trained, **_where("questions", fates)}
