"""How long importing takes, beside torch's own import: each in a fresh process, in turn, the least of several.

Run `python bench/imports.py`; the goal is 60 modules of ours and 0.15 of torch's time for a call of the library.
Seconds are of the processor, so that what else the machine does counts little, and with bytecode written before, as
after a first start. What torch's import leaves to the garbage collector is collected before the clock starts: whoever
allocates next would pay for it.
"""

from __future__ import annotations

import os
import subprocess
import sys

TIMES = 5
TIMED = """
import sys, time
{before}
start = time.process_time()
{what}
taken = time.process_time() - start
print(taken, sum(name.partition(".")[0] == "grouprl" for name in sys.modules))
"""
TORCH = "import gc, torch; gc.collect()"
LOSS = """
import grouprl
ones = torch.ones(4, 2)
group_b, reward_b = ones[:, 0].long(), torch.tensor([1.0, 0, 0, 0])
batch = grouprl.Batch(mask_bt=ones.bool(), group_b=group_b, reward_b=reward_b, old_bt=-ones)
method = grouprl.method("grpo")
method.loss(-ones, method.prepare(batch)).value
"""
PARTS = 'import grouprl; grouprl.compose({"objective": "clipped", "advantage": "relative", "aggregate": "token_mean"})'
COMMAND = """
import contextlib, io
sys.argv = ["grouprl", *{words!r}]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    from grouprl.cli import main
    main()
"""
CASES = {
    "import torch": ("", "import torch"),
    "import pydantic.dataclasses": (TORCH, "import pydantic.dataclasses"),
    "import grouprl": (TORCH, "import grouprl"),
    "grouprl.Batch": (TORCH, "import grouprl; grouprl.Batch"),
    'grouprl.method("grpo")': (TORCH, 'import grouprl; grouprl.method("grpo")'),
    'grouprl.method("grpo@trl")': (TORCH, 'import grouprl; grouprl.method("grpo@trl")'),
    "grouprl.compose({three parts})": (TORCH, PARTS),
    "a batch, grpo, its loss": (TORCH, LOSS),
    "list(grouprl.methods())": (TORCH, "import grouprl; list(grouprl.methods())"),
    "dict(grouprl.methods()): every entry": (TORCH, "import grouprl; dict(grouprl.methods())"),
    "grouprl methods --names": ("", COMMAND.format(words=["methods", "--names"])),
    "grouprl methods show grpo": ("", COMMAND.format(words=["methods", "show", "grpo"])),
}
"""What is imported before the clock starts, and what is timed; commands start with nothing, torch included."""


def timed(before: str, what: str) -> tuple[float, int]:
    """Seconds of `what` in a fresh process, and how many modules of ours are loaded behind it."""
    code = TIMED.format(before=before, what=what)
    there = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=there)
    seconds, count = said.stdout.split()
    return float(seconds), int(count)


def main() -> None:
    """Print the table, all cases in turn, so that a busy machine slows them alike."""
    rounds = [{name: timed(*case) for name, case in CASES.items()} for _ in range(TIMES)]
    best = {name: min(each[name] for each in rounds) for name in CASES}
    torch_seconds = best["import torch"][0]
    print("| what | seconds | of torch's import | own modules |\n| --- | --- | --- | --- |")
    for name, (seconds, count) in best.items():
        print(f"| `{name}` | {seconds:.3f} | {seconds / torch_seconds:.2f} | {count} |")


if __name__ == "__main__":
    main()
