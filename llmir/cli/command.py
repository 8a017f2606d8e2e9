"""The decorator `command`, exit codes, and the progress line.

A command registers itself with the summary that `llmir --help` shows. An error becomes one line on stderr and
an exit code. Long work shows its progress in one line on stderr, on terminals only.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from llmir.base.errors import InputError, LlmirError, PassError
from llmir.base.processes import TERMINATED, Terminated
from llmir.base.registry import Kind, blame, load_plugin

# --- Commands ---

# Options of files that are written, and the files that are read if a model is a folder.
OUTPUTS = ("output_file", "requests_out", "steps_out", "trace_out")
FOLDER_INPUTS = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")

COMMANDS: Kind[click.Command] = Kind("command", "llmir.cli")


def _load(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> None:
    for name in names:
        load_plugin(name)


plugin = click.option(
    "--plugin",
    multiple=True,
    metavar="MODULE|FILE.py",
    is_eager=True,  # other options may use its definitions
    expose_value=False,
    callback=_load,
    help="Load ops, models, passes, formats, cost models or commands from this module first.",
)


def _limit(ctx: click.Context, param: click.Parameter, said: str | None) -> None:
    from llmir.base.budget import COMMAND, Limit, max_work

    limit = COMMAND
    if said is not None:
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(s|min|h)", said, re.ASCII)
        if not found:
            raise InputError(f"--max-work: expected a time such as 90s, 30min or 2h, got {said[:40]!r}")
        seconds = float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]]
        limit = Limit(seconds, COMMAND.bytes * max(1.0, seconds / COMMAND.seconds))
    ctx.with_resource(max_work(limit))


_MAX_WORK = click.option(
    "--max-work",
    metavar="TIME",
    expose_value=False,
    callback=_limit,
    help="Refuse work with a longer estimated time, such as 2h. The limit of memory is 2 GB for times up to "
    "10 minutes, and grows in proportion to longer times.  "
    "[default: 10min]",
)


class Command(click.Command):
    """A command that never overwrites its inputs. Its errors name options instead of API arguments."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run."""
        try:
            check_outputs(ctx.params, self.params)
            return super().invoke(ctx)
        except (InputError, PassError) as error:
            typed = {
                name: value
                for name, value in ctx.params.items()
                if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
            }
            message = of_command(str(error), self.params, typed)
            if isinstance(error, InputError) or message != str(error):
                message = as_options(message, self.params)
            error.args = (message, *error.args[1:])
            raise


def check_outputs(given: Mapping[str, Any], params: Iterable[click.Parameter]) -> None:
    """`InputError` if a command would overwrite a file that it reads."""
    outputs = {str(p.name): max(p.opts, key=len) for p in params if p.name in OUTPUTS}
    written = {
        option: path for name, option in outputs.items() if isinstance(path := given.get(name), (str, Path))
    }
    if not written:
        return
    read = {path for name, value in given.items() if name not in outputs for path in _files(value)}
    for option, path in written.items():
        if os.path.realpath(path) in read:
            from llmir.base.names import plain

            shown = f"{option} {plain(str(path))}"
            raise InputError(f"{shown}: is an input of this command, and is not overwritten")


def _files(value: object) -> Iterator[str]:
    """The files that an argument names: directly, in a list, in `NAME=FILE`, or as the folder of a model."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _files(each)
    elif isinstance(value, (str, Path)):
        for text in {str(value), *re.split(r"[,=]", str(value))}:
            path = os.path.realpath(os.path.expanduser(text)) if text else ""
            if os.path.isfile(path):
                yield path
            elif os.path.isdir(path):
                yield from (os.path.join(path, name) for name in FOLDER_INPUTS)


# Options of passes whose command-line option has another name.
PASS_OPTIONS = {
    ("shard", "redundant"): "redundant_experts",
    ("dispatch", "by"): "dispatch",
    ("prune-tokens", "layers"): "layer_tokens",
}


def of_command(message: str, params: Iterable[click.Parameter], typed: Mapping[str, object]) -> str:
    """Replace a pass or an API function at the start of a message by what the user typed.

    `shard: tp 3: …` becomes `--tp 3: …` if the user typed --tp, and `simulate: requires …` becomes
    `serve-sim requires …`. An error about another value than the option's stays: a pipeline has the value.
    """
    message = re.sub(r"^simulate: (?=requires )", "serve-sim ", message)
    found = re.match(r"((?:.* refused: )?)([a-z-]+): ([a-z]+)(?: |(?=:))", message)
    if not found:
        return message
    name = PASS_OPTIONS.get((found[2], found[3]), found[3])
    options = {str(p.name): max(p.opts, key=len) for p in params if isinstance(p, click.Option)}
    if name not in typed or name not in options:
        return message
    rest = message[found.end() :]
    number = re.match(r"[0-9]+(?=[:,])", rest)
    if number and isinstance(typed[name], int) and int(number[0]) != typed[name]:
        return message
    flag = any(p.name == name and p.is_flag for p in params if isinstance(p, click.Option))
    rest = rest.removeprefix("1") if flag else rest
    return f"{found[1]}{options[name]}{'' if rest.startswith(':') else ' '}{rest}"


def as_options(message: str, params: Iterable[click.Parameter]) -> str:
    """Rewrite a message of the API for the command line: `think_s: …, requires turns` names --think and
    --turns.

    A word is an option's name at the beginning; after "requires", "say", "use" or "leave out"; before "out";
    after "one of"; or if it contains `_`, which no English word does. An argument with a unit belongs to the
    option without the unit, unless only the unit adds the `_`: `cancel_s` is a column of a trace.
    """
    known = {str(p.name): max(p.opts, key=len) for p in params if isinstance(p, click.Option)}
    of = {f"{name}{unit}": name for name in known for unit in ("", "_s", "_bytes")}
    known = {name: known[option] for name, option in of.items()}
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    long = "|".join(name for name in sorted(known, key=len, reverse=True) if "_" in of[name])
    if not known:
        return message
    places = (
        rf"^({names})(?=: )",
        *(rf"(?<=\b{verb} )({names})(?=,? (?:too|instead)\b)" for verb in ("say", "set", "use")),
        rf"(?<=\brequires )({names})(?=$|[,;]| and )",
        rf"(?<=\bleave out )({names})\b",
        rf"(?<=\bleave )({names})(?= out\b)",
        *([rf"(?<![-\w.$'\"{{=@])({long})(?![\w='\"])"] if long else []),
    )
    for place in places:
        message = re.sub(place, lambda found: known[found[1]], message)
    several = rf"(?<=\bone of )(?:{names})(?:(?:, | and | or )(?:{names}))+\b"
    return re.sub(several, lambda found: re.sub(rf"\b({names})\b", lambda n: known[n[1]], found[0]), message)


def command(name: str, summary: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Register the decorated function as the command `llmir NAME`, with click options.

    The function returns the exit code, an integer or None for 0.
    """

    def take(function: Callable[..., Any]) -> click.Command:
        made = plugin(_MAX_WORK(click.command(name, cls=Command, short_help=summary)(function)))
        COMMANDS.add(name, made, function)
        return made

    return take


# --- Exit codes and errors ---

BAD_INPUT, OUR_BUG, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141

LONGEST = 2000  # characters of a message


class ClosedStream(io.TextIOBase):
    """A standard stream that was closed before the command started: it has no input and ignores output."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, *_: object) -> Any:
        """Raises `OSError`, and so does `write`."""
        raise OSError(errno.EBADF, "it is closed", self.name)

    write = read

    @property
    def buffer(self) -> ClosedStream:
        """The binary stream below a text stream: here, this closed stream itself."""
        return self


def streams() -> None:
    """Replace closed standard streams, and print characters that a stream cannot encode as `?`."""
    sys.stdin, sys.stdout = sys.stdin or ClosedStream("stdin"), sys.stdout or ClosedStream("stdout")
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def guard(run: Callable[[], Any]) -> int:
    """Run a function and return its exit code; errors become one line and their exit code."""
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # the reader has closed the pipe, such as `head`
        drop(sys.stdout)
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        drop(sys.stdout)
        message, code = _error_text(error)
        line("error", message)
        return code


def echo(text: str | bytes, **how: Any) -> None:
    """Write to stdout."""
    try:
        click.echo(text, **how)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


def drop(stream: TextIO) -> None:
    """Discard output that a closed stream cannot take, so that Python does not report an error at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _error_text(error: BaseException) -> tuple[str, int]:
    """The message of an error, and the exit code."""
    match error:
        case click.ClickException():
            return _lower(error.format_message()), BAD_INPUT
        case LlmirError():
            return str(error), error.exit_code
        case Terminated():
            return str(error) or "terminated", TERMINATED
        case click.Abort() | KeyboardInterrupt():
            return str(error) or "interrupted", INTERRUPTED
    words = blame(error) or _machine_error(error)
    where = "a bug in llmir; `llmir --traceback …` shows where"
    return (words, BAD_INPUT) if words else (f"{type(error).__name__}: {error} ({where})", OUR_BUG)


def _machine_error(error: BaseException) -> str | None:
    """The message for an error of the machine, such as a full disk; None for other errors."""
    match error:
        case OSError():
            return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
        case MemoryError():
            return f"not enough memory: {error}".removesuffix(": ")
        case RecursionError():
            return "nested too deeply for Python's stack"
        case OverflowError():
            return f"a number is too large to compute with: {error}"
    return None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:] if not message[:2].isupper() else message


def line(label: str, message: str) -> None:
    """Print `label: message` on stderr as one line without control characters."""
    text = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    try:
        click.echo(f"{label}: {text if len(text) <= LONGEST else f'{text[: LONGEST - 1]}…'}", err=True)
    except OSError:  # stderr is closed too
        drop(sys.stderr)


# --- Progress ---

SOON_S = 1.0  # work that ends before this time needs no progress line


@contextmanager
def bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar, updated with a label, the amount done and the total if it is known."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    shown = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True))
    task, began = shown.add_task("", total=None), time.monotonic()

    with ExitStack() as stack:

        def progress(what: str, done: int, of: int | None) -> None:
            late = time.monotonic() - began > SOON_S
            if not shown.live.is_started and late and sys.stderr.isatty():
                stack.enter_context(shown)
            shown.update(task, completed=done, total=of, description=what)

        yield progress
