"""Pairs whose evaluations complete the prompts of another task and score them by its reward."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.chat_prompts import resolve_new
from grouprl.policy import load_policy
from grouprl.rollout.completion_rows import CompletionRows
from grouprl.rollout.kinds.row_kinds import evaluation_kind, row_kind
from grouprl.rollout.offline_rows import OfflineRows
from grouprl.storage.run_folder import RunFolder
from grouprl.tasks import load_task
from grouprl.training.loop import train

ADDITION: dict[str, Any] = {"name": "addition", "digits": 1}


def rows(folder: Path, count: int = 12) -> Path:
    """Sums of the training split of addition, each with a right and a wrong completion."""
    task, path = load_task(ADDITION), folder / "rows.jsonl"
    found = {e.prompt: task.solution(e) for e in (task.example("train", n) for n in range(4 * count))}
    lines = [
        {"prompt": prompt, "chosen": right, "rejected": f"{right}1"} for prompt, right in list(found.items())[:count]
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_training_has_every_row_and_evaluations_the_prompts_and_the_reward_of_the_other_task(tmp_path: Path) -> None:
    task: Any = load_task({"name": f"pairs:{rows(tmp_path)}", "of": ADDITION})
    other = load_task(ADDITION)
    assert task.size("train") == 12
    assert task.size("eval") is None
    assert task.example("eval", 3) == other.example("eval", 3)
    assert (task.reward, task.max_new_tokens, task.stop) == (other.reward, other.max_new_tokens, other.stop)
    assert [row.reward for row in task.stored_rows(task.example("train", 0))] == [1.0, 0.0]
    assert other.example("eval", 3).id in task.label("eval", 3)
    assert task.label("train", 0).startswith("line 1 ")
    assert (row_kind(task), evaluation_kind(task)) == (OfflineRows, CompletionRows)
    assert task.notes[-1] == "evaluations complete held-out prompts of addition"


def test_without_it_held_out_rows_are_ranked(tmp_path: Path) -> None:
    task: Any = load_task({"name": f"pairs:{rows(tmp_path)}"})
    assert (task.size("train"), task.size("eval")) == (11, 1)
    assert evaluation_kind(task) is OfflineRows


def test_plain_prompts_of_both_become_messages(tmp_path: Path) -> None:
    lines = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    task: Any = load_task({"name": f"pairs:{rows(tmp_path)}", "of": f"jsonl:{tmp_path / 'sums.jsonl'}"})
    shown = task.as_messages()
    assert [type(shown.example(split, 0).prompt) for split in ("train", "eval")] == [tuple, tuple]
    assert isinstance(task.example("eval", 0).prompt, str)


def chat_model(folder: Path) -> str:
    policy = load_policy("tiny", alphabet="0123456789+=", layers=1, heads=2, hidden=16, intermediate=16)
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    policy.save(folder / "model")
    return str(folder / "model")


def resolved(folder: Path, task: dict[str, Any]) -> Any:
    run = {"task": task, "model": chat_model(folder), "method": "dpo", "batch": {"prompts": 1, "group_size": 2}}
    return resolve_new(parse_config(run)).task


def test_plain_pairs_stay_plain_beside_a_chat_template_as_in_trl(tmp_path: Path) -> None:
    pairs = {"name": f"pairs:{rows(tmp_path)}"}
    prompt = {chat: resolved(tmp_path, {**pairs, **given}).example("train", 0).prompt for chat, given in CHATS.items()}
    assert isinstance(prompt["by default"], str)
    assert prompt["by default"] == prompt["never"]
    assert prompt["always"] == prompt["as the model is"] == ({"role": "user", "content": prompt["never"]},)


CHATS: dict[str, dict[str, Any]] = {
    "by default": {},
    "never": {"chat": False},
    "always": {"chat": True},
    "as the model is": {"chat": "auto"},
}


def test_evaluations_are_asked_as_the_rows_are(tmp_path: Path) -> None:
    lines = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    plain = {"name": f"pairs:{rows(tmp_path)}", "of": f"jsonl:{tmp_path / 'sums.jsonl'}"}
    told = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    talks = [
        {"prompt": [{"role": "user", "content": row["prompt"]}]}
        | {name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}
        for row in told
    ]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    kinds = {
        str: plain,
        tuple: {**plain, "name": f"pairs:{tmp_path / 'talks.jsonl'}"},
    }
    for kind, task in kinds.items():
        found = resolved(tmp_path, task)
        assert [type(found.example(split, 0).prompt) for split in ("train", "eval")] == [kind, kind]
    given: Any = load_task({**plain, "chat": True})  # as a run that continues reads it
    assert isinstance(given.example("eval", 0).prompt, tuple)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"eval_fraction": 0.2}, "leave eval_fraction out"),
        ({"eval": "rows.jsonl", "objective": "taste"}, "leave eval and objective out"),
        ({"of": "wordle"}, "task.of is 'wordle', which has no prompts to be completed"),
        ({"of": "preferences"}, "task.of is 'preferences', which has no prompts to be completed"),
    ],
)
def test_what_does_not_fit_it_is_refused(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        load_task({"name": f"pairs:{rows(tmp_path)}", "of": ADDITION, **options})


def test_a_run_learns_from_pairs_and_is_evaluated_by_the_true_reward(tmp_path: Path) -> None:
    rows(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: {name: 'pairs:rows.jsonl', of: {name: addition, digits: 1}}\nmodel: tiny\nmethod: dpo\n")
    changes = ["steps=2", "batch={prompts: 4, group_size: 2}", "eval={every: 0, final_prompts: 8}", "optim={lr: 1e-3}"]
    found = train(load_config(str(recipe), changes), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    lines = [line for line in RunFolder(found.folder).read_metrics() if line["phase"] == "eval"]
    assert all(line["eval/pass@1"] <= 1 and line["eval/samples"] == 1 for line in lines)
    assert load_task(load_config(str(tmp_path / "run" / "config.yaml")).task).size("eval") is None
