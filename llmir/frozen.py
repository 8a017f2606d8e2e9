"""Values that nobody can change: mappings, arrays and records that take no assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

import numpy as np

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dictionary as it was made: hashable if its values are; `dict(x)` is a copy that can be edited.

    >>> rates = FrozenDict(bf16=1.0)
    >>> rates["bf16"] = 2.0
    Traceback (most recent call last):
    ...
    TypeError: a FrozenDict is read-only; dict(...) of it is a copy that is not
    """

    __slots__ = ()

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is read-only; dict(...) of it is a copy that is not")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override] # of what cannot change
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict[K, V]:
        return self


class Immutable:
    """Takes no assignment once it is built; `__init__` puts attributes into `vars(self)`.

    A copy of it is itself.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r}: a {type(self).__name__} is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} is read-only")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class Record(Immutable):
    """What a `@dataclass(frozen=True, eq=False)` inherits to be a value through and through.

    Its fields are frozen with all that is inside them, it is equal by content and hashed once, so that it can
    key a cache, and what it has computed of itself is not pickled with it.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            vars(self)[name] = freeze(value)

    def _content(self) -> tuple[object, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type] # a dataclass

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        assert isinstance(other, Record)
        return self._content() == other._content()

    def __hash__(self) -> int:
        try:
            known: int = vars(self)["_hash"]
        except KeyError:
            known = vars(self)["_hash"] = hash(self._content())
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        named = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type] # a dataclass
        return _rebuilt, (type(self), named)


def _rebuilt(kind: type[Any], named: dict[str, Any]) -> Any:
    return kind(**named)


def freeze(value: Any) -> Any:
    """`value` with read-only copies in place of dictionaries, lists, sets and arrays, at any depth.

    >>> freeze({"a": [1, {2}]})
    {'a': (1, frozenset({2}))}
    """
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, Mapping):
        return FrozenDict((k, freeze(v)) for k, v in value.items())
    if type(value) is tuple:
        inside = tuple(map(freeze, value))
        return value if all(a is b for a, b in zip(inside, value, strict=True)) else inside
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, set):
        return frozenset(value)
    return read_only(np.array(value)) if isinstance(value, np.ndarray) else value


Array = TypeVar("Array")


def read_only(figure: Array) -> Array:
    """An array that is ours as a view that cannot be written to; anything else as it is.

    >>> read_only(np.arange(3)).flags.writeable, read_only(3)
    (False, 3)
    """
    if not isinstance(figure, np.ndarray):
        return figure
    base: Any = figure
    while isinstance(base, np.ndarray):  # a view of what can be written can be made writeable again
        base.setflags(write=False)
        base = base.base
    return figure if figure.base is not None else figure.view()
