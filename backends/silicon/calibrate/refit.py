"""Every case of a folder of measured tables, fitted; and the files that this makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from llmir.backends.cost.calibration import engine_yaml, to_yaml
from llmir.backends.cost.kernels import KERNELS
from llmir.backends.silicon.folds import errors
from llmir.backends.silicon.machines import Machines
from llmir.backends.silicon.rows import Table
from llmir.backends.silicon.tables import Kernels
from llmir.hw import Calibration, Device, Fitted
from llmir.hw.calibration import rank

from .cases import Case, cases

Engines = dict[str, dict[str, Fitted]]
NO_HOSTS: Mapping[str, Mapping[str, Fitted]] = MappingProxyType({})


def fitted(
    tables: Iterable[tuple[str, Kernels, Table]],
    machines: Machines,
    wanted: Callable[[str, Case], bool] = lambda format, case: True,
    tell: Callable[[str], None] = lambda problem: None,
) -> list[Case]:
    """The cases of tables, by file, that are `wanted`, one table after another; `tell` hears of the rest.

    Families of other tables are held at what was just fitted on the device, or else at its own.
    """
    found: list[Case] = []
    for file, format, rows in sorted(tables, key=lambda table: (table[1].name, table[0])):
        some, problems = cases(file, format, rows, machines, with_fits(found))
        for problem in problems:
            tell(problem)
        found += [case for case in some if wanted(format.name, case)]
    return found


def with_fits(found: Sequence[Case]) -> Callable[[Device], Device]:
    """What gives a device the calibration that cases of it make; another one is as it was."""
    fitted: dict[Device, Device] = {}
    for device in dict.fromkeys(case.device for case in found):
        engines = calibration([case for case in found if case.device == device])
        fitted[device] = replace(device, own_calibration=_ranked(engines)) if engines else device
    return lambda device: fitted.get(device, device)


def calibration(found: Sequence[Case]) -> Engines:
    """What cases of one device say, by engine and family."""
    engines: Engines = {}
    for case in sorted(kept(found), key=lambda case: len(case.seconds)):
        engines.setdefault(case.engine, {}).update(case.fitted)
    return engines


def kept(found: Sequence[Case]) -> list[Case]:
    """The cases that a calibration is made of: nearer on unseen shapes than what would be there without them.

    Of two versions of an engine's kernel that is the one with more rows; the roofline is what any kernel must
    beat, and the main kernel of the engine what another one must.
    """
    best: dict[tuple[object, ...], Case] = {}
    for case in found:
        key = case.device, case.engine, case.families
        if key not in best or len(case.seconds) > len(best[key].seconds):
            best[key] = case
    mains = {(case.device, case.engine, case.families): case for case in best.values() if case.main}

    def pays(case: Case) -> bool:
        main = mains.get((case.device, case.engine.partition("-")[0], case.families))
        others = [case.ideal_errors.mape]
        if main and main is not case:
            others.append(errors(case.predicted(main.kernels), case.seconds).mape)
        return case.errors.mape < min(others)

    return [case for case in best.values() if pays(case)]


def _ranked(engines: Engines) -> Calibration:
    ordered = dict(sorted(engines.items(), key=lambda engine: rank(engine[0])))
    return Calibration(next(iter(ordered)), ordered)


def files(found: Sequence[Case], *, whole: bool) -> dict[str, str]:
    """`calibrations/DEVICE/ENGINE.yaml`, as `llmir/hw` has them, of bundled devices.

    Where these are not the `whole` of what there is to fit, they are laid over what the device has.
    """
    made: dict[str, str] = {}
    for device in dict.fromkeys(case.device for case in found if case.device.measured_as):
        engines = calibration([case for case in found if case.device == device])
        if device.calibration and not whole:
            for engine, families in device.calibration.engines.items():
                if engine in engines:
                    own = {name: fit for name, fit in families.items() if name in KERNELS}
                    engines[engine] = own | engines[engine]
        for engine, families in sorted(engines.items()):
            made[f"calibrations/{device.measured_as}/{engine}.yaml"] = engine_yaml(
                dict(sorted(families.items()))
            )
    return made


def device_file(extends: str, found: Sequence[Case]) -> str:
    """A device file with these cases' calibration."""
    return f"extend: {extends}\n{block(found)}"


def block(found: Sequence[Case], hosts: Mapping[str, Mapping[str, Fitted]] = NO_HOSTS) -> str:
    """The `calibration:` of these cases and hosts, by engine; first is the device's, or has most families."""
    engines = calibration(found)
    for engine, host in hosts.items():
        engines.setdefault(engine, {}).update(host)
    known = found[0].device.calibration
    first = max(engines, key=lambda e: (known is not None and e == known.engine, len(engines[e])))
    return to_yaml(Calibration(first, engines))
