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
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import torch

SAVING = "torch.distributed.checkpoint.filesystem"
POINTS = {
    "building": ("grouprl.policy.sharded.rank_model", "RankModel._fill", False),
    "built": ("grouprl.policy.sharded.rank_model", "RankModel._fill", True),
    "forward": ("grouprl.policy.sharded.rank_model", "RankModel._own_run", False),
    "backward": ("torch.autograd", "backward", False),
    "gradients of a layer": ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "foreach_reduce", False),
    "step begins": ("grouprl.policy.sharded.piece_optimizer", "PieceOptimizer.step", False),
    "sampled": ("grouprl.rollout.local.sampler", "LocalSampler.sample", True),
    "tensor written": (SAVING, "_write_item", True),
    "metadata": (SAVING, "FileSystemWriter.finish", False),
    "manifest": ("grouprl.storage.checkpoint", "_seal", False),
    "passes": ("grouprl.policy.sharded.rank_work", "run_passes", False),
    "gradient": ("grouprl.policy.sharded.rank_work", "run_passes", True),
    "clip": ("grouprl.policy.sharded.rank_work", "clip", False),
    "weights of copies": ("grouprl.policy.replicated.replica_work", "_take_weights", True),
    "passes of copies": ("grouprl.policy.replicated.replica_work", "run_passes", False),
    "step": ("grouprl.policy.sharded.sharded_optimizer", "_step", True),
    "sampling": ("grouprl.rollout.sharded.rank_sampler", "_sample", False),
    "weights to samplers": ("grouprl.policy.sharded.rank_work", "renew_whole", False),
    "checkpoint begins": ("grouprl.policy.sharded.rank_checkpoint", "write_parts", False),
    "part written": ("grouprl.policy.sharded.rank_checkpoint", "write_parts", True),
    "checkpoint whole": ("grouprl.training.session", "save_checkpoint", True),
    "metrics": ("grouprl.storage.run_folder", "RunFolder.append_metrics", True),
}


def strike(fault: str) -> None:
    """Do to this process, or (parent-…) to what started it, what the fault says."""
    to, _, named = fault.rpartition("-")
    if (number := getattr(signal, f"SIG{named.upper()}", None)) is not None:
        os.kill(os.getppid() if to == "parent" else os.getpid(), number)
    elif fault == "pause":
        subprocess.Popen(["sh", "-c", f"sleep 40; kill -CONT {os.getpid()}"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "unplug":
        unplug()
    elif fault == "fill":
        with (Path(os.environ["RANK_FOLDER"]) / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
    elif fault == "starve":
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken, taken))
        torch.zeros(2**28)  # what a pass would take, and cannot have
    elif fault == "slow":
        time.sleep(3)
    elif fault == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # from here on larger files cannot be written
    elif fault == "memory":
        raise MemoryError("no memory for this pass")
    else:
        raise ValueError(fault)


def unplug() -> None:
    """Cut this process off: every connection over the network ends."""
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "socket:" in os.readlink(f"/proc/self/fd/{entry}"):
                own = socket.socket(fileno=os.dup(int(entry)))
                if own.family in (socket.AF_INET, socket.AF_INET6):
                    own.shutdown(socket.SHUT_RDWR)
                own.close()


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


if os.environ.get("RANK_FAULT") and "RANK" in os.environ and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
    words = os.environ["RANK_FAULT"].split()
    arm(words[0], " ".join(words[1:-2]), words[-2], words[-1])
