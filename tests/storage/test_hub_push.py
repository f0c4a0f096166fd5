"""Pushing to a hub, against a stand-in of its API: one commit or nothing, words for failures, no token anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import HfApi, constants
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError, RunError
from grouprl.storage.hub import hub_access, push_folder
from grouprl.view.model_card import model_card
from hub_stand_in import TOKEN, HubStandIn, hub_stand_in

REPO = "me/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A hub that the libraries take for theirs, and a token."""
    with hub_stand_in() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def access(server: HubStandIn) -> HfApi:
    return HfApi(endpoint=server.address)


def test_a_folder_is_pushed_in_one_commit(hub: HubStandIn, model: Path) -> None:
    assert push_folder(access(hub), model, REPO, "first", private=True) == f"{hub.address}/{REPO}"
    assert hub.repositories[REPO] == {"config.json": b"{}", "model.safetensors": b"weights"}
    assert hub.private[REPO]
    assert hub.commits == 1


@pytest.mark.parametrize("part", [0, 3, 7, 100])
def test_weights_go_to_a_storage_of_their_own(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    (model / "more.safetensors").write_bytes(bytes(range(200)))
    hub.stored, hub.part = True, part
    push_folder(access(hub), model, REPO, "first")
    weights = {"model.safetensors": b"weights", "more.safetensors": bytes(range(200))}
    assert hub.repositories[REPO] == {"config.json": b"{}", **weights}
    assert sorted(hub.objects.values()) == sorted(weights.values())
    assert hub.commits == 1


@pytest.mark.parametrize("status", [400, 403])
def test_a_storage_that_refuses_is_told_in_words(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.stored, hub.storage_fails = True, status
    with pytest.raises(RunError, match=f"nothing was pushed to me/tiny: the hub answered {status}") as caught:
        push_folder(access(hub), model, REPO, "first")
    assert hub.repositories == {}
    assert TOKEN not in str(caught.value)


def test_a_storage_without_room_is_told_in_its_words(
    hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.stored = hub.full = True
    with pytest.raises(RunError, match=r"the weights were not taken \(.*no room is left, …") as caught:
        push_folder(access(hub), model, REPO, "first")
    assert hub.repositories == {}
    assert TOKEN not in str(caught.value)


def test_weights_of_an_earlier_push_do_not_stay(hub: HubStandIn, model: Path) -> None:
    hub.repositories[REPO] = {"model-00001-of-00002.safetensors": b"old", "notes.md": b"mine"}
    push_folder(access(hub), model, REPO, "second")
    assert sorted(hub.repositories[REPO]) == ["config.json", "model.safetensors", "notes.md"]


@pytest.mark.parametrize(("status", "words"), [(403, "the token may not write there"), (400, "answered 400")])
def test_a_refused_commit_leaves_no_new_repository(hub: HubStandIn, model: Path, status: int, words: str) -> None:
    hub.fails = status
    with pytest.raises(RunError, match=words) as caught:
        push_folder(access(hub), model, REPO, "first")
    assert hub.repositories == {}
    assert TOKEN not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_refused_commit_leaves_an_old_repository_as_it_was(hub: HubStandIn, model: Path) -> None:
    hub.repositories[REPO], hub.fails = {"config.json": b"old"}, 403
    with pytest.raises(RunError, match="nothing was pushed"):
        push_folder(access(hub), model, REPO, "second")
    assert hub.repositories == {REPO: {"config.json": b"old"}}


def test_a_token_that_is_not_valid_is_told(hub: HubStandIn, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other_secret")
    with pytest.raises(RunError, match="the token is not valid") as caught:
        push_folder(access(hub), model, REPO, "first")
    assert "hf_other_secret" not in str(caught.value)


def test_a_hub_that_is_not_there_is_told(hub: HubStandIn, model: Path) -> None:
    gone = access(hub)
    hub.shutdown()
    hub.server_close()
    with pytest.raises(RunError, match="could not be reached"):
        push_folder(gone, model, REPO, "first")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "", "me/ tiny"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="OWNER/NAME"):
        hub_access(name)


def test_without_a_token_nothing_is_begun(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    with pytest.raises(InputError, match="HF_TOKEN"):
        hub_access(REPO)
    assert hub.repositories == {}


def run_folder(folder: Path) -> Path:
    """A run that has ended, made of its files."""
    from grouprl.config.run import parse_config
    from grouprl.orchestrator.make_policy import build_policy
    from grouprl.orchestrator.resolve import resolve
    from short_runs import SMALL

    config = parse_config({**SMALL, "model": {**SMALL["model"]}})
    folder.mkdir()
    (folder / "config.yaml").write_text(config.dump())
    build_policy(resolve(config)).save(folder / "model")
    shares = {"eval/reward": 0.5, "eval/reward_low": 0.4, "eval/reward_high": 0.6}
    gains = {"eval/reward_gain": 0.4, "eval/reward_gain_low": 0.3, "eval/reward_gain_high": 0.5}
    records = [
        {"phase": "eval", "step": 0, "eval/reward": 0.1, "eval/reward_low": 0.05, "eval/reward_high": 0.2},
        {"phase": "eval", "step": 2, **shares, **gains, "eval/prompts": 4, "eval/samples": 1},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = {"title": "GRPO", "formula": "L = A", "parameters": 1234, "findings": ["no_gain"], "objective": []}
    (folder / "summary.json").write_text(json.dumps({**summary, "account": {"rows_sampled": 8}}))
    return folder


def test_a_run_is_exported_with_its_card_and_pushed(hub: HubStandIn, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out"), "--push", REPO, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pushed"] == f"{hub.address}/{REPO}"
    assert {"README.md", "config.json", "model.safetensors"} <= set(hub.repositories[REPO])
    card = hub.repositories[REPO]["README.md"].decode()
    head, body = card.split("---\n")[1:3]
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "tags": ["grouprl", "reinforcement-learning", "grpo"],
    }
    assert "| reward | 0.100 [0.050, 0.200] | 0.500 [0.400, 0.600] | 0.400 [0.300, 0.500] |" in body
    assert "L = A" in body
    assert "Task `reverse`, seed 0, 2 steps." in body
    assert "completions sampled: 8" in body
    assert "`no_gain`" in body
    assert TOKEN not in done.output
    assert all(TOKEN not in path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())


def test_a_card_of_a_checkpoint_shows_its_own_evaluation_and_no_folders(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    assert "No evaluation of these weights is recorded." in model_card(run, "checkpoint 1", 1)
    whole = model_card(run, "checkpoint 2", 2)
    assert "| reward | 0.100 [0.050, 0.200] | 0.500" in whole
    assert "4 held-out prompts, 1 sampled completion of each" in whole
    assert "those after step 1; the counts are of the whole run" in model_card(run, "checkpoint 1", 1)
    assert "whole run" not in whole
    config = (run / "config.yaml").read_text().replace("name: reverse", "name: reverse\n  chat: /home/me/kept.txt")
    (run / "config.yaml").write_text(config)
    card = model_card(run, "the final model")
    assert "kept.txt" in card
    assert "/home/me" not in card


def test_a_failed_push_keeps_the_export(hub: HubStandIn, tmp_path: Path) -> None:
    run, hub.fails = run_folder(tmp_path / "run"), 403
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out"), "--push", REPO])
    assert done.exit_code != 0
    assert isinstance(done.exception, (RunError, SystemExit))
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert hub.repositories == {}
