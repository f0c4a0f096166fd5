"""Questions to a saved model: prompts as its users write them, and a fresh process that answers, by files of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grouprl.core.errors import RunError
from grouprl.core.json_types import JsonObject
from grouprl.policy.language.text import render_chat
from grouprl.processes.child_process import LoggedProcess, how_it_ended
from grouprl.processes.current_ranks import environment_without_ranks
from grouprl.records.examples import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def form_of(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[str | list[JsonObject], bool]:
    """Return a prompt as users of the saved model would give it, and whether it is rendered already."""
    if isinstance(prompt, str):
        return prompt, False
    messages, text = [dict(message) for message in prompt], render_chat(tokenizer, prompt)
    try:
        shown = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception:  # templates raise errors of many types for messages that they do not support
        return text, True
    return (messages, False) if shown == text else (text, True)


def answered(main: Callable[[str, str, str], None], work: object, failed: str) -> Any:
    """Return what `main` writes about `work`, in a process of its own without access to the Hub.

    Raises:
        RunError: the process failed; the message begins with `failed`.
    """
    with TemporaryDirectory() as place:
        asking, answering = Path(place, "questions.json"), Path(place, "answers.json")
        asking.write_text(json.dumps(work), encoding="utf-8")
        environment = {**environment_without_ranks(), "HF_HUB_OFFLINE": "1"}
        child = LoggedProcess(main, asking, answering, environment=environment)
        try:
            if code := child.wait():
                last = (child.last_output(2000).splitlines() or [how_it_ended(code)])[-1]
                raise RunError(f"{failed}: {last}")
        finally:
            child.end()
        return json.loads(answering.read_text(encoding="utf-8"))
