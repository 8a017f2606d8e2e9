"""What is recorded is what is computed: by every kernel, law, atom and schedule, to the last digits."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llmir.backends.kernels.base import KERNELS, Kernel, Shape
from llmir.backends.kernels.engine_cpu import RunShape, StepShape
from llmir.backends.kernels.gemm import SmallTileGemm, TransferBlockGemm, TransferCdnaGemm, TransferGemm
from llmir.backends.kernels.latent import CompressedShape, SharedKvShape
from llmir.backends.kernels.scan import ScanStep, UpdateShape
from llmir.backends.step.timing import Timing
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Symbol, Tape
from llmir.backends.work.network import ALGORITHMS, network_limit
from llmir.base.array_namespace import ARRAYS, SCALARS, Namespace, Number
from llmir.hw import library
from llmir.hw.device import Device
from llmir.ir.core.op import OPS
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import ATOMS, B, C, Dim, T
from llmir.ir.sizes.routing_laws import Chance, Even, GroupLimitedRouting, LocalRouting, PowerLaw, Zipf
from tests.backends.kernels.kernel_strategies import kernels

ROOT = Path(__file__).parents[3]
NUMBERS = st.floats(1e-3, 1e6) | st.integers(1, 1000)


# --- the recording -------------------------------------------------------------------------------


def draw_function(draw: st.DrawFn, xp: Namespace, given_: list[Any]) -> Any:
    """Some arithmetic on numbers, the same for each namespace that it is drawn with."""
    found = [*given_, draw(NUMBERS), draw(st.sampled_from([0, 1, 1.0, 2, 0.5]))]
    for _ in range(draw(st.integers(1, 12))):
        a, b = (draw(st.integers(0, len(found) - 1)) for _ in range(2))
        x, y = found[a], found[b]
        how = draw(st.sampled_from(["+", "*", "/", "min", "max", "where", "ceil", "cbrt", "ceildiv", "<"]))
        made = {
            "+": lambda x=x, y=y: x + y,
            "*": lambda x=x, y=y: x * y,
            "/": lambda x=x, y=y: x / (y * y + 1),
            "min": lambda x=x, y=y: xp.minimum(x, y),
            "max": lambda x=x, y=y: xp.maximum(x, y),
            "where": lambda x=x, y=y: xp.where(x < y, x, y + 1),
            "ceil": lambda x=x: xp.ceil(xp.minimum(x, 1e9)),
            "cbrt": lambda x=x: xp.cbrt(x),
            "ceildiv": lambda x=x: xp.ceildiv(xp.floor(xp.minimum(x, 1e9)), 7),
            "<": lambda x=x, y=y: (x < y) * x,
        }[how]()
        found.append(made)
    return found[-1]


@given(st.data(), NUMBERS, NUMBERS)
def test_what_is_printed_computes_what_was_recorded(data: st.DataObject, x: float, y: float) -> None:
    """Scalar text to the last bit, numpy text as numpy does it; with constants of all kinds between."""
    script: list[Any] = []

    def draw(strategy: st.SearchStrategy[Any]) -> Any:
        script.append(data.draw(strategy))
        return script[-1]

    tape = Tape(SCALARS)
    recorded = draw_function(draw, tape.namespace, [tape.symbol("x"), tape.symbol("y")])  # type: ignore[arg-type]
    function = Function.of(tape, "xy", [recorded])

    def again(xp: Namespace, *values: Any) -> Any:
        lines = iter(script)
        return draw_function(lambda _: next(lines), xp, list(values))  # type: ignore[arg-type]

    expected, (found,) = again(SCALARS, x, y), python.compiled(function)(x, y)
    assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    several = np.array([x, y, 3.0]), np.array([y, 2.0, x])
    (many,) = numpy.compiled(function, block=2)(*several)
    with np.errstate(all="ignore"):
        assert np.allclose(many, again(ARRAYS, *several), rtol=1e-14, atol=0, equal_nan=True)


def test_equal_expressions_are_one_node_and_constants_are_folded() -> None:
    tape = Tape(SCALARS)
    x, y = tape.symbol("x"), tape.symbol("y")
    xp = tape.namespace
    same = Function.of(tape, "xy", [(x + y) * (y + x)])
    assert len(same.live) == 2
    for folded, is_ in (
        (x * 1, x),
        (0 + x, x),
        (x - 0, x),
        (x / 1, x),
        (xp.minimum(x, inf), x),
        (xp.maximum(x, x), x),
        (xp.where(True, x, y), x),
        ((x > 1) & True, x > 1),
    ):
        assert isinstance(folded, Symbol)
        assert folded.number == is_.number
    assert x * 0 == 0
    assert xp.maximum(3, 4) == 4
    assert (1.0 * x).number != x.number  # it makes a float of an integer


def test_a_symbol_decides_no_branch_and_is_refused_by_what_does_not_record() -> None:
    x = Tape(SCALARS).symbol("x")
    refused: list[Callable[[], object]] = [
        lambda: bool(x),
        lambda: x if x > 1 else 0,
        lambda: float(x),  # type: ignore[arg-type]
        lambda: max(x, 1),  # type: ignore[type-var]
        lambda: np.maximum(x, 1),
        lambda: x + np.arange(3),
        lambda: x + "1",
        lambda: x + Tape(SCALARS).symbol("x"),
    ]
    for run in refused:
        with pytest.raises(TypeError):
            run()


def test_what_is_early_and_what_is_late_are_the_whole() -> None:
    tape = Tape(SCALARS)
    x, y = tape.symbol("x"), tape.symbol("y")
    function = Function.of(tape, "xy", [(x * x + 1) * y, x * x, y + 2, x > 3])
    early, late = function.parted("y")
    assert [tape.nodes[n].function for n in early.live] == ["multiply", "add", "less"]
    kept = python.compiled(early)(5)
    assert python.compiled(late)(7, *kept) == python.compiled(function)(5, 7) == (182, 25, 9, True)
    whole = numpy.compiled(late)(np.array([7.0, 8.0]), *numpy.compiled(early)(np.array([5.0, 1.0])))
    assert [list(x) for x in whole] == [[182, 16], [25, 1], [9, 10], [True, False]]


def test_a_grid_is_cut_into_blocks_that_cover_it_once() -> None:
    for shape in ((), (7,), (3, 5), (2, 1, 9), (4, 100)):
        seen = np.zeros(shape)
        for part in numpy.cut(shape, 8):
            seen[part] += 1
            assert seen[part].size <= 8
        assert (seen == 1).all()


TEXT = """
import llmir
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.ir.sizes.binding import Binding
from llmir.base.array_namespace import SCALARS
program = llmir.run(llmir.load("Qwen3-30B-A3B"), llmir.pipeline_of())
plan = llmir.analyze(program, "h100-sxm").plan
tape = Tape(SCALARS)
at = Binding(**{name: tape.symbol(name) for name in "BTC"})
function = Function.of(tape, "BTC", [plan.timing(at).step])
print(python.text(function), numpy.text(function))
"""


@pytest.mark.slow
def test_the_text_is_equal_in_every_process() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", TEXT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 10_000


def test_the_tape_imports_numpy_and_the_standard_library_alone() -> None:
    for path in (ROOT / "backends/tape").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2  # nothing of the rooms around it
                names = [] if node.level else [str(node.module)]
            asked = {"numba"} if path.name == "numba.py" and getattr(node, "col_offset", 0) else set()
            allowed = {"numpy", *asked, *sys.stdlib_module_names}
            assert {name.partition(".")[0] for name in names} <= allowed


def test_the_tape_knows_no_op_kernel_or_device_by_name() -> None:
    names = {*OPS, *KERNELS, *library.names(), *library.clusters()} - {*python.TEXT, *vars(SCALARS)}
    for path in (ROOT / "backends/tape").glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        said = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert said.isdisjoint(names), path.name


def test_every_function_of_the_namespace_has_a_text() -> None:
    assert {f.name for f in fields(Namespace)} <= set(python.TEXT)


# --- kernels -------------------------------------------------------------------------------------

CLASSES = [*dict.fromkeys(KERNELS.values()), TransferGemm, TransferBlockGemm, TransferCdnaGemm, SmallTileGemm]
WORDS = ("dtype", "ranks", "adds", "sms")  # of a mesh, a type or a mode, never of a size
RANGES = {
    "causal": st.sampled_from([0, 1, 1]),
    "window": st.sampled_from([inf, 1, 128, 4096]),
    "adds": st.booleans(),
    "ranks": st.sampled_from([2, 4, 8]),
    "cached": st.integers(0, 1 << 17),
    "new": st.integers(1, 8) | st.integers(1, 1 << 14),
    "away": st.integers(0, 1000),
    "sms": st.sampled_from([0, 24]),
    "chunk": st.sampled_from([64, 128, 256]),
    "again": st.just(0),
    "shared": st.just(0),
    "turns": st.sampled_from([1, 3, inf]),
    "dtype": st.sampled_from(["bf16", "fp32"]),
    **dict.fromkeys(
        ("x_bits", "w_bits", "y_bits", "q_bits", "kv_bits", "out_bits"), st.sampled_from([8, 16])
    ),
}
SIZES = st.sampled_from([1, 2, 63, 64, 65, 128]) | st.integers(1, 1 << 14)


@st.composite
def shapes(draw: st.DrawFn, kind: type[Shape]) -> Shape:
    if kind is RunShape:
        return RunShape(draw(shapes(StepShape)), draw(shapes(StepShape)))
    return kind(**{f.name: draw(RANGES.get(f.name, SIZES)) for f in fields(kind)})


def symbols(shape: Shape, tape: Tape, numbers: dict[str, Number], prefix: str = "") -> Shape:
    """The shape with a symbol for each size, whose numbers are told."""
    made: dict[str, Any] = {}
    for f in fields(shape):
        value, name = getattr(shape, f.name), prefix + f.name
        if isinstance(value, Shape):
            made[f.name] = symbols(value, tape, numbers, f"{name}_")
        elif f.name not in WORDS:
            made[f.name], numbers[name] = tape.symbol(name), value
        else:
            made[f.name] = value
    return type(shape)(**made)


def spread(shape: Shape, count: int) -> Shape:
    """The shape with each number as an array of so many."""
    return type(shape)(**{name: several(name, value, count) for name, value in vars(shape).items()})


def several(name: str, value: Any, count: int) -> Any:
    if isinstance(value, Shape):
        return spread(value, count)
    return value if name in WORDS else np.full(count, float(value))


def parts(kernel: type[Kernel]) -> list[tuple[str, type[Shape]]]:
    """The methods of a kernel that are times, with what each takes."""
    found = []
    for name in ("seconds", "narrow", "dispatch", "activation", "combine"):
        if hasattr(kernel, name):
            kind = get_type_hints(getattr(kernel, name))["shape"]
            found.append((name, UpdateShape if issubclass(kernel, ScanStep) else kind))
    return found


CASES = [(kernel, *part) for kernel in CLASSES for part in parts(kernel)]
CASES += [(kernel, "seconds", kind) for kernel, kind in ((KERNELS["mla_absorbed"], CompressedShape),)]
CASES += [(KERNELS["attention_prefill"], "seconds", SharedKvShape)]


def alike(kernel: Kernel, part: str, shape: Shape, device: Device) -> None:
    """What is recorded of a kernel is what it takes, as a number and as an array."""
    tape, numbers = Tape(SCALARS), dict[str, Number]()
    time = getattr(kernel, part)(device, symbols(shape, tape, numbers), tape.namespace)
    function = Function.of(tape, numbers, [time])
    (found,) = python.compiled(function)(*numbers.values())
    assert found == pytest.approx(getattr(kernel, part)(device, shape, SCALARS), rel=1e-15, abs=0)
    (many,) = numpy.compiled(function)(*(np.full(3, float(x)) for x in numbers.values()))
    first = float(getattr(kernel, part)(device, spread(shape, 3), ARRAYS)[0])
    assert many == pytest.approx(first, rel=1e-12, abs=0)


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize(("kind", "part", "takes"), CASES, ids=lambda x: getattr(x, "__name__", x))
@settings(max_examples=12, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_every_kernel_is_traceable(kind: type[Kernel], part: str, takes: Any, data: Any) -> None:
    name = "cpu" if kind.__name__.startswith("Cpu") else data.draw(st.sampled_from(("dgx-h100", "h20")))
    device = library.load("dgx-h100" if kind.__name__ == "NetworkKernel" else name)
    shape = data.draw(shapes(takes))
    assume(part != "seconds" or kind.supports(shape))
    assume(getattr(shape, "causal", 1) or getattr(shape, "cached", 1))  # who sees all sees a key
    alike(data.draw(kernels(kind)), part, shape, device)


def test_a_switch_is_made_where_hardware_makes_one_alone() -> None:
    """`where` in a kernel: CPUs copy a weight for more than a row, and cut tiles where PyTorch says.

    TensorRT-LLM has a kernel of its own for single heads, and for groups that no block holds.
    That switches add is of the mesh, which is no size.
    """
    found = {}
    for kind, part, takes in CASES:
        sizes = {f.name: 8 for f in fields(takes) if f.name not in WORDS}
        if takes is RunShape:
            sizes |= dict.fromkeys(("decode", "reads"), StepShape(1, 1, 1, 1))  # type: ignore[arg-type]
        words = {"dtype": "fp32", "ranks": 2, "adds": True, "sms": 0}
        shape = takes(**sizes, **{f.name: words[f.name] for f in fields(takes) if f.name in words})
        tape = Tape(SCALARS)
        device = library.load("cpu" if kind.__name__.startswith("Cpu") else "dgx-h100")
        time = getattr(kind(), part)(device, symbols(shape, tape, {}), tape.namespace)
        names = {of[0] for function, of in tape.nodes if function == "symbol"}
        found[kind.__name__, part] = Function.of(tape, names, [time]).count("where")
    assert {key: n for key, n in found.items() if n} == {
        ("CpuGemm", "seconds"): 1,
        ("CpuAttention", "seconds"): 4,
        ("DecodeAttention", "seconds"): 2,
    }


# --- sizes, laws, networks and schedules ---------------------------------------------------------

LAWS = [
    Chance(),
    Even(),
    GroupLimitedRouting(),
    Zipf(0.7),
    Zipf(0.0),
    PowerLaw(1.2),
    LocalRouting(8, Even()),
    LocalRouting(4, Chance()),
]
ONE = {"ceildiv": (3,), "min": (2 * C,), "max": (C,), "of_prefill": (), "of_decode": ()}
LAID = {
    "distinct": lambda law: ATOMS["distinct"].of(16, 8, B * T, 128, law),
    "routed": lambda law: ATOMS["routed"].of(B * T, 8, 128, law),
    "busiest": lambda law: ATOMS["busiest"].of(8, 8, B * T, 128, law),
    "sent": lambda law: ATOMS["sent"].of(B * T, 8, 128, law),
    "reached": lambda law: ATOMS["reached"].of(8, 8, B * T, 128, law),
}


def at_symbols(size: Any) -> Function:
    tape = Tape(SCALARS)
    return Function.of(tape, "BTC", [Binding(**{name: tape.symbol(name) for name in "BTC"})(size)])


def same(size: Any, function: Function, points: list[tuple[int, int, int]]) -> None:
    run = python.compiled(function)
    for point in points:
        assert run(*point) == (Binding(**dict(zip("BTC", point, strict=True)))(size),)
    columns = [np.array(column, dtype=float) for column in zip(*points, strict=True)]
    (many,) = numpy.compiled(function)(*columns)
    assert many == pytest.approx(Binding(**dict(zip("BTC", columns, strict=True)))(size), rel=1e-12, abs=0)


POINTS = [(1, 1, 0), (1, 1, 1), (2, 1, 63), (3, 64, 0), (8, 65, 64), (256, 1, 4096), (5, 1000, 131072)]


def test_every_atom_is_of_symbols() -> None:
    assert {*ONE, *LAID} == set(ATOMS)
    for name, others in ONE.items():
        size = ATOMS[name].of(B * T + C, *others)
        same(size, at_symbols(size), POINTS)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("name", LAID)
def test_every_law_is_of_symbols(name: str, law: Any) -> None:
    size = LAID[name](law)
    assert isinstance(size, Dim)
    same(size, at_symbols(size), POINTS)


@pytest.mark.parametrize("opcode", [*ALGORITHMS, "send"])
@pytest.mark.parametrize(("name", "ranks"), [("h100-sxm", 8), ("dgx-h100", 32), ("rtx4090", 4)])
def test_every_algorithm_of_a_network_is_of_symbols(opcode: str, name: str, ranks: int) -> None:
    limit = network_limit(
        library.load(name), opcode, 4096 * B * T, tuple(range(2 if opcode == "send" else ranks))
    )
    tape = Tape(SCALARS)
    at = Binding(**{name: tape.symbol(name) for name in "BTC"})
    run = python.compiled(Function.of(tape, "BTC", [limit.time(at)]))
    for b, t, c in POINTS:
        assert run(b, t, c) == (limit.time(Binding(B=b, T=t, C=c)),)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=5), st.integers(1, 9))
def test_every_figure_of_a_schedule_is_of_symbols(stages: list[float], micro_batches: int) -> None:
    tape = Tape(SCALARS)
    names = [f"s{i}" for i in range(len(stages))]

    def figures(timing: Timing) -> list[Number]:
        return [timing.step, timing.period, timing.interval, timing.busy, timing.bubble, *timing.bubbles]

    recorded = figures(Timing(tuple(map(tape.symbol, names)), micro_batches))
    found = python.compiled(Function.of(tape, names, recorded))(*stages)
    assert list(found) == figures(Timing(tuple(stages), micro_batches))
