"""`llmir passes`: what a pipeline can name."""

from __future__ import annotations

from typing import Any

from . import options, output
from .command import command


@command("passes", "The passes that a pipeline can name, and their options.")
@options.form("table", "json", "csv", "md")
@options.output("Write a file; .txt, .json, .csv or .md decides the format.")
def passes(form: str | None, output_file: str | None) -> None:
    """List the passes, with each option's type and default.

    A pipeline is passes with commas between them; options stand in braces: 'fuse,name{option=value}'.

    \b
    llmir passes
    llmir passes --format json
    """
    form = output.choose(output_file, form)
    from llmir.passes import DEFAULT_PIPELINE, PASSES
    from llmir.pipeline import describe

    found = [{"name": name, **describe(kind)} for name, kind in PASSES.items()]
    if form == "json":
        from llmir.backends.export.jsonio import to_json

        output.emit(to_json({"default": DEFAULT_PIPELINE, "passes": found}), output_file)
    else:
        rows = [{**p, "options": " ".join(map(_stated, p["options"]))} for p in found]
        output.emit_rows(rows, form, output_file, _shown(found, DEFAULT_PIPELINE))


def _stated(option: dict[str, Any]) -> str:
    """`tp: int = 1`, or `tp: int` for what must be given."""
    default = "" if option["required"] else f" = {option['default']!r}"
    return f"{option['name']}: {option['type']}{default}"


def _shown(found: list[dict[str, Any]], default: str) -> Any:
    from rich.console import Group

    from llmir.backends.export import table

    shown = table.columns(("pass", "what it does"), prose=("what it does",))
    for p in found:
        table.add(shown, (p["name"], p["summary"]), styles=["bold"])
        for option in p["options"]:
            table.add(shown, ("", f"  {_stated(option)}"))
    return Group(shown, "", f"default: {default}")
