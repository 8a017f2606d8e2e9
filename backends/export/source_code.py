"""The modules that `llmir emit` writes: a program's time and ops as JavaScript or Python source.

`SourceDialect` contains the text around the printed functions; `JS` and `PY` are its instances. `emit_source`
returns a module with the functions `price` and `ops` of a step; the module needs no other module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llmir.backends.request.portable import STEP, PortableProgram, PortableSteps
from llmir.backends.tape.languages import (
    BIGINT,
    JAVASCRIPT,
    PYTHON,
    Language,
    called_functions,
    integer_outputs,
)
from llmir.backends.tape.record import Function
from llmir.backends.work.rows import AMOUNTS, BOUNDS
from llmir.base.arguments import MOST, choice
from llmir.ir.core.program import Program

from . import wording

# Dialects of JavaScript and Python


class SourceDialect(NamedTuple):
    """A language, the language for its exact counts, and the other text of a module.

    `data` is a JSON constant. `amounts` is a function that joins exact and rounded amounts in order. `steps`
    are the functions of each phase, and `step` is one of them.
    """

    language: Language
    exact: Language
    comment: str
    before: str
    data: str
    amounts: str
    steps: str
    step: str
    after: str


JS = SourceDialect(
    JAVASCRIPT,
    BIGINT,
    "//",
    before="""\
const { ceil, floor, sqrt, cbrt, hypot, expm1, abs } = Math;

function floordiv(a, b) {
  const q = a / b;
  return q * b !== a && a < 0n !== b < 0n ? q - 1n : q;
}

function ceildiv(a, b) {
  return -floordiv(-a, b);
}

function absolute(a) {
  return a < 0n ? -a : a;
}
""",
    data="export const {} = {};\n",
    amounts="""\
function {0}_amounts(B, T, C) {{
  const exact = {0}_exact(BigInt(B), BigInt(T), BigInt(C)), rounded = {0}_rounded(B, T, C);
  return [{1}];
}}
""",
    steps="const steps = {{ {} }};\n",
    step="{0}: {{ whole: {0}_whole, times: {0}_times, amounts: {0}_amounts }}",
    after="""\
function sizes(batch, fresh, context) {
  [batch, fresh, context].forEach((size, i) => {
    const { name, least, most } = about.inputs[i];
    if (!Number.isInteger(size) || size < least || size > most) {
      throw new RangeError(`${name}: expected a whole number from ${least} to ${most}, got ${size}`);
    }
  });
  const parts = about.micro_batches;
  if (batch % parts) {
    throw new RangeError(`batch: expected a multiple of the ${parts} micro-batches, got ${batch}`);
  }
  return [batch / parts, fresh, context];
}

function phase(fresh, context) {
  const [first, second] = Object.keys(steps);
  return fresh === 1 || (fresh <= about.drafts && context > 0) ? first : second ?? first;
}

// One step: `batch` sequences with so many new tokens each, after `context` cached ones; seconds and bytes.
export function price(batch = 1, fresh = 1, context = 0) {
  const found = steps[phase(fresh, context)].whole(...sizes(batch, fresh, context));
  return Object.fromEntries(about.figures.map((name, i) => [name, found[i]]));
}

// Its ops: one run of each on one rank, of `repeat`. Amounts that are exact are BigInt.
export function ops(batch = 1, fresh = 1, context = 0) {
  const at = sizes(batch, fresh, context), name = phase(fresh, context);
  const times = steps[name].times(...at), amounts = steps[name].amounts(...at);
  return rows[name].map(({ priced, amounts: first, bases, ...row }) => {
    const [time_s, bound, ideal_time_s, which] = times.slice(priced, priced + 4);
    const [basis, error] = bases[which];
    const own = about.amounts.map((amount, i) => [amount, amounts[first + i]]);
    const made = { time_s, ideal_time_s, bound: about.bounds[bound], basis, error };
    return { ...row, ...made, ...Object.fromEntries(own) };
  });
}
""",
)
PY = SourceDialect(
    PYTHON,
    PYTHON,
    "#",
    before="""\
import math
from math import ceil, expm1, floor, hypot, inf, sqrt

cbrt = getattr(math, "cbrt", lambda a: a ** (1 / 3))
null, true, false = None, True, False

""",
    data="{} = {}\n",
    amounts="""\
def {0}_amounts(B, T, C):
    exact, rounded = {0}_exact(B, T, C), {0}_rounded(B, T, C)
    return ({1})

""",
    steps="steps = {{{}}}\n\n",
    step='"{0}": ({0}_whole, {0}_times, {0}_amounts)',
    after='''\
def _sizes(batch, new, context):
    for of, size in zip(about["inputs"], (batch, new, context)):
        if type(size) is not int or not of["least"] <= size <= of["most"]:
            allowed = f"a whole number from {of['least']} to {of['most']}"
            raise ValueError(f"{of['name']}: expected {allowed}, got {size}")
    parts = about["micro_batches"]
    if batch % parts:
        raise ValueError(f"batch: expected a multiple of the {parts} micro-batches, got {batch}")
    return batch // parts, new, context


def _phase(new, context):
    first, *others = steps
    return first if not others or new == 1 or (new <= about["drafts"] and context) else others[0]


def price(batch=1, new=1, context=0):
    """One step: so many new tokens of each sequence, after `context` cached ones; seconds and bytes."""
    whole, _, _ = steps[_phase(new, context)]
    return dict(zip(about["figures"], whole(*_sizes(batch, new, context))))


def ops(batch=1, new=1, context=0):
    """Its ops: one run of each on one rank, of `repeat`."""
    at, phase = _sizes(batch, new, context), _phase(new, context)
    _, times, amounts = steps[phase]
    times, amounts = times(*at), amounts(*at)
    found = []
    for row in rows[phase]:
        first = row["priced"]
        time_s, bound, ideal_time_s, which = times[first : first + 4]
        basis, error = row["bases"][which]
        made = {"time_s": time_s, "ideal_time_s": ideal_time_s, "bound": about["bounds"][bound]}
        own = zip(about["amounts"], amounts[row["amounts"] :])
        fixed = {name: row[name] for name in row if name not in ("priced", "amounts", "bases")}
        found.append({**fixed, **made, "basis": basis, "error": error, **dict(own)})
    return found
''',
)


# Modules

DIALECTS: Mapping[str, SourceDialect] = {"js": JS, "py": PY}


def emit_source(emission: PortableProgram, to: str, version: str) -> str:
    """The source of a module in JavaScript (`js`) or Python (`py`): `price` and `ops` of a step.

    `version` is the version of llmir.
    """
    return "\n".join(_parts(emission, DIALECTS[str(choice("to", to, tuple(DIALECTS)))], version))


def _parts(emission: PortableProgram, dialect: SourceDialect, version: str) -> Iterator[str]:
    steps = emission.steps
    functions = [f for of in steps.values() for f in (of.step, of.times, of.amounts)]
    calls = {function: f"k{i}" for i, function in enumerate(called_functions(functions))}
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


def _amounts(
    phase: str, amounts: Function, dialect: SourceDialect, calls: Mapping[Function, str]
) -> Iterator[str]:
    """The amounts of ops as three functions: exact amounts, rounded amounts, and all amounts in order."""
    exact = integer_outputs(amounts)
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


def _head(emission: PortableProgram, version: str) -> Iterator[str]:
    program = emission.program
    yield f"Prices of {wording.plain(program.name)} on {wording.plain(emission.model.device.name)}"
    yield f"by llmir {version}, {emission.model.name}"
    yield "SPDX-License-Identifier: Apache-2.0"


def _about(emission: PortableProgram, version: str) -> dict[str, Any]:
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
    """The sizes: their meaning and their ranges."""
    if program.patches:
        said = ("batch", "images", 1, MOST), ("new", "always 1", 1, 1), ("context", "always 0", 0, 0)
    else:
        said = (
            ("batch", "sequences", 1, MOST),
            ("new", "new tokens of each", 1, MOST),
            ("context", "cached tokens of each", 0, MOST),
        )
    return [dict(zip(("name", "what", "least", "most"), each, strict=True)) for each in said]


def _rows(steps: PortableSteps) -> list[dict[str, Any]]:
    return [{**op.fixed, "priced": op.priced, "amounts": op.amounts, "bases": op.bases} for op in steps.ops]
