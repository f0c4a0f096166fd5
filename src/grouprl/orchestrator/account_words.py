"""The sums of a run's account and their words. No arrays are here, so that a report of a run loads no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from grouprl.core.json_types import JsonMapping
from grouprl.rewards.judging.judge_costs import COSTS, cost_words

REASONS = {
    "error": "the reward or environment failed on it",
    "bad_value": "the reward returned something that is not a reward",
    "timeout": "the reward or environment took too long on it",
    "not_applicable": "the reward does not apply to it",
    "group": "another completion of its group failed (reward.on_error = drop_group)",
    "too_long": "its group has a stored completion that is longer than the task's max_length (truncation = drop)",
    "no_action": "it holds no action: the episode ended before the policy's turn",
    "baseline": "the greedy completion to its prompt could not be scored",
    "late": "it was sampled with weights older than run.async_steps allows",
    "augment": "an augment part put other completions in its place, or left it out",
    "refill": "dynamic sampling sampled another prompt in its place",
    "replay": "the replay part left it out",
    "masked": "selection, pruning or a loss mask left no token of it",
    "probe": "it was sampled for a measurement, a hint, a baseline or a critic's training, and is not trained on",
    "pretraining": "it was sampled before the first step, for work that is done only once",
}
"""The reasons for dropping a completion, in the order in which they can arise."""

ELSEWHERE = {"buffered": "stored for later steps", "sent": "sent to another trainer"}
"""Places of completions that are neither used in the step nor lost."""

ENTRIES = (
    *("prompts_sampled", "prompts_stored", "prompts_trained", "prompts_buffered", "prompts_sent", "prompts_lost/"),
    "prompts_set_aside",
    *("rows_sampled", "rows_stored", "rows_used", "rows_buffered", "rows_sent", "rows_lost/", "tokens_sampled"),
    *("rows_cut", "tokens_cut", "workers_restarted", "work_redone", *COSTS.values()),
)
"""Prefixes of the names of the account's metrics."""

SHOWN = 10
"""The number of quarantined prompts that a message names."""

NOT_COMPLETED = "not_completed"
"""One more reason for dropping a prompt: it was only probed, or the curriculum or the allocation passed over it."""


def totals(records: Iterable[JsonMapping]) -> dict[str, int]:
    """Return the sums of the accounts of a run's training steps and of the work before the first one; what a judge was
    asked in evaluations counts, too.
    """
    sums: Counter[str] = Counter()
    for record in records:
        entries = ENTRIES if record.get("phase", "train") in ("train", "pretraining") else tuple(COSTS.values())
        sums.update({name: int(n) for name, n in record.items() if name.startswith(entries)})
    return dict(sums)


def in_words(account: Mapping[str, int], rows: str = "completions") -> str:
    """Describe the fates of a run's prompts and its `rows` in a sentence; '' without an account."""
    if not {"prompts_sampled", "rows_sampled"} <= account.keys():
        return ""
    stored = f" and {account['rows_stored']:,} stored" if account["rows_stored"] else ""
    past = f" and {account['prompts_stored']:,} stored" if account.get("prompts_stored") else ""
    examples = f"{account['prompts_sampled']:,} prompts sampled{past}: {account['prompts_trained']:,} trained on"
    sampled = f"{account['rows_sampled']:,} {rows} sampled{stored}: {account['rows_used']:,} used"
    fates = f"{examples}{_lost(account, 'prompts')}. {sampled}{_lost(account, 'rows')}."
    judged = cost_words(account)
    return f"{fates}{_cut_words(account)}{_placed(account)}{f' {judged}' if judged else ''}"


def _cut_words(account: Mapping[str, int]) -> str:
    """Describe the stored rows that were cut; '' if none was."""
    rows = account.get("rows_cut", 0)
    return f" {account['tokens_cut']:,} tokens of {rows:,} stored rows were cut (max_length)." if rows else ""


def set_aside_words(names: Sequence[str]) -> str:
    """Name the prompts that are quarantined; '' if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (
        f"{len(names)} prompts are set aside, because their environment hung, ended its process or failed "
        f"on every episode: {', '.join(names[:SHOWN])}{more}."
    )


def _placed(account: Mapping[str, int]) -> str:
    """Describe the work that was lost on the cluster and repeated; '' if there was none."""
    restarted, redone = account.get("workers_restarted", 0), account.get("work_redone", 0)
    if not restarted:
        return ""
    again = f", and {redone:,} pieces of their work were done again" if redone else ""
    return f" {restarted:,} workers of the cluster were lost and replaced{again}."


def _lost(account: Mapping[str, int], what: str) -> str:
    elsewhere = [f", {n:,} {words}" for name, words in ELSEWHERE.items() if (n := account.get(f"{what}_{name}"))]
    names = (NOT_COMPLETED, *REASONS)
    return "".join(elsewhere) + "".join(
        f", {n:,} lost ({name})" for name in names if (n := account.get(f"{what}_lost/{name}"))
    )
