"""What YAML reads otherwise than it looks, and files in other forms, are answered with how to write them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.config.yaml_files import read_yaml
from grouprl.core.errors import InputError
from grouprl.tasks import load_task


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_config(read_yaml(text, "run.yaml"))  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: 1e3", "It must be a whole number. YAML reads 1e3 as a text: write 1000"),
        ("method: no", "YAML reads no, off and false without quotes as false"),
        ("task: on", "YAML reads yes, on and true without quotes as true"),
        ("run: {memory_check: maybe}", "It must be true or false"),
        ("run: {folder: 3}", "It must be a text"),
        ("optim: {grad_clip: much}", "It must be a number"),
        ("steps: 010", "YAML reads 010 as 8: write it without a leading 0"),
        ("steps: 1:30", "YAML reads 1:30 as 90"),
        ("optim: {lr: 1:30.5}", "YAML reads 1:30.5 as 90.5"),
        ("eval: {k: 4}", "It must be a list, such as [a, b]"),
        ("sampling: {stop: end}", "It must be a list, such as [a, b]"),
        ("optim: {lr: 0,2}", "A comma parts keys: write 1000 and 0.2"),
        ("STEPS: 3", "Did you mean 'steps'"),
    ],
)
def test_values_are_answered_in_words(text: str, said: str) -> None:
    message = refused(text)
    assert said in message
    assert "Input should be a valid" not in message


def merges(levels: int, each: int) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * each)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(("levels", "each"), [(40, 2), (12, 10), (3, 5000)])
def test_merges_of_merges_are_read_soon_and_do_not_multiply(levels: int, each: int) -> None:
    began = time.process_time()
    read = read_yaml(merges(levels, each), "run.yaml")
    assert time.process_time() - began < 10
    assert read == {f"a{n}": {"x": 1, "y": 2} for n in range(levels)}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("m: {<<: [{lr: 1}, {lr: 2}]}", {"lr": 1}),
        ("m: {<<: [{lr: 1}, {lr: 2, seed: 3}], seed: 4}", {"lr": 1, "seed": 4}),
        ("m: {<<: {<<: {lr: 1, seed: 5}, lr: 2}, steps: 3}", {"lr": 2, "seed": 5, "steps": 3}),
        ("m: {lr: 3, <<: {lr: 1}}", {"lr": 3}),
        ("m: {1: a, <<: {'1': b}}", {1: "a", "1": "b"}),
    ],
)
def test_of_merged_keys_the_first_one_counts_and_before_it_the_own(text: str, read: dict[object, object]) -> None:
    assert read_yaml(text, "run.yaml") == {"m": read}


def test_what_is_merged_stays_as_it_is() -> None:
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: &d {<<: *b, z: 4}, y: 3}\nd: *d"
    whole = {"x": 2, "z": 4}
    assert read_yaml(text, "run.yaml") == {"a": {"x": 1}, "b": {"x": 2}, "c": {**whole, "y": 3}, "d": whole}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m: {<<: {x: 1}, <<: {y: 2}}", "<< is given twice: write <<: [*one, *other]"),
        ("m: {<<: 3}", "expected a mapping or list of mappings for merging, but found scalar"),
        ("m: {<<: [3]}", "but found scalar"),
    ],
)
def test_merges_of_other_things_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read_yaml(text, "run.yaml")


def test_ordinary_merges_are_read() -> None:
    read = read_yaml("base: &b {x: 1}\nmine: {<<: *b, y: 2}\nboth: {<<: [*b, {z: 3}], x: 4}", "run.yaml")
    assert read == {"base": {"x": 1}, "mine": {"x": 1, "y": 2}, "both": {"x": 4, "z": 3}}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", json.dumps([{"prompt": "1"}]), "It is one JSON array"),
        ("a.jsonl", '[\n{"prompt": "1"}\n]\n', "It is one JSON array"),
        ("a.csv", "prompt,answer\n1,2\n", "A CSV file is named hf:"),
    ],
)
def test_files_in_other_forms_are_answered(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_task(f"jsonl:{tmp_path / name}")


@pytest.mark.parametrize("command", [["train"], ["plan"], ["methods"], ["methods", "show"], ["runs"]], ids=" ".join)
def test_flags_have_no_type_in_the_help(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).output
    flags = [line for line in shown.splitlines() if "<bool>" in line]
    assert flags == []


def test_a_check_of_a_reward_on_own_data_names_the_column_of_solutions(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "total": "2"}\n{"prompt": "2+2", "total": "4"}\n')
    (tmp_path / "r.py").write_text("def right(completion, total):\n    return float(completion == total)\n")
    done = CliRunner().invoke(
        app,
        ["check-reward", f"{tmp_path / 'r.py'}:right", "--task", f"jsonl:{tmp_path / 'a.jsonl'}", "--examples", "1"],
        env={"COLUMNS": "200"},
    )
    assert "solution: COLUMN" in done.output


def test_other_spellings_of_numbers_are_read() -> None:
    assert read_yaml("[0, 00, 0x10, 1_000, 08.5, 0.5, +7, '010']", "x") == [0, 0, 16, 1000, 8.5, 0.5, 7, "010"]
