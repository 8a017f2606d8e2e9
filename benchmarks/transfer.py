"""What borrowing costs: measured GPUs and engines predicted by each other's kernels and their own datasheets.

    python benchmarks/transfer.py DIR [-o hw/transfer.yaml]

First a line for each family, device and engine with rows in the folder, and a column for each GPU whose
kernels are tried on them: mean relative errors in percent, its own left out of the fit. Then means by group
of kernels and what two GPUs have in common, or two engines on one, and the bands that follow: how much more
off borrowed kernels are than at home, and how many rows lie within. With -o the bands are written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmir.backends.silicon.calibrate.cases import calibration_cases
from llmir.backends.silicon.calibrate.transfer import (
    TransferCase,
    band_coverage,
    relation_bands,
    transfer_cases,
)
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import load_all
from llmir.hw import library, transfer
from llmir.hw.device import Device


def matrix(found: Sequence[TransferCase], known: Sequence[Device]) -> None:
    """A line for each case that another GPU's kernels were tried on."""
    print(f"{'family':24}{'device':14}{'engine':24}{'rows':>6}" + "".join(f"{d.name:>13}" for d in known))
    for case in dict.fromkeys(loan.case for loan in found):
        off = {loan.device: loan.mean for loan in found if loan.case is case and loan.engine == case.engine}
        if not off:
            continue
        own = case.device.calibration
        fit = own.engines.get(case.engine, {}).get(case.families[-1]) if own else None
        off |= {case.device: fit.error} if fit else {}
        shown = (f"{100 * off[d]:.1f}" if d in off else "–" for d in known)
        line = f"{case.name:24}{case.device.name:14}{case.engine:24}{len(case.seconds):6}"
        print(line + "".join(f"{s:>13}" for s in shown))


def means(found: Sequence[TransferCase], table: dict[str, dict[str, float]]) -> None:
    """A line for each relation, a column for each group."""
    groups = sorted({loan.group for loan in found})
    for title, of in (
        ("mean error, percent, the median of pairs", lambda some, r, g: f"{_median(some):.0f}"),
        ("rows within the band and within twice that, percent", lambda some, r, g: _shares(some, table)),
    ):
        print(f"\n{title}\n{'':16}" + "".join(f"{g:>13}" for g in groups) + f"{'all':>13}")
        for relation in dict.fromkeys((*transfer.RELATIONS, transfer.ENGINE)):
            some = [loan for loan in found if loan.relation == relation]
            parts = [[loan for loan in some if loan.group == g] for g in groups] + [some]
            cells = (of(part, relation, "") if part else "–" for part in parts)
            print(f"{relation:16}" + "".join(f"{c:>13}" for c in cells))


def _median(some: Sequence[TransferCase]) -> float:
    return 100 * float(np.median([loan.mean for loan in some]))


def _shares(some: Sequence[TransferCase], table: dict[str, dict[str, float]]) -> str:
    one, two = band_coverage(some, table)
    return f"{100 * one:.0f}, {100 * two:.0f}"


def main(folder: Path, target: Path | None) -> None:
    """The matrix, its means, and the bands."""
    known = [library.load(n) for n in library.calibrated_devices()]
    machines = DeviceLookup(folder)
    tables = load_all(folder, lambda problem: None)
    every = [
        case for file, format, rows in tables for case in calibration_cases(file, format, rows, machines)
    ]
    found = list(transfer_cases(every, known))
    table = relation_bands(found)
    matrix(found, known)
    means(found, table)
    text = transfer.to_yaml(table)
    print(f"\nbands\n{text}")
    if target:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[3]) if sys.argv[2:3] == ["-o"] else None)
