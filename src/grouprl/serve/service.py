"""A policy as the backend of a completion server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, Token, said
from grouprl.chat.request import ChatRequest
from grouprl.chat.server import Pieces
from grouprl.chat.syntaxes import AUTO
from grouprl.chat.turn_content import THOUGHTS, Spoken
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import Observation
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.chat_template import template_of
from grouprl.rollout.seeds import sample_seed
from grouprl.rollout.turn_text import History
from grouprl.serve.alternatives import alternatives
from grouprl.serve.answer_grammar import answer_grammar
from grouprl.serve.joint_sampling import BatchedSampling, SampleJob, ServedTurn
from grouprl.serve.retention import Retention
from grouprl.serve.rows import Requested, ServedRows
from grouprl.serve.slots import Slots

if TYPE_CHECKING:
    from grouprl.protocols import RunSampler
    from grouprl.records.token_policy import TokenPolicy

UnknownParameters = Literal["refuse", "ignore"]
"""Treatment of parameters that cannot be applied, and of unknown names of models."""
SWITCH = "enable_thinking"
"""The variable by which chat templates switch thinking."""
RAW = {"raw": True}
"""Placeholder for the template's variables in rows of completions of plain texts, which no conversation continues."""
MOST_WAITING = 16384
CHARACTERS_PER_TOKEN = 16
"""Largest number of characters of a prompt per position of the model; longer prompts are not even encoded."""
MOST_CHARACTERS = 1_000_000
T = TypeVar("T")


class Service:
    """A backend that completes requests with a policy and records every token.

    Args:
        policy: the policy that completes the requests.
        model: its name for clients.
        max_tokens: length of a completion unless the request sets it; never more than the model has room for.
        at_once: largest number of completions that are sampled at the same time.
        record: a file to which a line is appended for every completion.
        prompt_chars: largest number of characters of a request's messages and tools; None for 16 per position of the
            model. Never more than the positions could hold if every token were the longest of its vocabulary.
        keeping: limits on the number of retained rows and their age.
        secret_keys: whether API keys are secrets, which the record then holds as digests.
        most_waiting: largest number of completions that may wait to be sampled; further ones are refused.
        tool_calls: syntax of the policy's tool calls (`sampling.tool_calls`).
        unknown: whether parameters that cannot be applied, and other names of the model, are refused or ignored.
        history: treatment of a row whose past the chat template rewrites (`sampling.history`).
        sampler: samples every completion; None for the engine of this process.

    Raises:
        InputError: if `history` or the syntax of tool calls is unknown, or the chat template cannot render a user's
            message.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        model: str,
        *,
        max_tokens: int = 1024,
        at_once: int = 64,
        record: Path | None = None,
        prompt_chars: int | None = None,
        keeping: Retention | None = None,
        secret_keys: bool = False,
        most_waiting: int = MOST_WAITING,
        tool_calls: str = AUTO,
        history: History = "append",
        unknown: UnknownParameters = "refuse",
        sampler: RunSampler | None = None,
    ) -> None:
        self.notes = _template_notes(policy, tool_calls)
        """Notes on parts of messages that the chat template omits, and on their place in prompts instead."""
        self.policy, self._model, self.max_tokens, self.unknown = policy, model, max_tokens, unknown
        room = policy.max_positions
        fitting = MOST_CHARACTERS if room is None else min(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * room)
        self.prompt_chars = min(prompt_chars or fitting, _most_characters(policy))
        self.recorded = ServedRows(policy, record, keeping, secret_keys, history)
        self.batching = BatchedSampling(policy, at_once, sampler)
        self.places = Slots(2 * at_once, most_waiting)  # further completions queue at the sampling thread
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._scoring = ThreadPoolExecutor(1, thread_name_prefix="alternatives")

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._model

    def others(self, key: str) -> tuple[str, ...]:
        """Return no names: one policy serves all requests."""
        return ()

    def rows(self, key: str) -> list[JsonObject] | None:
        """Return the rows of the client with this API key; None if none are retained."""
        return self.recorded.of(key)

    def ignores(self, key: str) -> bool:
        """Return whether parameters that cannot be applied are ignored."""
        return self.unknown == "ignore"

    def refused(self, key: str, error: Refusal) -> None:
        """Ignore a refused request: its client has been told, and nothing else depends on it."""

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Complete a request and record the completions; raise Refusal if the policy cannot complete it."""
        request, requested = await self._requested(key, request)
        grammar = await self._off(answer_grammar, self.policy, self.recorded.turn_text.form, request, requested)
        budget, seed = self._budget(request, len(requested.context)), request.seed
        seed = int.from_bytes(os.urandom(7), "big") if seed is None else seed
        context, form = tuple(requested.context), self.recorded.turn_text.form
        if pieces is not None:
            pieces(0, "")  # accepted: nothing is wrong with the request from here on
        streams = (form.plain or request.raw) and not request.tools
        told = pieces if streams else None  # only plain text can be streamed while it is sampled
        lines = [
            SampleJob(
                context,
                budget,
                sample_seed("serve", seed, 0, index),
                request.temperature,
                request.top_p,
                request.stop,
                grammar,
                request.top_k,
                request.min_p,
                told if told is None else partial(told, index),
            )
            for index in range(request.n)
        ]
        if told is not None and requested.opened:
            for index in range(request.n):
                told(index, THOUGHTS[0][0])
        sampled = await _all([asyncio.ensure_future(self._sample(key, line)) for line in lines])
        choices = await self._off(self._completed, key, request, requested, sampled)
        if request.top_logprobs:
            loop = asyncio.get_running_loop()
            choices = await loop.run_in_executor(
                self._scoring, self._with_alternatives, request, context, choices, grammar
            )
        return Completion(choices, context)

    async def count(self, request: ChatRequest, key: str) -> int:
        """Return the number of prompt tokens of a request; raise Refusal as `answer` does."""
        return len((await self._requested(key, request))[1].context)

    async def _requested(self, key: str, request: ChatRequest) -> tuple[ChatRequest, Requested]:
        """Return a request with the variables of the chat template that it implies, and the row that it continues."""
        request = self._with_thinking(request)
        for name in ("tools", "chat_template_kwargs"):
            if getattr(request, name) and not self.recorded.turn_text.chat:
                raise Refusal(f"The model has no chat template, which {name} are for", name)
        if request.prefill and (request.response_format is not None or request.tool_choice.kind == "required"):
            raise Refusal("An answer that the client has begun cannot be held to a form", "messages")
        return request, await self._off(self._find_row, key, request)

    def _with_thinking(self, request: ChatRequest) -> ChatRequest:
        """Return a request with the switch for thinking as a variable of the chat template, where that has one."""
        given, chat = request.chat_template_kwargs, self.recorded.turn_text.chat
        if request.thinking is None or SWITCH in given:
            return request
        wanted = {SWITCH: request.thinking}
        if chat and not self.recorded.turn_text.unable(Observation("", variables=wanted)):
            return request.model_copy(update={"chat_template_kwargs": {**given, **wanted}})
        if request.thinking and self.unknown == "refuse":
            raise Refusal("thinking = enabled: the model's chat template has no switch for it", "thinking")
        return request

    async def _sample(self, key: str, line: SampleJob) -> ServedTurn:
        async with self.places.of(key):
            try:
                return await asyncio.wrap_future(self.batching.sample(line))
            except InputError as error:  # no completion can satisfy the grammar, or the engine cannot enforce it
                about = "response_format = a form that this model cannot write" if line.grammar else "The request"
                raise Refusal(f"{about}: {error}") from error

    async def _off(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in the thread that encodes and decodes texts."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, function, *arguments)

    def _find_row(self, key: str, request: ChatRequest) -> Requested:
        """Return the row that a request continues; raise Refusal if the messages cannot be encoded."""
        told = sum(
            len(message["content"]) + len(json.dumps(message.get("tool_calls", ""))) for message in request.messages
        )
        beside = [each for each in (request.tools, request.chat_template_kwargs) if each]
        size = told + sum(len(json.dumps(each)) for each in beside)
        if size > self.prompt_chars:
            raise Refusal(f"The messages and tools have {size} characters; at most {self.prompt_chars}", "messages")
        if request.raw:
            return Requested(None, 0, self._plain_prompt(request.messages[0]["content"]), [])
        try:
            if request.chat_template_kwargs:
                self.recorded.turn_text.template.check(request.chat_template_kwargs)
        except InputError as error:
            raise Refusal(str(error), "chat_template_kwargs") from None
        try:
            found = self.recorded.request(key, request.messages, request.tools, request.chat_template_kwargs)
            return found.begun_with(self.policy.encode(request.prefill)) if request.prefill else found
        except InputError as error:
            raise Refusal(str(error), "messages") from None
        except Exception as error:  # chat templates may raise anything
            what = f"{type(error).__name__}: {error}"
            raise Refusal(f"The messages cannot be made into a prompt: {what}", "messages") from error

    def _plain_prompt(self, text: str) -> list[int]:
        """Return the tokens of a text that is completed without a chat template; raise Refusal if it has none."""
        try:
            return self.policy.encode_prompt(text)
        except InputError as error:
            raise Refusal(str(error), "prompt") from None

    def _completed(
        self, key: str, request: ChatRequest, requested: Requested, sampled: list[ServedTurn]
    ) -> tuple[Choice, ...]:
        """Record the completions and return them as choices."""
        choices = tuple(self._choice(request, each, requested.opened) for each in sampled)
        variables = RAW if request.raw else request.chat_template_kwargs
        for choice, each in zip(choices, sampled, strict=True):
            whole = choice if not request.prefill else self._choice(request, each, requested.opened, request.prefill)
            self.recorded.add(key, requested, each, said(request, whole), request.tools, variables)
        return choices

    def close(self) -> None:
        """Stop sampling and close the record; may be called twice."""
        self.batching.close()
        self._reading.shutdown()
        self._scoring.shutdown()
        self.recorded.close()

    def _budget(self, request: ChatRequest, length: int) -> int:
        room = self.policy.max_positions
        left = None if room is None else room - length
        if left is not None and left < (request.max_tokens or 1):
            wanted = f" and max_tokens = {request.max_tokens}" if request.max_tokens else ""
            raise Refusal(f"The messages have {length} tokens{wanted}; the model has room for {room}", "messages")
        budget = request.max_tokens or self.max_tokens
        return budget if left is None else min(budget, left)

    def _choice(self, request: ChatRequest, sampled: ServedTurn, opened: bool, begun: str = "") -> Choice:
        """Return a completion as a choice; `begun` is the beginning of its text that the client has written."""
        tools, whole = [str(tool["function"]["name"]) for tool in request.tools], begun + sampled.text
        text = Spoken(whole, self.recorded.turn_text.form.read_for(whole, tools, opened))
        pairs = zip(sampled.ids, self._texts(sampled.ids), sampled.logp, strict=True)
        tokens = tuple(Token(word, logp, number) for number, word, logp in pairs)
        stop = None
        if sampled.ended and request.stop:
            behind = self.policy.decode(sampled.ids)[len(sampled.text) :]
            stop = next((each for each in request.stop if behind.startswith(each)), None)
        return Choice(text, "stop" if sampled.ended else "length", tokens, stop)

    def _with_alternatives(
        self, request: ChatRequest, context: tuple[int, ...], choices: tuple[Choice, ...], grammar: str
    ) -> tuple[Choice, ...]:
        """Return the choices with the likeliest alternatives of each token added."""
        made = []
        for choice in choices:
            ids = [token.id for token in choice.tokens]
            found = alternatives(self.policy, context, ids, request.temperature or 1.0, request.top_logprobs, grammar)
            tops = [zip(self._texts([i for i, _ in top]), [logp for _, logp in top], strict=True) for top in found]
            tokens = (replace(token, top=tuple(top)) for token, top in zip(choice.tokens, tops, strict=True))
            made.append(replace(choice, tokens=tuple(tokens)))
        return tuple(made)

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, decoded alone."""
        texts = self.policy.tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
        return list(map(str, texts))


def _most_characters(policy: TokenPolicy) -> int:
    """Return the largest number of characters of a prompt that fits the policy's positions."""
    if policy.max_positions is None:
        return sys.maxsize
    longest = max(map(len, policy.tokenizer.get_vocab()), default=0)
    return int(max(longest, CHARACTERS_PER_TOKEN) * policy.max_positions)


def _template_notes(policy: TokenPolicy, tool_calls: str) -> tuple[str, ...]:
    if not getattr(policy.tokenizer, "chat_template", None):
        return ()
    call_syntax(policy.tokenizer, tool_calls)
    template = template_of(policy.tokenizer)
    if refused := template.refusals(set()):
        raise InputError(refused[0], "programs send messages, and the template turns them into prompts")
    return tuple(template.notes({"system", "late_system", "tools", "results", "users", "roles"}))


async def _all(tasks: list[asyncio.Task[ServedTurn]]) -> list[ServedTurn]:
    """Wait for all completions; if one fails or the client disconnects, the others are cancelled."""
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
