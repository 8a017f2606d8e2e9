"""A `dataclass` decorator with the results of the standard one, but faster to define.

The standard decorator writes and compiles six methods for each class, which took most of the start-up time.
Here only `__init__` of a frozen class is compiled, when its first instance is made; the other methods are
closures over the field names. A frozen class that adds no fields to its only base compiles nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from inspect import get_annotations, signature
from itertools import pairwise
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

_FROZEN_PARAMS: Any = vars(dataclasses.dataclass(frozen=True, eq=False, repr=False)(type("Frozen", (), {})))[
    "__dataclass_params__"
]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, eq=True, repr=True, frozen=False, **options):
        """`dataclasses.dataclass`, with all its options and results."""

        def make(kind: type) -> type:
            if options.get("order") or options.get("unsafe_hash"):  # llmir uses neither
                return dataclasses.dataclass(kind, eq=eq, repr=repr, frozen=frozen, **options)
            own = dict(vars(kind))
            if frozen and not options and _adds_nothing(kind):
                kind.__setattr__, kind.__delattr__ = _refusals(kind, frozenset())
            elif frozen and not options and _is_plain(kind):
                _define(kind)
            else:
                kind = dataclasses.dataclass(kind, eq=False, repr=False, frozen=frozen, **options)
            fields = dataclasses.fields(kind)
            if repr and "__repr__" not in own:
                kind.__repr__ = _representation([f.name for f in fields if f.repr])
            if eq:
                same, hashed = _comparison([f.name for f in fields if f.compare])
                if "__eq__" not in own:
                    kind.__eq__ = same
                stated = (
                    "__eq__" in own and own.get("__hash__") is None
                )  # the `__hash__` that Python sets for a class with `__eq__`
                if stated or "__hash__" not in own:
                    kind.__hash__ = hashed if frozen else None
            return kind

        return make if cls is None else make(cls)


def _adds_nothing(kind: type) -> bool:
    """Whether its only base is a frozen dataclass that has all of its fields, so that both can be built in
    the same way.
    """
    (base, *others), own = kind.__bases__, vars(kind)
    return (
        not others
        and dataclasses.is_dataclass(base)
        and base.__setattr__ is not object.__setattr__
        and not {"__init__", "__post_init__", "__setattr__", "__delattr__"} & own.keys()
        and all(type(said) is str and said.startswith("ClassVar[") for said in get_annotations(kind).values())
    )


def _is_plain(kind: Any) -> bool:
    """Whether all bases are frozen and the class contains only fields."""
    params = [vars(base).get("__dataclass_params__") for base in kind.__mro__[1:]]
    stated = {"__setattr__", "__delattr__"} & vars(kind).keys()
    hidden = any("InitVar" in str(said) for said in get_annotations(kind).values())
    return all(each is None or each.frozen for each in params) and not stated and not hidden


def _define(kind: Any) -> None:
    """Make a class a frozen dataclass with the standard library's fields, read from a copy of the class."""
    own = get_annotations(kind)
    said = {name: value for name, value in vars(kind).items() if isinstance(value, dataclasses.Field)}
    said |= {name: getattr(kind, name) for name in own if hasattr(kind, name)}
    about = {"__annotations__": own, "__module__": kind.__module__, "__doc__": kind.__name__}
    alone: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type("Alone", (), {**said, **about}))
    merged: dict[str, Any] = {}
    for base in reversed(kind.__mro__[1:]):
        merged |= vars(base).get("__dataclass_fields__", {})
    kind.__dataclass_fields__ = {**merged, **alone.__dataclass_fields__}
    kind.__dataclass_params__ = _FROZEN_PARAMS
    for name, value in said.items():
        if isinstance(value, dataclasses.Field):
            if value.default is not MISSING:
                setattr(kind, name, value.default)
            elif name in vars(kind):
                delattr(kind, name)
    fields = dataclasses.fields(kind)
    _check_order(fields)
    if "__match_args__" not in vars(kind):
        places = tuple(f.name for f in fields if f.init and not f.kw_only)
        kind.__match_args__ = places  # type: ignore[misc]
    if replace := vars(alone).get("__replace__"):  # Python 3.13 and later
        kind.__replace__ = replace
    if "__init__" not in vars(kind):
        kind.__init__ = _Init(kind, fields)
    kind.__setattr__, kind.__delattr__ = _refusals(kind, frozenset(f.name for f in fields))
    if not kind.__doc__:
        kind.__doc__ = kind.__name__ + str(signature(kind)).replace(" -> None", "")


def _check_order(fields: Sequence[dataclasses.Field[Any]]) -> None:
    stated = [f for f in fields if f.init and not f.kw_only]
    for before, f in pairwise(stated):
        if _needed(f) and not _needed(before):
            raise TypeError(f"non-default argument {f.name!r} follows default argument")


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


class _Init:
    """The `__init__` of a class, compiled on first access."""

    def __init__(self, kind: Any, fields: Sequence[dataclasses.Field[Any]]) -> None:
        self.kind, self.fields = kind, fields

    def __get__(self, thing: Any, owner: Any = None) -> Any:
        self.kind.__init__ = run = _compiled(self.kind, self.fields)
        return run.__get__(thing, owner)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


def _compiled(kind: Any, fields: Sequence[dataclasses.Field[Any]]) -> Any:
    """Compile an `__init__` that sets the fields and calls `__post_init__`."""
    me = "self" if all(f.name != "self" for f in fields) else "__self"
    names: dict[str, Any] = {"__set": object.__setattr__, "__factory": _Factory()}
    given: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for f in fields:
        value, made = f.name, f.default_factory is not MISSING
        if made:
            names[f"__make_{f.name}"] = f.default_factory
            value = (
                f"__make_{f.name}() if {f.name} is __factory else {f.name}"
                if f.init
                else f"__make_{f.name}()"
            )
        if f.init:
            names[f"__default_{f.name}"] = f.default
            default = "=__factory" if made else "" if f.default is MISSING else f"=__default_{f.name}"
            given[bool(f.kw_only)].append(f.name + default)
        if f.init or made:
            lines.append(f" __set({me}, {f.name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append(f" {me}.__post_init__()")
    last = ["*", *given[True]] if given[True] else []
    exec("\n".join([f"def __init__({', '.join([me, *given[False], *last])}):", *(lines or [" pass"])]), names)
    run = names["__init__"]
    run.__qualname__, run.__module__ = f"{kind.__qualname__}.__init__", kind.__module__
    run.__annotations__ = {**{f.name: f.type for f in fields if f.init}, "return": None}
    return run


def _refusals(kind: Any, fields: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Methods that refuse assignment and deletion for exactly this class or for these fields, and otherwise
    call the base.
    """

    def refuse(name: str, what: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is kind or name in fields:
            refuse(name, "assign to")
        super(kind, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is kind or name in fields:
            refuse(name, "delete")
        super(kind, self).__delattr__(name)

    return assign, delete


def _representation(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def representation(self: Any) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({fields})"

    return representation


def _comparison(names: list[str]) -> tuple[Callable[[Any, object], Any], Callable[[Any], int]]:
    """Equality of two instances of a class by these fields, and the hash of their values."""
    values = _values(names)

    def same(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return same, hashed


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes as a tuple."""
    if not names:
        return lambda thing: ()
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda thing: (read(thing),)
