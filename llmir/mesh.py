"""The devices a program runs on, as named axes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from .errors import VerifyError


@dataclass(frozen=True)
class Mesh:
    """Named axes with their sizes, such as `(("dp", 2), ("tp", 8))`; none for one device.

    Devices are numbered with the first axis outermost.

    >>> Mesh((("dp", 2), ("tp", 8))).devices
    16
    """

    axes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple((name, size) for name, size in self.axes))
        if len({name for name, _ in self.axes}) != len(self.axes):
            raise VerifyError(f"mesh {self}: two axes have the same name")
        if not all(re.fullmatch(r"\w+", name) for name, _ in self.axes):
            raise VerifyError(f"mesh {self}: axes are named in letters and digits")
        if any(size < 1 for _, size in self.axes):
            raise VerifyError(f"mesh {self}: each axis needs at least one device")

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return prod(size for _, size in self.axes)

    def atoms(self, name: str) -> tuple[str, ...]:
        """The axes `name0`, `name1`, … whose product is the degree of parallelism `name`."""
        return tuple(axis for axis, _ in self.axes if axis.rstrip("0123456789") == name)

    def degree(self, name: str) -> int:
        """The degree of parallelism `name`, 1 if there is none.

        >>> Mesh((("dp0", 2), ("tp0", 2), ("tp1", 2))).degree("tp")
        4
        """
        return self.size(self.atoms(name))

    def size(self, placement: Iterable[str]) -> int:
        """Over how many devices the mesh axes of `placement` spread something."""
        sizes = dict(self.axes)
        try:
            return prod(sizes[name] for name in placement)
        except KeyError as missing:
            raise VerifyError(f"mesh axis {missing} does not exist; the mesh is {self}") from None

    def group(self, placement: Iterable[str]) -> tuple[int, ...]:
        """The devices that the axes of `placement` join, of which one is device 0; all others lie alike.

        >>> Mesh((("dp", 2), ("tp", 4))).group(("dp",))
        (0, 4)
        """
        self.size(placement := frozenset(placement))
        found, stride = [0], 1
        for name, size in reversed(self.axes):
            if name in placement:
                found = [device + stride * i for i in range(size) for device in found]
            stride *= size
        return tuple(found)

    def __str__(self) -> str:
        return f"mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"


ONE_DEVICE = Mesh()
