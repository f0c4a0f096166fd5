"""The rule by which questions are shown as chat messages: where the model has a chat template, unless `chat` is set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grouprl.config.run import Config
from grouprl.orchestrator.resolve import ResolvedRun, resolve
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.gguf import as_folder
from grouprl.tasks import Task
from grouprl.tasks.questions import QuestionTask


def resolve_new(config: Config | ResolvedRun, *, download: bool = False) -> ResolvedRun:
    """Return the objects of a run that has not begun; `chat` of its task is decided by its model.

    The configuration then says `chat: true`, so that the run is resumed and evaluated with the same prompts. With
    `download`, the tokenizer of a model on the Hub is downloaded.

    Raises:
        InputError: a plugin, method or task does not exist, or its options do not fit it.
    """
    run = resolve(config)
    if not _undecided(run.task) or not _has_chat_template(run.config.model.name, download):
        return run
    given = run.config.task
    spec = {**({"name": given} if isinstance(given, str) else given), "chat": True}
    return replace(
        run,
        config=run.config.model_copy(update={"task": spec}),
        task=run.task.as_messages(),  # type: ignore[attr-defined]
        chat_decided=True,
    )


def task_for(task: Task, tokenizer: object) -> Task:
    """Return a task as it is shown to a policy with this tokenizer."""
    if isinstance(task, QuestionTask) and task.undecided and getattr(tokenizer, "chat_template", None):
        return task.as_messages()
    return task


def _undecided(task: Task) -> bool:
    return isinstance(task, QuestionTask) and task.undecided


def _has_chat_template(name: str, download: bool) -> bool:
    """Return whether a model has a chat template; False if it cannot be read, which is reported elsewhere."""
    if name == "tiny" or policy_kind(name) is not None:
        return False
    from transformers import AutoTokenizer

    try:
        folder = Path(as_folder(name)).expanduser()
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else name, local_files_only=not download
        )
    except Exception:
        return False
    return bool(getattr(tokenizer, "chat_template", None))
