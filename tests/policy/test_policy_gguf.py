"""Models from GGUF files: converted once into an ordinary folder; what is missing or damaged is said."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gguf_files import write_gguf
from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.policy.language import gguf as gguf_room
from grouprl.policy.language.gguf import as_folder, converted_folder, is_gguf
from grouprl.records.tokens import Tokens

there = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="the extra gguf is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GROUPRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.Q.gguf")


def test_a_gguf_file_is_known_by_its_ending_or_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"GGUF....")
    (tmp_path / "folder.gguf").mkdir()
    assert is_gguf("models/x.gguf")
    assert is_gguf(tmp_path / "blob")
    assert not is_gguf("owner/model")
    assert not is_gguf(tmp_path / "folder.gguf")
    assert as_folder("owner/model") == "owner/model"


@there
def test_its_folder_holds_the_model_that_transformers_reads(file: Path, cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(as_folder(file))
    assert folder.parent == cache / "gguf"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {each.name for each in folder.iterdir()}
    theirs = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32).eval()
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert not hasattr(ours.config, "quantization_config")
    wanted = theirs.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in ours.state_dict().items())
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
    chat = [{"role": "user", "content": "ab"}]
    given = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    kept = AutoTokenizer.from_pretrained(folder)
    assert kept.chat_template == given.chat_template
    assert kept.apply_chat_template(chat) == given.apply_chat_template(chat)


@there
def test_it_is_converted_once_whatever_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = as_folder(file)
    monkeypatch.setattr(gguf_room, "_read", lambda _: pytest.fail("it was converted before"))
    assert as_folder(file) == first
    other = file.with_name("tiny.other.gguf")
    other.write_bytes(file.read_bytes() + b"\0")
    assert converted_folder(other) != Path(first)


@there
def test_a_conversion_that_was_cut_off_leaves_no_folder_and_is_made_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = converted_folder(file)
    with monkeypatch.context() as patched:
        patched.setattr(gguf_room, "_plain", lambda model: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            as_folder(file)
    assert not folder.exists()
    (folder.parent / f".{folder.name}.part").mkdir()  # as a killed process leaves it
    assert as_folder(file) == str(folder)
    assert [each.name for each in folder.parent.iterdir() if each.name.endswith(".part")] == []


@there
def test_a_policy_scores_and_is_saved_as_any_other(file: Path, tmp_path: Path) -> None:
    policy = load_policy(file)
    assert policy.engine == "lean"
    tokens = Tokens.of([[3, 4]], [[5, 6, 2]])
    policy.save(tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert torch.equal(policy.logp(tokens), again.logp(tokens))
    assert policy.encode_prompt([{"role": "user", "content": "ab"}])[0] == 1


def config(file: Path, **more: Any) -> Any:
    return parse_config(
        {
            "task": "addition",
            "model": {"name": str(file)},
            "steps": 1,
            "batch": {"prompts": 2, "group_size": 2},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"threads": 1},
            **more,
        }
    )


@there
def test_it_is_planned_trained_evaluated_and_checked(file: Path, tmp_path: Path) -> None:
    found = plan(resolve(config(file)))
    assert found.model is not None
    assert found.model.layers == 2
    settings = ["--set", f"model.name={file}", "--set", "run.threads=1", "--set", "batch.prompts=2"]
    settings += ["--set", "batch.group_size=2", "--set", "warmup.steps=0", "--set", "eval.final_prompts=2"]
    run = str(tmp_path / "run")
    trained = CliRunner().invoke(app, ["train", "addition", "--folder", run, "--set", "steps=1", "-q", *settings])
    assert trained.exit_code == 0, trained.output
    for source in (run, str(file)):
        task = [] if source == run else ["--task", "addition"]
        said = CliRunner().invoke(app, ["eval", source, *task, "--prompts", "2"])
        assert said.exit_code == 0, said.output


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*nowhere\.gguf"):
        load_policy(tmp_path / "nowhere.gguf")
    with pytest.raises(InputError, match=r"There is no file .*nowhere\.gguf"):
        plan(resolve(config(tmp_path / "nowhere.gguf")))


def test_a_file_of_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>not found</html>")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InputError, match="is not a GGUF file"):
        load_policy(tmp_path / "page.gguf")
    with pytest.raises(InputError, match=r"0 bytes"):
        load_policy(tmp_path / "empty.gguf")


@there
@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_said(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: max(8, int(len(whole) * share))])
    with pytest.raises(InputError, match="is truncated or damaged"):
        load_policy(file)
    assert not converted_folder(file).exists()


@there
def test_an_architecture_that_transformers_does_not_know_is_said(tmp_path: Path) -> None:
    odd = write_gguf(tmp_path / "odd.gguf", architecture="unheard")
    with pytest.raises(InputError, match=r"transformers cannot read .*unheard"):
        load_policy(odd)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_without_the_extra_what_to_install_is_said(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.gguf").write_bytes(b"GGUF and so on")
    find = importlib.util.find_spec
    present = lambda name: None if name == package else find("json") if name == "gguf" else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", present)
    with pytest.raises(MissingExtra, match=rf"'{package}'.*grouprl\[gguf\]"):
        load_policy(tmp_path / "some.gguf")


@there
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_said(file: Path, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(Exception, match="could not be written"):
        as_folder(file)


def test_a_path_in_a_configuration_is_relative_to_its_file(tmp_path: Path) -> None:
    from grouprl.config.paths import absolute_paths

    found = absolute_paths({"model": {"name": "models/x.gguf"}}, tmp_path)
    assert found["model"]["name"] == str(tmp_path / "models/x.gguf")
