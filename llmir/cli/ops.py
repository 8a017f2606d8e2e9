"""`llmir ops`: list the ops, or describe one."""

from __future__ import annotations

import click

from . import options, output
from .command import command


@command("ops", "List the ops, or show one in detail.")
@click.argument("name", required=False)
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html selects the format.")
def ops(name: str | None, form: str | None, output_file: str | None) -> None:
    """List the ops with operands, equations and FLOPs. NAME shows one op in detail.

    In an equation, * stands for any axes (see docs/ir.md). Each op is a method of llmir.Builder.

    \b
    llmir ops
    llmir ops linear
    llmir ops --format json
    """
    form = output.choose(output_file, form)
    from llmir.backends.export import catalog

    output.result(catalog.ops(name), form, output_file)
