"""Immutable values: mappings, arrays, and records that refuse assignment.

`FrozenDict` is a read-only dictionary and `Record` a frozen dataclass with immutable contents. `freeze`
copies values that a caller may still change; `seal` makes arrays of llmir read-only in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property, wraps
from typing import Any, NoReturn, TypeVar

import numpy as np

K = TypeVar("K")
V = TypeVar("V")
Array = np.ndarray[Any, np.dtype[Any]]


class FrozenDict(dict[K, V]):
    """A read-only dictionary, hashable if its values are; `dict(x)` gives an editable copy.

    >>> rates = FrozenDict(bf16=1.0)
    >>> rates["bf16"] = 2.0
    Traceback (most recent call last):
    ...
    TypeError: a FrozenDict is read-only; dict(...) makes a copy that can be edited
    """

    __slots__ = ()

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is read-only; dict(...) makes a copy that can be edited")

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
    """An object whose attributes cannot be assigned after construction; `__init__` puts attributes into
    `vars(self)`.

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


class Figures(Immutable):
    """Base class of frozen dataclasses that own read-only arrays, lists and dictionaries."""

    def __post_init__(self) -> None:
        own = {name: seal(value) for name, value in vars(self).items() if type(value) not in _FROZEN_TYPES}
        vars(self).update(own)


class Record(Immutable):
    """Base class of a `@dataclass(frozen=True, eq=False)` with deeply immutable contents.

    Its fields are frozen recursively. It compares by content and computes its hash once, so that it can key a
    cache. Cached properties are not pickled.
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
        return rebuild, (type(self), named)


def rebuild(kind: Callable[..., Any], named: dict[str, Any]) -> Any:
    """Recreate a pickled value from its class and its fields by name."""
    return kind(**named)


def freeze(value: Any) -> Any:
    """Copy dictionaries, lists, sets and arrays that a caller may still change; the copies are read-only.

    >>> freeze({"a": [1, {2}]})
    {'a': (1, frozenset({2}))}
    """
    return seal(np.array(value) if isinstance(value, np.ndarray) else value, freeze)


_FROZEN_TYPES = frozenset((str, int, float, bool, type(None), FrozenDict))


def seal(value: Any, inside: Callable[[Any], Any] | None = None) -> Any:
    """Make values that llmir owns read-only in place, without copying arrays."""
    # Most values have a type of the first set, and an `isinstance` test for mappings is the slowest step. The
    # second
    # test covers mappings that read their values from files on access.
    if type(value) in _FROZEN_TYPES or isinstance(value, Immutable):
        return value
    inside = inside or seal
    if isinstance(value, np.ndarray):
        return read_only(value)
    if isinstance(value, Mapping):
        return FrozenDict((k, inside(v)) for k, v in value.items())
    if isinstance(value, (list, set)):
        return (tuple if isinstance(value, list) else frozenset)(map(inside, value))
    if type(value) is tuple:
        parts = tuple(map(inside, value))
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return value


def read_only(array: Array) -> Array:
    """Make an array read-only and return a view that cannot be made writeable.

    >>> read_only(np.arange(3)).flags.writeable
    False
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base.setflags(write=False)
        base = base.base
    return array.view() if array.base is None else array


def figure(method: Callable[[Any], V]) -> cached_property[V]:
    """A `cached_property` whose value is read-only."""

    @wraps(method)
    def once(self: Any) -> Any:
        return seal(method(self))

    return cached_property(once)
