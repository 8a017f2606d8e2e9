"""The mesh: the devices of a program, arranged along named axes, and the degrees of parallelism."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError

MOST_DEVICES = 1 << 20  # five times the largest machine of 2025; lists of device numbers stay short enough


@dataclass(frozen=True)
class Parallelism:
    """The degree of each kind of parallelism; `sp` (sequence parallelism) is either on or off.

    Experts are sharded over `ep` of the dp · tp ranks.

    >>> print(Parallelism(tp=4, dp=2, ep=8, sp=True))
    tp 4, ep 8, dp 2, sp
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    sp: bool = False

    def words(self, between: str = " ") -> list[str]:
        """The kinds with a degree above 1, as words."""
        named = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return [name if n is True else f"{name}{between}{n}" for name, n in named if n is True or n > 1]

    def __str__(self) -> str:
        return ", ".join(self.words())


@dataclass(frozen=True)
class Mesh:
    """Named axes with their sizes, such as `(("dp", 2), ("tp", 8))`; empty for one device.

    Devices are numbered with the first axis outermost. Experts are sharded over `ep` devices. With `sp`, the
    tokens between blocks are split over the tp axes.

    >>> Mesh((("dp", 2), ("tp", 8))).devices
    16
    """

    axes: tuple[tuple[str, int], ...] = ()
    ep: int = 1
    sp: bool = False

    def __post_init__(self) -> None:
        pairs = [
            arguments.items("mesh", pair, "a name and a size", error=VerifyError)
            for pair in arguments.items("mesh", self.axes, "axes", error=VerifyError)
        ]
        if not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            arguments.refuse("mesh", self.axes, "names with their sizes", VerifyError)
        sizes = [arguments.integer(f"mesh: {name}", size, 1, error=VerifyError) for name, size in pairs]
        axes = tuple((name, size) for (name, _), size in zip(pairs, sizes, strict=True))
        object.__setattr__(self, "axes", axes)
        if len({name for name, _ in self.axes}) != len(self.axes):
            raise VerifyError(f"mesh {self}: two axes have the same name")
        if not all(re.fullmatch(r"\w+", name) for name, _ in self.axes):
            raise VerifyError(f"mesh {self}: axes are named in letters and digits")
        if self.ep < 1 or self.devices % self.ep:
            raise VerifyError(f"mesh {self}: ep is {self.ep}, which does not divide {self.devices} devices")
        if self.sp and self.degree("tp") == 1:
            raise VerifyError(f"mesh {self}: sp splits tokens over the ranks of tp, of which there is one")
        if self.devices > MOST_DEVICES:
            raise VerifyError(f"mesh of {self.devices:,} devices: the limit is {MOST_DEVICES:,}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cached hash, because hashes of strings differ between processes."""
        return type(self), (self.axes, self.ep, self.sp)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.ep, self.sp))

    @cached_property
    def devices(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)

    def atoms(self, name: str) -> tuple[str, ...]:
        """The axes `name0`, `name1`, …; the product of their sizes is the degree of parallelism `name`."""
        return tuple(axis for axis, _ in self.axes if axis.rstrip("0123456789") == name)

    def degree(self, name: str) -> int:
        """The degree of parallelism `name`; 1 if the mesh has no such axis.

        >>> Mesh((("dp0", 2), ("tp0", 2), ("tp1", 2))).degree("tp")
        4
        """
        return self.size(self.atoms(name))

    def size(self, placement: Iterable[str]) -> int:
        """The number of devices over which the mesh axes of `placement` split a value."""
        try:
            return prod(map(self._sizes.__getitem__, placement))
        except KeyError as missing:
            raise VerifyError(f"mesh axis {missing} does not exist; the mesh is {self}") from None

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    def group(self, placement: Iterable[str]) -> tuple[int, ...]:
        """The ids of the devices in the group of device 0, along the axes of `placement`.

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

    def around(self, over: Iterable[str], used: Collection[str]) -> Mesh:
        """The part of the mesh with the axes in `used`, and all axes inside the outermost axis of `over`.

        >>> print(mesh_of(dp=4, tp=4).around(["tp0"], ["dp1"]))
        mesh(dp1=2, tp0=2, tp1=2)
        """
        first = min(self._places[axis] for axis in over)
        return _mesh(tuple([each for i, each in enumerate(self.axes) if i >= first or each[0] in used]))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: i for i, (name, _) in enumerate(self.axes)}

    def __str__(self) -> str:
        how = [f"ep={self.ep}"] * (self.ep > 1) + ["sp=true"] * self.sp
        axes = ", ".join(f"{name}={size}" for name, size in self.axes)
        return f"mesh({axes})" + (f" {{{', '.join(how)}}}" if how else "")


ONE_DEVICE = Mesh()
_mesh = lru_cache(maxsize=1024)(Mesh)


def mesh_of(**degrees: int) -> Mesh:
    """Build a mesh with axes of prime size, so that each factor of a degree has a named axis.

    Args:
        **degrees: The number of ranks by kind, such as `tp=4`. The first kind is outermost in the numbering
            of devices.

    Returns:
        The mesh.

    >>> print(mesh_of(dp=2, tp=4))
    mesh(dp0=2, tp0=2, tp1=2)
    """
    factors = {name: enumerate(prime_factors(degree)) for name, degree in degrees.items()}
    return Mesh(tuple((f"{name}{i}", prime) for name, primes in factors.items() for i, prime in primes))


def prime_factors(n: int) -> list[int]:
    """The prime factors in ascending order; empty for 1.

    >>> prime_factors(1), prime_factors(12), prime_factors(2**31 - 1)
    ([], [2, 2, 3], [2147483647])
    """
    found, divisor = [], 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return [*found, n] if n > 1 else found
