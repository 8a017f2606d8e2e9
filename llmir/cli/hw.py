"""`llmir hw`: list devices and clusters, and the sources of their numbers."""

from __future__ import annotations

import click

from . import options, output
from .command import command


@command("hw", "List devices and clusters, or the numbers of one with sources.")
@click.argument("name", required=False)
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html selects the format.")
def hw(name: str | None, form: str | None, output_file: str | None) -> None:
    """List the bundled devices and clusters. NAME (or a YAML file) lists the numbers of one device with
    sources.

    Peaks are dense rates; matrix peaks are those of tensor cores or similar units. A cluster consists of
    nodes of one device.

    \b
    llmir hw
    llmir hw h100-sxm
    llmir hw dgx-h100
    llmir hw my-gpu.yaml --format json
    """
    form = output.choose(output_file, form)
    from llmir.api.load import devices

    output.result(devices(name), form, output_file)
