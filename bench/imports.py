"""How long importing takes, beside torch's own import: each in a fresh process, in turn, the least of several.

Run `python bench/imports.py`; the goal is 60 modules of ours and 0.15 of torch's time.
"""

from __future__ import annotations

import subprocess
import sys

TIMES = 3
TIMED = """
import sys, time
{before}
start = time.perf_counter()
{what}
taken = time.perf_counter() - start
print(taken, sum(name.partition(".")[0] == "grouprl" for name in sys.modules))
"""
CASES = {
    "torch": ("", "import torch"),
    "import grouprl": ("import torch", "import grouprl"),
    "grouprl.Batch": ("import torch", "import grouprl; grouprl.Batch"),
    'grouprl.method("grpo")': ("import torch", 'import grouprl; grouprl.method("grpo")'),
}
"""What is imported before the clock starts, and what is timed: ours is what it adds to a program that has torch."""


def timed(before: str, what: str) -> tuple[float, int]:
    """Seconds of `what` in a fresh process, and how many modules of ours are loaded behind it."""
    code = TIMED.format(before=before, what=what)
    seconds, count = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    return float(seconds), int(count)


def main() -> None:
    """Print the table, all cases in turn, so that a busy machine slows them alike."""
    rounds = [{name: timed(*case) for name, case in CASES.items()} for _ in range(TIMES)]
    best = {name: min(each[name] for each in rounds) for name in CASES}
    torch_seconds = best["torch"][0]
    print("| what | seconds | of torch's import | own modules |\n| --- | --- | --- | --- |")
    for name, (seconds, count) in best.items():
        print(f"| `{name}` | {seconds:.3f} | {seconds / torch_seconds:.2f} | {count} |")


if __name__ == "__main__":
    main()
