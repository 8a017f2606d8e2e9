"""`dataclass`, as the standard library's, but quick to define: that of hundreds was most of a start.

The standard one writes six methods of each class as text and compiles them. Of those, comparison, hash and
representation can be functions over names, and a class that adds no fields to its only base needs no method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import get_annotations
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, eq=True, repr=True, frozen=False, **options):
        """`dataclasses.dataclass`, with all its options and results."""

        def make(kind: type) -> type:
            if options.get("order") or options.get("unsafe_hash"):  # of which llmir has none
                return dataclasses.dataclass(kind, eq=eq, repr=repr, frozen=frozen, **options)
            own = dict(vars(kind))
            if frozen and not options and _adds_nothing(kind):
                kind.__setattr__, kind.__delattr__ = _refusals(kind)
            else:
                kind = dataclasses.dataclass(kind, eq=False, repr=False, frozen=frozen, **options)
            fields = dataclasses.fields(kind)
            if repr and "__repr__" not in own:
                kind.__repr__ = _representation([f.name for f in fields if f.repr])
            if eq:
                same, hashed = _comparison([f.name for f in fields if f.compare])
                if "__eq__" not in own:
                    kind.__eq__ = same
                stated = "__eq__" in own and own.get("__hash__") is None  # Python's own, of a stated `__eq__`
                if stated or "__hash__" not in own:
                    kind.__hash__ = hashed if frozen else None
            return kind

        return make if cls is None else make(cls)


def _adds_nothing(kind: type) -> bool:
    """Whether its only base is a frozen dataclass with all of its fields, so that it is built as that is."""
    (base, *others), own = kind.__bases__, vars(kind)
    return (
        not others
        and dataclasses.is_dataclass(base)
        and base.__setattr__ is not object.__setattr__
        and not {"__init__", "__post_init__", "__setattr__", "__delattr__"} & own.keys()
        and all(type(said) is str and said.startswith("ClassVar[") for said in get_annotations(kind).values())
    )


def _refusals(kind: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """What takes no assignment to one of this very class, and leaves others to their own."""

    def refuse(name: str, what: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is kind:
            refuse(name, "assign to")
        super(kind, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is kind:
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
    """Whether two of one class have the same in these fields, and the hash of what is in them."""
    values = _values(names)

    def same(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return same, hashed


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads the attributes of these names, as a tuple."""
    if not names:
        return lambda thing: ()
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda thing: (read(thing),)
