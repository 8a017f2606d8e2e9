"""`llmir calibrate`: fit the kernels of a device to measured times, and print the fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmir.api.options import Estimation
from llmir.base.errors import InputError

from . import options, output
from .command import bar, command, line

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate.refit import RefitResult


def show(found: RefitResult, form: str) -> None:
    """Rows of kernels, and rows of engine CPU time, which is fitted with them or alone."""
    from llmir.backends.silicon.calibrate import refit

    kernels, hosts = found.kernels, found.hosts
    rows = [*kernels, *({"device": None, "family": "host", **host} if kernels else host for host in hosts)]
    output.emit_rows(rows, form, None, refit.shown(found))


@command("calibrate", "Fit a device's kernels to measured times.")
@click.option("--from", "folder", metavar="DIR", help="A folder of CSV files of measured times.")
@click.option("--run", is_flag=True, help="Measure this machine into the folder -o DIR, and fit.")
@click.option("--quick", is_flag=True, help="With --run: fewer sizes, for about a minute.")
@click.option("--seconds", type=click.FloatRange(1, 86400), help="With --run: time for all measurements.")
@click.option(
    "--device",
    metavar="NAME|FILE",
    help="Fit only the rows of this device; with --run, the name of this machine's device.",
)
@options.take(Estimation, "engine", metavar="NAME", help="Fit only the rows of this engine, such as vllm.")
@click.option(
    "--family", metavar="NAME", help="Fit only this kernel family, or this kind of table, such as gemm."
)
@click.option("--host", is_flag=True, help="Fit the CPU time of engines, from e2e.csv.")
@options.form("table", "json", "csv", "md", "html")
@options.output(
    "Write a YAML file: one device, for --hw, or the CPU time of one engine, for --engine. Or a folder with "
    "all fits, in the layout of llmir/hw; with --run, also with the measured times."
)
def calibrate(
    folder: str | None,
    run: bool,
    quick: bool,
    seconds: float | None,
    device: str | None,
    engine: str | None,
    family: str | None,
    host: bool,
    form: str | None,
    output_file: str | None,
) -> None:
    """Fit the parameters of kernels to measured times, and print the errors on held-out shapes.

    Each fold holds out a fifth of the groups of shapes; for matrix products a group is all rows of one (n,
    k). Rows above the memory bandwidth, whose operands were in the L2 cache, are excluded.

    \b
    llmir calibrate --from measured --family gemm
    llmir calibrate --from measured --device h100-sxm -o h100-ours.yaml
    llmir calibrate --from measured --host --engine vllm -o our-vllm.yaml
    llmir calibrate --from measured -o llmir/hw
    llmir calibrate --run --quick -o here
    """
    from llmir.api import measure

    if run:
        given = {"--from": folder, "--engine": engine, "--host": host, "--family": family}
        if wrong := next((name for name, value in given.items() if value), None):
            raise InputError(f"--run: measures all kernels of eager PyTorch; leave {wrong} out")
        if output_file is None:
            raise InputError("--run: requires -o with the folder for the measured times")
        with bar() as progress:
            about: dict[str, Any] = {"hw": device, "seconds": seconds, "quick": quick, "progress": progress}
            found = measure.measure(output_file, tell=output.note, **about)
        show(found, form or "table")
        line("wrote", output_file)
        return
    if quick or seconds:
        raise InputError(f"{'--quick' if quick else '--seconds'}: requires --run")
    if folder is None:
        raise InputError("missing option '--from' with measured times, or '--run' to measure them here")
    if output_file is not None and Path(output_file).suffix:
        output.choose(output_file, None, {".yaml": "yaml", ".yml": "yaml"})
    asked: dict[str, Any] = {"hw": device, "engine": engine, "family": family, "host": host}
    found = measure.calibrate(folder, tell=output.note, **asked)
    texts = found.files(output_file) if output_file else {}
    show(found, form or "table")
    _write(texts)


def _write(texts: dict[str, str]) -> None:
    for path, text in texts.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        output.emit(text, path)
