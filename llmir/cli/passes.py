"""`llmir passes`: list the passes and their options."""

from __future__ import annotations

from . import options, output
from .command import command


@command("passes", "List the passes and their options.")
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html selects the format.")
def passes(form: str | None, output_file: str | None) -> None:
    """List the passes, with the type and default of each option.

    A pipeline consists of passes separated by commas. Options are written in braces:
    'fuse,name{option=value}'.

    \b
    llmir passes
    llmir passes --format json
    """
    form = output.choose(output_file, form)
    from llmir.api.deployment import engines, pipeline_of
    from llmir.backends.export import catalog

    output.result(catalog.passes(pipeline_of(), engines()), form, output_file)
