"""A game behind OpenEnv's protocol, twice: by the library itself, and by hand from the protocol's facts.

Run as a program with a port (and `real`), it serves the game. Guess a number from 1 to 9: 1.0 and done when right.
"""

from __future__ import annotations

import json
import random
import sys


class Guessing:
    """The game itself."""

    def begin(self, seed):
        self.target, self.tries = random.Random(seed).randint(1, 9), 0
        return {"text": "1-9?"}, None, False

    def guess(self, number):
        self.tries += 1
        if number == 13:
            raise RuntimeError("unlucky")
        found = number == self.target
        text = "=" if found else "<" if self.target < number else ">"
        return {"text": text}, float(found) if found else None, found or self.tries >= 5


def by_hand(places):
    """An application that speaks the protocol: /schema, and sessions over /ws."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocketDisconnect

    taken = []
    properties = {"metadata": {"type": "object"}, "number": {"type": "integer"}}

    async def schema(_):
        return JSONResponse({"action": {"properties": properties}, "observation": {}, "state": {}})

    async def session(socket):
        await socket.accept()
        game = Guessing()

        async def fail(code, message):
            await socket.send_text(json.dumps({"type": "error", "data": {"code": code, "message": message}}))

        if len(taken) >= places:
            await fail("CAPACITY_REACHED", "full")
            return await socket.close()
        taken.append(socket)
        try:
            while True:
                message = json.loads(await socket.receive_text())
                if message["type"] == "close":
                    return await socket.close()
                data = message["data"]
                if message["type"] == "step" and (set(data) != {"number"} or type(data["number"]) is not int):
                    await fail("VALIDATION_ERROR", "Invalid message")
                    continue
                try:
                    given = game.begin(data.get("seed")) if message["type"] == "reset" else game.guess(data["number"])
                except RuntimeError as error:
                    await fail("EXECUTION_ERROR", str(error))
                    continue
                reply = dict(zip(("observation", "reward", "done"), given, strict=True))
                await socket.send_text(json.dumps({"type": "observation", "data": reply}))
        except WebSocketDisconnect:
            return None
        finally:
            taken.remove(socket)

    return Starlette(routes=[Route("/schema", schema), WebSocketRoute("/ws", session)])


def by_library(places):
    """The application that openenv makes of an environment."""
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Guess(Action):
        number: int

    class Seen(Observation):
        text: str

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.game = Guessing()

        def reset(self, seed=None, episode_id=None, **options):
            return self.shown(*self.game.begin(seed))

        def step(self, action, timeout_s=None, **options):
            return self.shown(*self.game.guess(action.number))

        def shown(self, seen, reward, done):
            return Seen(text=seen["text"], reward=reward, done=done)

        @property
        def state(self):
            return State(step_count=self.game.tries)

    return create_fastapi_app(Game, Guess, Seen, max_concurrent_envs=places)


if __name__ == "__main__":
    import uvicorn

    port, places, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    app = by_library(places) if how == "real" else by_hand(places)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
