"""A surface as code: tables of what reads one product of sizes, and the recorded rest.

Of a step with prompts beside decodes each price is one of three. It reads products of symbols that are summed
over the sequences, tokens as a rule: then there is a table by them. Or it is taken for one kind of sequences
after another, as attention is: of a chunk its times are kept, and of what decodes they are recorded. Or it
reads caches: it is recorded, as a function of such sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import add
from typing import Any

from llmir.backends.cost.op_time import Price
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS, Namespace, Number, namespace
from llmir.ir.sizes.atoms import OfDecode, OfPrefill
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import Dim, Monomial, products

from .evaluate import Plan
from .groups import KINDS
from .keeps import Keeps, Kept, Step, atoms, symbols

KEPT = 1 << 16  # values of which a table keeps what it found
Run = Callable[..., tuple[Any, ...]]
Names = Sequence[str]
Prices = Mapping[Price, Sequence[int]]  # how often each stage runs them
Many = tuple[float, int, int]  # of chunks that are alike: how many, new and cached tokens of each


class Code:
    """A function in two parts: of few values, which is kept, and the rest."""

    def __init__(self, tape: Tape, few: Names, late: Names, outputs: Sequence[Number]) -> None:
        early, self._rest = Function.of(tape, (*few, *late), outputs).parted(late)
        self.early = python.compiled(early)
        self._kept: dict[tuple[float, ...], tuple[Any, ...]] = {}

    def __call__(self, few: tuple[float, ...], late: Sequence[float]) -> tuple[float, ...]:
        """The outputs."""
        kept = self._kept.get(few)
        if kept is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            kept = self._kept[few] = self.early(*few)
        return self.late(*late, *kept)

    def many(self, few: tuple[float, ...], late: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs at arrays of the rest."""
        return self._many(*late, *self.early(*few))

    @cached_property
    def late(self) -> Run:
        """The rest: of its values, and of what the first part gives."""
        return python.compiled(self._rest)

    @cached_property
    def _many(self) -> Run:
        return numpy.compiled(self._rest)


class ApartError(Exception):
    """A price is of one kind of sequences after another."""


class Sums(Mixed):
    """Any sequences, of which products of symbols are given as sums."""

    def __init__(self, given: Mapping[Dim, Number]) -> None:
        super().__init__(())
        self._keep({}, {size.terms[0][0]: value for size, value in given.items()})

    @property
    def xp(self) -> Namespace:
        """That of what is given."""
        return namespace(*self._given.values())

    def each(self, of: object, seconds: Callable[[Binding], Sequence[Number]]) -> list[Number]:
        """It is not known of the kinds."""
        raise ApartError


class Chunks(Binding):
    """Chunks of prompts, of which is noted what they are asked for."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        vars(self).update(tape=tape, asked={})

    tape: Tape
    asked: dict[Monomial, Number]

    @property
    def xp(self) -> Namespace:
        """That of the tape."""
        found: Namespace = self.tape.namespace
        return found

    def _product(self, monomial: Monomial) -> Number:
        if monomial not in self.asked:
            self.asked[monomial] = self.tape.symbol(f"g{len(self.asked)}")
        return self.asked[monomial]


class Traced(Step):
    """What decodes, and chunks beside it; times of a chunk alone are symbols, and so are its sums."""

    own: Kept | None
    chunks: Chunks | None
    one: Binding  # a chunk, on a tape of its own
    alone: list[tuple[Number, Number]]  # of times of a chunk: on its own tape, and the sum on this one

    def __init__(
        self, own: Kept | None, chunks: Chunks | None, one: Binding, alone: list[tuple[Number, Number]]
    ) -> None:
        super().__init__([part for part in (own, chunks) if part is not None])
        vars(self).update(own=own, chunks=chunks, one=one, alone=alone)

    @property
    def xp(self) -> Namespace:
        """That of the parts."""
        return self.parts[0].xp

    def each(self, of: object, seconds: Callable[[Binding], Sequence[Number]]) -> list[Number]:
        """What decodes, and what the chunks take, each by itself."""
        found: list[Number] = list(seconds(self.own)) if self.own else []
        if self.chunks is None:
            return found
        times = list(seconds(self.one))
        sums = [self.chunks.tape.symbol(f"f{len(self.alone) + i}") for i in range(len(times))]
        self.alone.extend(zip(times, sums, strict=True))
        return [a + b for a, b in zip(found, sums, strict=True)] if found else list(sums)

    def within(self, phase: str) -> Mixed:
        """What decodes, or the chunks."""
        own, chunks = (self.own, None) if phase == "decode" else (None, self.chunks)
        return Traced(own, chunks, self.one, self.alone)


class Table(dict[Any, tuple[float, ...]]):
    """Seconds on each stage of prices that read some products of symbols, by their values."""

    def __init__(self, sizes: Sequence[Dim], prices: Prices, of: Plan, graph: bool) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        tape = Tape(SCALARS)
        names = [f"m{i}" for i in range(len(sizes))]
        at = Sums(dict(zip(sizes, map(tape.symbol, names), strict=True)))
        totals: list[Number] = [0.0] * of.depth
        for price, repeats in prices.items():
            time = _launch(of, price, at, graph)
            totals = [total + times * time for total, times in zip(totals, repeats, strict=True)]
        self._run = python.compiled(Function.of(tape, names, totals))

    def __missing__(self, values: Any) -> tuple[float, ...]:
        if len(self) >= KEPT:
            self.clear()
        found = self[values] = self._run(*values) if len(self.sizes) > 1 else self._run(values)
        return found


class Beside:
    """Steps that read chunks of prompts, beside what decodes or alone; as a graph or kernel by kernel."""

    def __init__(self, of: Plan, keeps: Keeps, decodes: bool, graph: bool) -> None:
        self.tables, rest = _tables(of, graph)
        names = [f"s{i}" for i in range(len(keeps.functions) if decodes else 0)]
        tape, alone = Tape(SCALARS), Tape(SCALARS)
        symbols = {name: alone.symbol(name) for name in ("B", "T", "C")}
        one, chunks = Binding(**symbols), Chunks(tape)
        own = Kept(keeps, tape.symbol("B"), [tape.symbol(n) for n in names]) if decodes else None
        at = Traced(own, chunks, one, [])
        totals: list[Number] = [0.0] * of.depth
        for price, repeats in rest.items():
            time = _launch(of, price, at, graph)
            totals = [total + times * time for total, times in zip(totals, repeats, strict=True)]
        asked = list(chunks.asked.items())
        late = [*names, *(f"g{i}" for i in range(len(asked))), *(f"f{i}" for i in range(len(at.alone)))]
        # The symbols are numbered as they were asked for.
        few = ("B",) if decodes else ()
        self._rest = Code(tape, few, late, totals)
        sizes = [size for table in self.tables for size in table.sizes]
        each = [*map(one, sizes), *(one(Dim(((m, 1),))) for m, _ in asked), *(time for time, _ in at.alone)]
        self._chunk = Code(alone, ("B", "T"), ("C",), each)
        of_decodes = Tape(SCALARS)
        single = Binding(B=of_decodes.symbol("B"), T=1)
        self._single = Code(of_decodes, ("B",), (), [single(size) for size in sizes])
        self._chunks: dict[Many, tuple[float, ...]] = {}
        self._ranks, self._placed = of.program.parallelism.dp, dict[tuple[Many, bool], tuple[float, ...]]()
        self._run = _together(self.tables, self._single, self._rest, of.depth, decodes)

    def __call__(self, count: float, sums: Sequence[float], chunks: Sequence[Many]) -> tuple[float, ...]:
        """Seconds of the kernels of each stage."""
        known, total = self._chunks, None
        for chunk in chunks:
            found = known.get(chunk)
            if found is None:
                if len(known) >= KEPT:
                    known.clear()
                times, new, cached = chunk
                found = known[chunk] = self._chunk((times, new), (cached,))
            total = found if total is None else tuple(map(add, total, found))
        return self._run(count, sums, total)

    def on_rank(
        self, count: float, sums: Sequence[float], chunks: Sequence[Many], others: Sequence[Many]
    ) -> tuple[float, ...]:
        """The same of a rank that reads these chunks, beside ranks that read others."""
        known, total = self._placed, None
        for place in (*((chunk, True) for chunk in chunks), *((chunk, False) for chunk in others)):
            found = known.get(place)
            if found is None:
                if len(known) >= KEPT:
                    known.clear()
                found = known[place] = self._of_rank(*place)
            total = found if total is None else tuple(map(add, total, found))
        return self._run(count, sums, total)

    def _of_rank(self, chunk: Many, own: bool) -> tuple[float, ...]:
        """What chunks on one rank add there, or on another one.

        As many on each rank add there what all ranks see, each time, and what it sees alone once: so the
        difference between those and one is what all see of others.
        """
        (times, new, cached), ranks = chunk, self._ranks
        one, each = (self._chunk((n, new), (cached,)) for n in (1, ranks))
        seen = [times * (b - a) / (ranks - 1) for a, b in zip(one, each, strict=True)]
        if not own:
            return tuple(seen)
        each = self._chunk((times * ranks, new), (cached,))
        return tuple(b - (ranks - 1) * a for a, b in zip(seen, each, strict=True))


def _together(tables: Sequence[Table], single: Code, rest: Code, depth: int, decodes: bool) -> Run:
    """The sum of tables and the rest: of how many sequences, their sums, and the values of all chunks."""
    lines, start = ["def run(count, sums, chunks):"], 0
    early: dict[str, Any] = {"late": rest.late}
    if decodes:
        early |= {"known": {}, "singles": single, "early": rest.early, "most": KEPT}
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


def _tables(of: Plan, graph: bool) -> tuple[list[Table], dict[Price, list[int]]]:
    """Prices that sums of products of symbols decide, as tables by those; and the rest."""
    groups: dict[tuple[Dim, ...], dict[Price, list[int]]] = {}
    rest: dict[Price, list[int]] = {}
    for price, repeats in of.repeats():
        sizes = _summed(price, of, graph)
        into = rest if sizes is None else groups.setdefault(sizes, {})
        before = into.get(price, [0] * of.depth)
        into[price] = [a + b for a, b in zip(before, repeats, strict=True)]
    return [Table(sizes, prices, of, graph) for sizes, prices in groups.items()], rest


def _launch(of: Plan, price: Price, at: Binding, graph: bool) -> Number:
    """Seconds of an op, in a graph or one by one."""
    (time,) = KINDS["graph"](price, at, of.host.hidden) if graph and of.host else KINDS["alone"](price, at, 0)
    return time


def _summed(price: Price, of: Plan, graph: bool) -> tuple[Dim, ...] | None:
    """The products that a price reads, if they are all that it reads and none is of caches; else None."""
    stated = getattr(price, "sizes", None)
    if stated is None or any(isinstance(atom, (OfDecode, OfPrefill)) for atom in atoms(stated)):
        return None
    sizes = tuple(sorted(products(stated), key=str))
    if not sizes or any("C" in symbols(size) for size in sizes):
        return None
    tape = Tape(SCALARS)
    try:
        _launch(of, price, Sums({size: tape.symbol(f"m{i}") for i, size in enumerate(sizes)}), graph)
    except ApartError:
        return None
    return sizes


class Decoding:
    """Steps that decode alone: all as one function of how many sequences there are and what they keep."""

    def __init__(self, of: Plan, keeps: Keeps, graph: bool) -> None:
        tape, names = Tape(SCALARS), [f"s{i}" for i in range(len(keeps.functions))]
        at = Kept(keeps, tape.symbol("B"), [tape.symbol(name) for name in names])
        timing = of.timing(at, of.launched(at, graph), graph)
        self._code = Code(tape, ("B",), names, (timing.step, *timing.stages))

    def __call__(self, count: float, sums: Sequence[float]) -> tuple[float, ...]:
        """Seconds of the step, and of each stage."""
        return self._code((count,), sums)


class Steps:
    """Steps of any composition of one plan."""

    def __init__(self, of: Plan, keeps: Keeps) -> None:
        self.of, self.keeps = of, keeps
        self._captured: dict[tuple[float, bool], bool] = {}
        self._decoding: dict[bool, Decoding] = {}
        self._beside: dict[tuple[bool, bool], Beside] = {}
        self._timing: dict[bool, Run] = {}

    def decode(self, count: float, sums: Sequence[float]) -> tuple[float, ...]:
        """Seconds of a step that only decodes, and of each stage."""
        graph = self._graph(count, True, lambda: Binding(B=count, T=1, C=0))
        if graph not in self._decoding:
            self._decoding[graph] = Decoding(self.of, self.keeps, graph)
        return self._decoding[graph](count, sums)

    def mixed(self, count: float, sums: Sequence[float], chunks: Sequence[Many]) -> tuple[float, ...]:
        """The same of one that reads chunks: of each kind how many there are, new and cached tokens."""
        beside, timing, sequences = self._reading(count, chunks)
        return timing(sequences, *beside(count, sums, chunks))

    def on_rank(
        self, count: float, sums: Sequence[float], chunks: Sequence[Many], others: Sequence[Many]
    ) -> tuple[float, ...]:
        """The same as a rank takes that reads these chunks, beside ranks that read others."""
        ranks = self.of.program.parallelism.dp
        each = [(times * ranks, new, cached) for times, new, cached in chunks]
        beside, timing, sequences = self._reading(count, each)
        return timing(sequences, *beside.on_rank(count, sums, chunks, others))

    def _reading(self, count: float, chunks: Sequence[Many]) -> tuple[Beside, Run, float]:
        """What prices a step that reads chunks: its kernels, and all of it; and how many sequences it has."""
        ranks = self.of.program.parallelism.dp
        tokens, sequences, most = -(-count // ranks) if ranks > 1 else count, count, 0
        for times, new, _ in chunks:
            tokens += (-(-times // ranks) if ranks > 1 else times) * new
            sequences += times
            most = max(most, new)

        def at() -> Binding:
            parts = [Binding(B=times, T=new, C=cached) for times, new, cached in chunks]
            return Mixed([*([Binding(B=count, T=1, C=0)] if count else []), *parts])

        graph = self._graph(tokens, most <= DRAFTS, at)
        key = bool(count), graph
        if key not in self._beside:
            self._beside[key] = Beside(self.of, self.keeps, *key)
        if graph not in self._timing:
            self._timing[graph] = self._timed(graph)
        return self._beside[key], self._timing[graph], sequences

    def _graph(self, tokens: float, few: bool, at: Callable[[], Binding]) -> bool:
        """Whether a step of so many tokens a rank, few of each sequence or not, is launched as a graph."""
        key = tokens, few
        if key not in self._captured:
            self._captured[key] = bool(self.of.host and self.of.captured(at()))
        return self._captured[key]

    def _timed(self, graph: bool) -> Run:
        """What stages take as a function of the sequences and of the kernels' seconds on each."""
        tape, names = Tape(SCALARS), [f"t{i}" for i in range(self.of.depth)]
        timing = self.of.timing(Binding(B=tape.symbol("B")), tuple(map(tape.symbol, names)), graph)
        return python.compiled(Function.of(tape, ("B", *names), (timing.step, *timing.stages)))
