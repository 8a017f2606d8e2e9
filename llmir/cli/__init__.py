"""The command line. A command's module is imported when the command runs, so that the rest starts fast."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from llmir import __version__
from llmir.errors import LlmirError

# name -> what `llmir --help` says of it; the module of that name defines `command`.
COMMANDS = {
    "analyze": "Time and memory of a request: prefill, decode, op by op.",
    "draw": "An annotated diagram of the model, as SVG, PNG, PDF or DOT.",
    "explain": "One op: its equation, its costs in symbols and numbers, its time.",
    "opt": "Run passes and print the IR.",
    "models": "The bundled models.",
    "hw": "The bundled devices; with a name, each number and its source.",
    "check": "Hold the model's weights against a safetensors file or index.",
    "doctor": "Say whether the installation works.",
}

INTERRUPTED, BROKEN_PIPE, OUR_BUG = 130, 141, 70

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
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception:
            if ctx.params.get("traceback"):
                traceback.print_exc()
            raise

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:
        """Run and exit; the exit codes are those of `llmir --help`."""
        if os.name == "posix":
            for stream in (sys.stdout, sys.stderr):
                getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
        extra["standalone_mode"] = False
        sys.exit(_guard(lambda: super(Commands, self).main(args, prog_name or "llmir", **extra)))


def _guard(run: Any) -> int:
    """What `run()` returns as an exit code; errors become a line and theirs."""
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return fail(_lower(error.format_message()), 2)
    except LlmirError as error:
        return fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # What is still in the buffer has nowhere to go, and Python would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        return fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 2)
    except Exception as error:
        return fail(f"{type(error).__name__}: {error} (a bug in llmir; `llmir --traceback …` shows where)", OUR_BUG)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:] if not message[:2].isupper() else message


def fail(message: str, code: int) -> int:
    """Print `error: message` on stderr as one line; the code."""
    line("error", message)
    return code


def line(label: str, message: str) -> None:
    """`label: message` on stderr, whatever the message holds: one line, no control characters."""
    text = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    click.echo(f"{label}: {text}", err=True)


@click.group(
    cls=Commands,
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
def cli(traceback: bool) -> None:
    """How fast does a language model run on this hardware, how much memory does it take, and why?

    \b
    llmir analyze llama3.1-8b --hw h100-sxm --batch 8 --prompt 2048
    llmir draw qwen3-30b-a3b --hw h100-sxm -o qwen.svg
    llmir COMMAND --help shows the options and an example of each.
    """


def main() -> NoReturn:
    """The entry point `llmir`."""
    cli.main()
