"""The syntax in which a policy writes tool calls: the one that its chat template shows, or the one that is set."""

from __future__ import annotations

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import AUTO, JSON, ResponseForm, form_named
from grouprl.policy.language.chat_template import template_of

THOUGHT = ("<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>")
"""Markers that begin thinking, and with which some prompts end."""


def call_syntax(tokenizer: object, setting: str = AUTO) -> Form:
    """Return the syntax in which the policy of a tokenizer writes calls and thinking.

    `auto` takes the syntax that was set for the tokenizer before; else that of the response template that it ships;
    else the known syntax that can read a call as the chat template writes it; else the one suggested by markers in the
    template; JSON in tags if the template announces no tools. Any other setting is remembered for the tokenizer, and
    used to announce tools that the template itself does not show.

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
    """Return whether a prompt ends with the beginning of thinking, so that the sampled text starts inside it."""
    return prompt.rstrip().endswith(THOUGHT)
