"""Tasks whose workers are copies of a process, and some that may not be copied; imported by worker processes."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import numpy as np

import slow_envs
from grouprl.envs import Observation

OPEN: list[Any] = []


class Telling(slow_envs.Slow):
    """Says what its process is like; ends it where the example says so."""

    def reset(self, example: Any, seed: int) -> Observation:
        super().reset(example, seed)
        if "signal" in example.columns:
            os.kill(os.getpid(), example.columns["signal"])
        if "exit" in example.columns:
            os._exit(example.columns["exit"])
        luck = int(np.random.randint(2**31))
        print("printed by a worker", flush=True)
        return Observation(f"{os.getpid()} {os.getppid()} {os.getsid(0)} {os.environ['OMP_NUM_THREADS']} {luck}")


class TellingTask(slow_envs.SlowTask):
    """Its environments can be copied."""

    def environment(self) -> Any:
        return Telling()


class ThreadTask(TellingTask):
    """Making an environment starts a thread."""

    def environment(self) -> Any:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        return super().environment()


class ConnectedTask(TellingTask):
    """Making an environment opens a connection that the process keeps."""

    def environment(self) -> Any:
        OPEN.append(socket.socketpair())
        return super().environment()


class RaisingTask(TellingTask):
    """No environment can be made."""

    def environment(self) -> Any:
        raise ValueError("not here")
