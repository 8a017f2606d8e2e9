"""`llmir passes`: what a pipeline can name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import getdoc
from typing import Any

import click

from . import options, output


@click.command("passes", short_help="The passes that a pipeline can name.")
@options.form("table", "json", "csv", "md")
@options.output("Write a file; .txt, .json, .csv or .md decides the format.")
def command(form: str | None, output_file: str | None) -> None:
    """List the passes, with each option's type and default.

    A pipeline is passes with commas between them; options stand in braces: 'fuse,name{option=value}'.

    \b
    llmir passes
    llmir passes --format json
    """
    form = output.choose(output_file, form)
    from llmir.passes import DEFAULT_PIPELINE, PASSES

    found: list[dict[str, Any]] = [
        {"name": name, "summary": (getdoc(kind) or "").partition("\n")[0], "options": _options(kind)}
        for name, kind in PASSES.items()
    ]
    if form == "json":
        from llmir.backends.export.jsonio import to_json

        output.emit(to_json({"default": DEFAULT_PIPELINE, "passes": found}), output_file)
    else:
        rows = [{**p, "options": " ".join(map(_stated, p["options"]))} for p in found]
        output.emit_rows(rows, form, output_file, _shown(found, DEFAULT_PIPELINE))


def _options(kind: object) -> list[dict[str, Any]]:
    """The fields of a pass; a default that is needed is missing, one that is no JSON is text."""
    from llmir.op import type_name
    from llmir.pipeline import is_pass

    found = []
    for f in fields(kind) if is_pass(kind) else ():
        default = f.default if f.default_factory is MISSING else f.default_factory()
        option: dict[str, Any] = {"name": f.name, "type": type_name(f), "required": default is MISSING}
        if default is not MISSING:
            option["default"] = default if isinstance(default, int | float | str | None) else str(default)
        found.append(option)
    return found


def _stated(option: dict[str, Any]) -> str:
    """`tp: int = 1`, or `tp: int` for what must be given."""
    default = "" if option["required"] else f" = {option['default']!r}"
    return f"{option['name']}: {option['type']}{default}"


def _shown(found: list[dict[str, Any]], default: str) -> Any:
    from rich.console import Group

    from llmir.backends.export import table

    shown = table.columns(("pass", "what it does"))
    for p in found:
        table.add(shown, (p["name"], p["summary"]), styles=["bold"])
        for option in p["options"]:
            table.add(shown, ("", f"  {_stated(option)}"))
    return Group(shown, "", f"default: {default}")
