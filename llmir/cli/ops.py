"""`llmir ops`: what a graph is made of."""

from __future__ import annotations

from typing import Any

import click

from . import options, output
from .command import command


@command("ops", "The ops that graphs are made of; with a name, all about one.")
@click.argument("name", required=False)
@options.form("table", "json", "csv", "md")
@options.output("Write a file; .txt, .json, .csv or .md decides the format.")
def ops(name: str | None, form: str | None, output_file: str | None) -> None:
    """List the ops, with what each takes, its equation and its FLOPs; with NAME, all that its class says.

    In an equation, * stands for any axes; docs/ir.md has the rest. Each op is a method of llmir.Builder.

    \b
    llmir ops
    llmir ops linear
    llmir ops --format json
    """
    form = output.choose(output_file, form)
    from llmir.names import suggest
    from llmir.op import OPS
    from llmir.ops import describe

    if name is not None and name not in OPS:
        raise click.UsageError(f"op {name!r} does not exist; there are {', '.join(OPS)}{suggest(name, OPS)}")
    found = [describe(OPS[name])] if name else [describe(kind) for kind in OPS.values()]
    if form == "json":
        from llmir.backends.export.jsonio import to_json

        output.emit(to_json(found[0] if name else found), output_file)
    else:
        rows = [{**op, "attributes": " ".join(map(_stated, op["attributes"]))} for op in found]
        output.emit_rows(rows, form, output_file, _one(found[0]) if name else _all(rows))


def _stated(attribute: dict[str, Any]) -> str:
    """`eps: float = 1e-06`, or `einsum: str` for what must be given."""
    default = f" = {attribute['default']!r}" if "default" in attribute else ""
    return f"{attribute['name']}: {attribute['type']}{default}"


def _all(rows: list[dict[str, Any]]) -> Any:
    from llmir.backends.export import table

    shown = table.columns(("op", "kind", "what it does"), prose=("what it does",))
    for op in rows:
        table.add(shown, (op["name"], op["kind"], op["summary"]), styles=["bold"])
    return shown


def _one(op: dict[str, Any]) -> Any:
    from rich.console import Group

    from llmir.backends.export import table

    given = ", ".join(filter(None, (op["takes"], *map(_stated, op["attributes"]))))
    facts = [(name, op[name]) for name in ("kind", "equation", "flops", "defined_in")]
    called = table.pairs(
        [("method", f"{op['name']}({given})"), *((k.replace("_", " "), v) for k, v in facts)]
    )
    return Group(called, "", *op["doc"].splitlines())
