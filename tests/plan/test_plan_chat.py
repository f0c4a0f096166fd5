"""A chat model that is shown plain text is told so, with what to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chat_policies import CHATML, chatting
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.rollout.template_check import check_template
from grouprl.tasks import load_task

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


def test_plain_prompts_for_a_chat_model_are_told_with_what_to_set(model: Path, tmp_path: Path) -> None:
    task = rows(tmp_path / "data.jsonl", "2+2?", "1+3?", "3+1?", "0+4?")
    (note,) = notes(model, task)
    assert "Set chat: true" in note
    assert notes(model, {**task, "chat": True}) == []
    assert notes(model, {**task, "system": "Be brief."}) == []


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
