"""Settings of a chat template (`model.chat_template_kwargs`), written into the template itself.

A prompt must read the same in training, in evaluation, to a served client and to whoever loads the exported folder. So
the settings become the template's own defaults, which a conversation may still override, and not an argument that every
caller has to remember.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, shortened
from grouprl.policy.language.chat_template import template_of
from grouprl.policy.language.models_of import language_models_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = {None: "none", True: "true", False: "false"}


def set_defaults(tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, object]) -> None:
    """Make `settings` the values that the template's variables have where a conversation does not set them.

    Raises:
        InputError: the tokenizer has no chat template or several, the template does not use a variable, or a value is
            none of text, number, true, false, null, list and mapping.
    """
    if not settings:
        return
    if not tokenizer.chat_template:
        raise InputError(
            f"chat_template_kwargs is {dict(settings)}, and the tokenizer has no chat template",
            "its settings are variables of a chat template",
            "Leave them out, use an instruct model, or set tokenizer.chat_template",
        )
    template = template_of(tokenizer)
    template.check(settings)
    if not isinstance(template.source, str):
        raise InputError(
            "chat_template_kwargs with a tokenizer that has several chat templates",
            "the settings are written into the one template that is used",
            "Leave one template in tokenizer.chat_template",
        )
    tokenizer.chat_template = "".join(map(_default, settings, settings.values())) + template.source


def set_defaults_of(policy: object, settings: Mapping[str, object]) -> None:
    """Make `settings` the defaults of the chat templates of a loaded policy's language models, before those they have.

    Raises:
        InputError: the policy has no language model, or `set_defaults` refuses the settings.
    """
    models = language_models_of(policy)
    if settings and not models:
        raise InputError(
            f"chat_template_kwargs is {dict(settings)}, and the policy is {type(policy).__name__}",
            "its settings are variables of the chat template of a language model",
            "Leave them out",
        )
    for model in models.values():
        set_defaults(model.tokenizer, settings)


def _default(name: str, value: object) -> str:
    """Return lines of Jinja that set a variable unless it is set; `+` keeps a line break that follows."""
    return f"{{% if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif +%}}"


def _literal(value: object) -> str:
    """Return a value as Jinja writes it."""
    if value is None or isinstance(value, bool):
        return PLAIN[value]
    if isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{str(name)!r}: {_literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_literal, value)) + "]"
    raise InputError(f"chat_template_kwargs holds {shortened(value)}", "a value is what JSON can hold")
