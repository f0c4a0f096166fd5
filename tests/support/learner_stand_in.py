"""A learner's process that trains nothing: it does what its arguments say, by rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Take `rank:deed` in turn, those of this rank: say, exit, die, wait, and checkpoint."""
    rank = os.environ["RANK"]
    for each in sys.argv[1:]:
        who, _, deed = each.partition(":")
        name, _, value = deed.partition("=")
        if who != rank:
            continue
        if name == "say":
            print(value, flush=True)
            print(value, file=sys.stderr, flush=True)
        elif name == "exit":
            sys.exit(int(value))
        elif name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "wait":
            signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
            time.sleep(float(value))
        elif name == "environment":
            print(",".join(os.environ[variable] for variable in value.split(",")), flush=True)
        elif name == "checkpoint":
            folder = Path(value) / "checkpoints" / f"step-{time.monotonic_ns()}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")


if __name__ == "__main__":
    main()
