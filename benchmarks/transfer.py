"""What borrowing costs: measured GPUs predicted by each other's kernels and their own datasheets.

    python benchmarks/transfer.py DIR [FAMILY]

A line for each family, device and engine with rows in the folder, and a column for each GPU whose kernels are
tried on them: mean relative errors in percent. Last, what borrowing adds to the error of a device's own
kernels; the means over kinds are `SAME_MEMORY` and the like of `backends/cost/relatives.py`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from llmir import hw
from llmir.backends.cost.calibration import basis
from llmir.backends.cost.relatives import nearness
from llmir.backends.silicon.calibrate import Case, cases
from llmir.backends.silicon.folds import errors
from llmir.backends.silicon.machines import Machines
from llmir.backends.silicon.tables import load_all
from llmir.hw import Device


def mape(case: Case, device: Device) -> float | None:
    """Mean size of the relative error by the kernels of `device`, of the same engine."""
    engines = device.calibration.engines if device.calibration else {}
    if not {*case.families} <= {*engines.get(case.engine, {})}:
        return None
    found = {family: basis(device, family, case.engine) for family in case.families}
    return errors(case.predicted({f: b.kernel for f, b in found.items() if b}), case.seconds).mape


def relation(case: Case, device: Device) -> str:
    """What tells the two devices apart, as `borrowing` goes by it."""
    abroad, generation, technology, *_ = nearness(case.device, device)
    return "vendor" if abroad else "memory" if technology else "generation" if generation else "none"


def main(folder: Path, name: str | None) -> None:
    """The matrix, and its means."""
    known = [hw.load(n) for n in hw.measured()]
    lost: dict[tuple[str, str], list[float]] = defaultdict(list)
    print(f"{'family':24}{'device':14}{'engine':24}{'rows':>6}" + "".join(f"{d.name:>13}" for d in known))
    for file, format, rows in load_all(folder, lambda problem: None):
        for case in cases(file, format, rows, Machines(folder)):
            if name not in (None, format.name, *case.families):
                continue
            tried = [mape(case, device) for device in known]
            own = next((e for d, e in zip(known, tried, strict=True) if d == case.device), None)
            if own is None or sum(error is not None for error in tried) < 2:
                continue
            shown = ("–" if e is None else f"{100 * e:.1f}" for e in tried)
            print(
                f"{case.name:24}{case.device.name:14}{case.engine:24}{len(case.seconds):6}"
                + "".join(f"{s:>13}" for s in shown),
                flush=True,
            )
            for device, error in zip(known, tried, strict=True):
                if error is not None and device != case.device:
                    lost[relation(case, device), format.name.partition("_")[0]].append(error - own)
    print("\nwhat borrowing adds, in the mean, in points")
    for far in dict.fromkeys(r for r, _ in lost):
        of = {k: mean(v) for (r, k), v in lost.items() if r == far}
        print(
            f"{far:12}"
            + ", ".join(f"{k} {100 * v:.1f}" for k, v in of.items())
            + f"; all {100 * mean(of.values()):.1f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
