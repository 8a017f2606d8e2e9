"""`llmir.base.dataclass` does what the standard library's does, class by class."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from llmir.base.dataclass import dataclass

Decorator = Callable[..., Any]


def classes(dataclass: Decorator) -> dict[str, Any]:
    """One of each way to be a dataclass, by the decorator."""

    @dataclass(frozen=True)
    class Empty:
        word: ClassVar[str] = "none"

    @dataclass(frozen=True)
    class One:
        x: int = 1
        note: str = field(default="", kw_only=True, compare=False)

    @dataclass(frozen=True)
    class Same(One):
        word: ClassVar[str] = "same"
        x = 5  # type: ignore[misc] # no field: the default stays

    @dataclass(frozen=True)
    class Named(One):
        def __repr__(self) -> str:
            return "named"

    @dataclass(frozen=True)
    class Alike(One):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, One) and abs(self.x - other.x) < 2

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True)
    class Checked(One):
        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("below 0")

    @dataclass(frozen=True)
    class More(Same):
        y: list[int] = field(default_factory=list, repr=False)
        z: Any = None

    @dataclass
    class Open:
        x: int = 0
        y: int = field(default=0, hash=False)

    @dataclass(frozen=True, eq=False, repr=False)
    class Bare:
        x: int = 0

    @dataclass(frozen=True)
    class Full(Bare):
        pass

    @dataclass(order=True)
    class Ordered:
        x: int = 0

    return {
        kind.__name__: kind for kind in (value for value in vars().copy().values() if inspect.isclass(value))
    }


OURS, STANDARD = classes(dataclass), classes(dataclasses.dataclass)
GIVEN = (
    {},
    {"x": 1},
    {"x": 2},
    {"x": 1, "note": "a"},
    {"x": 1, "y": [3]},
    {"y": 4},
    {"x": -1},
    {"z": 9},
    {"w": 0},
)


def outcome(run: Callable[[], Any]) -> Any:
    """What it gives, or the kind of error and its text, but for whose `__init__` it was."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error).split("__init__() ")[-1]


def made(kinds: dict[str, Any]) -> list[tuple[str, Any]]:
    found = [
        (name, outcome(lambda kind=kind, given=given: kind(**given)))
        for name, kind in kinds.items()
        for given in GIVEN
    ]
    return [(name, thing) for name, thing in found]


@pytest.mark.parametrize(
    "ask",
    [
        repr,
        dataclasses.is_dataclass,
        lambda x: hash(x) if "object at" not in repr(x) else "by identity",
        dataclasses.asdict,
        lambda x: [(f.name, f.type, f.compare, f.repr, f.kw_only) for f in dataclasses.fields(x)],
        lambda x: repr(dataclasses.replace(x, x=3)),
        lambda x: str(inspect.signature(type(x))),
        lambda x: type(x).__match_args__,
        lambda x: setattr(x, "x", 2),
        lambda x: setattr(x, "other", 2),
        lambda x: delattr(x, "x"),
        lambda x: x == copy.deepcopy(x),
        lambda x: x < copy.copy(x),
    ],
)
def test_each_answers_as_the_standard_one(ask: Callable[[Any], Any]) -> None:
    for (name, ours), (_, standard) in zip(made(OURS), made(STANDARD), strict=True):
        got, expected = outcome(lambda x=ours: ask(x)), outcome(lambda x=standard: ask(x))
        if "object at" not in str(expected):
            assert got == expected, (name, ours)


def test_they_are_equal_where_the_standard_ones_are() -> None:
    ours, standard = made(OURS), made(STANDARD)
    pairs = [(a, b) for a in range(len(ours)) for b in range(len(ours))]
    for a, b in pairs:
        assert outcome(lambda a=a, b=b: ours[a][1] == ours[b][1]) == outcome(
            lambda a=a, b=b: standard[a][1] == standard[b][1]
        ), (ours[a], ours[b])


def test_one_that_holds_itself_can_be_shown() -> None:
    thing = OURS["More"](z=[])
    thing.z.append(thing)
    assert repr(thing).endswith("z=[...])")


def test_classes_of_both_kinds_may_extend_each_other() -> None:
    @dataclasses.dataclass(frozen=True)
    class Theirs(OURS["Same"]):  # type: ignore[misc]
        w: int = 2

    @dataclass(frozen=True)
    class Again(Theirs):
        pass

    assert Again(3, 4) == Again(x=3, w=4) != Theirs(3, 4)
    assert hash(Again(3, 4)) == hash(Theirs(3, 4))
    for kind in (Theirs, Again):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'w'"):
            kind().w = 3


def test_ops_and_kernels_are_pickled_as_they_are() -> None:
    from llmir.backends.kernels.gemm import GemmKernel
    from llmir.ir.ops.elementwise import Silu

    for thing in (Silu(block="mlp"), GemmKernel()):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_an_order_that_cannot_be_is_refused_at_once() -> None:
    for decorator in (dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError, match="non-default argument 'y' follows default argument"):

            @decorator(frozen=True)
            class Wrong:
                x: int = 0
                y: int  # type: ignore[misc]

        with pytest.raises(TypeError, match="cannot inherit frozen dataclass from a non-frozen one"):

            @decorator(frozen=True)
            class Mixed(OURS["Open"]):  # type: ignore[misc]
                z: int = 0
