"""`model.chat_template_kwargs`: one prompt in training, evaluation, serving and the saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import grouprl
from chat_policies import chatting
from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.experiments.evaluating import task_spec
from grouprl.policy.language.template_settings import set_defaults, set_defaults_of
from grouprl.policy.language.text import render_chat
from grouprl.records.examples import Chat
from grouprl.rollout.local.sampler import decode
from short_runs import SMALL, quiet

THINKS = (
    "\n{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% for each in tags or [] %}[{{ each.name }}]{% endfor %}{% endif %}"
)
ASKED = [{"role": "user", "content": "2+2"}]


def rendered(settings: dict[str, object], variables: dict[str, object] | None = None, template: str = THINKS) -> str:
    tokenizer = chatting(template).tokenizer
    set_defaults(tokenizer, settings)
    return render_chat(tokenizer, Chat(ASKED, (), variables or {}))  # type: ignore[arg-type]


def test_a_setting_is_what_the_template_reads() -> None:
    assert rendered({}) == "\n<user>2+2<assistant>"
    assert rendered({"enable_thinking": False}) == "\n<user>2+2<assistant><think></think>"
    assert rendered({"enable_thinking": True}) == "\n<user>2+2<assistant>"


def test_values_of_every_kind_arrive() -> None:
    tags = [{"name": 'it\'s "{{ x }}"\n'}, {"name": 1.5}, {"name": None}]
    assert rendered({"tags": tags}) == '\n<user>2+2<assistant>[it\'s "{{ x }}"\n][1.5][None]'


def test_variables_of_unusual_templates_are_known() -> None:
    said = "{% for m in messages %}{%- generation -%}{{ m.content }}{% endgeneration %}{% endfor %}"
    own = "{% set thinking = thinking if thinking is defined else true %}{{ thinking }}"
    assert rendered({"thinking": False}, template=said + own) == "2+2False"
    inside = "{% macro f() %}{{ thinking }}{% endmacro %}{% for m in messages %}{{ f() }}{% continue %}{% endfor %}"
    assert rendered({"thinking": False}, template=inside) == "False"


def test_a_conversation_has_its_own_value() -> None:
    assert rendered({"enable_thinking": False}, {"enable_thinking": True}) == "\n<user>2+2<assistant>"


def test_what_cannot_be_set_is_refused() -> None:
    with pytest.raises(InputError, match="no variable 'enable_thinkin'"):
        rendered({"enable_thinkin": False})
    for word in ("m", "each", "assistant", "user", "role"):  # set by the template itself, or text and attributes of it
        with pytest.raises(InputError, match=f"no variable '{word}'"):
            rendered({word: True}, template=THINKS + "user")
    for endless in (float("nan"), float("inf")):  # names of nothing in a template
        with pytest.raises(InputError, match="what JSON can hold"):
            rendered({"tags": [endless]})
    with pytest.raises(InputError, match="The messages determine it"):
        rendered({"messages": []})
    with pytest.raises(InputError, match="no chat template"):
        set_defaults(chatting(None).tokenizer, {"enable_thinking": False})
    with pytest.raises(InputError, match="no chat template"):
        grouprl.plan({**SMALL, "model": {**SMALL["model"], "chat_template_kwargs": {"enable_thinking": False}}})


IDLE = "model.chat_template_kwargs changes no prompt of this run"


def test_variables_that_change_no_prompt_are_told_by_the_plan(tmp_path: Path) -> None:
    """The prompts of a task may be plain text, all or some of them, or those of an environment."""
    chatting(THINKS, max_positions=256).save(tmp_path / "model")
    model = {"name": str(tmp_path / "model"), "chat_template_kwargs": {"enable_thinking": False}}
    talk = json.dumps(ASKED)
    rows = [*(f'{{"prompt": "{n}+2", "answer": "{n + 2}"}}' for n in range(40)), f'{{"prompt": {talk}, "answer": "4"}}']
    for name, lines in (("plain", rows[:12]), ("mixed", rows)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")

    def told(task: object) -> bool:
        reward = {"reward": {"function": "numeric_match"}} if isinstance(task, dict) else {}
        found = grouprl.plan({**SMALL, "model": model, "task": task, **reward})
        return any(sentence.startswith(IDLE) for sentence in found.idle)

    assert told("addition")
    assert told({"name": f"jsonl:{tmp_path / 'plain.jsonl'}", "chat": False})
    assert not told({"name": f"jsonl:{tmp_path / 'plain.jsonl'}"})
    assert not told({"name": f"jsonl:{tmp_path / 'mixed.jsonl'}", "chat": False})
    assert not told("keys")
    del model["chat_template_kwargs"]
    assert not told("addition")


def test_variables_that_change_no_held_out_prompt_are_refused(tmp_path: Path) -> None:
    chatting(THINKS, max_positions=128).save(tmp_path / "model")
    options: dict[str, Any] = {"prompts": 4, "greedy": True, "max_new_tokens": 4}
    with pytest.raises(InputError, match="all held-out prompts of 'addition' are plain text"):
        grouprl.evaluate(tmp_path / "model", "addition", **options, chat_template_kwargs={"enable_thinking": False})
    grouprl.evaluate(tmp_path / "model", "addition", **options, chat_template_kwargs={})
    grouprl.evaluate(tmp_path / "model", "keys", **options, chat_template_kwargs={"enable_thinking": True})


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every prompt that is rendered from messages."""
    found: list[str] = []

    def spied(*given: object) -> str:
        found.append(render_chat(*given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr("grouprl.policy.language.text.render_chat", spied)
    return found


def test_training_evaluation_and_the_saved_model_see_one_prompt(tmp_path: Path, prompts: list[str]) -> None:
    from transformers import AutoTokenizer

    chatting(THINKS, max_positions=128).save(tmp_path / "base")
    settings = {
        **SMALL,
        "task": f"jsonl:{tmp_path / 'rows.jsonl'}",
        "reward": {"function": "numeric_match"},
        "model": {"name": str(tmp_path / "base"), "chat_template_kwargs": {"enable_thinking": False}},
        "steps": 1,
    }
    rows = (f'{{"prompt": "{n}+2", "answer": "{n + 2}"}}\n' for n in range(12))
    (tmp_path / "rows.jsonl").write_text("".join(rows), encoding="utf-8")
    made = grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert made is not None
    trained = len(prompts)
    assert trained >= 10  # both evaluations and the rollout
    grouprl.evaluate(tmp_path / "run")
    assert len(prompts) > trained
    assert {text.endswith("<assistant><think></think>") for text in prompts} == {True}
    prompts.clear()
    grouprl.evaluate(tmp_path / "run", chat_template_kwargs={"enable_thinking": True})
    assert {text.endswith("<assistant>") for text in prompts} == {True}
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    text = saved.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert text == "\n<user>2+2<assistant><think></think>"


def by_command(folder: Path, task: str, variables: str) -> None:
    options = ["--prompts", "6", "--greedy", "--max-new-tokens", "4", "--reward", "numeric_match", "--json"]
    words = ["--chat-template-kwargs", variables] if variables else []
    found = CliRunner().invoke(app, ["eval", str(folder), "--task", task, *options, *words])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["failed"] == 0


def by_function(folder: Path, task: str, variables: str) -> None:
    given = {"enable_thinking": "true" in variables} if variables else None
    options: dict[str, Any] = {"prompts": 6, "greedy": True, "max_new_tokens": 4, "reward": "numeric_match"}
    grouprl.evaluate(folder, task_spec(task), **options, chat_template_kwargs=given)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """The ids of every prompt that this process samples from."""
    found: set[tuple[int, ...]] = set()

    def spied(policy: Any, requests: Any, **settings: Any) -> Any:
        found.update(tuple(request.prompt) for request in requests)
        return decode(policy, requests, **settings)

    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", spied)
    return found


def asked_rows(folder: Path) -> tuple[list[str], str]:
    """Six held-out questions, and the task that asks them."""
    for name, second in (("train", 3), ("held_out", 2)):
        rows = (f'{{"prompt": "{n}+{second}", "answer": "{n + second}"}}\n' for n in range(6))
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    task = f"{{name: 'jsonl:{folder / 'train.jsonl'}', eval: '{folder / 'held_out.jsonl'}'}}"
    return [f"{n}+2" for n in range(6)], task


def own_ids(folder: Path, texts: list[str], **variables: object) -> set[tuple[int, ...]]:
    """The ids that the tokenizer in a folder makes of questions, by its own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    talks = [[{"role": "user", "content": text}] for text in texts]
    told = tokenizer.apply_chat_template(talks, add_generation_prompt=True, return_dict=True, **variables)
    return set(map(tuple, told["input_ids"]))


@pytest.mark.parametrize("evaluating", [by_command, by_function])
def test_a_model_that_is_not_of_a_run_is_evaluated_with_variables(
    evaluating: Callable[..., None], tmp_path: Path, sampled: set[tuple[int, ...]]
) -> None:
    """Its prompts are those of the tokenizer's own template, token by token."""
    chatting(THINKS, max_positions=128).save(tmp_path / "model")
    asked, task = asked_rows(tmp_path)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for variables, own in (
        ("", {}),
        ("{enable_thinking: false}", {"enable_thinking": False}),
        ('{"enable_thinking": true}', {"enable_thinking": True}),
    ):
        sampled.clear()
        evaluating(tmp_path / "model", task, variables)
        assert sampled == own_ids(tmp_path / "model", asked, **own)
        seen[variables] = set(sampled)
    plain, quiet_ones, thinking = seen.values()
    assert plain == thinking
    assert not plain & quiet_ones


def test_variables_for_a_policy_without_a_template_are_refused() -> None:
    with pytest.raises(InputError, match=r"chat_template_kwargs is \{'thinking': True\}, and the policy is object"):
        set_defaults_of(object(), {"thinking": True})
    set_defaults_of(object(), {})


def test_a_variable_that_the_evaluated_template_does_not_use_is_refused(tmp_path: Path) -> None:
    chatting(THINKS, max_positions=128).save(tmp_path / "model")
    _, task = asked_rows(tmp_path)
    words = ["eval", str(tmp_path / "model"), "--task", task, "--reward", "numeric_match", "--chat-template-kwargs"]
    for given, said in (
        ("{enable_thinkin: false}", "no variable 'enable_thinkin'"),
        ("enable_thinking", "It must be a mapping from names of variables to values"),
        ("{1: 2}", "It must be a mapping from names of variables to values"),
    ):
        found = CliRunner().invoke(app, [*words, given])
        assert found.exit_code == 2
        assert said in " ".join(found.stderr.split())
