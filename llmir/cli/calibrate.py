"""`llmir calibrate`: a device's kernels, fitted to measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from llmir.errors import InputError

from . import fitting, hosts, measuring, options, output
from .command import command

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate import Case
    from llmir.backends.silicon.machines import Machines


@command("calibrate", "Fit a device's kernels to measured times.")
@click.option("--from", "folder", metavar="DIR", help="A folder of CSV files of measured times.")
@click.option("--run", is_flag=True, help="Measure this machine into the folder -o DIR, and fit.")
@click.option("--quick", is_flag=True, help="With --run: fewer sizes, for about a minute.")
@click.option("--seconds", type=click.FloatRange(1, 86400), help="With --run: time to measure for.")
@click.option("--device", metavar="NAME|FILE", help="Only this device's rows; with --run, what it runs on.")
@click.option("--engine", metavar="NAME", help="Only this engine's rows, such as vllm.")
@click.option("--family", metavar="NAME", help="Only this family of kernels, or kind such as gemm.")
@click.option("--host", is_flag=True, help="Fit what engines add to their kernels, from e2e.csv.")
@options.form("table", "json", "csv", "md")
@options.output(
    "Write a YAML file: of one device, for --hw, or of one engine's host, for --engine. Or a folder: of all "
    "that was fitted, laid out as llmir/hw; with --run, of the times too."
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
    """Fit the parameters of kernels to measured times, and say how well they predict unseen shapes.

    Errors are of shapes left out of the fit, a fifth of the groups at a time: of a matrix product all rows of
    an (n, k). Rows that beat the memory's bandwidth, and must have found operands in the L2, are set apart.

    \b
    llmir calibrate --from measured --family gemm
    llmir calibrate --from measured --device h100-sxm -o h100-ours.yaml
    llmir calibrate --from measured --host --engine vllm -o our-vllm.yaml
    llmir calibrate --from measured -o llmir/hw
    llmir calibrate --run --quick -o here
    """
    from pathlib import Path

    from llmir.backends.silicon.machines import Machines

    if run:
        given = {"--from": folder, "--engine": engine, "--host": host, "--family": family}
        if wrong := next((name for name, value in given.items() if value), None):
            raise InputError(f"--run: measures all kernels of eager PyTorch; leave {wrong} out")
        return measuring.measure(output_file, device, form or "table", seconds, quick=quick)
    if quick or seconds:
        raise InputError(f"{'--quick' if quick else '--seconds'}: says how to measure; it goes with --run")
    if folder is None:
        raise InputError("missing option '--from' with measured times, or '--run' to measure them here")
    if not Path(folder).is_dir():
        raise InputError(f"--from: no folder {folder!r}")
    alone = output_file is not None and Path(output_file).suffix != ""
    if alone:
        output.choose(output_file, None, {".yaml": "yaml", ".yml": "yaml"})
    if host:
        if device or family:
            raise InputError("--host: is of an engine on all devices; leave --device and --family out")
        return hosts.fit(folder, engine, form or "table", output_file)
    machines, whole = Machines(Path(folder)), not (device or engine or family)
    only, known = machines(device) if device else None, _known(family)

    def wanted(format: str, case: Case) -> bool:
        of = only in (None, case.device) and engine in (None, case.engine)
        return of and (family is None or family in known & {format, *case.families})

    found = fitting.fit(Path(folder), machines, form or "table", wanted)
    if not found:
        asked = ", ".join(filter(None, (device, engine, family))) or "any known device"
        raise InputError(f"{folder}: no rows of {asked}")
    if output_file and alone:
        _write(found, output_file, machines, device)
    elif output_file:
        _write_all(found, folder, output_file, form or "table", whole=whole)


def _write_all(found: list[Case], folder: str, target: str, form: str, *, whole: bool) -> None:
    """A file for each device and engine, and for each engine's host where all is fitted."""
    from pathlib import Path

    from llmir.backends.silicon import calibrate

    for name, text in calibrate.files(found, whole=whole).items():
        path = Path(target) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        output.emit(text, str(path))
    if whole and (Path(folder) / hosts.TABLE).exists():
        hosts.fit(folder, None, form, target, calibrate.with_fits(found))


def _known(family: str | None) -> set[str]:
    """Families of kernels and kinds of tables; InputError for one that is neither."""
    from llmir.backends.cost.kernels import KERNELS
    from llmir.backends.silicon.tables import FORMATS, Kernels

    known = [*(name for name, format in FORMATS.items() if isinstance(format, Kernels)), *KERNELS]
    if family is not None and family not in known:
        raise InputError(f"unknown family {family!r}, known are {', '.join(known)}")
    return {*known}


def _write(found: list[Case], target: str, machines: Machines, device: str | None) -> None:
    """A file of one device."""
    from llmir.backends.silicon import calibrate

    devices = list(dict.fromkeys(case.device for case in found))
    if len(devices) > 1:
        names = ", ".join(d.name for d in devices)
        raise InputError(f"{target}: a file is of one device, say which with --device: {names}")
    base = machines.base(devices[0], device or devices[0].name, target)
    output.emit(calibrate.device_file(base, found), target)
