"""How well one GPU's calibration and another's datasheet predict the other, on the rows in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from llmir import hw
from llmir.backends.cost.calibration import basis
from llmir.backends.silicon.calibrate import Case, cases, errors, families


def mape(case: Case, name: str) -> str:
    """Mean size of the relative error by the calibration of the device `name`, for the same engine."""
    device = hw.load(name)
    engines = device.calibration.engines if device.calibration else {}
    found = basis(device, case.family.name, case.engine) if case.engine in engines else None
    if found is None or found.device is not device:
        return "–"
    return f"{100 * errors(case.predicted(found.kernel), case.seconds).mape:.1f}"


def main(folder: Path) -> None:
    """A line for each case, a column for each GPU whose calibration is tried on it."""
    known = [name for name in hw.names() if hw.load(name).calibration]
    print(f"{'family':16}{'device':14}{'engine':10}" + "".join(f"{name:>13}" for name in known))
    for family in families("gemm"):
        for case in cases(family, folder)[0]:
            tried = "".join(f"{mape(case, name):>13}" for name in known)
            print(f"{family.name:16}{case.device.name:14}{case.engine:10}{tried}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
