"""The `grouprl` command and its exit codes. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from grouprl.errors import GrouprlError, InputError, RunError

BAD_INPUT, RUN_FAILED, INTERRUPTED = 2, 3, 130
"""Exit codes beside 0."""

EPILOG = (
    "Exit codes: [bold]0[/] fine, [bold]2[/] bad input (nothing was touched), [bold]3[/] the run failed, "
    "[bold]130[/] interrupted (training leaves a checkpoint to resume from)."
)


class Commands(TyperGroup):
    """A command group that turns this package's errors into one line and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `--debug` from anywhere in the line, so that it can be appended to a command that failed."""
        if "--debug" in args:
            ctx.meta["debug"] = True
            args = [arg for arg in args if arg != "--debug"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """List commands in the order in which a new user meets them."""
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say an error of this package in one red line."""
        try:
            return super().invoke(ctx)
        except GrouprlError as error:
            if ctx.meta.get("debug"):
                traceback.print_exc()
            stderr = Console(stderr=True, highlight=False, soft_wrap=True)
            stderr.print(f"[bold red]error:[/] {escape(in_one_line(error))}")
            raise typer.Exit(RUN_FAILED if isinstance(error, RunError) else BAD_INPUT) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def in_one_line(error: GrouprlError) -> str:
    """Return the message as sentences: what is wrong, the rule it breaks, the remedy."""
    if not isinstance(error, InputError):
        return str(error)
    what, *more = [part.strip().rstrip(".") for part in (error.what, error.rule, error.remedy) if part]
    return " ".join(part if part[-1] in "?!:" else f"{part}." for part in [what, *map(_capital, more)])


def _capital(text: str) -> str:
    """Begin with a capital, unless the first word is a name (`batch.group`, `eval_x`) or a quotation."""
    first = text.split(maxsplit=1)[0].rstrip(",:;")
    return text[0].upper() + text[1:] if first.isalpha() else text


ORDER = (
    *("train", "plan", "eval", "report", "show", "export", "serve"),
    *("recipes", "tasks", "check-env", "check-reward", "sandbox", "methods", "papers", "metrics"),
)

app = typer.Typer(
    cls=Commands,
    name="grouprl",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _version(wanted: bool) -> None:
    if wanted:
        from grouprl import __version__

        typer.echo(f"grouprl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (any position).")] = False,
) -> None:
    """Post-train language models by reinforcement learning on groups of answers.

    [bold]Begin with[/]
    grouprl train addition     train a tiny model, two to three minutes on a CPU
    grouprl plan addition      what that run does, before it does it
    grouprl methods            the catalogue: GRPO and what grew out of it
    grouprl tasks              what can be trained on
    """


def _mount() -> None:
    from grouprl.cli import (
        check_env,
        check_reward,
        evaluate,
        export,
        methods,
        papers,
        plan,
        sandbox,
        serve,
        show,
        tasks,
        train,
    )

    runs, catalogue = "Runs", "Catalogue"
    app.command("train", rich_help_panel=runs)(train.train_command)
    app.command("plan", rich_help_panel=runs)(plan.plan_command)
    app.command("eval", rich_help_panel=runs)(evaluate.eval_command)
    app.command("report", rich_help_panel=runs)(export.report_command)
    app.command("show", rich_help_panel=runs)(show.show_command)
    app.command("export", rich_help_panel=runs)(export.export_command)
    app.command("serve", rich_help_panel=runs)(serve.serve_command)
    app.command("recipes", rich_help_panel=catalogue)(train.recipes_command)
    app.command("tasks", rich_help_panel=catalogue)(tasks.tasks_command)
    app.command("check-env", rich_help_panel=catalogue)(check_env.check_env_command)
    app.command("check-reward", rich_help_panel=catalogue)(check_reward.check_reward_command)
    app.command("sandbox", rich_help_panel=catalogue)(sandbox.sandbox_command)
    app.command("papers", rich_help_panel=catalogue)(papers.papers_command)
    app.command("metrics", rich_help_panel=catalogue)(tasks.metrics_command)
    app.add_typer(methods.app, name="methods", rich_help_panel=catalogue)


_mount()

if __name__ == "__main__":
    sys.exit(app())
