"""The command line: parses, calls, prints."""


def main() -> None:
    """Run `grouprl` with the arguments of the process."""
    from grouprl.cli.app import app

    app()
