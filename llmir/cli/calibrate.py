"""`llmir calibrate`: a device's kernels, fitted to measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmir.errors import InputError

from . import hosts, options, output

if TYPE_CHECKING:
    from pathlib import Path

    from llmir.backends.calibrate import Case, Errors, Family


@click.command("calibrate", short_help="Fit a device's kernels to measured times.")
@click.option(
    "--from", "folder", required=True, metavar="DIR", help="A folder of CSV files of measured times."
)
@click.option("--device", metavar="NAME", help="Only this device's rows.")
@click.option("--engine", metavar="NAME", help="Only this engine's rows, such as vllm.")
@click.option("--family", metavar="NAME", help="Only this family of kernels, or kind such as gemm.")
@click.option("--host", is_flag=True, help="Fit what engines add to their kernels, from e2e.csv.")
@options.form("table", "json", "csv", "md")
@options.output("Write a YAML file: of one device, for --hw, or of one engine's host, for --engine.")
def command(
    folder: str,
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
    """
    from pathlib import Path

    from llmir import hw
    from llmir.backends import calibrate

    if output_file:
        output.choose(output_file, None, {".yaml": "yaml", ".yml": "yaml"})
    if host:
        if device or family:
            raise InputError("--host: is of an engine on all devices; leave --device and --family out")
        return hosts.fit(folder, engine, form or "table", output_file)
    families = calibrate.families(family)
    only = hw.load(device) if device else None
    found = [c for f in families for c in _cases(f, Path(folder)) if only in (None, c.device)]
    found = [c for c in found if engine in (None, c.engine)]
    if not found:
        wanted = ", ".join(filter(None, (device, engine, family))) or "any known device"
        raise InputError(f"{folder}: no rows of {wanted}")
    devices = list(dict.fromkeys(c.device for c in found))
    if output_file and len(devices) > 1:
        names = ", ".join(d.name for d in devices)
        raise InputError(f"{output_file}: a file is of one device, say which with --device: {names}")
    judged = [(c, c.errors()) for c in found]
    rows = [_row(c, e) for c, e in judged]
    output.emit_rows(rows, form or "table", None, _shown(rows))
    if output_file:
        output.emit(calibrate.device_file(device or devices[0].name, judged), output_file)


def _cases(family: Family, folder: Path) -> list[Case]:
    """The cases of a family, none where the folder lacks its file; bad rows become notes."""
    from llmir.backends import calibrate

    if not (folder / family.file).exists():
        return []
    found, problems = calibrate.cases(family, folder)
    output.note(*problems)
    return found


def _row(case: Case, errors: Errors) -> dict[str, Any]:
    return {
        "device": case.device.name,
        "engine": case.engine,
        "family": case.family.name,
        "parameters": case.parameters,
        "n": errors.n,
        "groups": len(set(case.groups)),
        "set_apart": len(case.hot),
        "mape": errors.mape,
        "median": errors.median,
        "bias": errors.bias,
        "p90": errors.p90,
        "ideal_mape": case.ideal_errors().mape,
    }


def _shown(rows: list[dict[str, Any]]) -> Any:
    from rich.console import Group

    from llmir.backends import table

    headings = ("device", "engine", "family", "parameters", "rows", "groups", "set apart")
    errors = ("mean", "median", "bias", "p90", "ideal")
    shown = table.columns((*headings, *errors), (*headings[3:], *errors))
    for row in rows:
        *about, mape, median, bias, p90, ideal = row.values()
        percents = [f"{100 * e:.1f}%" for e in (mape, median, bias, p90, ideal)]
        table.add(shown, (*map(str, about), *percents))
    legend = "errors on shapes left out of the fit; ideal: the mean error of the roofline"
    return Group(shown, "", legend)
