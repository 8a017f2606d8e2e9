"""The commands: each registers itself, with what `llmir --help` says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from llmir.base.errors import InputError
from llmir.base.registry import Kind, load_plugin

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


class Command(click.Command):
    """A command whose errors name options where the API names arguments."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            error.args = (as_options(str(error), self.params), *error.args[1:])
            raise


def as_options(message: str, params: Iterable[click.Parameter]) -> str:
    """A message of the API as the command line says it: `think_s: …, say turns too` of --think and --turns.

    A name is an option's at the beginning, after "say" or "leave out", before "out", after "one of", or
    where it has `_`, which no word of English has; an argument with a unit is of the option without it, but
    where only the unit brings the `_`: `cancel_s` is a column of a trace.
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
        rf"(?<=\bsay )({names})(?= (?:too|instead)\b)",
        rf"(?<=\bleave out )({names})\b",
        rf"(?<=\bleave )({names})(?= out\b)",
        *([rf"(?<![-\w.$'\"{{=@])({long})(?![\w='\"])"] if long else []),
    )
    for place in places:
        message = re.sub(place, lambda found: known[found[1]], message)
    several = rf"(?<=\bone of )(?:{names})(?:(?:, | and )(?:{names}))+\b"
    return re.sub(several, lambda found: re.sub(rf"\b({names})\b", lambda n: known[n[1]], found[0]), message)


def command(name: str, summary: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator: the function is the command `llmir NAME`; its options are those of click.

    What it returns is the exit code, an integer, or None for 0.
    """

    def take(function: Callable[..., Any]) -> click.Command:
        made = plugin(click.command(name, cls=Command, short_help=summary)(function))
        COMMANDS.add(name, made, function)
        return made

    return take
