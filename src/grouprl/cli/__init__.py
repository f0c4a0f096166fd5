"""The command line: parses, calls, prints. What stands at the top here is loaded before a signal is heard."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130


def main() -> None:
    """Run `grouprl` with the arguments of the process."""
    try:
        from grouprl.cli.signals import Listening

        with Listening(INTERRUPTED):
            _run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _run() -> None:
    import warnings

    warnings.showwarning = _noted(warnings.showwarning)
    from grouprl.cli.app import app

    app(prog_name="grouprl")


def _noted(show: Callable[..., None]) -> Callable[..., None]:
    """Return what shows a warning: that a name is old as a sentence, everything else as `show` does."""
    from grouprl.core.renamed import RenamedWarning

    def showwarning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
        if issubclass(category, RenamedWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return showwarning
