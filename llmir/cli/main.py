"""The entry point `llmir`, and the group of commands; it imports the module of a command only when the
command runs.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import click

from llmir.base.errors import PluginWarning
from llmir.base.processes import catch_termination
from llmir.base.registry import load_plugin
from llmir.base.version import __version__

from .command import COMMANDS, command, echo, guard, line, plugin, streams

__all__ = ["COMMANDS", "cli", "command", "main"]

_EPILOG = """\b
Exit codes: 0 fine, 1 a limit that you set is exceeded or a check failed,
2 bad input, 3 unsupported model or op.
"""


class Commands(click.Group):
    """A group that imports commands only when they run, and ends every failure with one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        return COMMANDS.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command as click does; for an unknown name, suggest similar names."""
        name = args[0]
        for option, value in pairwise((*args[1:], "")):
            if option == "--plugin":  # a plugin that may define the command
                load_plugin(value)
        if name not in COMMANDS and not name.startswith("-"):
            from llmir.base.names import unknown

            raise click.UsageError(unknown("command", name, COMMANDS, "llmir --help"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with its whole summary."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, c.short_help or c.get_short_help_str(80)) for name, c in COMMANDS.items()]
            )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with a traceback if requested."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # the caller turns any error into one line and an exit code
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
        """Run and exit with the exit codes that `llmir --help` lists."""
        name = prog_name or "llmir"

        def run() -> Any:
            # As in click, except for the messages on interrupts and closed pipes.
            self._main_shell_completion(extra, name, complete_var)
            try:
                with self.make_context(name, list(sys.argv[1:] if args is None else args), **extra) as ctx:
                    return self.invoke(ctx)
            except click.exceptions.Exit as ended:
                return ended.exit_code

        streams()
        with warnings.catch_warnings(), _announcements():
            warnings.showwarning = _note(warnings.showwarning)
            sys.exit(guard(run))


@contextmanager
def _announcements() -> Iterator[None]:
    """Print announcements of long work as notes."""
    log, shown = logging.getLogger("llmir"), logging.Handler()
    shown.emit = lambda record: line("note", record.getMessage())  # type: ignore[method-assign]
    before = log.level
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(shown)
        log.setLevel(before)


def _note(show: Callable[..., None]) -> Callable[..., None]:
    """A plugin that cannot be loaded is noted in one line; other warnings are shown as Python does."""

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PluginWarning):
            line("note", str(message))
        else:
            show(message, category, *where, **more)

    return note


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@plugin
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
        echo(ctx.get_help())


def main() -> None:
    """The entry point `llmir`."""
    catch_termination()
    cli.main()
