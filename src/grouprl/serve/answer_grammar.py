"""The grammar that a request imposes on its answer: JSON under its schema, or calls of its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.chat.bounded_schema import bounded
from grouprl.chat.call_grammars import NoGrammar, answer_signs, calls_grammar, thinking_signs
from grouprl.chat.calls import Form
from grouprl.chat.lark import GrammarPart, JsonValue, Maybe, OneOf, Pattern, Until, lark_of
from grouprl.chat.refusal import Refusal
from grouprl.chat.request import ChatRequest, not_held
from grouprl.rollout.local.grammars import can_constrain, grammar_error, single_tokens

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy
    from grouprl.serve.rows import Requested

LAST_TOKENS = 32
"""Tokens at the end of a prompt that are looked at for the end of thinking."""
ABSENT = "without the package llguidance (pip install 'grouprl[grammar]')"


SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates switch thinking off."""


def answer_grammar(policy: TokenPolicy, form: Form, request: ChatRequest, requested: Requested) -> str:
    """Return the grammar of an answer in the policy's syntax; '' if any text is allowed.

    Thinking before the answer is free, but it has to end; where it is switched off or the prompt has ended it there is
    none.

    Raises:
        Refusal: if the extra is missing, the syntax of calls has no grammar, or llguidance cannot express the schema.
    """
    if request.response_format is None and request.tool_choice.kind != "required":
        return ""
    if not can_constrain():
        refused = not_held(request, ABSENT)
        assert refused is not None
        raise refused
    about = "response_format" if request.response_format is not None else "tool_choice"
    try:
        turn = (*_thinking(policy, form, request, requested), _turn(form, request))
    except NoGrammar as error:
        raise Refusal(f"{about} = {request.tool_choice.name or 'a form'}: {error}", about) from None
    lark = lark_of(turn, single_tokens(policy.tokenizer))
    if wrong := grammar_error(policy, lark):
        what = wrong.partition("\n")[0].partition("): ")[2] or wrong
        raise Refusal(f"{about} = a schema that cannot be enforced: {what[:300]}", about)
    return lark


def _turn(form: Form, request: ChatRequest) -> GrammarPart:
    """Return the grammar of a turn after thinking: a call, JSON, or either if the policy may choose."""
    choice, schema = request.tool_choice, request.response_format
    tools = [tool for tool in request.tools if choice.name in ("", tool["function"]["name"])]
    calls = () if not tools or choice.kind == "none" else (calls_grammar(form, tools, several=choice.several),)
    if choice.kind == "required" or schema is None:
        return calls
    before, behind = answer_signs(form)
    answer = (before, JsonValue(bounded(schema)), behind)
    return OneOf((answer, *calls))


def _thinking(policy: TokenPolicy, form: Form, request: ChatRequest, requested: Requested) -> tuple[GrammarPart, ...]:
    """Return the grammar of thinking before a turn: it must end if the prompt began it, and else is optional unless it
    is switched off.
    """
    begin, end = thinking_signs(form)
    template = str(getattr(policy.tokenizer, "chat_template", None) or "")
    rest = (Until(end.strip()), Pattern("[ \\n]{0,3}")) if end.strip() else ()
    if requested.opened:
        return rest
    before = policy.decode(requested.context[-LAST_TOKENS:]).rstrip()
    if any(request.chat_template_kwargs.get(name) is False for name in SWITCHES) or before.endswith(
        end.strip() or "\0"
    ):
        return ()
    return (Maybe((begin.strip(), *rest)),) if rest and begin.strip() and begin.strip() in template else ()
