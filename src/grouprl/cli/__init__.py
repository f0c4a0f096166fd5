"""The command line: parses, calls, prints. Imports at the top of this module run before signals are handled."""

from __future__ import annotations

import sys

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
    from grouprl.core.encodable import write_any_text

    write_any_text(as_json="--json" in sys.argv)
    from grouprl.cli.app import app

    app(prog_name="grouprl")
