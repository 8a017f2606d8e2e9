"""`llmir sweep`: the steps of a model in all combinations of some axes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import click

from llmir.api.options import AXES, Lowering, Memory
from llmir.base.budget import check_work
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import bar, command, line
from .options import Integer

# The options in the order of help, with the changes for several values.
AXIS_HELP: dict[str, dict[str, str]] = {
    "hw": {"help": "Names or YAML files of devices.", "shown": "h100-sxm"},
    "batch": {"help": "Sequences in a step, such as 1:1024:x2 or 1,8,64.", "shown": "1"},
    "new": {"shown": "1"},
    "context": {"shown": "0"},
    "tp": {},
    "pp": {"help": "Pipeline stages."},
    "micro_batches": {"help": "Numbers of equal parts of a batch in the pipeline."},
    "dp": {"help": "Data-parallel ranks."},
    "ep": {"help": "Expert-parallel ranks."},
    "sp": {"help": "Sequence parallelism."},
    "redundant_experts": {"help": "Copies of the busiest experts."},
    "weights": {"help": "Dtypes of weights, such as bf16,fp8."},
    "activations": {"help": "Dtypes of the inputs of matrix products."},
    "kv": {"help": "Dtypes of the KV cache."},
    "collectives": {"help": "Dtypes of collectives."},
    "dispatch": {"help": "How tokens are sent to experts of other ranks: rows, ranks, gather."},
    "routing": {"help": "Distributions of tokens over experts, such as chance,even."},
    "engine": {"help": "Engines, such as vllm,sglang@0.5."},
    "cost": {"help": "Cost models: calibrated, ideal."},
}


def axes(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for each axis, except some."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(AXIS_HELP):
            if name not in without:
                function = options.axis(AXES[name], **AXIS_HELP[name])(function)
        return function

    return decorate


@command("sweep", "Steps in many configurations: devices, splits, dtypes, batches, contexts.")
@click.argument("model", metavar="MODEL")
@options.lenient
@axes()
@options.take(Lowering, "pipeline", help="Passes to run instead of the engine's.")
@options.step_memory
@options.price_option
@click.option("--jobs", type=Integer(), default=1, help="Number of processes.  [default: 1]")
@options.form("table", "json", "jsonl", "csv", "parquet", "arrow", "html", "page")
@options.max_size
@options.output(
    "File to write; its suffix sets the format. A folder gets one Parquet file per structure.",
    metavar="FILE|FOLDER/",
)
def sweep(**given: Any) -> None:
    """Estimate a step for every combination of some axes: each is one row, as in `llmir analyze`.

    A RANGE is a list such as 1,8,32, with parts such as 1:8, 0:4k:1k (steps) or 1:1024:x2 (powers); k is
    1,024. An impossible split has a row with the reason. After an interrupt, the same command with the same
    -o continues after the last complete part.

    \b
    llmir sweep llama3.1-8b --batch 1:256:x2 --context 2000
    llmir sweep qwen3-32b --hw h100-sxm,h200 --tp 1,2,4 --batch 1:1k:x2 -o g.csv
    llmir sweep qwen3-32b --hw h100-sxm,h200 --tp 1,2,4 --batch 1:1k:x2 -o g.html
    """
    from llmir.api.sweep import axis, sweep, sweep_to
    from llmir.backends.search.structures import combined_reason
    from llmir.backends.search.sweep import Sweep

    file, form = given["output_file"], given["form"]
    pieces = _in_pieces(file, form)
    form = form if pieces else output.choose(file, form, Sweep)
    size = output.check_page(form or "", given["max_size"])
    source = inputs.source(given)
    said = {name: given[name] for name in AXIS_HELP if given[name] is not None}
    values = {name: axis(name, value, f"--{name.replace('_', '-')}") for name, value in said.items()}
    rows = prod(map(len, values.values()))
    if not pieces:
        _check_rows(rows, str(form), given["max_size"])
    with _workers(given["jobs"]) as executor, _rows() as progress:
        how = {"pipeline": given["pipeline"], "price": given["price"]}
        how |= {"executor": executor, "progress": progress, "memory": inputs.taken(Memory, given)}
        if pieces:
            written = sweep_to(file, source, values, format=form, **how)
        else:
            found = _keep_partial(lambda: sweep(source, values, **how))
    if pieces:
        there = f", {written.read:,} structures were there" if written.read else ""
        refused = f", {written.refused:,} refused: {written.why}" if written.refused else ""
        line("wrote", f"{file}: {written.rows:,} row{'s' * (written.rows > 1)}{there}{refused}")
    elif found.refusals == len(found):
        raise InputError(combined_reason(len(found), found.parts[0].why))
    else:
        output.result(found, form, file, **size)
    output.note(*source.notes)


ROW_BYTES = 2500  # per row in memory as a dictionary
PAGE_ROW_BYTES = 100  # per row in a page, at least


def _check_rows(rows: int, form: str, max_size: int | None) -> None:
    """`InputError` for more rows than a format that is built in memory can have."""
    from llmir.backends.export.page.bundle import SIZE

    what, advice = f"a {form} of {rows:,} rows", "use fewer values, or write a .csv or .parquet file"
    most = SIZE if max_size is None else max_size
    if form == "page" and rows * PAGE_ROW_BYTES > most:
        raise InputError(f"{what} has more than {most:,} bytes; {advice}")
    if form != "table":
        check_work(what, advice, memory=rows * ROW_BYTES)


def _in_pieces(file: str | None, form: str | None) -> bool:
    """Whether a file is written in pieces, for any number of rows."""
    from llmir.backends.export.sweep import FORMATS

    if file in (None, "-"):
        return False
    path = str(file)
    if path.endswith(("/", os.sep)) or os.path.isdir(path):
        return True
    suffix = os.path.splitext(path)[1].lower().removeprefix(".")
    return suffix in FORMATS and form in (None, suffix) and (os.path.isfile(path) or not os.path.exists(path))


def _keep_partial(run: Callable[[], Any]) -> Any:
    """Run the function; after an interrupt, explain how to keep partial results."""
    try:
        return run()
    except KeyboardInterrupt as stop:
        raise type(stop)("interrupted; with -o FILE, whole structures stay for the next run") from None


@contextmanager
def _workers(jobs: int) -> Iterator[Any]:
    """A pool of `jobs` processes, which end at once after an interrupt."""
    from llmir.backends.search.sweep import processes

    if jobs == 1:
        yield None
        return
    told = threading.excepthook
    try:
        with processes(jobs) as executor:
            try:
                yield executor
            except BaseException:
                import multiprocessing

                # The pool's thread then sees canceled futures, and would log them.
                threading.excepthook = lambda _: None
                # Tasks that no worker will read must not keep the pool waiting.
                executor._call_queue.cancel_join_thread()  # type: ignore[attr-defined]
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    finally:
        threading.excepthook = told


@contextmanager
def _rows() -> Iterator[Callable[[int, int, int], None]]:
    """Show the rows done, the rate, the remaining time and the refused rows."""
    from llmir.backends.export import units

    began = time.monotonic()
    with bar() as progress:

        def told(done: int, of: int, refused: int) -> None:
            rate = units.count(done / max(time.monotonic() - began, 1e-9))
            rows = f"{units.count(done)} of {units.count(of)} rows, {rate}/s, {refused:,} refused"
            progress(rows, done, of)

        yield told
