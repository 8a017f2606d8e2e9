"""Whatever a caller gives, wrong types and values included: an answer, or an error of llmir's own, soon."""

from __future__ import annotations

import inspect
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.base import arguments as convert
from llmir.base.errors import LlmirError
from llmir.hw import library
from llmir.ir.core.op import OPS
from llmir.ir.core.program import Program
from llmir.ir.ops import make
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import PASSES, Pass, is_pass

from . import decision_calls, plot_calls  # noqa: F401  (add to these)
from .public_calls import CALLS, COUNT, EXPERTS, GIVEN_BACK, PROGRAM, fresh, passed_over

SOON_S = 10  # of one call, on a machine that is busy with other work
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


def public() -> Iterator[tuple[str, set[str]]]:
    """What callers can call, and the names of its arguments; of `hw` its functions."""
    things = {name: getattr(llmir, name) for name in llmir.__all__}
    things |= {
        f"hw.{name}": thing for name in library.__all__ if inspect.isfunction(thing := getattr(library, name))
    }
    for name, thing in things.items():
        if callable(thing):
            yield name, GIVEN_BACK[name] if name in GIVEN_BACK else {*inspect.signature(thing).parameters}


@pytest.mark.parametrize(("name", "arguments"), [*public()])
def test_every_argument_of_everything_public_is_tried(name: str, arguments: set[str]) -> None:
    tried = {a for call, (_, usual) in CALLS.items() if call.split()[0] == name for a in usual}
    assert arguments <= tried


@pytest.mark.mostly_slow(11)
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


@pytest.mark.mostly_slow(17)
@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, (_, usual) in CALLS.items() for a in usual])
def test_each_argument_and_each_wrong_value(name: str, argument: str) -> None:
    call, usual = CALLS[name]
    for i, value in enumerate(fresh()):
        if passed_over(name, argument, value):
            continue
        try:
            survives(lambda value=value: call(**{**usual, argument: value}))  # type: ignore[misc]
        except Exception as error:
            what = f"{argument}: value {i} of fresh(), {convert.show_value(value)}"
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("program", [PROGRAM, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=[f"{k.name}-{n}" for k, n in OPTIONS])
def test_each_option_of_a_pass_and_each_wrong_value(kind: type[Pass], name: str, program: Program) -> None:
    for value in fresh():
        survives(lambda value=value: llmir.run(program, kind(**{name: value})))  # type: ignore[misc]
        shown = convert.show_value(value)
        survives(lambda shown=shown: llmir.run(program, f"{kind.name}{{{name}={shown}}}"))  # type: ignore[misc]


@pytest.mark.mostly_slow(11)
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
