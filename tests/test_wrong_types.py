"""Whatever a caller gives, wrong types and values included: an answer, or an error of llmir's own, soon."""

from __future__ import annotations

import itertools
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir import convert, hw
from llmir.build import Builder
from llmir.dim import B, Dim
from llmir.errors import InputError, LlmirError
from llmir.graph import Graph, Node, Program, Value
from llmir.mesh import Mesh
from llmir.op import OPS
from llmir.ops import make
from llmir.pipeline import PASSES, Pass, is_pass
from llmir.tensor import Tensor, parse_tensor

from .commands import TINY

SOON_S = 10  # of one call, on a machine that is busy with other work


class Odd:
    """An object that is no help."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[Any]:
        return itertools.count()


class Indexed:
    def __index__(self) -> int:
        return 2


def fresh() -> list[Any]:
    """Values of every kind, those that go on for ever among them."""
    built = Builder()
    value = built.input("bf16[B, 8]", name="x")
    return [
        *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, -(10**400), 0.5, 1.0, -0.0, 1e308),
        *(float("nan"), float("inf"), -float("inf"), 1j, Indexed(), Odd(), Odd, object(), type, len),
        *("", "x", "8", "1.5", "nan", "a b", "\0", "%", "\u2028", "x" * 5000, b"", b"fuse", "(" * 500),
        *([], [1], [[1], [1, 2]], (), (1,), ("a",), {}, {"a": 1}, {1: 2}, {"batch": 1}, set(), {1, 2}),
        *(np.int64(2), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(3), np.array([1, 2])),
        *(
            np.array([1.5]),
            np.array([np.nan, 1]),
            np.array(["a"]),
            np.array([]),
            np.zeros((2, 0)),
            np.str_("x"),
        ),
        *(np.array([object()], dtype=object), np.datetime64("2024-01-01"), range(3), range(10**9)),
        *(itertools.count(), itertools.repeat("fuse"), iter([1]), (x for x in [1]), lambda *_: 1),
        *(
            Path("x"),
            Path(),
            Exception("x"),
            NotImplemented,
            ...,
            slice(1),
            memoryview(b"x"),
            bytearray(b"x"),
        ),
        *(
            B,
            2 * B,
            value,
            Value("x", "y"),
            Value("nowhere", -5),
            parse_tensor("bf16[B]"),
            Mesh((("tp", 2),)),
        ),  # type: ignore[arg-type]
        *(PROGRAM, PROGRAM["main"], hw.load("h100-sxm"), "h100-sxm", "fuse", "bf16[B, T]", "b t h -> b t h"),
    ]


PROGRAM = llmir.run(llmir.load(TINY), llmir.DEFAULT_PIPELINE)
REPORT = llmir.analyze(PROGRAM, "h100-sxm")
NODE = PROGRAM["main"].nodes[0]
FOLDER = Path(mkdtemp())
IDS = {n.name: np.zeros((1, 1), dtype=int) for n in PROGRAM["main"].inputs}
COUNT = len(fresh())
AT = {"batch": 1, "new": 1, "context": 0, "cost": None, "engine": None, "efficiency": None}
JOB = {"batch": 1, "prompt": 8, "generate": 2, "memory_utilization": 0.9, "reserve_bytes": 0}


def built(method: str, *arguments: Any, **named: Any) -> Any:
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    arguments = tuple(x if a is NODE else a for a in arguments)
    return getattr(b, method)(*arguments, **named)


def in_block(name: Any) -> None:
    with Builder().block(name):
        pass


# A public callable by name, and arguments that it takes.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "load": (llmir.load, {"model": TINY, "logits": "last", "lenient": False}),
    "run": (llmir.run, {"program": PROGRAM, "pipeline": "fuse"}),
    "run a list": (lambda step: llmir.run(PROGRAM, ["fuse", step]), {"step": "dce"}),
    "analyze": (llmir.analyze, {"program": PROGRAM, "hw": "h100-sxm", "beside": (), **AT}),
    "analyze beside": (
        lambda part: llmir.analyze(PROGRAM, "h100-sxm", beside=[part]),
        {"part": {"batch": 2}},
    ),
    "beside a new": (lambda new: llmir.analyze(PROGRAM, "h100", beside=[{"new": new}]).time_s, {"new": 2}),
    "efficiency": (lambda x: llmir.analyze(PROGRAM, "h100", efficiency={"memory": x}), {"x": 0.5}),
    "workload": (llmir.workload, {"program": PROGRAM, "hw": "h100-sxm", **JOB, "cost": None, "engine": None}),
    "diff": (llmir.diff, {"before": PROGRAM, "after": PROGRAM, "hw": "h100-sxm", "hw_after": None, **AT}),
    "diff of requests": (
        lambda prompt, generate: llmir.diff(PROGRAM, PROGRAM, "h100", prompt=prompt, generate=generate),
        {"prompt": 8, "generate": 2},
    ),
    "diff of reports": (llmir.diff, {"before": REPORT, "after": REPORT}),
    "validate": (
        lambda file, **named: llmir.validate(file, **named),  # noqa: PLW0108 (files have no name)
        {
            "file": "x.csv",
            "program": None,
            "hw": None,
            "batch": 1,
            "engine": None,
            "cost": "ideal",
            "tell": print,
        },
    ),
    "draw": (
        lambda job, level, phase: llmir.draw(job, FOLDER / "x.dot", level=level, phase=phase),
        {"job": REPORT, "level": "layer", "phase": "both"},
    ),
    "draw to": (lambda path: llmir.draw(REPORT, path), {"path": None}),
    "save": (
        llmir.save,
        {"result": REPORT, "path": FOLDER / "x.json", "format": "json"},
    ),
    "explain": (llmir.explain, {"priced": REPORT, "op": "lm_head", "phase": "prefill"}),
    "explain a workload": (
        lambda phase: llmir.explain(llmir.workload(PROGRAM, "h100", generate=2), "lm_head", phase=phase),
        {"phase": "decode"},
    ),
    "interpret": (
        llmir.interpret,
        {"program": PROGRAM, "inputs": IDS, "weights": None, "caches": None, "context": 0},
    ),
    "interpret inputs": (
        lambda x: llmir.interpret(PROGRAM, {"ids": x, "tokens": x}),
        {"x": np.zeros((1, 1))},
    ),
    "interpret weights": (lambda x: llmir.interpret(PROGRAM, IDS, lambda *_: x), {"x": 1}),
    "interpret caches": (lambda x: llmir.interpret(PROGRAM, IDS, caches={"layers.k_cache": x}), {"x": []}),
    "equivalent": (
        lambda **named: llmir.equivalent(PROGRAM, PROGRAM, **named),
        {"batch": 1, "new": 1, "tolerance": 0.1},
    ),
    "equivalent programs": (llmir.equivalent, {"before": PROGRAM, "after": PROGRAM}),
    "check": (llmir.check, {"program": llmir.load(TINY), "against": "nowhere"}),
    "check ranks": (
        lambda **named: llmir.check(llmir.run(PROGRAM, "shard{tp=2}"), PROGRAM, **named),
        {"batch": 2, "new": 2},
    ),
    "parse_program": (llmir.parse_program, {"text": "graph @main {\n}"}),
    "print_program": (llmir.print_program, {"program": PROGRAM}),
    "Graph": (Graph, {"name": "g", "nodes": PROGRAM["main"].nodes, "outputs": ()}),
    "Graph.type": (PROGRAM["main"].type, {"value": NODE.values[0]}),
    "Graph[]": (PROGRAM["main"].__getitem__, {"name": NODE.name}),
    "Program": (
        Program,
        {
            "name": "p",
            "graphs": PROGRAM.graphs,
            "entries": ("main",),
            "mesh": Mesh(),
            "facts": {},
            "notes": (),
        },
    ),
    "Program.replace": (PROGRAM.replace, {"micro_batches": 1, "entries": ("main",)}),
    "Program[]": (PROGRAM.__getitem__, {"name": "main"}),
    "analyze a program": (
        lambda **named: llmir.analyze(Program("p", PROGRAM.graphs, **named), "h100-sxm").time_s,
        {"entries": ("main",), "mesh": Mesh(), "facts": {}, "micro_batches": 1},
    ),
    "Node": (Node, {"name": "n", "op": NODE.op, "operands": (), "results": ()}),
    "Mesh": (Mesh, {"axes": (("tp", 2),)}),
    "Mesh of": (lambda name, size: Mesh(((name, size),)), {"name": "tp", "size": 2}),
    "Tensor": (
        lambda **named: Tensor(dtype=parse_tensor("bf16[1]").dtype, **named),
        {"shape": (2,)},
    ),
    "Builder": (Builder, {"name": "main", "known": None}),
    "Builder.block": (in_block, {"name": "mlp"}),
    "Builder.input": (lambda **n: built("input", **n), {"type": "bf16[B]", "name": "y", "axes": ("batch",)}),
    "Builder.weight": (
        lambda **n: built("weight", **n),
        {"type": "bf16[8]", "name": "y", "axes": (), "param": ""},
    ),
    "Builder.cache": (lambda **n: built("cache", **n), {"type": "bf16[B, C]", "name": "y", "axes": ()}),
    "Builder.apply": (
        lambda op, x, name: built("apply", op, x, name=name),
        {"op": make("silu"), "x": NODE, "name": ""},
    ),
    "Builder.output": (lambda x: built("output", x), {"x": NODE}),
    "Builder.type": (lambda x: built("type", x), {"x": NODE}),
    "Builder.node": (lambda x: built("node", x), {"x": "x"}),
    "Builder.insert": (lambda x: built("insert", x), {"x": NODE}),
    "hw.load": (hw.load, {"device": "h100-sxm"}),
    "hw.cluster": (hw.cluster, {"name": "dgx-h100"}),
    "hw.engine": (hw.engine, {"name": "vllm"}),
}
OPTIONS = [(kind, f.name) for kind in PASSES.values() if is_pass(kind) for f in fields(kind)]


@contextmanager
def soon() -> Iterator[None]:
    """TimeoutError in what takes too long, so that a test ends that would not."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {SOON_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SOON_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def survives(call: Callable[[], Any]) -> None:
    """It gives an answer, or one line of llmir's."""
    with soon(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except LlmirError as error:
            assert "\n" not in str(error)


def passed_over(name: str, argument: str, value: object) -> bool:
    """Where a file would be written, or a caller's own function is run, which may raise what it will."""
    written = (name, argument) in (("draw to", "path"), ("save", "path")) and isinstance(value, (str, Path))
    return written or (callable(value) and (name.startswith("run") or argument == "weights"))


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_call_with_wrong_arguments(name: str, data: st.DataObject) -> None:
    call, usual = CALLS[name]
    wrong = data.draw(st.sets(st.sampled_from(sorted(usual)), min_size=1, max_size=2))
    named = dict(usual)
    for argument in wrong:
        value = fresh()[data.draw(st.integers(0, COUNT - 1), label=argument)]
        if not passed_over(name, argument, value):
            named[argument] = value
    survives(lambda: call(**named))


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, (_, usual) in CALLS.items() for a in usual])
def test_each_argument_and_each_wrong_value(name: str, argument: str) -> None:
    call, usual = CALLS[name]
    for i, value in enumerate(fresh()):
        if passed_over(name, argument, value):
            continue
        try:
            survives(lambda value=value: call(**{**usual, argument: value}))  # type: ignore[misc]
        except Exception as error:
            what = f"{argument}: value {i} of fresh(), {convert.shown(value)}"
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=[f"{k.name}-{n}" for k, n in OPTIONS])
def test_each_option_of_a_pass_and_each_wrong_value(kind: type[Pass], name: str) -> None:
    for value in fresh():
        survives(lambda value=value: llmir.run(PROGRAM, kind(**{name: value})))  # type: ignore[misc]
        shown = convert.shown(value)
        survives(lambda shown=shown: llmir.run(PROGRAM, f"{kind.name}{{{name}={shown}}}"))  # type: ignore[misc]


@pytest.mark.parametrize("opcode", sorted(OPS))
@settings(max_examples=25)
@given(data=st.data())
def test_an_op_with_wrong_attributes_and_operands(opcode: str, data: st.DataObject) -> None:
    values = fresh()
    names = [f.name for f in fields(OPS[opcode])]
    drawn = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, COUNT - 1), max_size=4))
    b = Builder()
    types = data.draw(st.lists(st.sampled_from(("bf16[B, T, 8]", "fp8_e4m3[8, 4]", "int64[B]")), max_size=4))
    operands = [b.input(t, name=f"x{i}") for i, t in enumerate(types)]
    survives(lambda: b.apply(make(opcode, **{n: values[i] for n, i in drawn.items()}), *operands))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (lambda: convert.integer("n", np.int8(3)), 3),
        (lambda: convert.integer("n", np.array(3)), 3),
        (lambda: convert.number("n", np.float32(0.5)), 0.5),
        (lambda: convert.number("n", 3), 3.0),
        (lambda: convert.flag("n", np.bool_(True)), True),
        (lambda: convert.text("n", np.str_("x")), "x"),
        (lambda: convert.choice("n", True, (0, 1)), 1),
        (lambda: convert.path("n", "x"), Path("x")),
        (lambda: convert.items("n", (i for i in range(3)), "numbers"), (0, 1, 2)),
    ],
)
def test_what_is_right_comes_back_as_pythons_own(given_: Callable[[], Any], expected: object) -> None:
    found = given_()
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: convert.integer("n", 1.0), "n: expected an integer from 0 to 2**48, got 1.0"),
        (lambda: convert.integer("n", True, 1, 9), "n: expected an integer from 1 to 9, got True"),
        (lambda: convert.number("n", float("nan")), "n: expected a number of at least 0, got nan"),
        (lambda: convert.number("n", 2, 0, 1, above=True), "n: expected a number above 0 and up to 1, got 2"),
        (lambda: convert.number("n", True), "n: expected a number of at least 0, got True"),
        (
            lambda: convert.choice("n", "flsh", ("flash", "eager")),
            "expected flash or eager, got 'flsh'; did you mean",
        ),
        (lambda: convert.counts("n", [1, 2.5]), "n: expected integers from 0 to 2**48, got [1, 2.5]"),
        (lambda: convert.items("n", "abc", "names"), "n: expected a list of names, got 'abc'"),
        (lambda: convert.path("n", 5), "n: expected the name of a file, got 5"),
        (lambda: convert.text("n", Odd()), "n: expected text, got <Odd instance"),
    ],
)
def test_what_is_wrong_is_named(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("option", "value"), [("tp", "1.5"), ("tp", "0"), ("dp", "true"), ("ep", "nan"), ("sp", "2")]
)
def test_an_option_has_one_error_in_python_and_in_a_pipeline(option: str, value: str) -> None:
    said = []
    for call in (
        lambda: PASSES["shard"](**{option: convert.read(value)}),
        lambda: llmir.run(PROGRAM, f"shard{{{option}={value}}}"),
    ):  # type: ignore[arg-type, call-arg]
        with pytest.raises(LlmirError) as error:
            call()
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"shard: {option}: expected ")


def test_sizes_are_no_fractions() -> None:
    assert isinstance(B, Dim)
    with pytest.raises(TypeError):
        B * 2.0  # type: ignore[operator]  # the mistake that is tested
