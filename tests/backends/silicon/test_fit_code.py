"""Kernels as code of their parameters: to the last digits what they are as functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llmir.backends.kernels.base import Call, Kernel, Shape, parameters, stack_shapes
from llmir.backends.kernels.collective import AllReduceKernel, CollectiveShape
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.backends.silicon.calibrate import cases as module
from llmir.backends.silicon.calibrate.cases import CompiledRowTimes, RowTimes, RowTimeTerm, compile_term
from llmir.hw import library
from tests.backends.kernels.kernel_strategies import kernels
from tests.backends.tape.test_tape import CASES, shapes

ROWS = 5


def choices(kernel: Kernel) -> Mapping[str, float]:
    return {p.name: getattr(kernel, p.name) for p in parameters(type(kernel)) if p.choices}


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
    ("kind", "part", "takes"),
    [case for case in CASES if case[2] is not CollectiveShape],
    ids=lambda x: getattr(x, "__name__", x),
)
@settings(max_examples=6)
@given(data=st.data())
def test_kernels_are_the_same_as_code(kind: type[Kernel], part: str, takes: Any, data: Any) -> None:
    """At parameters that the code was not made for, the choices of its build being the same."""
    name = "cpu" if kind.__name__.startswith("Cpu") else data.draw(st.sampled_from(("dgx-h100", "h20")))
    device = library.load("dgx-h100" if kind.__name__ == "NetworkKernel" else name)
    first = data.draw(shapes(takes))
    some = [first, *(data.draw(shapes(takes)) for _ in range(ROWS - 1))]
    assume(all(getattr(shape, "causal", 1) or getattr(shape, "cached", 1) for shape in some))
    words = {name: value for name, value in vars(first).items() if isinstance(value, (str, bool))}
    same = ("ranks", "sms")  # of one mesh and one mode
    words |= {name: value for name, value in vars(first).items() if name in same}
    shape = stack_shapes([replace(one, **words).spread(1) if not nested(one) else one for one in some])
    least = np.array([1e-9] * (ROWS - 1) + [1.0])
    term = RowTimeTerm("family", Call(("family",), shape, part), least, np.arange(ROWS))
    kernel = data.draw(kernels(kind))
    run = compile_term(term, kind, choices(kernel), device)
    for one in (kernel, replace(data.draw(kernels(kind)), **choices(kernel))):
        assert run(one) == pytest.approx(term.seconds(one, device), rel=1e-12, abs=0)


def nested(shape: Shape) -> bool:
    return any(isinstance(value, Shape) for value in vars(shape).values())


def test_a_clock_is_code_from_many_rows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sizes = library.load("h100-sxm"), 2.0 ** np.arange(4, 14)
    shape = GemmShape(sizes, sizes[::-1], 4096).spread(len(sizes))
    term = RowTimeTerm("gemm", Call(("gemm",), shape), np.zeros(len(sizes)), np.arange(len(sizes)))
    clock = RowTimes(device, (term,), len(sizes))
    asked: list[int] = []
    seconds = RowTimeTerm.seconds

    def counted(self: RowTimeTerm, kernel: Kernel, device: Any) -> Any:
        asked.append(1)
        return seconds(self, kernel, device)

    monkeypatch.setattr(RowTimeTerm, "seconds", counted)
    known = clock.seconds({"gemm": GemmKernel(tail=0.7)}, counted)
    for many, calls in ((len(sizes) + 1, 2), (len(sizes), 2)):
        monkeypatch.setattr(module, "MANY", many)
        assert CompiledRowTimes(clock)({"gemm": GemmKernel(tail=0.7)}) == pytest.approx(
            known, rel=1e-15, abs=0
        )
        assert len(asked) == calls


def test_what_no_symbol_goes_through_stays_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are looked up among the links of a device."""
    monkeypatch.setattr(module, "MANY", 1)
    shape = CollectiveShape(np.array([1e6, 1e6]), np.array([2.0, 4.0]))
    term = RowTimeTerm("sum", Call(("sum",), shape), np.zeros(2), np.arange(2))
    clock = RowTimes(library.load("h100-sxm"), (term,), 2)
    kernel = {"sum": AllReduceKernel()}
    assert (CompiledRowTimes(clock)(kernel) == clock.seconds(kernel)).all()
