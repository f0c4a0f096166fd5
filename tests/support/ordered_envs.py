"""An environment of coroutines that takes a while to begin, and can hang."""

import asyncio
import time

from grouprl.envs import Observation, Step


class Ordered:
    """Says how many steps came before."""

    def __init__(self):
        self.begun, self.steps = False, 0

    async def reset(self, example, seed):
        await asyncio.sleep(0.2)
        self.begun = True
        return Observation("go>")

    async def step(self, action):
        if not self.begun:
            raise RuntimeError("step() before reset() was done")
        if action == "hang":
            time.sleep(3600)
        seen = self.steps
        await asyncio.sleep(0.05)
        self.steps = seen + 1
        return Step(Observation(f"{self.steps}>"))

    async def score(self):
        return {"correct": 0.0}

    async def close(self):
        pass
