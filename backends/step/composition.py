"""Steps of any composition: decoding sequences with any contexts, together with prefill chunks.

`KvSums`: for sequences with one new token each, a size is a sum of products; one factor counts sequences, and
the other is a function of the context. A few of these functions are enough; the others are multiples of them
plus a constant. Their sums over the sequences are all that a step needs.

`CompositionSteps`: the op times as code. An op becomes a table if its time depends on one product of sizes.
Ops that treat each kind of sequences separately (attention) have cached times for chunks, and recorded code
for decodes. The other ops are recorded as functions of the sums.

`DecodeBatch`: sequences that decode together. The sums grow by rates that change only at a few contexts (when
a window is full, or a chunk starts). So a step adds the rates and does not visit each sequence.

`Surface`: seconds of a step of any composition; it is the entry point of this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from math import gcd, lcm
from operator import add
from typing import Any, NamedTuple, NoReturn

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.base.arguments import MOST, integer, items, number, show_value
from llmir.base.array_namespace import SCALARS, Namespace, Number, namespace
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding, UnevenBinding
from llmir.ir.sizes.polynomial import (
    Atom,
    C,
    CeilDiv,
    Dim,
    Factor,
    Min,
    Monomial,
    OfDecode,
    OfPrefill,
    Size,
    product,
    products,
    put,
)

from .evaluate import KINDS, StepEvaluator, mixed_step_evaluator, step_evaluator
from .sizes import binding, phase_of, refuse_padding, verified_tokens
from .timing import Timing

# Sums over decoding sequences

_NEAR = 12  # contexts on both sides of a kink
_TURNS = 4  # number of periods that are checked
_FIRST_SAMPLES = 512
_FAR = 1 << 22  # larger than any cache
_DENOMINATORS = 48


class JointSizeError(Exception):
    """Raised for a size that is not a sum of products of a function of the sequences and a function of their
    contexts.
    """


def split_size(size: Size) -> Mapping[Size, Size]:
    """Split a size, for one new token per sequence, into factors that count sequences and functions of the
    context.

    >>> from llmir.ir.sizes.polynomial import B, T
    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> {str(of): str(by) for of, by in split_size(3 * B * T * (C + T) + ceildiv(B, 2)).items()}
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
            raise JointSizeError(str(factor))
        sizes["C" in reads].append(Dim((((factor,), 1),)))
    return product(sizes[0]), product(sizes[1])


def size_symbols(size: Size) -> set[str]:
    """The symbols and atoms that a size reads."""
    terms = size.terms if isinstance(size, Dim) else ()
    return {name for monomial, _ in terms for factor in monomial for name in _symbols(factor)}


def size_atoms(sizes: Iterable[Size]) -> Iterator[Atom]:
    """All atoms in sizes, including nested ones."""
    for size in sizes:
        for monomial, _ in size.terms if isinstance(size, Dim) else ():
            for factor in monomial:
                if isinstance(factor, Atom):
                    yield factor
                    yield from size_atoms(factor.sizes)


def _symbols(factor: Factor) -> Iterator[str]:
    if isinstance(factor, str):
        yield factor
        return
    for size in factor.sizes:
        for monomial, _ in size.terms if isinstance(size, Dim) else ():
            for inner in monomial:
                yield from _symbols(inner)


class KvSums:
    """Functions of the context such that all other functions are linear combinations of them plus a
    constant.
    """

    def __init__(self, wanted: Iterable[Dim]) -> None:
        each = sorted(dict.fromkeys(map(_primitive, wanted)), key=lambda f: (len(str(f)), str(f)))
        self._at = Binding(C=_contexts(each))
        self.functions: tuple[Dim, ...] = ()
        self._of: dict[Size, tuple[float, ...]] = {}
        for function in each:
            if self._solved(function) is None:
                self.functions += (self._simplest(function),)

    def of(self, function: Size) -> tuple[float, ...]:
        """A constant, and the multiple of each of `functions`."""
        if function not in self._of:
            solved = self._solved(function)
            assert solved is not None, f"{function} was asked of no price"
            self._of[function] = solved
        return self._of[function]

    def _simplest(self, function: Dim) -> Dim:
        """The simplest additional function from which a given one follows: the context, an atom, or the
        function itself.
        """
        before = self.functions
        for other in (C, *sorted(_atoms(function), key=lambda f: (len(str(f)), str(f)))):
            self.functions = (*before, other)
            solved = self._solved(function)
            self.functions = before
            if solved is not None:
                return other
        return function

    def _solved(self, function: Size) -> tuple[float, ...] | None:
        """The coefficients of a function; they are fitted at every context where its slope changes."""
        values = np.broadcast_to(self._at(function), self._at.shape)
        columns = [np.ones(self._at.shape), *map(self._at, self.functions)]
        scale = [float(np.abs(column).max()) or 1.0 for column in columns]
        matrix = np.stack([column / most for column, most in zip(columns, scale, strict=True)], axis=1)
        found = np.linalg.lstsq(matrix, values, rcond=None)[0] / scale
        exact = np.round(found * _DENOMINATORS) / _DENOMINATORS
        sums = sum(share * column for share, column in zip(exact, columns, strict=True))
        return tuple(map(float, exact)) if np.allclose(sums, values, rtol=1e-13, atol=1e-6) else None

    def sums(self, contexts: Iterable[int]) -> tuple[int, ...]:
        """For each function, the sum over sequences with these contexts."""
        at = Binding(C=np.array(list(contexts), dtype=np.float64))
        return tuple(int(np.sum(at(function))) for function in self.functions)


def _primitive(function: Dim) -> Dim:
    """The atom, divided by the common factor of its coefficients."""
    by = gcd(*(c for _, c in function.terms))
    rest = {m: c for m, c in function.terms if m}
    common = gcd(*rest.values())
    if common in (1, by):
        return Dim(tuple((m, c // by) for m, c in function.terms))
    return Dim(tuple((m, c // common) for m, c in rest.items()))


def _atoms(function: Dim) -> Iterator[Dim]:
    """The minimums and rounded quotients of contexts in a size."""
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
    """The first contexts, and the contexts on both sides of each point where a function changes its slope."""
    bends = {0}
    for function in functions:
        for monomial, _ in function.terms:
            for factor in monomial:
                bends |= set(_numbers(factor))
    turns = np.multiply.outer(sorted(bends), range(_TURNS + 1)).ravel()
    sums = np.add.outer(turns, turns).ravel()
    near = np.add.outer(sums, range(-_NEAR, _NEAR + 1)).ravel()
    every = np.concatenate([np.arange(_FIRST_SAMPLES), near, [_FAR - 1, _FAR]])
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


_parts = lru_cache(maxsize=1 << 12)(split_size)


class KvSumBinding(UnevenBinding):
    """A binding for decoding sequences, which are given by their number and by sums over their caches."""

    keeps: KvSums
    means: tuple[Number, ...]

    def __init__(self, keeps: KvSums, sequences: Number, sums: Sequence[Number]) -> None:
        means = tuple(total / sequences for total in sums)
        context = means[keeps.functions.index(C)] if C in keeps.functions else 0
        Binding.__init__(self, B=sequences, T=1, C=context)
        plain = Binding(B=sequences, T=1, C=context)
        vars(self).update(keeps=keeps, means=means, _each=plain, _asked={})

    def __call__(self, size: Size) -> Number:
        """The mean over the sequences of the size with equal contexts."""
        if not isinstance(size, Dim):
            return size
        asked: dict[Size, Number] = vars(self)["_asked"]
        if size not in asked:
            try:
                asked[size] = self._sum(size)
            except JointSizeError:
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
        """The mean of a size over sequences, if the size is at most `most` for each of them."""
        if float(most).is_integer():
            return self(Min.of(size, int(most)))
        return self(Min.of(2 * size, int(2 * most))) / 2


class SizeRecorder(KvSumBinding):
    """Sequences that only record which sizes are evaluated."""

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
        except JointSizeError:
            self.joint.append(size)
            raise


class MixedStep(MixedBinding):
    """Decoding sequences given by sums, and other sequences with them."""

    def __call__(self, size: Size) -> Number:
        """The value in any mixed step; sums are known only for whole sizes."""
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

    def within(self, phase: str) -> MixedBinding:
        """The parts of the step in one phase; all parts if the program has no phases."""
        if not self.phases:
            return self
        return MixedStep(part for part, its in zip(self.parts, self.phases, strict=True) if its == phase)


# Steps of a composition as code

CACHED_VALUES = 1 << 16  # values cached per table
Run = Callable[..., tuple[Any, ...]]
Names = Sequence[str]
RepeatsByOpTime = Mapping[OpTime, Sequence[int]]  # how often each stage runs them
ChunkGroup = tuple[float, int, int]  # a group of equal chunks: count, new and cached tokens of each


class TwoPartFunction:
    """A function in two parts: the first part has few distinct inputs and is cached; the second computes the
    rest.
    """

    def __init__(self, tape: Tape, few: Names, late: Names, outputs: Sequence[Number]) -> None:
        early, self._rest = Function.of(tape, (*few, *late), outputs).parted(late)
        self.early = python.compiled(early)
        self._kept: dict[tuple[float, ...], tuple[Any, ...]] = {}

    def __call__(self, few: tuple[float, ...], late: Sequence[float]) -> tuple[float, ...]:
        """The outputs."""
        kept = self._kept.get(few)
        if kept is None:
            if len(self._kept) >= CACHED_VALUES:
                self._kept.clear()
            kept = self._kept[few] = self.early(*few)
        return self.late(*late, *kept)

    def many(self, few: tuple[float, ...], late: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs at arrays of the rest."""
        return self._many(*late, *self.early(*few))

    @cached_property
    def late(self) -> Run:
        """The second part: a function of the other inputs and of the results of the first part."""
        return python.compiled(self._rest)

    @cached_property
    def _many(self) -> Run:
        return numpy.compiled(self._rest)


class SeparatePhaseError(Exception):
    """An op time that evaluates each kind of sequences separately."""


class SumBinding(MixedBinding):
    """Sequences of any kind, for which sums of products of symbols are given."""

    def __init__(self, given: Mapping[Dim, Number]) -> None:
        super().__init__(())
        self._keep({}, {size.terms[0][0]: value for size, value in given.items()})

    @property
    def xp(self) -> Namespace:
        return namespace(*self._given.values())

    def each(self, of: object, seconds: Callable[[Binding], Sequence[Number]]) -> list[Number]:
        """Not known for these kinds."""
        raise SeparatePhaseError


class ChunkRecorder(Binding):
    """Prefill chunks that record which sizes are evaluated."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        vars(self).update(tape=tape, asked={})

    tape: Tape
    asked: dict[Monomial, Number]

    @property
    def xp(self) -> Namespace:
        found: Namespace = self.tape.namespace
        return found

    def _product(self, monomial: Monomial) -> Number:
        if monomial not in self.asked:
            self.asked[monomial] = self.tape.symbol(f"g{len(self.asked)}")
        return self.asked[monomial]


class SymbolicStep(MixedStep):
    """Decodes together with prefill chunks; the times of a single chunk and their sums are symbols."""

    own: KvSumBinding | None
    chunks: ChunkRecorder | None
    one: Binding  # a chunk, on a separate tape
    alone: list[tuple[Number, Number]]  # times of a chunk: on its tape, and the sum on this one

    def __init__(
        self,
        own: KvSumBinding | None,
        chunks: ChunkRecorder | None,
        one: Binding,
        alone: list[tuple[Number, Number]],
    ) -> None:
        super().__init__([part for part in (own, chunks) if part is not None])
        vars(self).update(own=own, chunks=chunks, one=one, alone=alone)

    @property
    def xp(self) -> Namespace:
        return self.parts[0].xp

    def each(self, of: object, seconds: Callable[[Binding], Sequence[Number]]) -> list[Number]:
        """The times of the decodes and of the chunks separately."""
        found: list[Number] = list(seconds(self.own)) if self.own else []
        if self.chunks is None:
            return found
        times = list(seconds(self.one))
        sums = [self.chunks.tape.symbol(f"f{len(self.alone) + i}") for i in range(len(times))]
        self.alone.extend(zip(times, sums, strict=True))
        return [a + b for a, b in zip(found, sums, strict=True)] if found else list(sums)

    def within(self, phase: str) -> MixedBinding:
        """The decodes, or the chunks."""
        own, chunks = (self.own, None) if phase == "decode" else (None, self.chunks)
        return SymbolicStep(own, chunks, self.one, self.alone)


class TimeTable(dict[Any, tuple[float, ...]]):
    """Seconds, on each stage, of op times that depend on certain products of symbols, by the values of these
    products.
    """

    def __init__(self, sizes: Sequence[Dim], prices: RepeatsByOpTime, of: StepEvaluator, graph: bool) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        tape = Tape(SCALARS)
        names = [f"m{i}" for i in range(len(sizes))]
        at = SumBinding(dict(zip(sizes, map(tape.symbol, names), strict=True)))
        totals: list[Number] = [0.0] * of.depth
        for price, repeats in prices.items():
            time = _launch(of, price, at, graph)
            totals = [total + times * time for total, times in zip(totals, repeats, strict=True)]
        self._run = python.compiled(Function.of(tape, names, totals))

    def __missing__(self, values: Any) -> tuple[float, ...]:
        if len(self) >= CACHED_VALUES:
            self.clear()
        found = self[values] = self._run(*values) if len(self.sizes) > 1 else self._run(values)
        return found


class MixedStepFunction:
    """Steps with prefill chunks, with or without decodes; launched as a graph or kernel by kernel."""

    def __init__(self, of: StepEvaluator, keeps: KvSums, decodes: bool, graph: bool) -> None:
        self.tables, rest = _tables(of, graph)
        names = [f"s{i}" for i in range(len(keeps.functions) if decodes else 0)]
        tape, alone = Tape(SCALARS), Tape(SCALARS)
        symbols = {name: alone.symbol(name) for name in ("B", "T", "C")}
        one, chunks = Binding(**symbols), ChunkRecorder(tape)
        own = KvSumBinding(keeps, tape.symbol("B"), [tape.symbol(n) for n in names]) if decodes else None
        at = SymbolicStep(own, chunks, one, [])
        totals: list[Number] = [0.0] * of.depth
        for price, repeats in rest.items():
            time = _launch(of, price, at, graph)
            totals = [total + times * time for total, times in zip(totals, repeats, strict=True)]
        asked = list(chunks.asked.items())
        late = [*names, *(f"g{i}" for i in range(len(asked))), *(f"f{i}" for i in range(len(at.alone)))]
        # The symbols are numbered in the order of first use.
        few = ("B",) if decodes else ()
        self._rest = TwoPartFunction(tape, few, late, totals)
        sizes = [size for table in self.tables for size in table.sizes]
        each = [*map(one, sizes), *(one(Dim(((m, 1),))) for m, _ in asked), *(time for time, _ in at.alone)]
        self._chunk = TwoPartFunction(alone, ("B", "T"), ("C",), each)
        of_decodes = Tape(SCALARS)
        single = Binding(B=of_decodes.symbol("B"), T=1)
        self._single = TwoPartFunction(of_decodes, ("B",), (), [single(size) for size in sizes])
        self._chunks: dict[ChunkGroup, tuple[float, ...]] = {}
        self._ranks, self._placed = (
            of.program.parallelism.dp,
            dict[tuple[ChunkGroup, bool], tuple[float, ...]](),
        )
        self._run = _sum_code(self.tables, self._single, self._rest, of.depth, decodes)

    def __call__(
        self, count: float, sums: Sequence[float], chunks: Sequence[ChunkGroup]
    ) -> tuple[float, ...]:
        """Seconds of the kernels of each stage."""
        known, total = self._chunks, None
        for chunk in chunks:
            found = known.get(chunk)
            if found is None:
                if len(known) >= CACHED_VALUES:
                    known.clear()
                times, new, cached = chunk
                found = known[chunk] = self._chunk((times, new), (cached,))
            total = found if total is None else tuple(map(add, total, found))
        return self._run(count, sums, total)

    def on_rank(
        self, count: float, sums: Sequence[float], chunks: Sequence[ChunkGroup], others: Sequence[ChunkGroup]
    ) -> tuple[float, ...]:
        """The step on a rank with these chunks, while other ranks have other chunks."""
        known, total = self._placed, None
        for place in (*((chunk, True) for chunk in chunks), *((chunk, False) for chunk in others)):
            found = known.get(place)
            if found is None:
                if len(known) >= CACHED_VALUES:
                    known.clear()
                found = known[place] = self._of_rank(*place)
            total = found if total is None else tuple(map(add, total, found))
        return self._run(count, sums, total)

    def _of_rank(self, chunk: ChunkGroup, own: bool) -> tuple[float, ...]:
        """The time that chunks on one rank add to this rank, and the time that they add to another rank.

        If each rank has equal chunks, they add the shared work once per rank, and the other work once. So the
        difference from a chunk on only one rank is the shared work of the other ranks.
        """
        (times, new, cached), ranks = chunk, self._ranks
        one, each = (self._chunk((n, new), (cached,)) for n in (1, ranks))
        seen = [times * (b - a) / (ranks - 1) for a, b in zip(one, each, strict=True)]
        if not own:
            return tuple(seen)
        each = self._chunk((times * ranks, new), (cached,))
        return tuple(b - (ranks - 1) * a for a, b in zip(seen, each, strict=True))


def _sum_code(
    tables: Sequence[TimeTable], single: TwoPartFunction, rest: TwoPartFunction, depth: int, decodes: bool
) -> Run:
    """The code that adds the tables and the rest; its inputs are the number of sequences, their sums, and the
    values of chunks.
    """
    lines, start = ["def run(count, sums, chunks):"], 0
    early: dict[str, Any] = {"late": rest.late}
    if decodes:
        early |= {"known": {}, "singles": single, "early": rest.early, "most": CACHED_VALUES}
        lines += ["    try:", "        own, kept = known[count]", "    except KeyError:"]
        lines += ["        if len(known) >= most:", "            known.clear()"]
        lines += ["        own, kept = known[count] = singles((count,), ()), early(count)"]
    else:
        early["kept"] = rest.early()
    for i, table in enumerate(tables):
        early[f"table{i}"], each = table, range(start, start + len(table.sizes))
        values = [f"own[{n}] + chunks[{n}]" if decodes else f"chunks[{n}]" for n in each]
        lines.append(f"    t{i} = table{i}[{', '.join(values)}]")
        start += len(table.sizes)
    lines.append(f"    r = late(*sums, *chunks[{start}:], *kept)")
    stages = (" + ".join([f"r[{n}]", *(f"t{i}[{n}]" for i in range(len(tables)))]) for n in range(depth))
    lines.append(f"    return ({', '.join(stages)},)")
    exec(compile("\n".join(lines), "<surface>", "exec"), early)
    found: Run = early["run"]
    return found


def _tables(of: StepEvaluator, graph: bool) -> tuple[list[TimeTable], dict[OpTime, list[int]]]:
    """Op times that depend on sums of products of symbols, as tables; and the other op times."""
    groups: dict[tuple[Dim, ...], dict[OpTime, list[int]]] = {}
    rest: dict[OpTime, list[int]] = {}
    for price, repeats in of.repeats():
        sizes = _summed(price, of, graph)
        into = rest if sizes is None else groups.setdefault(sizes, {})
        before = into.get(price, [0] * of.depth)
        into[price] = [a + b for a, b in zip(before, repeats, strict=True)]
    return [TimeTable(sizes, prices, of, graph) for sizes, prices in groups.items()], rest


def _launch(of: StepEvaluator, price: OpTime, at: Binding, graph: bool) -> Number:
    """Seconds of an op, in a graph or with separate launches."""
    (time,) = KINDS["graph"](price, at, of.host.hidden) if graph and of.host else KINDS["alone"](price, at, 0)
    return time


def _summed(price: OpTime, of: StepEvaluator, graph: bool) -> tuple[Dim, ...] | None:
    """The products on which an op time depends, if it depends on nothing else and no product involves
    caches.
    """
    stated = getattr(price, "sizes", None)
    if stated is None or any(isinstance(atom, (OfDecode, OfPrefill)) for atom in size_atoms(stated)):
        return None
    sizes = tuple(sorted(products(stated), key=str))
    if not sizes or any("C" in size_symbols(size) for size in sizes):
        return None
    tape = Tape(SCALARS)
    try:
        _launch(of, price, SumBinding({size: tape.symbol(f"m{i}") for i, size in enumerate(sizes)}), graph)
    except SeparatePhaseError:
        return None
    return sizes


class DecodeFunction:
    """The times of decode-only steps: a function of the number of sequences and of sums over their caches."""

    def __init__(self, of: StepEvaluator, keeps: KvSums, graph: bool) -> None:
        tape, names = Tape(SCALARS), [f"s{i}" for i in range(len(keeps.functions))]
        at = KvSumBinding(keeps, tape.symbol("B"), [tape.symbol(name) for name in names])
        timing = of.timing(at, of.launched(at, graph), graph)
        self._code = TwoPartFunction(tape, ("B",), names, (timing.step, *timing.stages))

    def __call__(self, count: float, sums: Sequence[float]) -> tuple[float, ...]:
        """Seconds of the step, and of each stage."""
        return self._code((count,), sums)


class CompositionSteps:
    """Steps of any composition of one plan."""

    def __init__(self, of: StepEvaluator, keeps: KvSums) -> None:
        self.of, self.keeps = of, keeps
        self._captured: dict[tuple[float, bool], bool] = {}
        self._decoding: dict[bool, DecodeFunction] = {}
        self._beside: dict[tuple[bool, bool], MixedStepFunction] = {}
        self._timing: dict[bool, Run] = {}

    def decode(self, count: float, sums: Sequence[float]) -> tuple[float, ...]:
        """Seconds of a step that only decodes, and of each stage."""
        graph = self._graph(count, True, lambda: Binding(B=count, T=1, C=0))
        if graph not in self._decoding:
            self._decoding[graph] = DecodeFunction(self.of, self.keeps, graph)
        return self._decoding[graph](count, sums)

    def mixed(self, count: float, sums: Sequence[float], chunks: Sequence[ChunkGroup]) -> tuple[float, ...]:
        """The times of a step with prefill chunks, each given by count, new and cached tokens."""
        beside, timing, sequences = self._reading(count, chunks)
        return timing(sequences, *beside(count, sums, chunks))

    def on_rank(
        self, count: float, sums: Sequence[float], chunks: Sequence[ChunkGroup], others: Sequence[ChunkGroup]
    ) -> tuple[float, ...]:
        """The times on a rank with these chunks, while other ranks have other chunks."""
        ranks = self.of.program.parallelism.dp
        each = [(times * ranks, new, cached) for times, new, cached in chunks]
        beside, timing, sequences = self._reading(count, each)
        return timing(sequences, *beside.on_rank(count, sums, chunks, others))

    def _reading(self, count: float, chunks: Sequence[ChunkGroup]) -> tuple[MixedStepFunction, Run, float]:
        """The function for kernels and the function for timing of a step with prefill, and its number of
        sequences.
        """
        ranks = self.of.program.parallelism.dp
        tokens, sequences, most = -(-count // ranks) if ranks > 1 else count, count, 0
        for times, new, _ in chunks:
            tokens += (-(-times // ranks) if ranks > 1 else times) * new
            sequences += times
            most = max(most, new)

        def at() -> Binding:
            parts = [Binding(B=times, T=new, C=cached) for times, new, cached in chunks]
            return MixedBinding([*([Binding(B=count, T=1, C=0)] if count else []), *parts])

        graph = self._graph(tokens, most <= DRAFTS, at)
        key = bool(count), graph
        if key not in self._beside:
            self._beside[key] = MixedStepFunction(self.of, self.keeps, *key)
        if graph not in self._timing:
            self._timing[graph] = self._timed(graph)
        return self._beside[key], self._timing[graph], sequences

    def _graph(self, tokens: float, few: bool, at: Callable[[], Binding]) -> bool:
        """Whether a step with `tokens` tokens per rank runs as a graph; `few` means a few tokens per
        sequence.
        """
        key = tokens, few
        if key not in self._captured:
            self._captured[key] = bool(self.of.host and self.of.captured(at()))
        return self._captured[key]

    def _timed(self, graph: bool) -> Run:
        """The stage times as a function of the sequences and of the kernel seconds on each stage."""
        tape, names = Tape(SCALARS), [f"t{i}" for i in range(self.of.depth)]
        timing = self.of.timing(Binding(B=tape.symbol("B")), tuple(map(tape.symbol, names)), graph)
        return python.compiled(Function.of(tape, ("B", *names), (timing.step, *timing.stages)))


# Batches that decode

Array = np.ndarray[Any, np.dtype[Any]]
FAR = 1 << 22  # tokens that no context passes
_FIRST_CONTEXTS = 1 << 10


class PeriodicFunction(NamedTuple):
    """A function of the context: its first values, after which it repeats every `period` tokens, plus `more`.

    The difference between consecutive contexts changes by given amounts: once after each context in `once`,
    and after each context with a remainder in `again`.
    """

    values: tuple[int, ...]
    period: int
    more: int
    once: Mapping[int, int]
    again: Mapping[int, int]

    def at(self, context: int) -> int:
        """The value at the point."""
        over = max(0, context - len(self.values) + self.period) // self.period
        return self.values[context - over * self.period] + over * self.more


@lru_cache(maxsize=1 << 8)
def periodic_function(function: Dim) -> PeriodicFunction:
    """Find the periodic form of a function from its values."""
    period, length = lcm(*(a.by for a in size_atoms([function]) if isinstance(a, CeilDiv))), _FIRST_CONTEXTS
    while True:
        length = min(2 * length + 4 * period, FAR)
        contexts = np.arange(length + period, dtype=float)
        values = np.broadcast_to(Binding(C=contexts)(function), contexts.shape)
        changes = np.diff(values.astype(np.int64), 2)
        differ = np.flatnonzero(changes[:-period] != changes[period:])
        start = int(differ[-1]) + 1 if len(differ) else 0
        if length == FAR or (start < length // 2 and _goes_on(function, length, period)):
            break
    turn = {c % period: int(changes[c]) for c in range(start, start + period) if changes[c]}
    once = {c: n for c in range(start) if (n := int(changes[c]) - turn.get(c % period, 0))}
    first = tuple(map(int, values[: start + 2 * period]))
    return PeriodicFunction(first, period, first[-1] - first[-1 - period], once, turn)


def _goes_on(function: Dim, length: int, period: int) -> bool:
    """Whether the function grows equally in every period at far contexts."""
    far = np.array([length, *(1 << n for n in range(length.bit_length(), FAR.bit_length()))], dtype=float)
    more = np.broadcast_to(Binding(C=far + period)(function) - Binding(C=far)(function), far.shape)
    return bool(np.all(more == more[0]))


class DecodeBatch:
    """Sequences that advance by one token per step; between steps, sequences join and leave.

    `kept` contains the sum over the sequences of each function of a surface. The time to join, leave or step
    does not depend on the number of sequences.
    """

    def __init__(self, functions: Sequence[Dim], contexts: Iterable[int] = ()) -> None:
        self._courses = tuple(map(periodic_function, functions))
        self._step = self._length = 0
        self._sums, self._rates = [0] * len(functions), [0] * len(functions)
        self._at: Counter[int] = Counter()  # sequences by their context before the first step
        periods = {each.period for each in self._courses if each.again}
        self._rests: dict[int, Counter[int]] = {period: Counter() for period in periods}
        for context in contexts:
            self.join(context)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """The contexts."""
        return (start + self._step for start in self._at.elements())

    def __repr__(self) -> str:
        return f"<Batch of {self._length:,} sequences that keep {self.kept}>"

    @property
    def kept(self) -> tuple[int, ...]:
        """The current sums."""
        return tuple(self._sums)

    def join(self, context: int) -> None:
        """Add a sequence with `context` cached tokens; InputError for an invalid number."""
        self._put(integer("context", context, most=FAR), 1)

    def leave(self, context: int) -> None:
        """Remove one sequence with this context; InputError if there is none."""
        context = integer("context", context, most=FAR)
        if self._at[context - self._step] < 1:
            raise InputError(f"context: no sequence of the batch has {context:,} cached tokens")
        self._put(context, -1)

    def _put(self, context: int, count: int) -> None:
        start = context - self._step
        self._length += count
        self._at[start] += count
        if not self._at[start]:
            del self._at[start]
        for period, rests in self._rests.items():
            rests[start % period] += count
        for i, each in enumerate(self._courses):
            here = each.at(context)
            self._sums[i] += count * here
            self._rates[i] += count * (each.at(context + 1) - here)

    def advance(self, steps: int = 1) -> None:
        """Run `steps` steps, each of which adds one token per sequence."""
        for i, each in enumerate(self._courses):
            self._sums[i] += self._rates[i] * steps
            for after, change in self._changes(each, steps):
                self._sums[i] += change * (steps - 1 - after)
                self._rates[i] += change
        self._step += steps

    def ahead(self, steps: int) -> list[Array]:
        """The sums before each of the next steps."""
        found, later = [], np.arange(steps)
        for i, each in enumerate(self._courses):
            sums = self._sums[i] + self._rates[i] * later
            for after, change in self._changes(each, steps):
                sums[after + 1 :] += change * later[: steps - 1 - after]
            found.append(sums)
        return found

    def _changes(self, each: PeriodicFunction, steps: int) -> Iterator[tuple[int, int]]:
        """How the rates change in the next steps: after which steps, and by how much."""
        now, at = self._step, self._at
        for context, change in each.once.items():
            if steps <= len(at):
                within = ((n, at.get(context - now - n, 0)) for n in range(steps))
            else:
                within = ((context - now - start, count) for start, count in at.items())
            yield from ((n, change * count) for n, count in within if count and 0 <= n < steps)
        if each.again:
            for rest, count in self._rests[each.period].items():
                for turn, change in each.again.items():
                    for n in range((turn - rest - now) % each.period, steps, each.period):
                        yield n, change * count


# Surface

Chunk = tuple[int, int]  # new tokens of a prompt, and its cached tokens
_NUMBERS = (int, float)
_COUNTS = {"B", "T"}
PAIRS = "pairs of new and cached tokens"


class Surface:
    """Seconds of a step by its composition, given sums of functions of the context (`keeps`).

    `step` adds up the work of each sequence at its own context; all decodes are one call of each kernel. The
    result equals `analyze` with the sequences listed as `beside`.
    """

    def __init__(self, program: Program, model: DeviceCostModel) -> None:
        if program.patches or program.image_tokens or "prompt" in program.facts:
            read = "prompts that layers see in part" if "prompt" in program.facts else "images"
            raise InputError(f"surface: {program.name} reads {read}; steps of tokens alone have one")
        refuse_padding(model.runs, "surface")
        self.program, self.model = program, model
        self._splits, self._parts = program.splits, program.micro_batches
        self._codes: dict[tuple[bool, bool], CompositionSteps] = {}

    def __repr__(self) -> str:
        return f"<Surface {self.program.name} on {self.model.device.name}>"

    @cached_property
    def _asked(self) -> SizeRecorder:
        asked = SizeRecorder(self.model.symbolic)
        plans = [self._plan(True, False), *([self._plan(True, True)] if self.program.splits else [])]
        whole: dict[str, None] = {}
        mixed = MixedStep([asked, Binding(B=1, T=DRAFTS + 1, C=1)], ("decode", "prefill"))
        for of in plans:
            # Ops that depend on one product of counts, such as tokens, use no function of contexts.
            counted = {
                price
                for (size, _), each in of._timed.items()
                if size and size_symbols(size) <= _COUNTS
                for price in each
            }
            for row, price in zip(of.rows, of.prices, strict=True):
                if price in counted:
                    continue
                before = len(asked.joint)
                for at in (asked, mixed):
                    price.in_graph(at, of.host.hidden if of.host else 0.0)
                if len(asked.joint) > before:
                    whole[row.name] = None
        vars(asked)["whole"] = tuple(whole)
        return asked

    @cached_property
    def _keeps(self) -> KvSums:
        mean = (C,) if self._asked.joint else ()
        return KvSums((*self._asked.functions, *mean))

    @cached_property
    def keeps(self) -> tuple[Dim, ...]:
        """The functions of a sequence's context `C` whose sums over the decoding sequences `step` takes."""
        return self._keeps.functions

    @property
    def whole(self) -> tuple[str, ...]:
        """Ops whose times depend on more than these sums; they are evaluated at the mean context."""
        return tuple(vars(self._asked)["whole"])

    def kept(self, contexts: Iterable[int]) -> tuple[int, ...]:
        """The sum of each function in `keeps` over sequences with these contexts."""
        each = items("contexts", contexts, "numbers of cached tokens")
        return self._keeps.sums(integer("contexts", c) for c in each)

    def batch(self, contexts: Iterable[int] = ()) -> DecodeBatch:
        """Sequences with these contexts that decode together; `kept` is updated from step to step."""
        return DecodeBatch(self.keeps, items("contexts", contexts, "numbers of cached tokens"))

    def step(self, decodes: int, kept: Sequence[float] = (), chunks: Iterable[Chunk] = ()) -> float:
        """Seconds of a step with `decodes` decoding sequences, whose sums are `kept`, and with prefill
        chunks.

        The sequences are distributed evenly over data-parallel ranks. A chunk is a pair of new and cached
        tokens. InputError for an empty step, or a wrong number of sums.
        """
        return self._seconds(decodes, kept, chunks)[0]

    def stages(
        self, decodes: int, kept: Sequence[float] = (), chunks: Iterable[Chunk] = ()
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch of such a step on each pipeline stage."""
        return self._seconds(decodes, kept, chunks)[1:]

    def _seconds(self, decodes: int, kept: Sequence[float], chunks: Iterable[Chunk]) -> tuple[float, ...]:
        """Seconds of the step, and of one micro-batch on each stage."""
        if type(decodes) is not int or not 0 <= decodes <= MOST:
            decodes = integer("decodes", decodes)
        # A simulation calls this millions of times, so it checks as little as possible.
        if not (type(kept) in (tuple, list) and _sums(kept)):
            kept = [number("kept", total) for total in items("kept", kept, "sums")]
        if len(kept) != (len(self.keeps) if decodes else 0):
            self._refuse(decodes, kept)
        times: dict[Chunk, int] = {}
        single: set[Chunk] = set()  # sequences that also advance by one token
        for one in chunks if type(chunks) in (tuple, list) else items("chunks", chunks, PAIRS):
            chunk = _chunk(one)
            times[chunk] = times.get(chunk, 0) + 1
            if chunk[0] == 1:
                single.add(chunk)
        for chunk in single:
            more = self._keeps.sums([chunk[1]] * times[chunk])
            kept = [a + b for a, b in zip(kept or (0,) * len(more), more, strict=True)]
            decodes += times.pop(chunk)
        if not decodes and not times:
            raise InputError("surface: the step has no sequences; pass decodes or chunks")
        parts = self._parts
        if parts > 1 and decodes:
            decodes, kept = binding(parts, decodes, 1, 0).symbols["B"], [total / parts for total in kept]
        each = [(n, *chunk) for chunk, n in times.items()]
        if parts > 1:
            each = [(binding(parts, n, new, 0).symbols["B"], new, cached) for n, new, cached in each]
        return self.micro_batch(decodes, kept, each)

    def micro_batch(
        self, decodes: float, kept: Sequence[float], each: Sequence[tuple[float, int, int]]
    ) -> tuple[float, ...]:
        """Seconds of a step with equal micro-batches, and seconds of one micro-batch on each stage.

        Chunks have several new tokens each, and a number of equal chunks. Arguments are not checked.
        """
        few = self._splits and any(self._phase(new, cached) == "decode" for _, new, cached in each)
        if few or not self.model.symbolic:
            timing = self._timing(decodes, kept, each)
            return (float(timing.step), *map(float, timing.stages))
        if not each:
            return self._steps(True, False).decode(decodes, kept)
        return self._steps(bool(decodes), True).mixed(decodes, kept, each)

    def on_rank(
        self,
        decodes: float,
        kept: Sequence[float],
        each: Sequence[tuple[float, int, int]],
        others: Sequence[tuple[float, int, int]],
    ) -> tuple[float, ...]:
        """The times if one data-parallel rank has the chunks `each`, and the other ranks have `others`.

        Ranks run in lockstep with equal decodes. Experts process the tokens of all ranks, other ops those of
        their rank: a step takes as long as the slowest rank.
        """
        few = self._splits and any(self._phase(new, cached) == "decode" for _, new, cached in each)
        if few or self.program.parallelism.dp == 1 or not self.model.symbolic:
            return self.micro_batch(decodes, kept, [*each, *others])
        return self._steps(bool(decodes), True).on_rank(decodes, kept, each, others)

    def _refuse(self, decodes: int, kept: Sequence[float]) -> NoReturn:
        wanted = f"the sums of {', '.join(map(str, self.keeps)) or 'nothing'}" if decodes else "none"
        raise InputError(
            f"kept: {decodes:,} sequences decode, expected {wanted}, got {show_value(tuple(kept))}"
        )

    def _timing(
        self, decodes: float, kept: Sequence[float], chunks: Sequence[tuple[float, int, int]]
    ) -> Timing:
        """The times of one micro-batch, evaluated with the op times directly."""
        parts: list[tuple[str, Binding]] = []
        if decodes:
            parts.append(("decode", KvSumBinding(self._keeps, decodes, kept)))
        for times, new, cached in chunks:
            parts.append((self._phase(new, cached), Binding(B=times, T=new, C=cached)))
        phases = [phase for phase, _ in parts]
        each = [part for _, part in parts]
        at = MixedStep(each, phases if self.program.splits else ()) if len(each) > 1 else each[0]
        return self._plan("decode" in phases, "prefill" in phases).timing(at)

    def _phase(self, new: int, cached: int) -> str:
        return phase_of(verified_tokens(self.program, new, cached))

    def _steps(self, decodes: bool, reads: bool) -> CompositionSteps:
        key = (decodes, reads) if self._splits else (True, False)
        if key not in self._codes:
            self._codes[key] = CompositionSteps(self._plan(*key), self._keeps)
        return self._codes[key]

    def _plan(self, decodes: bool, reads: bool) -> StepEvaluator:
        """The evaluator of the phases that run."""
        program = self.program.phase("prefill" if reads else "decode")
        if decodes and reads and program.splits:
            return mixed_step_evaluator(program, self.model)
        return step_evaluator(program, self.model)


def _sums(values: Sequence[Any]) -> bool:
    """Whether all values are sums that can occur."""
    for value in values:  # noqa: SIM110 (a third of what `all` takes)
        if type(value) not in _NUMBERS or not value >= 0:
            return False
    return True


def _chunk(value: Any) -> Chunk:
    if type(value) is tuple and len(value) == 2:
        new, cached = value
        if type(new) is type(cached) is int and 0 < new <= MOST and 0 <= cached <= MOST:
            return value
    if not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"chunks: expected {PAIRS}, got {show_value(value)}")
    return integer("chunks: new", value[0], 1), integer("chunks: cached", value[1])
