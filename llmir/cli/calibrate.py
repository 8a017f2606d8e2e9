"""`llmir calibrate`: a device's kernels, fitted to measured times."""

from __future__ import annotations

import click

from llmir.errors import InputError

from . import fitting, hosts, measuring, options, output
from .command import command


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
    "Write a YAML file: of one device, for --hw, or of one engine's host, for --engine; with --run, a folder."
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
    llmir calibrate --run --quick -o here
    """
    from pathlib import Path

    from llmir.backends.silicon import calibrate

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
    if output_file:
        output.choose(output_file, None, {".yaml": "yaml", ".yml": "yaml"})
    if host:
        if device or family:
            raise InputError("--host: is of an engine on all devices; leave --device and --family out")
        return hosts.fit(folder, engine, form or "table", output_file)
    families, machines = calibrate.families(family), calibrate.Machines(Path(folder))
    only = machines(device) if device else None
    found = [c for c in fitting.cases(families, Path(folder), machines) if only in (None, c.device)]
    found = [c for c in found if engine in (None, c.engine)]
    if not found:
        wanted = ", ".join(filter(None, (device, engine, family))) or "any known device"
        raise InputError(f"{folder}: no rows of {wanted}")
    devices = list(dict.fromkeys(c.device for c in found))
    if output_file and len(devices) > 1:
        names = ", ".join(d.name for d in devices)
        raise InputError(f"{output_file}: a file is of one device, say which with --device: {names}")
    base = machines.base(devices[0], device or devices[0].name, output_file) if output_file else ""
    judged = fitting.judge(found, form or "table")
    if output_file:
        best = calibrate.kept(judged)
        for case in (c for c, e in judged if (c, e) not in best):
            output.note(f"{case.engine} {case.family.name}: {case.origin} is left out, another has more rows")
        output.emit(calibrate.device_file(base, judged), output_file)
