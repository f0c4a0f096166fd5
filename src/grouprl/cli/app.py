"""The `grouprl` command and its exit codes. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from grouprl.cli.quiet import Telling
from grouprl.cli.results import apart, put_data
from grouprl.core.errors import GrouprlError, RunError, out_of_memory
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence


BAD_INPUT, RUN_FAILED, INTERRUPTED = 2, 3, 130
"""Exit codes other than 0."""
QUIET = ("-q", "--quiet")

NO_MEMORY = (
    "out of memory. What a run has written is intact: continue it with --resume where there is more memory, "
    "or start one with a smaller batch, shorter completions, a smaller batch.tokens_per_microbatch or a smaller model; "
    "grouprl plan says what a run needs."
)
EPILOG = (
    "Exit codes: [bold]0[/] fine, [bold]1[/] a check found problems, [bold]2[/] bad input (nothing was touched), "
    "[bold]3[/] the run failed, "
    "[bold]130[/] interrupted (training, by Ctrl-C or SIGTERM alike, after its step and a checkpoint), "
    "[bold]143[/] ended by SIGTERM in the middle of its work."
)


class Commands(TyperGroup):
    """A command group that turns this package's errors into one line and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `--debug` and `-q` from anywhere on the line, so that they can be appended to a command."""
        ctx.meta["debug"], ctx.meta["json"] = "--debug" in args, "--json" in args
        Telling.quiet = any(arg in args for arg in QUIET)
        self._show_flags_without_type(ctx)
        return super().parse_args(ctx, [arg for arg in args if arg not in ("--debug", *QUIET)])

    def _show_flags_without_type(self, ctx: Any) -> None:
        """Leave the type of flags out of every help: they take no value."""
        inner = [each for command in self.commands.values() for each in getattr(command, "commands", {}).values()]
        for command in (self, *self.commands.values(), *inner):
            for option in (*command.params, command.get_help_option(ctx)):  # kept by the command once it is asked for
                if getattr(option, "is_flag", False):
                    option.metavar = ""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **more: Any,
    ) -> object:
        """Run the command line; if plain data is requested, print errors as plain data, too."""
        given = list(sys.argv[1:] if args is None else args)
        more |= {"prog_name": prog_name, "complete_var": complete_var, "windows_expand_args": windows_expand_args}
        if not standalone_mode or "--json" not in given:
            return super().main(args=args, standalone_mode=standalone_mode, **more)
        with apart("launch" not in given):  # its child processes separate their own output
            try:
                code = super().main(args=args, standalone_mode=False, **more)
            except Exception as error:
                if not hasattr(error, "format_message"):  # only errors of the parser have this method
                    raise
                print_error("UsageError", error.format_message())
                sys.exit(getattr(error, "exit_code", BAD_INPUT))
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """List commands in the order in which a new user needs them."""
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> object:
        """Run the command; print an error of this package in one red line."""
        try:
            return super().invoke(ctx)
        except (GrouprlError, MemoryError, RuntimeError, OSError) as error:
            if not isinstance(error, GrouprlError) and not out_of_memory(error):
                raise
            if ctx.meta.get("debug"):
                traceback.print_exc()
            said = str(error) if isinstance(error, GrouprlError) else NO_MEMORY
            bad_input = isinstance(error, GrouprlError) and not isinstance(error, RunError)
            bad_input = bad_input and not getattr(error, "begun", False)
            if ctx.meta.get("json"):
                parts = {name: getattr(error, name, "") for name in ("what", "rule", "remedy")}
                print_error(type(error).__name__, said, **parts)
                raise typer.Exit(BAD_INPUT if bad_input else RUN_FAILED) from None
            stderr = Terminal(stderr=True, highlight=False, soft_wrap=True)
            stderr.print(f"[bold red]error:[/] {escape(said)}")
            raise typer.Exit(BAD_INPUT if bad_input else RUN_FAILED) from None
        except Exception as error:
            if hasattr(error, "possibilities"):  # an error of the parser about an option that the command does not have
                _name_setting(error)
            raise
        except KeyboardInterrupt:
            Terminal(stderr=True).print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _name_setting(error: Any) -> None:
    """Say how to pass a setting that was given as an option, if a run has it and the command accepts settings."""
    if not any("--set" in each.opts for each in error.ctx.command.params):
        return
    from grouprl.config.run import Config

    name = error.option_name.lstrip("-").replace("-", "_")
    sections = {key: getattr(field.annotation, "model_fields", {}) for key, field in Config.model_fields.items()}
    found = [name] if name in sections else [f"{key}.{name}" for key, inner in sections.items() if name in inner]
    if sections.get(name):
        error.message += f". It is a section of settings: --set {name}.KEY=…"
    elif found:
        error.message += f". It is a setting: {' or '.join(f'--set {each}=…' for each in found)}"
    if found:
        error.possibilities = None


def print_error(kind: str, message: str, **parts: str) -> None:
    """Print an error as plain data: its kind, the whole message, and the parts of the message, if any."""
    found = {"kind": kind, "message": message, **{name: words for name, words in parts.items() if words}}
    put_data({"error": found})


ORDER = (
    *(
        "init",
        "new",
        "train",
        "launch",
        "plan",
        "compare",
        "runs",
        "eval",
        "report",
        "doctor",
        "view",
        "show",
        "track",
        "laws",
        "lessons",
    ),
    *(
        "export",
        "serve",
        "recipes",
        "schema",
        "tasks",
        "check-env",
        "check-reward",
        "rewardbench",
        "sandbox",
        "methods",
        "parts",
    ),
    *("papers", "metrics"),
)

app = typer.Typer(
    cls=Commands,
    name="grouprl",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
AS_GIVEN = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a command that passes the rest of its line on."""


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
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print results and errors only, no progress (any position).")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (any position).")] = False,
) -> None:
    """Post-train language models by reinforcement learning on groups of completions.

    [bold]Begin with[/]
    grouprl train addition     train a tiny model, two to three minutes on a CPU
    grouprl plan addition      what that run does, before it does it
    grouprl init my-run        a configuration, a reward and data of your own
    grouprl methods            the catalogue: GRPO and what grew out of it
    grouprl tasks              what can be trained on

    [bold]Examples[/]
    grouprl train addition -q              print nothing but the run's folder
    grouprl methods show nope --json       errors as plain data, too
    grouprl --install-completion           TAB completes commands, options and names
    """


def _mount() -> None:
    from grouprl.cli import (
        check_env,
        evaluate,
        export,
        launch,
        laws,
        methods,
        papers,
        parts,
        plan,
        sandbox,
        serve,
        show,
        tasks,
        train,
    )
    from grouprl.cli.laboratory import compare, doctor, new, view
    from grouprl.cli.scoring import check_reward, rewardbench

    panel, catalogue = "Runs", "Catalogue"
    app.command("init", rich_help_panel=panel)(train.init_command)
    app.command("new", rich_help_panel=panel)(new.new_command)
    app.command("runs", rich_help_panel=panel)(show.runs_command)
    app.command("train", rich_help_panel=panel)(train.train_command)
    app.command("launch", rich_help_panel=panel, context_settings=AS_GIVEN)(launch.launch_command)
    app.command("plan", rich_help_panel=panel)(plan.plan_command)
    app.command("compare", rich_help_panel=panel)(compare.compare_command)
    app.command("eval", rich_help_panel=panel)(evaluate.eval_command)
    app.command("report", rich_help_panel=panel)(export.report_command)
    app.command("doctor", rich_help_panel=panel)(doctor.doctor_command)
    app.command("view", rich_help_panel=panel)(view.view_command)
    app.command("show", rich_help_panel=panel)(show.show_command)
    app.command("track", rich_help_panel=panel)(export.track_command)
    app.command("laws", rich_help_panel=panel)(laws.laws_command)
    app.command("lessons", rich_help_panel=panel)(serve.lessons_command)
    app.command("export", rich_help_panel=panel)(export.export_command)
    app.command("serve", rich_help_panel=panel)(serve.serve_command)
    app.command("schema", rich_help_panel=catalogue)(train.schema_command)
    app.command("recipes", rich_help_panel=catalogue)(train.recipes_command)
    app.command("tasks", rich_help_panel=catalogue)(tasks.tasks_command)
    app.command("check-env", rich_help_panel=catalogue)(check_env.check_env_command)
    app.command("check-reward", rich_help_panel=catalogue)(check_reward.check_reward_command)
    app.command("rewardbench", rich_help_panel=catalogue)(rewardbench.rewardbench_command)
    app.command("sandbox", rich_help_panel=catalogue)(sandbox.sandbox_command)
    app.command("parts", rich_help_panel=catalogue)(parts.parts_command)
    app.command("papers", rich_help_panel=catalogue)(papers.papers_command)
    app.command("metrics", rich_help_panel=catalogue)(tasks.metrics_command)
    app.add_typer(methods.app, name="methods", rich_help_panel=catalogue)


_mount()

if __name__ == "__main__":
    sys.exit(app())
