"""Runs whose prompts a variable of the chat template changes, and the prompts that engines get of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import grouprl
from grouprl.rollout.local.sampler import decode
from short_runs import SMALL, quiet

TEMPLATE = (
    "{{ '<quiet>' if quiet }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BUDGET = 4
"""Tokens of a completion; other requests of a run ask for fewer."""
Prompts = set[tuple[int, ...]]


def asking(policy: Any, folder: Path) -> dict[str, Any]:
    """The configuration of a run of one step, without a sampler, whose model has the template and a variable of it."""
    policy.tokenizer.chat_template = TEMPLATE
    policy.save(folder / "model")
    lines = "".join(f'{{"prompt": "{n}+2", "answer": "{n + 2}"}}\n' for n in range(12))
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    return {
        **SMALL,
        "task": f"jsonl:{folder / 'rows.jsonl'}",
        "reward": {"function": "numeric_match"},
        "model": {"name": str(folder / "model"), "chat_template_kwargs": {"quiet": True}},
        "steps": 1,
    }


def of_the_local_engine(config: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Prompts:
    """The prompts from which the local engine samples in a run; all begin with what the variable adds."""
    found: Prompts = set()

    def spied(policy: Any, requests: Any, **settings: Any) -> Any:
        found.update(tuple(request.prompt) for request in requests)
        begins = tuple(policy.encode("<quiet>"))
        assert {tuple(request.prompt)[: len(begins)] for request in requests} == {begins}
        return decode(policy, requests, **settings)

    with monkeypatch.context() as patched:
        patched.setattr("grouprl.rollout.local.sampler.decode", spied)
        sampled(config, folder)
    assert len(found) >= 3
    return found


def sampled(config: dict[str, Any], folder: Path, **engine: object) -> None:
    """Run a configuration with an engine, the local one by default."""
    grouprl.train({**config, "sampling": {"max_new_tokens": BUDGET, **engine}}, folder=folder, console=quiet())
