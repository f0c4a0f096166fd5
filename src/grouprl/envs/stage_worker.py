"""The process in which environments act: started as a script, as that of rewards is (`grouprl.rewards.worker`).

The first frame says where modules are found, how much memory there may be and which task to load. Then each frame is
one call: (its number, method, episode, arguments); each reply is a line of JSON: ["answer", number, value].
"""

import faulthandler
import importlib.util
import json
import os
import signal
import sys
from types import ModuleType
from typing import Any


def main(requests: int, replies: int, lifeline: int) -> None:
    """Load the task, say that it is there, and answer calls until the parent closes the requests."""
    shared = _beside("rewards/worker.py")
    shared.die_with(lifeline)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for ours in (requests, replies, lifeline):
        os.set_inheritable(ours, False)
    calls = shared.frames(requests)
    hello = next(calls)
    sys.path[:] = hello["path"]
    shared.limit_resources(hello["memory"])
    shared.use_bare_package(hello["package"])
    serve(hello["parcel"], calls, replies)


def serve(parcel: Any, calls: Any, replies: int) -> None:
    """Answer calls one after the other."""
    from grouprl.envs.plain import to_plain
    from grouprl.envs.stage import Environments
    from grouprl.rewards.sending import unpack

    task: Any = unpack(parcel)
    held, own = Environments(task.environment), os.getpid()

    def reply(*values: Any) -> None:
        if os.getpid() != own:  # a child that the environment forked and that returned from it
            os._exit(0)
        rest = (json.dumps(values) + "\n").encode()
        while rest:
            rest = rest[os.write(replies, rest) :]

    reply("ready")
    for number, method, episode, arguments in calls:
        reply("answer", number, to_plain(held.call(method, episode, arguments)))


def _beside(path: str) -> ModuleType:
    """Return a module of the package without importing the package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location("_shared_worker", os.path.join(folder, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
