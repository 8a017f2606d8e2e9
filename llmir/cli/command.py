"""The commands: each registers itself, with what `llmir --help` says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from llmir.plugins import Kind, load_plugin

COMMANDS: Kind[click.Command] = Kind("command", "llmir.cli")


def _load(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> None:
    for name in names:
        load_plugin(name)


plugin = click.option(
    "--plugin",
    multiple=True,
    metavar="MODULE|FILE.py",
    is_eager=True,  # other options may name what it defines
    expose_value=False,
    callback=_load,
    help="First load ops, models, passes, formats, cost models or commands from there.",
)


def command(name: str, summary: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator: the function is the command `llmir NAME`; its options are those of click.

    What it returns is the exit code, an integer, or None for 0.
    """

    def take(function: Callable[..., Any]) -> click.Command:
        made = plugin(click.command(name, short_help=summary)(function))
        COMMANDS.add(name, made, function)
        return made

    return take
