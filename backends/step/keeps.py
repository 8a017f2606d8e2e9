"""What sequences that decode keep: the few sums over them of which a step's sizes are made.

At one new token a size is a sum of products of a part that counts sequences and a function of the context:
what a mask lets the cache keep, or how many pairs there are. These functions are few, and most of them the
others' multiples plus a constant; those that are left are what is summed over the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from math import gcd
from typing import Any

import numpy as np

from llmir.backends.tape.record import Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.ir.sizes.atoms import Atom, Min
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import C, Dim, Factor, Monomial, Size, product, put
from llmir.ir.sizes.uneven import Uneven

_NEAR = 12  # contexts on either side of those at which an atom bends
_TURNS = 4  # of what comes again every so many tokens
_FIRST = 512
_FAR = 1 << 22  # beyond, no cache goes
_DENOMINATORS = 48


class JointError(Exception):
    """A size is a function of sequences and their contexts together, not a sum of products of the two."""


def parts(size: Size) -> Mapping[Size, Size]:
    """A size of one new token of each sequence: by what counts sequences, the function of the context.

    >>> from llmir.ir.sizes.polynomial import B, T
    >>> from llmir.ir.sizes.atoms import ceildiv
    >>> {str(of): str(by) for of, by in parts(3 * B * T * (C + T) + ceildiv(B, 2)).items()}
    {'B': '3*C + 3', 'ceildiv(B, 2)': '1'}
    """
    found: dict[Size, Size] = {}
    now = put(size, {"T": 1})
    for monomial, coefficient in now.terms if isinstance(now, Dim) else (((), now),):
        of, by = _apart(monomial)
        found[of] = found.get(of, 0) + coefficient * by
    return found


def _apart(monomial: Monomial) -> tuple[Size, Size]:
    sizes: tuple[list[Size], list[Size]] = [], []
    for factor in monomial:
        reads = set(_symbols(factor))
        if len(reads) > 1 and "C" in reads:
            raise JointError(str(factor))
        sizes["C" in reads].append(Dim((((factor,), 1),)))
    return product(sizes[0]), product(sizes[1])


def symbols(size: Size) -> set[str]:
    """Those that a size reads."""
    terms = size.terms if isinstance(size, Dim) else ()
    return {name for monomial, _ in terms for factor in monomial for name in _symbols(factor)}


def atoms(sizes: Iterable[Size]) -> Iterator[Atom]:
    """All atoms in sizes, those inside others too."""
    for size in sizes:
        for monomial, _ in size.terms if isinstance(size, Dim) else ():
            for factor in monomial:
                if isinstance(factor, Atom):
                    yield factor
                    yield from atoms(factor.sizes)


def _symbols(factor: Factor) -> Iterator[str]:
    if isinstance(factor, str):
        yield factor
        return
    for size in factor.sizes:
        for monomial, _ in size.terms if isinstance(size, Dim) else ():
            for inner in monomial:
                yield from _symbols(inner)


class Keeps:
    """Functions of the context, of which some others are sums of multiples and a constant."""

    def __init__(self, wanted: Iterable[Dim]) -> None:
        each = sorted(dict.fromkeys(map(_primitive, wanted)), key=lambda f: (len(str(f)), str(f)))
        self._at = Binding(C=_contexts(each))
        self.functions: tuple[Dim, ...] = ()
        self._of: dict[Size, tuple[float, ...]] = {}
        for function in each:
            if self._solved(function) is None:
                self.functions += (self._simplest(function),)

    def of(self, function: Size) -> tuple[float, ...]:
        """A constant, and how often it has each of `functions`."""
        if function not in self._of:
            solved = self._solved(function)
            assert solved is not None, f"{function} was asked of no price"
            self._of[function] = solved
        return self._of[function]

    def _simplest(self, function: Dim) -> Dim:
        """What must be known besides for a function to follow: the context, a part of it, or all of it."""
        before = self.functions
        for other in (C, *sorted(_atoms(function), key=lambda f: (len(str(f)), str(f)))):
            self.functions = (*before, other)
            solved = self._solved(function)
            self.functions = before
            if solved is not None:
                return other
        return function

    def _solved(self, function: Size) -> tuple[float, ...] | None:
        """By values at every context at which something bends."""
        values = np.broadcast_to(self._at(function), self._at.shape)
        columns = [np.ones(self._at.shape), *map(self._at, self.functions)]
        scale = [float(np.abs(column).max()) or 1.0 for column in columns]
        matrix = np.stack([column / most for column, most in zip(columns, scale, strict=True)], axis=1)
        found = np.linalg.lstsq(matrix, values, rcond=None)[0] / scale
        exact = np.round(found * _DENOMINATORS) / _DENOMINATORS
        sums = sum(share * column for share, column in zip(exact, columns, strict=True))
        return tuple(map(float, exact)) if np.allclose(sums, values, rtol=1e-13, atol=1e-6) else None

    def sums(self, contexts: Iterable[int]) -> tuple[int, ...]:
        """The sum of each over sequences of these contexts."""
        at = Binding(C=np.array(list(contexts), dtype=np.float64))
        return tuple(int(np.sum(at(function))) for function in self.functions)


def _primitive(function: Dim) -> Dim:
    """Without what all its coefficients have in common."""
    by = gcd(*(c for _, c in function.terms))
    rest = {m: c for m, c in function.terms if m}
    common = gcd(*rest.values())
    if common in (1, by):
        return Dim(tuple((m, c // by) for m, c in function.terms))
    return Dim(tuple((m, c // common) for m, c in rest.items()))


def _atoms(function: Dim) -> Iterator[Dim]:
    """The least and the rounded quotients of contexts that it has, of the context alone where they can be."""
    for monomial, _ in function.terms:
        for factor in monomial:
            match factor:
                case Min(a=Dim(terms=((("C",), 1), ((), int(more)))), b=int(most)) if most > more:
                    yield from _dims(Min.of(C, most - more))
                case Atom():
                    yield Dim((((factor,), 1),))
                    for size in factor.sizes:
                        yield from _atoms(size) if isinstance(size, Dim) else ()


def _dims(size: Size) -> Iterator[Dim]:
    if isinstance(size, Dim):
        yield size


def _contexts(functions: Iterable[Dim]) -> Any:
    """Contexts around each at which an atom of the functions bends, and the first ones."""
    bends = {0}
    for function in functions:
        for monomial, _ in function.terms:
            for factor in monomial:
                bends |= set(_numbers(factor))
    turns = np.multiply.outer(sorted(bends), range(_TURNS + 1)).ravel()
    sums = np.add.outer(turns, turns).ravel()
    near = np.add.outer(sums, range(-_NEAR, _NEAR + 1)).ravel()
    every = np.concatenate([np.arange(_FIRST), near, [_FAR - 1, _FAR]])
    return np.unique(every[(every >= 0) & (every <= _FAR)]).astype(np.float64)


def _numbers(factor: Factor) -> Iterator[int]:
    """All numbers in an atom."""
    if not isinstance(factor, Atom):
        return
    for value in (getattr(factor, f.name) for f in fields(factor)):
        for monomial, coefficient in value.terms if isinstance(value, Dim) else ():
            yield abs(coefficient)
            for inner in monomial:
                yield from _numbers(inner)
        if isinstance(value, int):
            yield value


_parts = lru_cache(maxsize=1 << 12)(parts)


class Kept(Uneven):
    """The same as the sequences themselves, from how many there are and what they keep together."""

    keeps: Keeps
    means: tuple[Number, ...]

    def __init__(self, keeps: Keeps, sequences: Number, sums: Sequence[Number]) -> None:
        means = tuple(total / sequences for total in sums)
        context = means[keeps.functions.index(C)] if C in keeps.functions else 0
        Binding.__init__(self, B=sequences, T=1, C=context)
        plain = Binding(B=sequences, T=1, C=context)
        vars(self).update(keeps=keeps, means=means, _each=plain, _asked={})

    def __call__(self, size: Size) -> Number:
        """The mean over sequences of what a size would be if all had the context of each."""
        if not isinstance(size, Dim):
            return size
        asked: dict[Size, Number] = vars(self)["_asked"]
        if size not in asked:
            try:
                asked[size] = self._sum(size)
            except JointError:
                asked[size] = self._each(size)
        return asked[size]

    def _sum(self, size: Dim) -> Number:
        total: Number = 0
        for of, by in _parts(size).items():
            total = total + self._each(of) * (self._mean(by) if isinstance(by, Dim) else by)
        return total

    def _mean(self, function: Size) -> Number:
        value, *often = self.keeps.of(function)
        for times, mean in zip(often, self.means, strict=True):
            if times:
                value = value + times * mean
        return value

    def _product(self, monomial: Monomial) -> Number:
        return self(Dim(((monomial, 1),)))

    def capped(self, size: Size, most: float) -> Number:
        """The mean of a size of one sequence, where that is no more than `most` of any."""
        if float(most).is_integer():
            return self(Min.of(size, int(most)))
        return self(Min.of(2 * size, int(2 * most))) / 2


class Asked(Kept):
    """Sequences of which only is found out what they are asked for."""

    def __init__(self, symbolic: bool) -> None:
        tape = Tape(SCALARS)
        symbol: Callable[[str], Number] = tape.symbol if symbolic else lambda name: 1_000
        plain = Binding(B=symbol("B"), T=1, C=symbol("C"))
        Binding.__init__(self, **plain.symbols)
        functions: dict[Dim, Number] = {}
        vars(self).update(functions=functions, joint=[], _each=plain, _asked={}, _symbol=symbol)

    functions: dict[Dim, Number]
    joint: list[Size]

    def _mean(self, function: Size) -> Number:
        assert isinstance(function, Dim)
        if function not in self.functions:
            self.functions[function] = vars(self)["_symbol"](str(function))
        return self.functions[function]

    def _sum(self, size: Dim) -> Number:
        try:
            return super()._sum(size)
        except JointError:
            self.joint.append(size)
            raise


class Step(Mixed):
    """Sequences that keep such sums, and others beside them."""

    def __call__(self, size: Size) -> Number:
        """As of any mixed step; but what is kept is known of whole sizes."""
        if not isinstance(size, Dim):
            return size
        if size not in self._sizes:
            alone = {m: c for m, c in size.terms if len(m) == 1 and not isinstance(m[0], str)}
            each = Dim(tuple((m, c) for m, c in size.terms if m not in alone and m))
            total: Number = dict(size.terms).get((), 0)
            if each.terms:
                total = total + sum(part(each) for part in self.parts)
            for (atom,), times in alone.items():
                assert isinstance(atom, Atom)
                total = total + times * atom.at(self)
            self._sizes[size] = total
        return self._sizes[size]

    @cached_property
    def _sizes(self) -> dict[Size, Number]:
        return {}

    def within(self, phase: str) -> Mixed:
        """Those in one phase; all where nothing is said of phases."""
        if not self.phases:
            return self
        return Step(part for part, its in zip(self.parts, self.phases, strict=True) if its == phase)
