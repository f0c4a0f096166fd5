"""A plugin for runs on several ranks: ends, hangs or fails one rank at a point of the code, as RANK_FAULT says.

RANK_FAULT is `rank point arrival fault`, for instance `1 passes 3 kill`: rank 1 is killed as it comes to the point for
the third time.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import signal
import time

POINTS = {
    "passes": ("grouprl.policy.rank_work", "run_passes", False),
    "gradient": ("grouprl.policy.rank_work", "run_passes", True),
    "clip": ("grouprl.policy.rank_work", "clip", False),
    "step": ("grouprl.policy.sharded_optimizer", "_step", True),
    "sampling": ("grouprl.rollout.rank_sampler", "_sample", False),
    "weights to samplers": ("grouprl.policy.rank_work", "renew_whole", False),
    "checkpoint begins": ("grouprl.policy.rank_checkpoint", "write_parts", False),
    "part written": ("grouprl.policy.rank_checkpoint", "write_parts", True),
    "checkpoint whole": ("grouprl.train.session", "save_checkpoint", True),
    "metrics": ("grouprl.storage.run_folder", "RunFolder.append_metrics", True),
}


def strike(fault: str) -> None:
    """Do to this process what the fault says."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "slow":
        time.sleep(3)
    elif fault == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # from here on larger files cannot be written
    elif fault == "memory":
        raise MemoryError("no memory for this pass")
    else:
        raise ValueError(fault)


def arm(rank: str, point: str, arrival: str, fault: str) -> None:
    """Let the fault happen in this process, if it is that rank."""
    if os.environ.get("RANK", "0") != rank:
        return
    module, _, after = POINTS[point]
    owner = importlib.import_module(module)
    *path, name = POINTS[point][1].split(".")
    for part in path:
        owner = getattr(owner, part)
    real, left = getattr(owner, name), [int(arrival)]

    @functools.wraps(real)
    def struck(*given, **named):
        left[0] -= 1
        if after:
            found = real(*given, **named)
        if left[0] == 0:
            strike(fault)
        return found if after else real(*given, **named)

    setattr(owner, name, struck)


if os.environ.get("RANK_FAULT") and "RANK" in os.environ:
    words = os.environ["RANK_FAULT"].split()
    arm(words[0], " ".join(words[1:-2]), words[-2], words[-1])
