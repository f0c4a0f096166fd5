"""Becomes a server that ends with the run: started as a script, `guard.py LIFELINE PROGRAM WORD …`.

The kernel kills the server and everything it started when the other side of the pipe LIFELINE closes, however the run
ended.
"""

import importlib.util
import os
import sys


def main(lifeline: int, command: list[str]) -> None:
    """Tie this process group to the pipe, and become `command`."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec = importlib.util.spec_from_file_location("_worker", os.path.join(folder, "rewards", "worker.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.die_with(lifeline)
    os.set_inheritable(lifeline, True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
