"""Effects of a chat template on a run, checked before it begins: messages that it cannot show, and history that it
rewrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.chat.syntaxes import AUTO
from grouprl.chat.turn_content import Call
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.environment import Observation
from grouprl.policy.language.chat_template import template_of
from grouprl.policy.language.message_fallbacks import Use, uses_of
from grouprl.records.episode_records import Turn
from grouprl.records.examples import Prompt
from grouprl.rollout.episode import Context
from grouprl.rollout.turn_text import History, TurnText
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide

EFFECTS = {
    "refuse": "such an episode counts as failed",
    "append": "it stays in the row as it was written",
    "split": "a new row begins there",
}
"""Effect of each `sampling.history` on a turn that the template rewrites."""
MADE_UP = "qzname"


@dataclass(frozen=True)
class TemplateReport:
    """Findings on a run's chat template."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_template(
    policy: TextSide,
    prompts: Sequence[Prompt],
    history: History = "refuse",
    *,
    turns: bool = False,
    calls: str = AUTO,
    task: Task | None = None,
) -> TemplateReport:
    """Report what the template of a policy cannot show of `prompts`, and which turns it rewrites if there are `turns`.

    The report is empty if there is no template. For plain-text prompts, to which the template is not applied, it has a
    note that says what to set in `task`.
    """
    chats = [prompt for prompt in prompts if not isinstance(prompt, str)]
    if not getattr(policy.tokenizer, "chat_template", None):
        return TemplateReport()
    plain = sum(
        isinstance(prompt, str) and prompt != "" for prompt in prompts
    )  # "" if it is only known once it is played
    passed_by = _passed_by(plain, len(prompts), _chat_remedy(task))
    if not chats:
        return TemplateReport(notes=passed_by)
    turn_text, template = TurnText(policy, "refuse", calls), template_of(policy.tokenizer)
    uses: set[Use] = set()
    for chat in chats:
        uses |= uses_of(chat, getattr(chat, "tools", ()))
    refusals, notes = template.refusals(uses), [*passed_by, *template.notes(uses)]
    if refusals or not turns:
        return TemplateReport(tuple(refusals), tuple(notes))
    always, sometimes = _rewritten(turn_text, chats[0])
    if always and history == "refuse":
        return TemplateReport((always,), tuple(notes))
    notes += [f"{what}; {EFFECTS[history]} (sampling.history {history})" for what in [always, *sometimes] if what]
    if not always and not sometimes and history != "refuse":
        notes.append(f"sampling.history {history} has no effect: nothing rewrites what was said in earlier turns")
    return TemplateReport((), tuple(notes))


def _passed_by(plain: int, count: int, remedy: str) -> tuple[str, ...]:
    """Return a note that the template is not applied to `plain` of `count` prompts; an empty tuple if there are
    none.
    """
    if not plain:
        return ()
    which = "prompts are plain text" if plain == count else f"{plain} of {count} prompts are plain text"
    return (
        f"{which}, and the model's tokenizer has a chat template, which is not applied to them: an instruct model "
        f"continues such a text instead of replying to it, and rarely ends. {remedy}; leave it so for a base "
        "model",
    )


def _chat_remedy(task: Task | None) -> str:
    """Return the remedy that turns the prompts of a task into chat messages; environments already give messages."""
    if "chat" in getattr(type(task), "model_fields", {}):
        return "Set chat: auto (or true, or system: …) among the task's options"
    return "Let the task's `example` return chat messages, ({'role': 'user', 'content': …},), as its prompt"


def _rewritten(turn_text: TurnText, prompt: Prompt) -> tuple[str, list[str]]:
    """Return how the template rewrites every turn ('' if it does not), and turns that think or have white space at
    their ends.
    """
    shown, tools = _next(prompt), getattr(prompt, "tools", ())
    form = turn_text.form
    simple = form.write_all([Call(_name(tools), {})]) if tools else form.answer("y")
    simply = _refused(turn_text, prompt, simple, shown)
    usual = _as_template(turn_text, prompt, simple) if simply else simple  # the syntax may differ from the template's
    always = simply and _refused(turn_text, prompt, usual, shown)
    odd = {"thinking": form.think("x") + usual, "white space at its ends": f" {usual} \n"}
    found = {f"with {kind}": _refused(turn_text, prompt, action, shown) for kind, action in odd.items()}
    found = {f"such as {shortened(simple, 80)}": simply, **found}
    return always, [f"of a turn {kind}, {what}" for kind, what in found.items() if what and not always]


def _as_template(turn_text: TurnText, prompt: object, usual: str) -> str:
    """Return the turn as the template itself writes it, without its end."""
    template, tools = turn_text.template, getattr(prompt, "tools", ())
    call = {"id": "call_0000", "type": "function", "function": {"name": _name(tools), "arguments": {}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]} if tools else _plain(usual)
    text = template.written(message) or usual
    ends = turn_text.policy.tokenizer.convert_ids_to_tokens(sorted(turn_text.policy.eos_ids))
    return text[: min((at for at in map(text.find, map(str, ends)) if at >= 0), default=len(text))]


def _plain(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


def _refused(turn_text: TurnText, prompt: Prompt, action: str, shown: Observation) -> str:
    """Return how the template rewrites an action; '' if it leaves the action unchanged."""
    context = Context("", 0, -1, prompt, [])
    whole = getattr(turn_text.policy, "model", None) is not None  # without a policy not every end token is known
    ends = [*sorted(turn_text.policy.eos_ids), *[None] * (not whole)]
    found = ""
    for end in ends:
        context.ids, context.turns = [] if end is None else [end], [Turn(0, "", action)]
        context.talk = [({"role": "assistant", "content": action},)]
        found = turn_text.onward(context, shown).refused.partition(". Set sampling.history")[0]
        if not found:
            return ""
    return found


def _next(prompt: object) -> Observation:
    """Return an observation that follows a turn: a tool's result if tools are announced, else a user message."""
    tools = getattr(prompt, "tools", ())
    message = {"role": "tool", "name": _name(tools), "content": "z"} if tools else {"role": "user", "content": "z"}
    return Observation("z", messages=(message,))


def _name(tools: Sequence[JsonMapping]) -> str:
    return next(iter(_names(tools)), MADE_UP)


def _names(tools: Sequence[JsonMapping]) -> Iterator[str]:
    for tool in tools:
        yield str(tool.get("function", tool).get("name", MADE_UP))
