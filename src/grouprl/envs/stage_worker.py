"""The process in which environments act: started as a script, as that of rewards is (`grouprl.rewards.worker`).

The first frame says where modules are found, how much memory there may be and which task to load. Then each frame is
one call: (its number, method, episode, arguments); each reply is a line of JSON: ["answer", number, value].
"""

import faulthandler
import importlib.util
import json
import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
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
    serve(hello["parcel"], calls, requests, replies)


def serve(parcel: Any, calls: Iterator[Any], requests: int, replies: int) -> None:
    """Answer calls one after the other; environments that wait for something outside wait at the same time."""
    from grouprl.envs.environment import Patient
    from grouprl.envs.plain import to_plain
    from grouprl.envs.stage import WAITING, Environments
    from grouprl.rewards.transport import unpack

    task: Any = unpack(parcel)
    held, own = Environments(task.environment), os.getpid()
    patient = isinstance(task.environment(), Patient)

    def reply(*values: Any) -> None:
        if os.getpid() != own:  # a child that the environment forked and that returned from it
            os._exit(0)
        rest = (json.dumps(values) + "\n").encode()
        while rest:
            rest = rest[os.write(replies, rest) :]

    reply("ready")
    for batch in together(calls, requests) if patient else ([call] for call in calls):
        begun = [held.call(method, episode, arguments, early=True) for _, method, episode, arguments in batch]
        for (number, method, episode, arguments), found in zip(batch, begun, strict=True):
            found = held.call(method, episode, arguments) if found is WAITING else found
            reply("answer", number, to_plain(found))


def together(calls: Iterable[Any], requests: int) -> Iterator[list[Any]]:
    """Yield calls that have come by now and may be begun together: of different episodes, for what they show."""
    batch: list[Any] = []
    for call in calls:
        _, method, episode, _ = call
        if batch and (method not in ("reset", "step") or episode in [other for _, _, other, _ in batch]):
            yield batch
            batch = []
        batch.append(call)
        if not select.select([requests], [], [], 0)[0]:
            yield batch
            batch = []


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
