"""What an explanation of an op says: axes, amounts, limits, ways to send, its kernel, and all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmir.backends.work.basis import Basis
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.formats import Result
from llmir.base.values import Figures

from .overhead import Term


@dataclass(frozen=True)
class Axis:
    """An axis of the equation, its role and its size."""

    name: str
    role: str
    expression: str
    size: Number


@dataclass(frozen=True)
class Amount:
    """Something counted: what, whose, in symbols and as a number."""

    what: str
    role: str
    expression: str
    value: Number


@dataclass(frozen=True)
class Bound:
    """A limit on the time: `latency_s`, and `amount` at `rate` per second, a constant of the device."""

    bound: str
    what: str
    expression: str
    amount: Number
    latency_s: float
    rate: float
    time_s: float
    decides: bool
    constant: str
    source: str


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends over one link, at `rate` per second."""

    link: str
    bytes: Number
    rate: float


@dataclass(frozen=True)
class Route:
    """A way to send, and what it would take; links are busy at once."""

    name: str
    latency_s: float
    sends: tuple[Sent, ...]
    time_s: float
    fastest: bool


@dataclass(frozen=True)
class Constant:
    """A parameter of a calibrated kernel: its value, unit ("" for a ratio) and meaning."""

    name: str
    value: float
    unit: str
    meaning: str


@dataclass(frozen=True)
class Line:
    """A line of arithmetic: a formula of a kernel's parameters, of what it is given and of lines before."""

    name: str
    formula: str
    value: Number


@dataclass(frozen=True)
class Kernel(Figures):
    """The calibrated kernel that an op is a call of: whose, what it is given, and what it was fitted to.

    `lines` are what it computes there; the last is its time.
    """

    family: str
    engine: str
    device: str
    origin: str
    rows: int
    error: float
    strange: float  # what heads, or ops, that it was not fitted to add to `error`
    given: Mapping[str, Any]
    parameters: tuple[Constant, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Explanation(Figures, Result):
    """All that is known of one op in one step; sizes and costs are of one execution on one rank.

    Of a row that is no op, `terms` say what makes up its time, and it has no sizes. `share` is of the step
    of `step_time_s` on all pipeline stages together.
    """

    phase: str
    model: str
    device: str
    cost_model: str
    name: str
    opcode: str
    kind: str
    block: str
    repeat: int
    layers: str
    ir: str
    equation: str
    axes: tuple[Axis, ...]
    binding: Mapping[str, Number]
    flops: tuple[Amount, ...]
    gemms: tuple[Mapping[str, str], ...]
    reads: tuple[Amount, ...]
    writes: tuple[Amount, ...]
    sends: tuple[Amount, ...]
    routes: tuple[Route, ...]
    results: tuple[Amount, ...]
    limits: tuple[Bound, ...]
    basis: Basis
    error: float | None
    ideal_time_s: float
    kernel: Kernel | None
    time_s: float
    total_time_s: float
    share: float
    stages: int
    step_time_s: float
    terms: tuple[Term, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"basis": str(self.basis)}
