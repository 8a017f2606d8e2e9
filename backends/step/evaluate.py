"""A program on a device, ready to be priced at any point: rows with their limits, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import chain
from operator import and_, or_
from typing import Any

from llmir.backends.cost.op_time import Model, Price
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.kernels.engine_cpu import Host, lateness
from llmir.backends.memory.liveness import Memory, memories
from llmir.backends.work.rows import Row, rows
from llmir.base.array_namespace import Number, always, namespace, never
from llmir.base.dataclass import dataclass
from llmir.base.values import FrozenDict
from llmir.hw.graphs import Graphs
from llmir.ir.core.program import Program
from llmir.ir.sizes.atoms import ceildiv
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import Dim, Size, sole, symbols

from .costs import Kind, Priced, kinds
from .functions import Code, Figures, Often, TwoCode
from .groups import Group
from .placement import placed
from .timing import Overhead, Part, Seconds, StageKind, StepSeconds, Timing

_SEQUENCES, _NEW = Dim.symbol("B"), Dim.symbol("T")


@dataclass(frozen=True, eq=False)
class Plan:
    """What is computed once for a program on a device; every figure is then a function of a binding."""

    program: Program
    model: Model
    cache_policy: str = "exact"

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return len(self.program.entries)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops."""
        return rows(self.program)

    @cached_property
    def totals(self) -> Mapping[str, Size]:
        """Of all ops of a step, what `Row.amounts` has of each."""
        found: dict[str, Size] = {}
        for row in self.rows:
            runs = row.repeat * self.program.micro_batches
            for name, size in row.amounts.items():
                found[name] = found.get(name, 0) + runs * size
        return FrozenDict(found)

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """What each stage must hold."""
        return memories(self.program, self.cache_policy)

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The price of each row; of rows that are alike one and the same."""
        made, known = self.made, dict[Price, Price]()
        one = {id(price): known.setdefault(price, price) for price in {id(p): p for p in made}.values()}
        return tuple(one[id(price)] for price in made)

    @cached_property
    def made(self) -> tuple[Price, ...]:
        """What the model makes of each row: equal prices, of which `prices` keeps one, may be several."""
        return self.model.prices(self.rows)

    @cached_property
    def _timed(self) -> dict[tuple[Dim | None, bool], dict[Price, list[int]]]:
        """Prices, and how often each stage runs them: by the one size that they depend on, and if it pads.

        Equal prices are evaluated once: layers of other stages, or unrolled, cost no more than one.
        """
        runs: dict[tuple[int, bool], list[int]] = {}
        for row, key in zip(self.rows, self.keys, strict=True):
            runs.setdefault(key, [0] * self.depth)[row.stage] += row.repeat
        merged: dict[tuple[Dim | None, bool], dict[Price, list[int]]] = {}
        for key, price in dict(zip(self.keys, self.prices, strict=True)).items():
            alike = merged.setdefault((sole(getattr(price, "sizes", ())), key[1]), {})
            before = alike.get(price, [0] * self.depth)
            alike[price] = [a + b for a, b in zip(before, runs[key], strict=True)]
        return merged

    @property
    def host(self) -> Host | None:
        """The host of the engine that serves the program; None for what is no whole model."""
        return self.model.host if self.program.is_model else None

    def timing(self, at: Binding, busy: Seconds | None = None, captured: bool | None = None) -> Timing:
        """What each stage takes for a micro-batch.

        `busy` are the kernels' seconds, and `captured` is whether a graph holds them, if they are known.
        """
        whole = self._codes[1](at) if busy is None else self._served(at, busy, captured)[1]
        return Timing(whole, self.program.micro_batches)

    def _served(self, at: Binding, busy: Seconds, captured: Any = None) -> tuple[Seconds, Seconds]:
        """Seconds of kernels and of their launches, and with all that the engine adds, where one serves."""
        if (host := self.host) is None:
            return busy, busy
        launches = self._launches(at, self._captured(at) if captured is None else captured)
        launched = tuple(host.launched(time, n, at.xp) for time, n in zip(busy, launches, strict=True))
        first, *others = (time + host.waited(late) for time, late in zip(launched, self._late, strict=True))
        return launched, (first + host.exposed(first, self.sequences(at), at.xp), *others)

    def sequences(self, at: Binding) -> Number:
        """Those of one data-parallel rank, each of which has a scheduler of its own."""
        return at.xp.ceildiv(at(_SEQUENCES), self.program.parallelism.dp)

    def captured(self, at: Binding) -> Any:
        """Whether the step is launched as a graph.

        Where an engine says nothing of graphs, it is; what was measured here was launched kernel by kernel.
        """
        if self._graphs is None:
            return self.model.runs is not None
        parallelism = self.program.parallelism
        tokens = at(_NEW * ceildiv(_SEQUENCES, parallelism.dp))  # of a rank, which reads whole prompts
        of = self._graphs.on(self.model.device, parallelism.tp)
        return of.hold(tokens, self._decodes(at), self._reads(at))

    @cached_property
    def _graphs(self) -> Graphs | None:
        """What the engine says of its graphs."""
        return self.model.runs.section(Graphs) if self.model.runs and self.program.is_model else None

    def runs(self, at: Binding) -> Binding:
        """The sizes that ops run at which pad: as many sequences as the graph has that decodes them.

        Their own FLOPs and bytes are what a report counts; only time is of those that run.
        """
        if self._graphs is None or not self._graphs.sizes or isinstance(at, Mixed):
            return at
        ranks, sequences, new = self.program.parallelism.dp, at(_SEQUENCES), at(_NEW)
        xp = namespace(sequences, new)
        own = xp.ceildiv(sequences, ranks)
        more = ranks * (self._graphs.padded(own, xp) - own)
        held = (new <= 1) & self.captured(at)
        return Binding(**{**at.symbols, "B": xp.where(held, sequences + more, sequences)})

    @cached_property
    def keys(self) -> tuple[tuple[int, bool], ...]:
        """Of each row, its price by identity, which equal ones share, and whether it pads."""
        return tuple((id(price), pads) for price, pads in zip(self.prices, self.pads, strict=True))

    @cached_property
    def pads(self) -> tuple[bool, ...]:
        """Of each row, whether it runs for sequences that fill a graph too.

        These have no caches, and are alike, so that they go to one token's experts. Nor have they logits:
        vLLM picks last tokens behind the graph (`logits_indices`, v1/worker/gpu_model_runner.py).
        """
        return tuple(map(self.padding, self.rows))

    def padding(self, row: Row) -> bool:
        """Whether a row does."""
        if self._graphs is None or not self._graphs.sizes or row.experts is not None:
            return False
        return "T" in (read := symbols(row.read)) and "C" not in read

    def kinds_of_stages(self) -> Iterator[StageKind]:
        """The stages, those together that take equally long."""
        pairs = list(zip(self.rows, self.made, strict=True))
        for number in range(self.depth):
            its = [pair for pair in pairs if pair[0].stage == number]
            yield StageKind([(Part(its), 1)], 1, not number)

    def _decodes(self, at: Binding) -> Any:
        if isinstance(at, Mixed):
            return reduce(and_, (self._decodes(part) for part in at.parts))
        return at(_NEW) <= DRAFTS

    def _reads(self, at: Binding) -> Any:
        if isinstance(at, Mixed):
            return reduce(or_, (self._reads(part) for part in at.parts))
        return at(_NEW) > 1

    def seconds(self, at: Binding) -> StepSeconds:
        """Those of a micro-batch on each stage."""
        return StepSeconds.of(self._codes[0](at), self.depth)

    def evaluated(self, at: Binding) -> tuple[StepSeconds, Callable[[], Sequence[Number]]]:
        """Those, and what gives the `figures`, which asks for little more where code does it."""
        code = self._pointed.code(at) if self._pointed and not at.shape else None
        if code is None:
            return self.seconds(at), lambda: self.figures(at)
        found, more = code.both(at)
        return StepSeconds.of(found, self.depth), more

    @cached_property
    def _pointed(self) -> Often[TwoCode] | None:
        """Code of single points for the two of `evaluated`; None of prices that symbols do not go through."""
        if not self.model.symbolic:
            return None
        return Often(self._seconds, lambda seconds, new: TwoCode(seconds, self.figures, new))

    def figures(self, at: Binding) -> tuple[Number, ...]:
        """What rows are made of, in the places that `kinds` say; of symbols too."""
        runs = self.runs(at)
        prices = {kind.priced.start: (kind.price, kind.pads) for kind in self.kinds}
        priced = (Priced.of(price, runs if pads else at, at) for price, pads in prices.values())
        sizes = (map(at, (*kind.row.amounts.values(), *kind.row.shape.shape)) for kind in self.kinds)
        return tuple(chain(*priced, *sizes))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Rows that are alike, as one."""
        return kinds(self.rows, self.prices, self.keys)

    @cached_property
    def _codes(self) -> tuple[Figures, Figures]:
        """All `seconds`, and the last of them: as code where that pays, of prices that symbols go through."""
        figures: tuple[Figures, Figures] = self._seconds, lambda at: self._served(at, self.busy(at))[1]
        return (Often(figures[0], Code), Often(figures[1], Code)) if self.model.symbolic else figures

    def _seconds(self, at: Binding) -> tuple[Number, ...]:
        return tuple(chain(*self.priced(at)))

    def busy(self, at: Binding) -> Seconds:
        """Seconds of the kernels of a micro-batch on each stage, as launched; of symbols too."""
        if (captured := self._captured(at)) is not True:
            return self._kernels_s(at, captured)[1]
        (busy,) = self._stages(at, "graph")
        return busy

    def repeats(self) -> Iterator[tuple[Price, tuple[int, ...]]]:
        """Each price, and how often each stage runs it; one that pads in some places may come twice."""
        for prices in self._timed.values():
            yield from ((price, tuple(times)) for price, times in prices.items())

    def launched(self, at: Binding, captured: bool, late: bool | None = None) -> Seconds:
        """Seconds of the kernels of a micro-batch on each stage, in a graph or one by one.

        Of all, or of those alone whose groups are `late` or not.
        """
        groups = [pair for pair in self._groups if late in (None, pair[1].late)]
        (busy,) = self._stages(at, "graph" if captured and self.host else "alone", groups)
        return busy

    def priced(self, at: Binding) -> StepSeconds:
        """What `seconds` says, by the prices themselves; of symbols too."""
        captured = self._captured(at)
        alone, busy = self._kernels_s(at, captured)
        return StepSeconds(alone, busy, *self._served(at, busy, captured))

    def _kernels_s(self, at: Binding, captured: Any) -> tuple[Seconds, Seconds]:
        """Seconds of kernels one by one, and as launched."""
        if captured is False:
            (alone,) = self._stages(at, "alone")
            return alone, alone
        alone, together = self._stages(at, "both")
        if captured is True:
            return alone, together
        return alone, tuple(at.xp.where(captured, *times) for times in zip(together, alone, strict=True))

    def _captured(self, at: Binding) -> Any:
        """Whether the step is launched as a graph, if it is everywhere or nowhere."""
        if self.host is None:
            return False
        captured = self.captured(at)
        return always(captured) if always(captured) or never(captured) else captured

    def overheads(self, at: Binding, seconds: StepSeconds | None = None) -> tuple[Overhead, ...]:
        """What the engine adds to the ops of a micro-batch on each stage; none where no engine serves.

        `seconds` are those of the ops, if they are known.
        """
        if (host := self.host) is None:
            return ()
        alone, busy, launched, _ = seconds or self.seconds(at)
        late = [host.waited(late) for late in self._late]
        exposed = host.exposed(launched[0] + late[0], self.sequences(at), at.xp)
        return tuple(
            Overhead(0.0 if i else exposed, launched[i] - busy[i], late[i], busy[i] - alone[i])
            for i in range(self.depth)
        )

    def _stages(
        self, at: Binding, kind: str, groups: Sequence[tuple[bool, Group]] | None = None
    ) -> Iterator[Seconds]:
        """Seconds of the ops of a micro-batch on each stage, of each of the kinds that are asked for."""
        count, runs = self.depth, self.runs(at)
        found: list[Number] = []
        for pads, group in self._groups if groups is None else groups:
            each = group(kind, runs if pads else at)
            found = [a + b for a, b in zip(found, each, strict=True)] if found else list(each)
        found = found or [0.0] * (count * (1 + (kind == "both")))
        return (tuple(found[i : i + count]) for i in range(0, len(found), count))

    def _launches(self, at: Binding, captured: Any) -> list[Number]:
        """How many kernels of a micro-batch the host launches on each stage; a graph of them goes at once."""
        if isinstance(captured, bool):
            return [0 if captured else n for n in self._kernels]
        return [at.xp.where(captured, 0, n) for n in self._kernels]

    @cached_property
    def _groups(self) -> list[tuple[bool, Group]]:
        """Prices by what they depend on, and whether those pad."""
        hidden, symbolic = self.host.hidden if self.host else 0.0, self.model.symbolic
        return [(pads, Group(size, of, hidden, symbolic)) for (size, pads), of in self._timed.items()]

    @cached_property
    def _kernels(self) -> list[int]:
        """How many kernels a micro-batch launches on each stage."""
        counts = [0] * self.depth
        for row in self.rows:
            counts[row.stage] += row.repeat
        return counts

    @cached_property
    def _late(self) -> list[float]:
        """What a rank waits for others in collectives of a micro-batch on each stage: `StepShape.late`."""
        sums = [0.0] * self.depth
        for row in self.rows:
            sums[row.stage] += row.repeat * late(row)
        return sums

    def fullest(self, figure: Callable[[Memory], Number], at: Binding) -> Number:
        """`figure` of the stage whose memory is fullest; at each point of a grid it may be another."""
        first, *others = self.memories
        found = figure(first)
        most = first.peak(at) if others else 0
        for memory in others:
            peak, other = memory.peak(at), figure(memory)
            more = peak > most
            found = at.xp.where(more, other, found)
            most = at.xp.maximum(most, peak)
        return found

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Where the device computes in another type than the program says, and links that would reach far."""
        device = self.model.device
        found: dict[str, None] = {}
        for row in self.rows:
            if not row.work.matrix:
                continue
            name = row.work.dtype.unit
            unit = device.matrix_peak(name)[1]
            if unit != name:
                found[f"{device.name} has no {name} matrix unit; {name} runs at its {unit} rate"] = None
        node = device.node
        if node and node.assumed and node.network:
            far = f"{node.devices} devices a node and {node.network.Bps / 1e9:g} GB/s between nodes for each"
            found[f"{self.program.devices} × {device.name} are taken to be in {node.name}: {far}"] = None
        return tuple(found)


@lru_cache(maxsize=256)
def plan(program: Program, model: Model, cache_policy: str = "exact") -> Plan:
    """The plan of `program` by a cost model; HardwareError if its ranks do not fit the device's nodes."""
    return Plan(program, placed(program, model), cache_policy)


def late(row: Row) -> float:
    """What one of the ranks waits for the last in a collective; a send waits for nobody."""
    return lateness(row.work.ranks) if row.work.wire and row.node.op.exchanges else 0.0
