"""A program's prices as a module of another language, which needs nothing beside itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llmir.backends.request.emission import STEP, Emission, Steps
from llmir.backends.tape.languages import called, whole
from llmir.backends.tape.record import Function
from llmir.backends.work.limit import BOUNDS
from llmir.backends.work.rows import AMOUNTS
from llmir.base.arguments import MOST, choice
from llmir.ir.core.program import Program

from . import wording
from .source_code import JS, PY, Dialect

DIALECTS: Mapping[str, Dialect] = {"js": JS, "py": PY}


def emitted(emission: Emission, to: str, version: str) -> str:
    """The source of a module in JavaScript (`js`) or Python (`py`): `price` and `ops` of a step.

    `version` is that of what writes it.
    """
    return "\n".join(_parts(emission, DIALECTS[str(choice("to", to, tuple(DIALECTS)))], version))


def _parts(emission: Emission, dialect: Dialect, version: str) -> Iterator[str]:
    steps = emission.steps
    functions = [f for of in steps.values() for f in (of.step, of.times, of.amounts)]
    calls = {function: f"k{i}" for i, function in enumerate(called(functions))}
    yield "".join(f"{dialect.comment} {line}\n" for line in _head(emission, version))
    yield dialect.before
    yield dialect.data.format("about", json.dumps(_about(emission, version), indent=2))
    for function, name in calls.items():
        yield dialect.language.text(function, name, calls)
    for phase, of in steps.items():
        yield dialect.language.text(of.step, f"{phase}_whole", calls)
        yield dialect.language.text(of.times, f"{phase}_times", calls)
        yield from _amounts(phase, of.amounts, dialect, calls)
    yield dialect.steps.format(", ".join(map(dialect.step.format, steps)))
    yield dialect.data.format("rows", json.dumps({phase: _rows(of) for phase, of in steps.items()}, indent=1))
    yield dialect.after


def _amounts(phase: str, amounts: Function, dialect: Dialect, calls: Mapping[Function, str]) -> Iterator[str]:
    """What ops do, as three functions: of exact numbers, of others, and of all in order."""
    exact = whole(amounts)
    kinds = "exact", "rounded"
    places: dict[str, dict[int, int]] = {kind: {} for kind in kinds}
    order = []
    for number in amounts.outputs:
        kind = kinds[number not in exact]
        place = places[kind].setdefault(number, len(places[kind]))
        order.append(f"{kind}[{place}]")
    for kind, language in zip(kinds, (dialect.exact, dialect.language), strict=True):
        of = Function(amounts.tape, amounts.inputs, tuple(places[kind]))
        yield language.text(of, f"{phase}_{kind}", calls, alone=False)
    yield dialect.amounts.format(phase, ", ".join(order))


def _head(emission: Emission, version: str) -> Iterator[str]:
    program = emission.program
    yield f"Prices of {wording.plain(program.name)} on {wording.plain(emission.model.device.name)}"
    yield f"by llmir {version}, {emission.model.name}"
    yield "SPDX-License-Identifier: Apache-2.0"


def _about(emission: Emission, version: str) -> dict[str, Any]:
    program, model = emission.program, emission.model
    return {
        "model": program.name,
        "device": model.device.name,
        "devices": program.devices,
        "cost": model.name,
        "version": version,
        "inputs": _inputs(program),
        "units": {"_s": "seconds", "_bytes": "bytes", "flops": "FLOPs"},
        "notes": emission.notes,
        "micro_batches": program.micro_batches,
        "drafts": emission.drafts,
        "figures": STEP,
        "bounds": BOUNDS,
        "amounts": AMOUNTS,
    }


def _inputs(program: Program) -> list[dict[str, Any]]:
    """The sizes: what they are of, and from what to what."""
    if program.patches:
        said = ("batch", "images", 1, MOST), ("new", "always 1", 1, 1), ("context", "always 0", 0, 0)
    else:
        said = (
            ("batch", "sequences", 1, MOST),
            ("new", "new tokens of each", 1, MOST),
            ("context", "cached tokens of each", 0, MOST),
        )
    return [dict(zip(("name", "what", "least", "most"), each, strict=True)) for each in said]


def _rows(steps: Steps) -> list[dict[str, Any]]:
    return [{**op.fixed, "priced": op.priced, "amounts": op.amounts, "bases": op.bases} for op in steps.ops]
