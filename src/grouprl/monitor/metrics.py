"""The record of a step: metrics of the collected completions, and the completions themselves."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from math import isnan

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from grouprl.core.batch import SOURCES, Batch
from grouprl.monitor.loops import loop_fraction
from grouprl.records.episode_records import UNDER_WAY, Record
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.template_shares import template_shares
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rollout.episode_rows import turn_metrics
from grouprl.rollout.row_settings import sample_id


def sample_metrics(samples: ScoredSamples, *, compared: bool = True) -> dict[str, float]:
    """Return the metrics of all rows of a step, including those not trained on; of groups only if rows are `compared`.

    Rewards, lengths and entropies describe completions sampled in the ordinary way, without hints or demonstrations;
    they are missing if there are no such completions.
    """
    sampled = subset(samples, samples.source_b == SOURCES["sampled"])
    metrics = {
        "reward_errors": float(samples.scores.failed_b.sum()),
        "reward_timeouts": float((samples.scores.status_b == "timeout").sum()),
        **_environment_errors(samples),
        "rows_dropped": float((~samples.valid_b).sum()),
        "tokens": float(samples.length_b.sum()),
    }
    return metrics | _sampled_metrics(sampled, compared) if len(sampled) else metrics


def _environment_errors(samples: ScoredSamples) -> dict[str, float]:
    """Return the number of rows that have no score because the environment failed; empty without an environment."""
    if samples.records is None:
        return {}
    return {"environment_errors": float(sum(problem.by == "environment" for problem in samples.scores.problems))}


def _sampled_metrics(sampled: ScoredSamples, compared: bool) -> dict[str, float]:
    scores, ok_b, first_b = sampled.scores, sampled.scores.ok_b, sampled.first_b
    lengths_b, acted_bt = sampled.length_b, sampled.acted_bt
    metrics = {
        "length_mean": float(lengths_b.mean()),
        "length_max": float(lengths_b.max()),
        "truncated_fraction": float(sampled.rollout.truncated_b.float().mean()),
    }
    metrics |= _loops(sampled)
    metrics |= template_shares(sampled.prompts) if isinstance(sampled, TextSamples) else {}
    entropy_n = sampled.rollout.entropy_bt[:, : acted_bt.shape[1]].numpy()[acted_bt]
    if entropy_n.any():  # a sampler that does not compute entropy reports 0 everywhere
        metrics["entropy"] = float(entropy_n.mean())
    if ok_b.any():
        metrics |= {
            "reward_mean": float(scores.reward_b[ok_b].mean()),
            "reward_std": float(scores.reward_b[ok_b].std()),
        }
        told_b = ok_b & first_b & ~unjudged_b(sampled)
        if told_b.any() or not unjudged_b(sampled).any():  # no share of nothing where no verdict is known
            metrics["pass@1"] = float(scores.correct_b[told_b].mean()) if told_b.any() else 0.0
        if compared:
            metrics |= dead_groups(scores.reward_b[ok_b], scores.correct_b[ok_b], sampled.group_b[ok_b])
    components = {n: x[np.isfinite(x)] for n, x in scores.components.items()}
    metrics |= turn_metrics(sampled.extras) | agent_metrics(sampled) | call_metrics(sampled.records or ())
    return metrics | {f"reward/{name}": float(x.mean()) for name, x in components.items() if len(x)}


def unjudged_b(samples: ScoredSamples) -> np.ndarray:
    """Return [B] bool: the rows that are neither right nor wrong: pieces of episodes which continue, and stored rows
    without a verdict.
    """
    records = samples.records or [None] * len(samples)
    return np.array([r is not None and (r.ended == UNDER_WAY or not r.judged) for r in records], dtype=np.bool_)


def _loops(sampled: ScoredSamples) -> dict[str, float]:
    """Return the share of texts that end in a loop; empty for episodes, whose turns may be alike, and for actions."""
    inputs = sampled.rollout.inputs
    if sampled.records is not None or not isinstance(inputs, Tokens):
        return {}
    cut_b = sampled.rollout.truncated_b.tolist()  # others end in an end token
    texts = [ids if cut else ids[:-1] for ids, cut in zip(inputs.response_ids, cut_b, strict=True)]
    return {"loop_fraction": loop_fraction(texts)}


def call_metrics(records: Sequence[Record | None]) -> dict[str, float]:
    """Return how many tools an episode's row calls and which share of the calls repeats an earlier one of the row, if
    tools are announced.
    """
    turns = [record.calls() for record in records if record]
    rows = [[call for calls in row for call in calls] for row in turns if row]
    if not rows:
        return {}
    calls, different = sum(map(len, rows)), sum(len(set(row)) for row in rows)
    return {"calls_mean": calls / len(rows), "repeated_calls": 1 - different / calls if calls else 0.0}


def agent_metrics(sampled: ScoredSamples) -> dict[str, float]:
    """Return the mean reward of the rows of each agent, and the tokens that it writes in an episode, if there are
    several agents.
    """
    names = [None if record is None else record.agent for record in sampled.records or ()]
    found = {name: [row for row, other in enumerate(names) if other == name] for name in names if name}
    if not found:
        return {}
    reward_b, ok_b = sampled.scores.reward_b, sampled.scores.ok_b
    scored = {name: [row for row in rows if ok_b[row]] for name, rows in found.items()}
    episodes = max(1, int(sampled.first_b.sum()))
    rewards = {f"agent_reward/{name}": float(reward_b[rows].mean()) for name, rows in scored.items() if rows}
    written = {f"agent_tokens/{name}": float(sampled.length_b[rows].sum()) / episodes for name, rows in found.items()}
    return rewards | written


def dead_groups(reward_b: np.ndarray, correct_b: np.ndarray, group_b: np.ndarray) -> dict[str, float]:
    """Return the shares of groups whose rewards are all equal: overall, all correct, and all wrong; {} where every
    group is a single completion, which is compared with none.
    """
    groups, index_b = np.unique(group_b, return_inverse=True)
    if len(groups) == len(group_b):
        return {}
    low_g, high_g = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(low_g, index_b, reward_b)
    np.maximum.at(high_g, index_b, reward_b)
    right_g = np.bincount(index_b, weights=correct_b) / np.bincount(index_b)
    dead_g = low_g == high_g
    return {
        "groups_zero_variance": float(dead_g.mean()),
        "groups_all_right": float((dead_g & (right_g == 1)).mean()),
        "groups_all_wrong": float((dead_g & (right_g == 0)).mean()),
    }


def prepared_metrics(prepared: Batch) -> dict[str, float]:
    """Return the metrics that need the prepared batch: distances to reference and inexact sampler, and the critic's.

    Where every row was stored before the run there is no distance to the reference: it is a mean over the policy's own
    tokens.
    """
    metrics: dict[str, float] = {}
    sampled_bt = prepared.mask_bt & prepared.from_source("sampled", "review")[:, None]  # others may differ
    if prepared.ref_bt is not None and prepared.old_bt is not None and sampled_bt.any():
        metrics["kl_ref"] = float((prepared.old_bt - prepared.ref_bt)[prepared.mask_bt].mean())
    if prepared.old_bt is not None and prepared.behavior_bt is not None and sampled_bt.any():
        behavior, old = prepared.behavior_bt[sampled_bt], prepared.old_bt[sampled_bt]
        metrics |= {} if torch.equal(behavior, old) else {"kl_behavior": float((behavior - old).mean())}
    if prepared.return_bt is not None and prepared.value_bt is not None:
        metrics["explained_variance"] = explained_variance(prepared.value_bt, prepared.return_bt, prepared.mask_bt)
    return metrics


def explained_variance(value_bt: Tensor, return_bt: Tensor, mask_bt: Tensor) -> float:
    """Return 1 - Var(return - value) / Var(return) over action tokens; 0 if returns do not vary."""
    returns, errors = return_bt[mask_bt], (return_bt - value_bt)[mask_bt]
    spread = float(returns.var(unbiased=False))
    return 1 - float(errors.var(unbiased=False)) / spread if spread > 0 else 0.0


def memory_mb() -> float:
    """Return the peak memory so far in MiB, of the GPU if one is used, else of the process."""
    if torch.cuda.is_initialized() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


PerRow = Sequence[Sequence[float] | None]
"""Numbers of the tokens of each row; None for a row that has none."""


def rollout_table(
    step: int,
    samples: ScoredSamples,
    advantage: PerRow,
    log_ratio: PerRow,
    updates: Mapping[str, PerRow] | None = None,
    scores: Mapping[str, Sequence[float | None]] | None = None,
) -> pa.Table:
    """Return every completion of a step as a table; a row that is not trained on has no `advantage`.

    `log_ratio` is log π/π_ref of its tokens, None for a row where one of both is unknown. `updates` are the columns
    `ratio`, `weight` and `push` of its tokens, and the row's share `gradient` as its only number; NaN stands for none.
    `scores` are those of a reward model that is trained, the whole score by the name "", others by their names.
    """
    found = _columns(step, samples, advantage, log_ratio) | _update_columns(len(samples), updates or {})
    return pa.table(found | _score_columns(len(samples), scores or {}), schema=SCHEMA)


TURN = [
    ("number", pa.int32()),
    ("state", pa.string()),
    ("action", pa.string()),
    ("reward", pa.float64()),
    ("valid", pa.bool_()),
    ("seen", pa.string()),
    ("thinking", pa.string()),
    ("thought", pa.int32()),
]
"""A turn: its number in the episode, the key of its state, the action, its reward, the observation that followed, the
thinking within the action, and its number of tokens."""
EDGE = [
    ("name", pa.string()),
    ("group", pa.int64()),
    ("sample", pa.int32()),
    ("row", pa.int32()),
    ("value", pa.float64()),
]
"""A relation that begins at a row: its name, the row at which it ends (group, sample and row), and its value."""
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int64()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("source", pa.string()),
        ("completion", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("behavior_logp", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),
        ("reward", pa.float64()),
        ("components", pa.map_(pa.string(), pa.float64())),
        ("correct", pa.bool_()),
        ("truncated", pa.bool_()),
        ("status", pa.string()),
        ("problem", pa.string()),
        ("used", pa.bool_()),
        ("advantage", pa.list_(pa.float32())),
        ("log_ratio", pa.list_(pa.float32())),
        ("sample", pa.int32()),
        ("row", pa.int32()),
        ("version", pa.list_(pa.int32())),
        ("edges", pa.list_(pa.struct(EDGE))),
        ("caller", pa.int32()),
        ("agent", pa.string()),
        ("ended", pa.string()),
        ("turn", pa.list_(pa.int32())),
        ("turns", pa.list_(pa.struct(TURN))),
        ("ratio", pa.list_(pa.float32())),
        ("weight", pa.list_(pa.float32())),
        ("push", pa.list_(pa.float32())),
        ("gradient", pa.float64()),
        ("gap", pa.float64()),
        ("score", pa.float64()),
        ("scores", pa.map_(pa.string(), pa.float64())),
    ]
)
"""One row per completion, or per row of an episode; `correct` is null where rewards are graded, and where nobody said.
`caller` to `turns` are null for single-turn tasks. `row` is which row of its episode it is and `caller` the row that
began it; `turn` is the turn of each token, -1 for the environment's tokens, and `turns` those turns. `version` is
how many steps the policy that sampled each token had been trained for, -1 for tokens of an environment; null where
nothing is sampled ahead. `log_ratio` is log π/π_ref of each token as the step began; null where no reference is
read, or the log-probs are left to the update. `edges` are the relations that begin at the row; null where rows have
none. `ratio` to `gradient` are null unless `run.record_updates` asks for them: π/π_old of each token at the first
optimiser step with a gradient of its row, its weight in the loss, minus the derivative of the loss by its log-prob,
and the row's share of the gradient. `gap` is the mean over the row's tokens of |log-prob of the sampler less the
trainer's| before the update; null where the two were not compared. `score` is what the reward model in training gave
the row as it was first trained on it, and `scores` are its attributes, or the coordinates of its vector, by name; null
where no reward model is trained, or several numbers are not given."""


def _update_columns(rows: int, updates: Mapping[str, PerRow]) -> dict[str, pa.Array]:
    nothing: PerRow = [None] * rows
    tokens = {name: updates.get(name, nothing) for name in ("ratio", "weight", "push")}
    kept = {
        name: [
            None if row is None or all(map(isnan, row)) else [None if isnan(x) else x for x in row] for row in column
        ]
        for name, column in tokens.items()
    }
    lists = {name: pa.array(column, type=pa.list_(pa.float32())) for name, column in kept.items()}
    return lists | {name: _of_rows(updates.get(name, nothing)) for name in ("gradient", "gap")}


def _of_rows(column: PerRow) -> pa.Array:
    """Return the one number of each row; null where there is none."""
    return pa.array([None if row is None or isnan(row[0]) else row[0] for row in column], type=pa.float64())


def _score_columns(rows: int, scores: Mapping[str, Sequence[float | None]]) -> dict[str, pa.Array]:
    whole = scores.get("", [None] * rows)
    named = [{name: x[row] for name, x in scores.items() if name and x[row] is not None} for row in range(rows)]
    maps = [list(each.items()) or None for each in named]
    return {"score": pa.array(whole, SCHEMA.field("score").type), "scores": pa.array(maps, SCHEMA.field("scores").type)}


_SOURCE_NAMES = {code: name for name, code in SOURCES.items()}


def _columns(step: int, samples: ScoredSamples, advantage: PerRow, log_ratio: PerRow) -> dict[str, object]:
    rollout, scores, rows = samples.rollout, samples.scores, len(samples)
    lengths_b = np.array([len(ids) for ids in rollout.action_ids])
    present_bt = np.arange(rollout.logp_bt.shape[1]) < lengths_b[:, None]
    return {
        "step": np.full(rows, step, dtype=np.int32),
        "group": samples.group_b,
        "prompt_id": [example.id for example in samples.examples],
        "prompt": samples.openings(),
        "source": [_SOURCE_NAMES[code] for code in samples.source_b.tolist()],
        "completion": samples.transcripts(),
        "prompt_ids": samples.prompt_ids if isinstance(samples, TextSamples) else [()] * rows,
        "completion_ids": rollout.action_ids,
        "mask": _ragged(lengths_b, samples.acted_bt[present_bt[:, : samples.acted_bt.shape[1]]]),
        "behavior_logp": _ragged(lengths_b, rollout.logp_bt.numpy()[present_bt]),
        "entropy": _ragged(lengths_b, rollout.entropy_bt.numpy()[present_bt]),
        "reward": pa.array(scores.reward_b, from_pandas=True),
        "components": [[(n, float(x[i])) for n, x in scores.components.items() if x[i] == x[i]] for i in range(rows)],
        "correct": pa.array(scores.correct_b, mask=unjudged_b(samples) | scores.graded),
        "truncated": rollout.truncated_b.numpy(),
        "status": scores.status_b.tolist(),
        "problem": _problems(samples),
        "used": [values is not None for values in advantage],
        "advantage": pa.array(advantage, type=pa.list_(pa.float32())),
        "log_ratio": pa.array(log_ratio, type=pa.list_(pa.float32())),
        "sample": samples.sample_b.astype(np.int32),
        "row": samples.context_b.astype(np.int32),
        "version": _versions(samples),
        "edges": _edges(samples),
        **_episode_columns(samples),
    }


def _versions(samples: ScoredSamples) -> list[list[int] | None]:
    """Return the versions of the tokens of each of the B rows."""
    version_bt = samples.extras.get("version_bt")
    if version_bt is None:
        return [None] * len(samples)
    sizes = map(len, samples.rollout.action_ids)
    return [row[:size].tolist() for row, size in zip(version_bt, sizes, strict=True)]


def _edges(samples: ScoredSamples) -> list[list[dict[str, object]] | None]:
    """Return the relations that begin at each of the B rows."""
    if not samples.edges:
        return [None] * len(samples)
    found: list[list[dict[str, object]] | None] = [[] for _ in range(len(samples))]
    places = zip(samples.group_b.tolist(), samples.sample_b.tolist(), samples.context_b.tolist(), strict=True)
    ends = [{"group": group, "sample": number, "row": row} for group, number, row in places]
    for name, edges in samples.edges.items():
        for (begin, end), value in zip(edges.index_e2.tolist(), edges.value_e.tolist(), strict=True):
            own = found[begin]
            assert own is not None
            own.append({"name": name, **ends[end], "value": value})
    return found


def _episode_columns(samples: ScoredSamples) -> dict[str, object]:
    """Return the columns of the acting agent and the end of the episode; null for rows that are not episodes."""
    records = samples.records
    if records is None:
        return {
            name: pa.nulls(len(samples), SCHEMA.field(name).type)
            for name in ("caller", "agent", "ended", "turn", "turns")
        }
    sizes = [len(ids) for ids in samples.rollout.action_ids]
    turn_bt = samples.extras["turn_bt"]
    return {
        "caller": samples.extras["keys.caller"].astype(np.int32),
        "agent": [None if record is None else record.agent for record in records],
        "ended": [None if record is None else record.ended for record in records],
        "turn": [turn_bt[i, :size].tolist() for i, size in enumerate(sizes)],
        "turns": [None if record is None else [vars(turn) for turn in record.turns] for record in records],
    }


def _problems(samples: ScoredSamples) -> list[str | None]:
    """Return why each of B completions has no reward, with the reward's traceback and last output, or else None."""
    found = {problem.sample_id: f"{problem.what}\n{problem.trace}".strip() for problem in samples.scores.problems}
    ids = (example.id for example in samples.examples)
    names = map(sample_id, ids, samples.sample_b.tolist(), samples.context_b.tolist())
    why = [None if ok else found.get(name) for name, ok in zip(names, samples.scores.ok_b, strict=True)]
    return [None if words is None else words.encode(errors="replace").decode() for words in why]


def _ragged(lengths_b: np.ndarray, values_m: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths_b)]).astype(np.int32)
    kind = pa.bool_() if values_m.dtype == bool else pa.float32()
    return pa.ListArray.from_arrays(offsets, pa.array(values_m, type=kind))
