"""The command line. A command's module is imported when the command runs, so that the rest starts fast."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from llmir import __version__

from .ending import guard, nobody_reads

# name -> what `llmir --help` says of it; the module of that name defines `command`.
COMMANDS = {
    "analyze": "Time and memory of a request: prefill, decode, op by op.",
    "draw": "An annotated diagram of the model, as SVG, PNG, PDF or DOT.",
    "explain": "One op: its equation, its costs in symbols and numbers, its time.",
    "diff": "What passes, another model or another device change, op by op.",
    "opt": "Run passes and print the IR.",
    "passes": "The passes that a pipeline can name, and their options.",
    "validate": "Hold predictions against measured times: kernels, whole models, chat logs.",
    "models": "The bundled models.",
    "hw": "The bundled devices and clusters; with a name, each number and its source.",
    "calibrate": "Fit a device's kernels to measured times.",
    "check": "Hold the weights against a checkpoint, or all ranks against one device.",
    "doctor": "Say whether the installation works.",
}

_EPILOG = """\b
Exit codes: 0 fine, 1 a limit that you set is exceeded or a check failed,
2 bad input, 3 unsupported model or op.
"""


class Commands(click.Group):
    """A group that loads commands late and ends every failure in one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the names that are near to an unknown one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from llmir.names import suggest

            raise click.UsageError(
                f"unknown command {name!r}; commands are {', '.join(COMMANDS)}{suggest(name, COMMANDS)}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, so that help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and show where an error comes from if that was asked for."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            return nobody_reads()
        except Exception:  # whatever it is: it goes on up, to become one line and an exit code
            if ctx.params.get("traceback"):
                traceback.print_exc()
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; the exit codes are those of `llmir --help`."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character still gets the rest
                stream.reconfigure(errors="replace")
        run = super().main
        sys.exit(guard(lambda: run(args, prog_name or "llmir", complete_var, False, **extra)))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", "-V", message="llmir %(version)s")
@click.option(
    "--traceback",
    is_flag=True,
    envvar="LLMIR_TRACEBACK",
    help="Show where an error comes from (also LLMIR_TRACEBACK=1).",
)
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """How fast does a language model run on this hardware, how much memory does it take, and why?

    \b
    llmir analyze llama3.1-8b --hw h100-sxm --batch 8 --prompt 2048
    llmir draw qwen3-30b-a3b --hw h100-sxm -o qwen.svg
    llmir COMMAND --help shows the options and an example of each.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """The entry point `llmir`."""
    cli.main()
