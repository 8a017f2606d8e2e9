"""`llmir models`: list the bundled models."""

from __future__ import annotations

import click

from . import options, output
from .command import command


@command("models", "The bundled models.")
@click.argument("name", required=False, default="")
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html selects the format.")
def models(name: str, form: str | None, output_file: str | None) -> None:
    """List the bundled models: size, active size, heads, and KV-cache bytes per token.

    The NAME of a model (or a path or id as in `analyze`) lists its weights by block and kind, per layer and
    in total. A part of a name, Hugging Face id or architecture lists the models that contain it.

    \b
    llmir models
    llmir models qwen3
    llmir models llama -o llama.csv
    llmir models llama3.1-8b
    """
    form = output.choose(output_file, form)
    from llmir.api import load

    output.result(load.models(name), form, output_file)
