"""Which syntax of tool calls a policy writes: the one that its chat template shows, or the one that is set."""

from __future__ import annotations

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import AUTO, JSON, ResponseForm, form_named
from grouprl.policy.language.chat_template import template_of

THOUGHT = ("<think>", "[THINK]")
"""Signs that begin thinking and that some prompts end with."""


def call_syntax(tokenizer: object, setting: str = AUTO) -> Form:
    """Return how the policy of a tokenizer writes calls and thinking.

    `auto`: as was set for the tokenizer before; else by the response template that it ships; else the syntax of the
    table that reads what the chat template writes of a call; else by signs in the template; JSON in tags where it
    announces no tools. Any other setting is kept for the tokenizer; tools that are carried are announced so.

    Raises:
        InputError: for an unknown name.
    """
    form = None if setting == AUTO else form_named(setting)
    if not getattr(tokenizer, "chat_template", None):
        return form or JSON
    template, shipped = template_of(tokenizer), getattr(tokenizer, "response_template", None)
    if form is not None:
        template.speak(form)
    return template.chosen or (ResponseForm(shipped) if shipped else template.form)


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt ends where thinking begins, so that the sampled text begins inside it."""
    return prompt.rstrip().endswith(THOUGHT)
