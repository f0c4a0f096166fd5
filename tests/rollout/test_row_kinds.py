"""Which source of rows a task needs, and what all of them keep: the rules of `grouprl.protocols.RowSource`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.protocols import RowSource
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, sort_by_group, subset
from grouprl.records.serialize import pack, unpack
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.completion_rows import CompletionRows
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.kinds.text_episodes import TextEpisodes
from grouprl.rollout.offline_rows import OfflineRows
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.vectors.vector_episodes import VectorEpisodes

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}
KINDS = {"addition": CompletionRows, "guess": TextEpisodes, "control": VectorEpisodes, "pairs": OfflineRows}


def source_of(kind: str, folder: Path) -> ScoringSource:
    task: Any = {"addition": {"name": "addition", "digits": 1}, "guess": "guess"}.get(kind)
    if kind == "control":
        pytest.importorskip("gymnasium")
        task = {"name": "control:CartPole-v1", "turns": 9}
    if kind == "pairs":
        rows = [{"prompt": f"{n}:", "chosen": f"{n}a", "rejected": f"{n}bb"} for n in range(10, 30)]
        (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
        task = f"pairs:{folder / 'pairs.jsonl'}"
    model: Any = {"name": "mlp", "settings": {"hidden": [4]}} if kind == "control" else TINY
    run = resolve(parse_config({"task": task, "model": model, "method": "grpo", "environment": {"workers": 0}}))
    policy, reward = build_policy(run), run.reward
    return open_rows(run.config, run.task, policy, reward, 8, ErrorPolicy("drop_row"), kind=run.row_kind)


def requests_of(source: ScoringSource, *numbers: int) -> list[RolloutRequest]:
    return [RolloutRequest(10 + n, n, source.task.example("train", n), 2) for n in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_rows_of_text_where_the_source_is(kind: str, tmp_path: Path) -> None:
    """Joined, cut, stored and read again, rows keep their kind; vectors never have texts."""
    source = source_of(kind, tmp_path)
    rows = source.rows(requests_of(source, 0, 1))
    assert type(rows) is (TextSamples if source.text else ScoredSamples)
    halves = [subset(rows, rows.ordinal_b == ordinal) for ordinal in (10, 11)]
    for other in (join(halves), unpack(pack(rows), source.task), sort_by_group(rows), source.counted(rows)):
        assert type(other) is type(rows)
        assert (other.openings(), other.transcripts()) == (rows.openings(), rows.transcripts())
        assert other.rollout.action_ids == rows.rollout.action_ids
    assert ("texts" in pack(rows)) == source.text
    source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_has_one_kind_of_rows(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    assert type(source) is KINDS[kind]
    assert isinstance(source, RowSource)
    assert (source.acts, source.samples, source.text) == (
        kind in ("guess", "control"),
        kind != "pairs",
        kind != "control",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_the_requests_beside_theirs(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    both, alone = source.rows(requests_of(source, 0, 1)), source.rows(requests_of(source, 1))
    of_second = [i for i, ordinal in enumerate(both.ordinal_b.tolist()) if ordinal == 11]
    assert [both.transcripts()[i] for i in of_second] == list(alone.transcripts())
    assert all(both.openings())
    assert both.scores.reward_b[of_second].tolist() == alone.scores.reward_b.tolist()
    assert [both.rollout.action_ids[i] for i in of_second] == list(alone.rollout.action_ids)
    assert len(both) == len(both.inputs) == len(both.rollout.logp_bt)
    source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_has_seeds_of_its_own_and_one_outcome_for_each_completion(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    held_out = source.held_out()
    requests = requests_of(source, 0, 1)
    found = held_out.outcomes(requests)
    assert len(found) == (4 if source.samples else 2)  # of stored rows the likeliest of each prompt
    assert held_out.outcomes(requests).texts == found.texts
    assert (held_out.settings.seeds.use, source.settings.seeds.use) == ("eval", "train")
    if kind == "addition":  # other seeds, other completions
        assert found.texts != source.rows(requests).texts
    source.close()


@pytest.mark.parametrize("kind", ["guess", "control"])
def test_texts_are_no_episodes(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with pytest.raises(InputError, match="it has no text of its own"):
        source.rows_of_texts(requests_of(source, 0), ["a"])
    source.close()


def test_vectors_have_neither_texts_nor_tokens(tmp_path: Path) -> None:
    source = source_of("control", tmp_path)
    with pytest.raises(InputError, match="is not made of text"):
        source.texts()
    rows = source.rows(requests_of(source, 0))
    assert not any(hasattr(rows, name) for name in ("texts", "prompts", "tokens", "response_ids"))
    with pytest.raises(InputError, match="the rows of ArrayInputs have no texts"):
        as_text(rows)
    told = [[turn.action for turn in record.turns] for record in rows.records or () if record]
    assert [text.count("> ") for text in rows.transcripts()] == list(map(len, told))
    assert all(text.startswith(f"> {actions[0]}") for text, actions in zip(rows.transcripts(), told, strict=True))
    assert all(set(ids) <= {0, 1} for ids in rows.rollout.action_ids)
    assert np.array_equal(rows.length_b, [len(ids) for ids in rows.rollout.action_ids])
    source.close()
