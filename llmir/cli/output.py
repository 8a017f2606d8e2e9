"""Where results go: to stdout or to a file whose suffix says the format."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from llmir.errors import InputError

from .ending import line

if TYPE_CHECKING:
    from rich.console import RenderableType

SUFFIXES = {".txt": "table", ".json": "json", ".csv": "csv", ".md": "md"}


def choose(output: str | None, form: str | None, suffixes: Mapping[str, str] = SUFFIXES) -> str:
    """The format of the result, and an early error if `output` cannot be written.

    A file's suffix decides; `--format` must not say otherwise, and decides where there is none. On
    stdout it is `form`, or the first one.
    """
    if output is None or output == "-":
        return form or next(iter(suffixes.values()))
    from llmir.backends.export.files import check_writable

    suffix = os.path.splitext(output)[1].lower()
    if form and not suffix:
        check_writable(output)
        return form
    if suffix not in suffixes:
        got = f"suffix {suffix!r} is unknown" if suffix else "no suffix"
        raise InputError(f"{output}: {got}; allowed are {', '.join(suffixes)}")
    if form not in (None, suffixes[suffix]):
        raise InputError(f"{output}: the suffix says {suffixes[suffix]}, --format says {form}")
    check_writable(output)
    return suffixes[suffix]


def emit(text: str, output: str | None = None) -> None:
    """Print `text`, or write it to the file `output`, whole or not at all."""
    if output is None or output == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    from llmir.backends.export.files import write

    write(output, text)
    line("wrote", output)


def emit_table(table: RenderableType, output: str | None = None) -> None:
    """Print a table, with colours where a terminal shows them, or write it as text."""
    if output is None or output == "-":
        colour = _colours(sys.stdout)
        click.echo(render(table, colour=colour), nl=False, color=colour)
    else:
        emit(render(table), output)


def render(table: RenderableType, *, colour: bool = False) -> str:
    """A table as text at its natural width: nothing is cut to fit a terminal."""
    from rich.console import Console

    console = Console(
        file=open(os.devnull, "w"),  # noqa: SIM115 (captured, never written)
        width=1000,
        force_terminal=colour,
        no_color=not colour,
        color_system="256" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console, console.capture() as captured:
        console.print(table, soft_wrap=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _colours(stream: Any) -> bool:
    asked = bool(os.environ.get("FORCE_COLOR"))
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and (asked or stream.isatty())


def emit_rows(
    rows: Sequence[Mapping[str, object]], form: str, output: str | None, table: RenderableType
) -> None:
    """Some rows in one of the four formats; `table` is what a person sees, with units."""
    from llmir.backends.export import jsonio

    if form == "table":
        emit_table(table, output)
    elif form == "json":
        emit(jsonio.to_json(list(rows)), output)
    elif form == "csv":
        emit(jsonio.to_csv(rows), output)
    else:
        cells = [["" if v is None else v for v in row.values()] for row in rows]
        numeric = [i for i, v in enumerate(rows[0].values()) if isinstance(v, int | float)]
        emit(jsonio.to_markdown(list(rows[0]), cells, numeric), output)


def note(*messages: str) -> None:
    """What the user should know, on stderr."""
    for message in dict.fromkeys(messages):
        line("note", message)
