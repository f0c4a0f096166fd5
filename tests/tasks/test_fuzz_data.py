"""Whatever a data file holds, the outcome is its rows, unchanged, or an InputError: nothing else, and nothing lost."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grouprl import InputError
from grouprl.tasks import load_task

FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.characters(codec=None), max_size=12)  # surrogates, NUL, BOM and all
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
prompts = (
    texts
    | values
    | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": values}))
)
rows = st.fixed_dictionaries({"prompt": prompts, "answer": values}) | st.dictionaries(texts, values, max_size=3)
good_rows = st.fixed_dictionaries({"prompt": st.text(min_size=1, max_size=6), "answer": st.text(max_size=6)})


def check(error: InputError) -> None:
    assert error.what
    assert len(str(error)) < 20_000


def tried(folder: Path, name: str, content: bytes, **options: Any) -> Any:
    """The task of a file with this content, or None if it is refused in words."""
    path = folder / name
    path.write_bytes(content)
    kind = "jsonl" if name.endswith(".jsonl") else "hf"
    try:
        return load_task({"name": f"{kind}:{path}", "eval_fraction": 0, **options})
    except InputError as error:
        check(error)
        return None


@pytest.fixture
def folder() -> Any:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@FAST
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xff\xfe{\x00}\x00")
@example(b"\x00" * 50)
@example(b'{"prompt": ' + b"[" * 100_000)
@example(b'{"prompt": "a", "answer": ' + b"1" * 10_000 + b"}")
@example(b'{"prompt": "\\ud800", "answer": "x"}')
def test_any_bytes_as_json_lines(folder: Path, content: bytes) -> None:
    tried(folder, "any.jsonl", content)


@FAST
@given(st.lists(rows, max_size=4), st.booleans())
def test_any_rows_as_json_lines(folder: Path, table: list[dict[str, Any]], ascii_only: bool) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for row in table]
    task = tried(folder, "rows.jsonl", b"\n".join(lines))
    if task is not None:
        found = [dict(task.example("train", i).columns) for i in range(task.size("train"))]
        assert repr(found) == repr(table)


@FAST
@given(
    st.lists(good_rows, min_size=1, max_size=6),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_good_rows_come_out_as_they_are(folder: Path, table: list[dict[str, str]], bom: str, end: str) -> None:
    """Duplicates and contradictions included: which of two completions is right is not for a loader to say."""
    content = bom + end.join(json.dumps(row, ensure_ascii=False) for row in table)
    task = tried(folder, "good.jsonl", content.encode())
    assert task is not None
    examples = [task.example("train", i) for i in range(task.size("train"))]
    assert [dict(q.columns) for q in examples] == table
    assert [q.prompt for q in examples] == [row["prompt"] for row in table]
    assert len({q.id for q in examples}) == len(table)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "prompt": "b", "answer": "1"}', "holds 'prompt' twice"),
        ('{"prompt": "a", "answer": {"x": 1, "x": 2}}', "holds 'x' twice"),
        ('{"prompt": "a", "answer": NaN}', "NaN is not a JSON"),
        ('{"prompt": "a", "answer": -Infinity}', "-Infinity is not a JSON"),
        ('{"prompt": "a", "answer": "\\ud83d"}', "holds half a character"),
        ('{"prompt": "a", "answer": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply"),
        ('{"prompt": "a", "answer": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ('{"prompt": "a", "answer": 1e999}', "too large"),
    ],
)
def test_rows_that_would_be_read_otherwise_than_they_are_written(folder: Path, line: str, words: str) -> None:
    path = folder / "odd.jsonl"
    path.write_text('{"prompt": "ok", "answer": "1"}\n' + line + "\n")
    with pytest.raises(InputError, match=f"(?s)Line 2 of .*{words}"):
        load_task(f"jsonl:{path}")


def test_what_looks_nested_in_a_text_is_a_text(folder: Path) -> None:
    path = folder / "brackets.jsonl"
    rows = [{"prompt": letter + "[" * 5000, "answer": "[" * 400 + "]" * 400} for letter in "ab"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert str(load_task(f"jsonl:{path}").example("train", 0).columns["prompt"]).endswith("[" * 5000)


@pytest.mark.parametrize(
    "name", ["jsonl:a\0b", "jsonl:.", "jsonl:/dev/null", "jsonl:" + "x" * 5000, "hf:a\0b", "hf:.", "hf:" + "y" * 5000]
)
def test_odd_paths(name: str) -> None:
    with pytest.raises(InputError):
        load_task(name)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".csv", ".json", ".jsonl", ".parquet"]), st.binary(max_size=120))
@example(".csv", b'prompt,answer\n"a,1\n')
@example(".csv", b"prompt,prompt\na,b\n")
@example(".parquet", b"PAR1" + b"\0" * 40 + b"PAR1")
def test_any_bytes_as_a_dataset_file(folder: Path, suffix: str, content: bytes) -> None:
    path = folder / f"data{suffix}"
    path.write_bytes(content)
    try:
        load_task({"name": f"hf:{path}", "eval_fraction": 0})
    except InputError as error:
        check(error)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(good_rows, min_size=1, max_size=5))
def test_parquet_rows_come_out_as_they_are(folder: Path, table: list[dict[str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(tempfile.mkdtemp(dir=folder)) / "data.parquet"
    pq.write_table(pa.Table.from_pylist(table), path)
    task = load_task({"name": f"hf:{path}", "eval_fraction": 0})
    assert [dict(task.example("train", i).columns) for i in range(task.size("train"))] == table


def test_a_csv_is_read_as_it_is_written(folder: Path) -> None:
    (folder / "text.csv").write_text("prompt,answer,note\na,007,NA\nb,1.50,\nc,true,1e3\n")
    task = load_task({"name": f"hf:{folder / 'text.csv'}", "eval_fraction": 0})
    found = [dict(task.example("train", i).columns) for i in range(3)]
    assert [row["answer"] for row in found] == ["007", "1.50", "true"]
    assert [row["note"] for row in found] == ["NA", "", "1e3"]


def test_two_columns_of_one_name_are_refused(folder: Path) -> None:
    (folder / "two.csv").write_text("prompt,answer,answer\na,1,2\n")
    with pytest.raises(InputError, match="two columns 'answer'"):
        load_task({"name": f"hf:{folder / 'two.csv'}", "eval_fraction": 0})


def test_a_long_table(folder: Path) -> None:
    lines = [json.dumps({"prompt": f"{i % 7}", "answer": str(i)}) for i in range(30_000)]
    (folder / "long.jsonl").write_text("\n".join(lines))
    task = load_task({"name": f"jsonl:{folder / 'long.jsonl'}", "eval_fraction": 0})
    assert task.size("train") == 30_000
    assert task.example("train", 29_999).columns["answer"] == "29999"


def test_a_huge_row(folder: Path) -> None:
    row = {"prompt": "x" * 900_000, "answer": "y" * 3_000_000}
    (folder / "huge.jsonl").write_text(json.dumps(row))
    task = load_task({"name": f"jsonl:{folder / 'huge.jsonl'}", "eval_fraction": 0})
    assert dict(task.example("train", 0).columns) == row


OPTIONS = ("prompt", "system", "chat", "reward", "demonstration", "solution", "hints", "variants", "eval_fraction")
options = st.dictionaries(
    st.sampled_from([*OPTIONS, "drop_overlap", "eval", "nonsense"]),
    values | st.sampled_from(["prompt", "answer", "exact_match", 0, 0.5, 1, True]),
    max_size=3,
)


@FAST
@given(options)
def test_any_options(folder: Path, chosen: dict[str, Any]) -> None:
    path = folder / "fixed.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}", "answer": "1"}) for i in range(4)))
    try:
        task = load_task({"name": f"jsonl:{path}", **chosen})
    except InputError as error:
        check(error)
        return
    for split in ("train", "eval"):
        for i in range(task.size(split) or 0):
            each = task.example(split, i)
            task.hints(each), task.variants(each), task.demonstration(each, 0)


@FAST
@given(st.text(st.characters(codec=None), max_size=30) | values)
def test_any_task_specification(spec: Any) -> None:
    for given_spec in (spec, {"name": spec}, {"name": "addition", "digits": spec}):
        try:
            load_task(given_spec)
        except InputError as error:
            check(error)
