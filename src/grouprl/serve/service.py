"""A policy as the backend of a chat completions server."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from grouprl.chat.reply import Choice, Completion, Token, said
from grouprl.chat.request import ChatRequest, Refusal
from grouprl.chat.server import Pieces
from grouprl.errors import InputError
from grouprl.rollout.seeds import answer_seed
from grouprl.serve.drawing import Drawing, Drawn, Line
from grouprl.serve.rows import Rows

MOST_ANSWERS = 64


class Service:
    """Answers requests with a policy and records every token.

    Args:
        policy: who answers.
        model: the name that clients give it.
        max_tokens: tokens of an answer where the request does not say; never more than the model has room for.
        at_once: most answers that are written at the same time.
        record: a file to which a line is appended for every answer.
    """

    def __init__(
        self, policy: Any, model: str, *, max_tokens: int = 1024, at_once: int = 64, record: Path | None = None
    ) -> None:
        self.policy, self._model, self.max_tokens = policy, model, max_tokens
        self.recorded = Rows(policy, record)
        self.drawing = Drawing(policy, at_once)

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._model

    def others(self, key: str) -> tuple[str, ...]:
        """Return no name: one policy answers."""
        return ()

    def rows(self, key: str) -> list[dict[str, Any]] | None:
        """Return the rows of the client with this API key; None if it never asked."""
        found = self.recorded.of(key)
        return None if found is None else [row.as_json() for row in found]

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Answer a request, and write the answers down. Raises Refusal for what the policy cannot do."""
        if request.n > MOST_ANSWERS:
            raise Refusal(f"n = {request.n}; at most {MOST_ANSWERS} answers to one request", "n")
        if request.tools and not self.recorded.between.chat:
            raise Refusal("The model has no chat template, so it cannot be told of tools", "tools")
        try:
            asked = self.recorded.ask(key, request.messages, request.tools)
        except InputError as error:
            raise Refusal(str(error), "messages") from None
        budget, seed = self._budget(request, len(asked.context)), request.seed
        seed = int.from_bytes(os.urandom(7), "big") if seed is None else seed
        futures = [
            self.drawing.draw(
                Line(
                    tuple(asked.context),
                    budget,
                    answer_seed("serve", seed, 0, index),
                    request.temperature,
                    request.top_p,
                    request.stop,
                    None if pieces is None else partial(pieces, index),
                )
            )
            for index in range(request.n)
        ]
        drawn = await _all(futures)
        choices = tuple(self._choice(each) for each in drawn)
        for choice, each in zip(choices, drawn, strict=True):
            self.recorded.add(key, asked, each, said(request, choice), request.tools)
        return Completion(choices, len(asked.context))

    def close(self) -> None:
        """Stop drawing and close the record; may be called twice."""
        self.drawing.close()
        self.recorded.close()

    def _budget(self, request: ChatRequest, length: int) -> int:
        room = self.policy.max_positions
        left = None if room is None else room - length
        if left is not None and left < (request.max_tokens or 1):
            wanted = f" and max_tokens = {request.max_tokens}" if request.max_tokens else ""
            raise Refusal(f"The messages have {length} tokens{wanted}; the model has room for {room}", "messages")
        budget = request.max_tokens or self.max_tokens
        return budget if left is None else min(budget, left)

    def _choice(self, drawn: Drawn) -> Choice:
        tokens = self.policy.tokenizer.batch_decode([[i] for i in drawn.ids], clean_up_tokenization_spaces=False)
        pairs = zip(tokens, drawn.logp, strict=True)
        return Choice(drawn.text, "stop" if drawn.ended else "length", tuple(Token(t, p) for t, p in pairs))


async def _all(futures: list[Future[Drawn]]) -> list[Drawn]:
    """Wait for every answer; where the client goes away, what is left is not drawn."""
    try:
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
    except asyncio.CancelledError:
        for future in futures:
            future.cancel()
        raise
