"""`llmir validate`: compare estimates with measurements."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from llmir.api.options import Estimation, Requests
from llmir.base.errors import InputError
from llmir.base.names import spans

from . import inputs, options, output
from .command import command
from .options import Count

if TYPE_CHECKING:
    from llmir.backends.silicon.validate.rows import Validation

_OWN = ("files", "by", "cost", "without", "folds", "plot", "form", "output_file", "model", "hw")
_SAID = 5  # unreadable rows that are named one by one


@command("validate", "Compare estimates with measured times: kernels, whole models, chat logs.")
@click.argument("files", nargs=-1, required=True, metavar="FILE.csv…")
@click.option(
    "--by", metavar="KEYS", help="Columns that group rows.  [default: kind,metric,device,framework]"
)
@click.option("--model", metavar="MODEL", help="For chat logs: the model.")
@options.take(Estimation, "hw", help="For chat logs: the device.", shown="")
@options.take(
    Estimation, "engine", metavar="NAME", help="For chat logs: the engine.", shown="the device's first"
)
@options.take(Requests, "batch", type=Count(), help="For chat logs: requests per batch.")
@click.option(
    "--unit",
    type=click.Choice(["s", "ms", "us"]),
    help="For chat logs: the unit of time columns whose names state no unit.",
)
@options.take(
    Estimation,
    "cost",
    choices=("calibrated", "ideal"),
    default="calibrated",
    help="Cost model: calibrated (measured kernels of each row's engine) or ideal (the roofline).",
    shown="calibrated",
)
@click.option(
    "--without",
    type=click.Choice(["device", "engine"]),
    help="Estimate each row as if its device, or its engine on this device, had not been measured.",
)
@click.option(
    "--folds",
    metavar="KEYS",
    help="Estimate whole models with CPU times that are fitted without rows that are equal in "
    "these columns, such as model,device,version.",
)
@options.lowering
@options.parallel
@options.lenient
@click.option(
    "--plot",
    metavar="DIR",
    help="Folder for plots of estimated over measured times, of errors by size, and of single requests.",
)
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file: .csv contains every row; .txt, .json and .md also contain the statistics.")
@click.pass_context
def validate(ctx: click.Context, /, **given: Any) -> None:
    """Estimate every row of measured tables and print the errors of the estimates.

    The columns determine the kind of table: gemm, attention, moe, elementwise, collective, a whole model, or
    a chat log (input_tokens, output_tokens), which needs --model and --hw. If a row cannot be estimated, it
    is counted with the reason; files also contain the mean error if each such row counts as 100%. Keys of
    --by are kind, metric, device, framework, engine, version, tp, users, model, dtype, relation, size, file.

    \b
    llmir validate gemm.csv attention_decode.csv
    llmir validate e2e.csv --by engine,model --format json
    llmir validate e2e.csv --plot plots -o rows.csv
    llmir validate chat.csv --model llama2-7b --hw rtx3090 --tp 2 -o predicted.csv
    """
    form = output.choose(given["output_file"], given["form"])
    from llmir.api import measure
    from llmir.backends.silicon.validate.rows import BY

    by = [k.strip() for k in given["by"].split(",")] if given["by"] else list(BY)
    _check_keys(by)
    if given["plot"]:
        from llmir.backends.export.charts import validation

        folder = validation.check(given["plot"])
    found = measure.validate(
        *given["files"],
        **_chat(ctx, given),
        **{name: given[name] for name in ("cost", "without", "folds")},
        tell=_teller(),
    )
    _emit(found, by, form, given["output_file"], given["files"] if given["model"] else ())
    _notes(found)
    if given["plot"]:
        from llmir.backends.silicon.validate import show

        output.note(*(f"wrote {path}" for path in show.pictures(found, folder)))


def _check_keys(by: list[str]) -> None:
    from llmir.backends.silicon.validate.rows import Validation

    Validation("").groups(by)


def _chat(ctx: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """The model, device and engine of chat logs, if the files are chat logs."""
    if given["model"]:
        if not given["hw"]:
            raise InputError("--model: chat logs also need --hw, the device that they ran on")
        own = {name: given[name] for name in ("hw", "batch", "engine")} | {"unit": given["unit"] or ""}
        return {"program": inputs.lower(given), **own}
    for name in ctx.params:
        if (name == "hw" or name not in _OWN) and ctx.get_parameter_source(
            name
        ) == ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option}: applies only to chat logs with --model; other tables state what ran"
            )
    return {}


def _emit(found: Validation, by: list[str], form: str, target: str | None, logs: tuple[str, ...]) -> None:
    from llmir.backends.export import json
    from llmir.backends.silicon.validate import chat, show

    if form == "json":
        output.emit(json.to_json(show.to_dict(found, by)), target)
    elif form == "csv":
        rows = [row for log in logs for row in chat.beside(Path(log), found.rows)]
        if found.amounts and not found.rows:
            rows = show.to_dict(found, by)["amounts"]
        output.emit(json.to_csv(rows or show.every_row(found)), target)
        if target not in (None, "-"):
            output.emit_table(show.shown(found, by))
    elif form == "md":
        lines = show.group_lines(found, by)
        right = range(len(by), len(by) + len(show.HEADINGS))
        parts = [f"{show.scope(found)}, cost model {found.cost_model}.\n"]
        parts.append(json.to_markdown([*by, *show.HEADINGS], lines, right))
        for headings, cells in show.more(found):
            numbers = [n for n, heading in enumerate(headings) if heading in show.NUMBERS]
            parts.append(json.to_markdown(headings, cells, numbers))
        output.emit("\n".join(parts), target)
    else:
        output.emit_rows(show.every_row(found), form, target, show.shown(found, by))


def _notes(found: Validation) -> None:
    """Print notes on rows that cannot be read: the first few completely, and then how many others there
    are.
    """
    output.note(*found.questions, *found.problems[:_SAID])
    for file, more in groupby(found.problems[_SAID:], key=lambda problem: problem.partition(": row ")[0]):
        numbers = [int(problem.partition(": row ")[2].partition(":")[0]) for problem in more]
        output.note(f"{file}: {len(numbers):,} more rows could not be read: {spans(numbers, 12)}")


def _teller() -> Callable[[str, int, int], None]:
    """Progress on a terminal's stderr, at most ten times per second."""
    if not sys.stderr.isatty():
        return lambda *_: None
    last = time.monotonic()

    def tell(file: str, done: int, rows: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.1 or done == rows:
            last = now
            text = f"{file}: {done:,} of {rows:,} rows"
            click.echo(f"\r{text:60}" + ("\r" + " " * 60 + "\r" if done == rows else ""), nl=False, err=True)

    return tell
