"""A chat model that is shown plain text is told so, with what to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chat_policies import CHATML, chatting
from grouprl.config.run import load_config, parse_config
from grouprl.core.terminal import Terminal
from grouprl.orchestrator.chat_prompts import task_for
from grouprl.plan.plan import plan
from grouprl.rollout.template_check import check_template
from grouprl.tasks import load_task
from grouprl.training.export import load_trained
from grouprl.training.loop import train
from grouprl.training.starting import choose_config

SAID = "prompts are plain text, and the model's tokenizer has a chat template"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    chatting(CHATML).save(tmp_path / "chat")
    return tmp_path / "chat"


def notes(model: Path, task: Any, **more: Any) -> list[str]:
    found = plan(parse_config({"task": task, "model": {"name": str(model)}, "steps": 1, **more}))
    return [note for note in found.notes if SAID in note]


def rows(path: Path, *prompts: Any) -> dict[str, Any]:
    lines = [json.dumps({"prompt": prompt, "answer": "4"}) for prompt in prompts]
    path.write_text("\n".join(lines), encoding="utf-8")
    return {"name": f"jsonl:{path}", "eval_fraction": 0.5}


QUESTIONS = ("2+2?", "1+3?", "3+1?", "0+4?")


def test_plain_prompts_for_a_chat_model_are_told_with_what_to_set(model: Path, tmp_path: Path) -> None:
    task = rows(tmp_path / "data.jsonl", *QUESTIONS)
    (note,) = notes(model, {**task, "chat": False})
    assert "Set chat: auto" in note
    assert notes(model, {**task, "chat": True}) == []
    assert notes(model, {**task, "system": "Be brief."}) == []


def test_questions_are_messages_where_the_model_has_a_template(model: Path, tmp_path: Path) -> None:
    task = rows(tmp_path / "data.jsonl", *QUESTIONS)
    config = parse_config({"task": task, "model": str(model), "steps": 1})
    found = plan(config)
    assert notes(model, task) == []
    assert found.example.startswith("user: ")
    assert "as the model has a chat template" in found.shown_as
    assert found.config.task == {**task, "chat": True}  # what the run folder holds
    assert found.config.fingerprint() == config.fingerprint()
    assert plan(parse_config({**config.model_dump(), "task": {**task, "chat": False}})).shown_as == "plain text"


@pytest.mark.parametrize("chat", [{}, {"chat": "auto"}, {"chat": False}])
def test_questions_stay_plain_without_a_template(tmp_path: Path, chat: dict[str, Any]) -> None:
    chatting(None).save(tmp_path / "base")
    task = {**rows(tmp_path / "data.jsonl", *QUESTIONS), **chat}
    found = plan(parse_config({"task": task, "model": str(tmp_path / "base"), "steps": 1}))
    assert found.shown_as == "plain text"
    assert found.config.task == task
    assert load_task(task).fingerprint() == load_task({**task, "chat": False}).fingerprint()


def test_a_run_of_questions_resumes_and_is_evaluated_with_the_same_messages(model: Path, tmp_path: Path) -> None:
    task = rows(tmp_path / "data.jsonl", *QUESTIONS)
    small = {"batch": {"prompts": 1, "group_size": 2}, "sampling": {"max_new_tokens": 2}, "run": {"threads": 1}}
    config = parse_config({"task": task, "model": str(model), "steps": 1, "seed": 0, **small})
    folder = tmp_path / "run"
    train(config, folder=folder, console=Terminal(quiet=True))
    assert load_config(str(folder / "config.yaml")).task == {**task, "chat": True}
    assert load_trained(folder).task.example("eval", 0).prompt[0]["role"] == "user"
    chosen = choose_config(config, (), folder, resume=True)
    assert chosen.notes == ()
    train(config, folder=folder, resume=True, changes=["steps=2"], console=Terminal(quiet=True))


def test_an_evaluated_model_is_asked_as_a_run_would_ask_it(model: Path, tmp_path: Path) -> None:
    task = load_task(rows(tmp_path / "data.jsonl", *QUESTIONS))
    assert task_for(task, chatting(CHATML).tokenizer).example("train", 0).prompt[0]["role"] == "user"  # type: ignore
    assert task_for(task, chatting(None).tokenizer) is task


def test_a_task_without_that_option_is_told_to_return_messages(model: Path) -> None:
    (note,) = notes(model, "addition")
    assert "`example` return chat messages" in note


def test_an_environment_needs_nothing_its_first_observation_is_a_message(model: Path) -> None:
    assert notes(model, "guess") == []


def test_a_model_without_a_template_is_not_told(tmp_path: Path) -> None:
    chatting(None).save(tmp_path / "base")
    assert notes(tmp_path / "base", "addition") == []


def test_a_mixture_is_counted() -> None:
    prompts: list[Any] = ["plain", ({"role": "user", "content": "chat"},)]
    found = check_template(chatting(CHATML), prompts, task=load_task("addition"))
    assert [note for note in found.notes if note.startswith("1 of 2 prompts are plain text")]


@pytest.mark.parametrize("kind", ["pairs", "step_labels"])
def test_stored_completions_stay_plain_and_the_plan_says_what_would_change_that(
    kind: str, model: Path, tmp_path: Path
) -> None:
    given = {"pairs": {"chosen": "4", "rejected": "5"}, "step_labels": {"completions": ["4"], "labels": [True]}}[kind]
    lines = [json.dumps({"prompt": f"{n}+1=", **given}) for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = {"name": f"{kind}:{tmp_path / 'rows.jsonl'}"}
    method = {"method": {"pairs": "dpo", "step_labels": "process_reward"}[kind]}
    run = {"model": {"name": str(model)}, "steps": 1, "batch": {"prompts": 1, "group_size": 2}, **method}
    shown = {chat: plan(parse_config({**run, "task": {**task, "chat": chat}})).shown_as for chat in (True, "auto")}
    assert plan(parse_config({**run, "task": task})).shown_as.startswith("plain text (chat: true")
    assert shown == {True: "chat messages", "auto": shown["auto"]}
    assert "as the model has a chat template" in shown["auto"]
