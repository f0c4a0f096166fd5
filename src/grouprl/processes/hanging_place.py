"""The line of the user's function at which a worker hung, read from the stack that the worker printed."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
OWN = str(Path(__file__).parents[1])
"""The folder of this package."""
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def hanging_place(printed: str) -> str:
    """Return "function (file, line n)" of the innermost frame of a printed stack that is the user's; '' if none is."""
    for file, line, function in FRAME.findall(printed):
        ours = file.startswith(("<", OWN + "/", *(folder + "/" for folder in LIBRARIES)))
        if not ours and "/site-packages/" not in file:
            return f"{function} ({file}, line {line})"
    return ""
