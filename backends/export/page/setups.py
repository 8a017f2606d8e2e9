"""The set-ups that a page can choose from, and what it is told of each beside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llmir.backends.cost.op_time import Model
from llmir.backends.cost.registry import whose
from llmir.backends.cost.relatives import DIE
from llmir.backends.cost.typed import peak_key, rates
from llmir.backends.request.portable import Phase, RequestCode
from llmir.backends.step.precision import precision
from llmir.backends.work.basis import ROOFLINE
from llmir.backends.work.limit import BOUNDS
from llmir.backends.work.rows import AMOUNTS
from llmir.base.errors import InputError, LlmirError
from llmir.ir.core.program import Program

from .functions import Functions, Uses
from .graphs import Graphs
from .listing import Listing
from .ops import described

DEVICE, SPLIT = "device", "split"
_SPLIT = ("tp", "pp", "micro_batches", "dp", "ep", "sp", "redundant_experts", "dispatch", "routing")
_MENUS = {
    "hw": DEVICE,
    **dict.fromkeys(_SPLIT, SPLIT),
    "kv": "KV cache",
    "cost": "times",
}
_SHORT = {"micro_batches": "micro-batches", "redundant_experts": "redundant experts"}


@dataclass(frozen=True)
class Setup:
    """A program on a device, by the values of the axes that chose it; of one that cannot be, only `why`.

    `passes` are those that made it, as `run` takes them; None where they are not known.
    """

    values: Mapping[str, Any]
    program: Program | None = None
    model: Model | None = None
    why: str = ""
    passes: str | None = ""


def choices(setup: Setup, names: Mapping[str, str]) -> dict[str, str]:
    """What the page's menus say of a set-up, by menu; `names` are those of devices."""
    found: dict[str, list[str]] = {}
    for axis, value in setup.values.items():
        found.setdefault(_MENUS.get(axis, axis), []).append(_choice(axis, value, names))
    return {menu: " · ".join(filter(None, words)) or "one device" for menu, words in found.items()}


def _choice(axis: str, value: Any, names: Mapping[str, str]) -> str:
    if axis == "hw":
        return names.get(str(value), str(value))
    if axis in _SPLIT:
        plain = axis != "tp" and value in (0, 1, None)
        return "" if plain else f"{_SHORT.get(axis, axis)} {value}"
    return "as it is" if value is None else str(value)


class Tables:
    """What a page is told of set-ups; equal tables of several are one, and `functions` holds their code."""

    def __init__(self, functions: Functions | Listing) -> None:
        self.functions, self.graphs = functions, Graphs()
        self._tables: dict[str, int] = {}
        self.tables: list[Any] = []

    def setup(self, setup: Setup) -> dict[str, Any]:
        """One of them: its functions by name, tables by number, and facts."""
        assert setup.program is not None
        assert setup.model is not None
        code = RequestCode(setup.program, setup.model)
        program, model, job = setup.program, code.model, code.job
        device = model.device
        phases = {name: self._phase(phase, code) for name, phase in code.phases.items()}
        return {
            "why": "",
            "passes": setup.passes,
            "device": device.name,
            "devices": program.devices,
            "capacity": device.capacity_bytes,
            "cost": model.name,
            "whose": whose(model),
            "engine": str(model.runs) if model.runs else None,
            "precision": {k: v for k, v in precision(program).items() if v},
            "parts": program.micro_batches,
            "dp": program.parallelism.dp,
            "budget": job.budget,
            "drafts": code.drafts,
            "positions": program.facts.get("positions"),
            "hostError": model.host_error,
            "served": code.phases and next(iter(code.phases.values())).plan.host is not None,
            "prefix": [program.prefix(entry) for entry in program.entries],
            "reserves": self.functions.add(code.held),
            "counts": code.counted and self.functions.add(code.counted),
            "falls": code.falls,
            "limits": code.limits,
            "roofs": self._table(_roofs(code)),
            "rates": self._table(_rates(code, self.functions)),
            "sizes": code.sizes,
            "kin": code.kin and {**code.kin._asdict(), "others": None, "most": DIE},
            "notes": list(code.notes),
            "phases": phases,
        }

    def _phase(self, phase: Phase, code: RequestCode) -> dict[str, Any]:
        add = self.functions.add
        fixed = "name", "stage", "repeat"
        rows = [[*(op.fixed[key] for key in fixed), *op[1:]] for op in phase.ops]
        bases = (phase.bases(), *code.doubted(phase))
        return {
            "early": add(phase.early),
            "late": add(phase.late),
            "figures": add(phase.figures),
            "memory": add(phase.memory),
            "counts": phase.counts,
            "rows": self._table(rows),
            "bases": [self._table([[list(base) for base in one] for one in of]) for of in bases],
            "described": self._table(described(phase)),
            "graph": self.graphs.add(phase),
        }

    def _table(self, table: Any) -> int:
        key = repr(table)
        if key not in self._tables:
            self._tables[key] = len(self.tables)
            self.tables.append(table)
        return self._tables[key]


def _roofs(code: RequestCode) -> dict[str, Any]:
    """The device's rates: of memory, and of products in the types that are in use."""
    device = code.model.device
    peaks: dict[str, tuple[float, str]] = {}
    for phase in code.phases.values():
        for row in phase.plan.rows:
            if row.work.matrix:
                peak, unit = device.matrix_peak(row.work.dtype.unit)
                peaks[unit] = peak, peak_key(device, unit)
    said = bool(device.sources)
    return {
        "memory": device.memory_Bps,
        "memoryKind": device.memory_kind or "memory",
        "memorySource": device.source("memory_Bps") if said else "not stated",
        "peaks": [[unit, *each] for unit, each in peaks.items()],
        "peakSource": device.source("matrix_flops") if said and peaks else "not stated",
    }


def _rates(code: RequestCode, functions: Uses) -> list[dict[str, Any]]:
    """Those that its functions ask for; a link is the fastest as long as it has more than the `least`."""
    device = code.model.device
    used = functions.uses(chain.from_iterable(phase.functions for phase in code.phases.values()))
    known = {rate.key: rate for rate in rates(device)}
    found = []
    for key in used:
        of, said = known[key], device.source(key) if device.sources else "not stated"
        least = max((link.Bps for link in device.links.values() if link.Bps < of.value), default=0)
        found.append(of._asdict() | {"source": said, "least": least if key.startswith("links") else 0})
    return found


def document(
    setups: Sequence[Setup], start: Mapping[str, int], version: str
) -> tuple[dict[str, Any], Functions]:
    """All that the page is told, and the functions it calls. `start` is where its sliders stand."""
    functions = Functions()
    tables = Tables(functions)
    names = {str(s.values["hw"]): s.model.device.name for s in setups if s.model and "hw" in s.values}
    made: list[dict[str, Any]] = []
    for setup in setups:
        try:
            own: dict[str, Any] = {"why": setup.why} if setup.why else tables.setup(setup)
        except LlmirError as error:
            own = {"why": str(error)}
        made.append(own)
        own["choices"] = choices(setup, names)
        own["values"] = {k: v for k, v in setup.values.items() if v is not None}
    program = next((s.program for s, own in zip(setups, made, strict=True) if not own["why"]), None)
    if program is None:
        raise InputError(f"report: no set-up can be, such as: {made[0]['why']}")
    return {
        "version": version,
        "model": program.name,
        "architecture": program.facts.get("architecture"),
        "parameters": program.parameters,
        "bounds": BOUNDS,
        "amounts": AMOUNTS,
        "roofline": str(ROOFLINE),
        "start": dict(start),
        "setups": made,
        "rates": list(functions.told),
        "tables": tables.tables,
        "graphs": tables.graphs.all,
    }, functions
