"""Models by name: a mistyped folder is refused at once, and whatever may be a Hub id is asked for there."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.policy import load_policy
from grouprl.policy.language import hub
from grouprl.policy.language.hub import check_on_hub

ASKED: list[str] = []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and two models; the Hub knows 'owner/known' and the old name 'gpt2'."""
    for folder, mark in (("runs/addition-grpo-s0", "config.yaml"), ("my-model", "config.json"), ("empty", "notes")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / mark).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", _Hub)
    ASKED.clear()
    return tmp_path


class _Hub:
    def model_info(self, name: str, timeout: float) -> None:
        ASKED.append(name)
        if name not in ("owner/known", "gpt2"):
            raise OSError("Name or service not known")


@pytest.mark.parametrize("name", ["./x", "../x", "/nowhere/x", "~/nowhere", "runs/a/b", "my model", "runs/x/", "a\\b"])
def test_what_is_written_like_a_path_is_not_asked_for(place: Path, name: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        check_on_hub(name)
    assert not ASKED


@pytest.mark.parametrize("name", ["gpt2", "owner/known"])
def test_an_id_of_the_hub_is_asked_for(place: Path, name: str) -> None:
    check_on_hub(name)
    assert len(ASKED) == 1
    assert ASKED[0] == name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("runs/adition-grpo-s0", "runs/addition-grpo-s0"),
        ("run/addition-grpo-s0", "runs/addition-grpo-s0"),
        ("./runs/addition-grpo-s1", "runs/addition-grpo-s0"),
        ("my-modell", "my-model"),
        ("mymodel", "my-model"),
    ],
)
def test_a_slip_is_told(place: Path, name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean {meant}\\?"):
        check_on_hub(name)


def test_from_the_root_too(place: Path) -> None:
    with pytest.raises(InputError) as said:
        check_on_hub(str(place / "my-modle"))
    assert re.search(f"Did you mean .*{place}/my-model", str(said.value))


@pytest.mark.parametrize("name", ["owner/unheard-of", "emty"])
def test_what_is_like_nothing_is_told_too(place: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is not a local folder, and the Hub cannot .*Check the name"):
        check_on_hub(name)


def test_what_the_hub_does_not_know(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown(huggingface_hub.errors.RepositoryNotFoundError):
        def __init__(self) -> None:
            Exception.__init__(self, "404")

    def info(self: Any, name: str, timeout: float) -> None:
        raise Unknown

    monkeypatch.setattr(_Hub, "model_info", info)
    with pytest.raises(InputError, match="the Hub has no such model"):
        check_on_hub("owner/name")


def test_what_is_in_the_cache_is_not_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: f"/cache/{name}/{file}")
    check_on_hub("owner/unheard-of")
    assert not ASKED


@pytest.mark.parametrize("command", [["serve"], ["eval"], ["eval", "--task", "addition"]])
def test_commands_say_so_at_once(place: Path, command: list[str]) -> None:
    began = time.monotonic()
    result = CliRunner().invoke(app, [command[0], "runs/adition-grpo-s0", *command[1:]])
    assert result.exit_code == 2
    assert "Did you mean runs/addition-grpo-s0?" in result.stderr.replace("\n", " ")
    assert time.monotonic() - began < 30


def test_loading_says_so_at_once(place: Path) -> None:
    with pytest.raises(InputError, match="Did you mean my-model"):
        load_policy("my-modell")


def test_a_hub_that_says_nothing_holds_nobody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def info(self: Any, name: str, timeout: float) -> None:
        time.sleep(30)  # as while an address is looked for, which no limit of the client's ends

    monkeypatch.setattr(_Hub, "model_info", info)
    monkeypatch.setattr(hub, "SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"cannot be reached .it has not answered within 0\.2 seconds"):
        check_on_hub("owner/name")
    assert time.monotonic() - began < 20
    assert hub.SECONDS <= 5


@pytest.mark.parametrize("known", [True, False])
def test_a_mirror_without_an_index_is_asked_for_a_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    class Refused(huggingface_hub.errors.HfHubHTTPError):
        def __init__(self) -> None:
            Exception.__init__(self, "501 no index")

    def info(self: Any, name: str, timeout: float) -> None:
        raise Refused

    def metadata(url: str, timeout: float) -> None:
        ASKED.append(url)
        if not known:
            raise Refused

    monkeypatch.setattr(_Hub, "model_info", info)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    if known:
        check_on_hub("owner/name")
    else:
        with pytest.raises(InputError, match=r"the Hub answers with an error .*501 no index"):
            check_on_hub("owner/name")
    assert ASKED[0].endswith("/owner/name/resolve/main/config.json")
