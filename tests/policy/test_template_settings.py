"""`model.chat_template_kwargs`: one prompt in training, evaluation, serving and the saved model."""

from __future__ import annotations

from pathlib import Path

import pytest

import grouprl
from chat_policies import chatting
from grouprl.core.errors import InputError
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.text import render_chat
from grouprl.records.examples import Chat
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
    with pytest.raises(InputError, match="the messages determine it"):
        rendered({"messages": []})
    with pytest.raises(InputError, match="no chat template"):
        set_defaults(chatting(None).tokenizer, {"enable_thinking": False})
    with pytest.raises(InputError, match="no chat template"):
        grouprl.plan({**SMALL, "model": {**SMALL["model"], "chat_template_kwargs": {"enable_thinking": False}}})


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
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    text = saved.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert text == "\n<user>2+2<assistant><think></think>"
