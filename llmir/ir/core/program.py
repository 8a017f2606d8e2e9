"""Programs: named graphs, entries (one per pipeline stage), a mesh, and other programs by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.formats import Displayable
from llmir.base.names import is_layered
from llmir.base.values import FrozenDict, Record
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .graph import Graph, Node
from .layers import Layers
from .mesh import ONE_DEVICE, Mesh, Parallelism
from .tensor import Tensor

PHASES = ("encode", "prefill", "decode", "draft")
"""Steps of images, of prompts, of one new token of each sequence, of the layer that predicts further ones."""
APART = ("encode", "draft")  # phases with separate weights
LEFT_OUT = "without"  # the fact that names fields of a multimodal config, such as vision_config


class Instance(NamedTuple):
    """A node at one place of a program; `path` is unique in the program, and `stage` is the pipeline stage.

    A node in the body of a loop represents all iterations; `layers` contains their layer numbers.
    """

    path: str
    graph: Graph
    node: Node
    layers: Layers
    stage: int

    @property
    def repeat(self) -> int:
        """The number of runs per micro-batch."""
        return self.layers.count


LONGEST_NAME = 200  # most characters of a graph's name in an error message


@dataclass(frozen=True, eq=False, repr=False)
class Program(Record, Displayable):
    """Named graphs with one entry graph per pipeline stage; each stage has separate devices.

    The first inputs of each entry are the results of the previous entry. A step sends its batch through the
    entries in `micro_batches` equal parts; `B` counts the sequences of one part. `facts` are properties of
    the model for reports (architecture, layers, positions). `notes` are messages for the user, such as an
    assumption or an ignored field.

    `phases` maps names in `PHASES` to programs that replace the graphs in one phase. These programs share
    weights and caches with the program, with two exceptions. The phase encode has separate weights, and
    computes inputs of prefill. The phase draft has separate weights and a separate cache, which do not count
    as parameters or caches of the program.
    """

    prints = "ir"

    name: str
    graphs: Mapping[str, Graph]
    entries: tuple[str, ...] = ("main",)
    mesh: Mesh = ONE_DEVICE
    facts: Mapping[str, str | int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    micro_batches: int = 1
    phases: Mapping[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.text("program: name", self.name, error=VerifyError)
        graphs = arguments.mapping("program: graphs", self.graphs, "graphs by name", error=VerifyError)
        facts = arguments.mapping("program: facts", self.facts, "facts by name", error=VerifyError)
        for name, graph in graphs.items():
            if not isinstance(graph, Graph):
                arguments.refuse(f"program: graphs: {name}", graph, "a Graph", VerifyError)
        for name, fact in facts.items():
            if not isinstance(fact, (str, int, float, tuple)):
                arguments.refuse(f"program: facts: {name}", fact, "text or a number", VerifyError)
        if not isinstance(self.mesh, Mesh):
            arguments.refuse("program: mesh", self.mesh, "a Mesh", VerifyError)
        for lines in ("entries", "notes"):
            texts = arguments.check_field(
                f"program: {lines}", getattr(self, lines), "tuple[str]", {}, VerifyError
            )
            vars(self)[lines] = texts
        steps = arguments.integer("program: micro_batches", self.micro_batches, 1, error=VerifyError)
        vars(self)["micro_batches"] = steps
        for name, phase in arguments.mapping(
            "program: phases", self.phases, "programs", error=VerifyError
        ).items():
            arguments.choice("program: phases", name, PHASES, error=VerifyError)
            if not isinstance(phase, Program) or phase.phases:
                arguments.refuse(f"program: phases: {name}", phase, "a Program without phases", VerifyError)

    def phase(self, name: str) -> Program:
        """The program of a phase, in which `phases` contains the other phases.

        Returns the program itself if the phase has no replacement.
        """
        arguments.choice("phase", name, PHASES, error=VerifyError)
        if name not in self.phases:
            return self
        others = {n: p for n, p in self.phases.items() if n != name}
        own = [n for n in ("prefill", "decode") if n not in self.phases][:1]
        return self.phases[name].replace(phases={**others, **dict.fromkeys(own, self.replace(phases={}))})

    @property
    def splits(self) -> bool:
        """Whether prefill and decode have different programs."""
        return not {"prefill", "decode"}.isdisjoint(self.phases)

    @property
    def parts(self) -> tuple[Program, ...]:
        """The program itself and, if it has one, its encoder of images."""
        return self, *(phase for name, phase in self.phases.items() if name == "encode")

    def __getitem__(self, name: str) -> Graph:
        try:
            return self.graphs[name]
        except (KeyError, TypeError):  # values that cannot be keys
            known = ", ".join(f"@{g}" for g in self.graphs)
            short = isinstance(name, str) and len(name) <= LONGEST_NAME
            shown = name if short else arguments.show_value(name)
            raise VerifyError(f"program {self.name!r} has no graph @{shown}; it has {known}") from None

    def __repr__(self) -> str:
        return f"<Program {self.name}: {', '.join(f'@{g}' for g in self.graphs)}>"

    def instances(self) -> Iterator[Instance]:
        """Every node that a step runs, in order, with each `repeat` replaced by its body."""

        def walk(name: str, path: str, layers: Layers, stage: int) -> Iterator[Instance]:
            graph = self[name]
            inner = self.iterations(graph, layers)
            for node in graph.nodes:
                yield Instance(path + node.name, graph, node, layers, stage)
                if node.name in inner:
                    body = graph.loops[node.name].body
                    yield from walk(body, f"{path}{node.name}.", inner[node.name], stage)

        for stage, entry in enumerate(self.entries):
            yield from walk(entry, self.prefix(entry), Layers(), stage)

    def iterations(self, graph: Graph, start: Layers) -> dict[str, Layers]:
        """The layer numbers of each `repeat` in `graph`, by name; numbering in the graph begins at `start`.

        Numbering continues after the preceding layers of the graph, unless a `repeat` sets `first`. An
        iteration has as many layers as its body (`depth`).
        """
        found: dict[str, Layers] = {}
        before = 0
        for name, loop in graph.loops.items():
            size = self.depth(loop.body)
            before = before if loop.first is None else loop.first
            found[name] = start.inside(before, loop.times, size)
            before += loop.times * size
        return found

    def runs(self, graph: Graph, times: Mapping[str, int] | None = None) -> dict[Graph, int]:
        """How often each graph runs per run of `graph`; `times` replaces the numbers of iterations."""
        found = {graph: 1}
        for name, loop in graph.loops.items():
            often = (times or {}).get(name, loop.times)
            for inner, count in self.runs(self[loop.body]).items():
                found[inner] = found.get(inner, 0) + often * count
        return found

    def depth(self, name: str) -> int:
        """The number of layers in one run of a graph: the layers of all its loops, or 1 without loops."""
        loops = self[name].loops.values()
        depths: dict[str, int] = vars(self).setdefault("_depths", {})
        if name not in depths:
            depths[name] = sum(p.times * self.depth(p.body) for p in loops) or 1
        return depths[name]

    def prefix(self, entry: str) -> str:
        """The prefix of op paths in an entry; empty if the program has only one entry."""
        return f"{entry}." if len(self.entries) > 1 else ""

    @cached_property
    def parallelism(self) -> Parallelism:
        """The degree of each kind of parallelism."""
        tp, dp = (self.mesh.degree(name) for name in ("tp", "dp"))
        return Parallelism(tp=tp, pp=len(self.entries), ep=self.mesh.ep, dp=dp, sp=self.mesh.sp)

    @property
    def is_model(self) -> bool:
        """Whether the program is a whole language model, which an engine can serve."""
        return "architecture" in self.facts and not self.patches

    @cached_property
    def is_lowered(self) -> bool:
        """Whether, in any phase, a pass has replaced ops by an engine's kernels."""
        parts = (self, *self.phases.values())
        return any(n.op.lowered for part in parts for graph in part.graphs.values() for n in graph.nodes)

    @cached_property
    def patches(self) -> int:
        """The number of patches per image that a step encodes; 0 for models without image inputs."""
        return self._given("patch")

    @cached_property
    def image_tokens(self) -> int:
        """The number of image tokens per prompt; 0 without images."""
        return self._given("image")

    def _given(self, axis: str) -> int:
        """The size of a logical axis of the inputs; 0 if no input has the axis."""
        given = (n for n in self[self.entries[0]].inputs if axis in n.op.axes)
        return next((Binding()(n.results[0].shape[n.op.axes.index(axis)]) for n in given), 0)

    @property
    def devices(self) -> int:
        """The number of devices: the devices of the mesh times the number of stages."""
        return self.mesh.devices * len(self.entries)

    @property
    def left_out(self) -> str:
        """The omitted parts of a multimodal model, such as `vision tower, audio tower`; "" if none."""
        return str(self.facts.get(LEFT_OUT, "")).replace("_config", " tower")

    @property
    def title(self) -> str:
        """The name with omitted parts, such as `my-vlm without vision tower`."""
        return f"{self.name} without {self.left_out}" if self.left_out else self.name

    def held(self) -> Iterator[Instance]:
        """The stored weights of each stage. A weight without `{layer}` in its name is stored once."""
        seen: set[tuple[str, int, Tensor]] = set()
        for at in self.instances():
            name, key = at.node.op.param, (at.node.op.param, at.stage, at.node.results[0])
            if at.node.op.role != "weight":
                continue
            if is_layered(name) or not name:
                yield at
            elif key not in seen:
                seen.add(key)
                yield at._replace(layers=Layers(at.layers.first))

    def weights(self) -> Iterator[Instance]:
        """Each weight; a tied weight appears once, in its first stage."""
        first: dict[str, int] = {}  # name in the checkpoint -> stage
        for at in (at for part in self.parts for at in part.held()):
            name = at.node.op.param
            if is_layered(name) or not name or first.setdefault(name, at.stage) == at.stage:
                yield at

    @cached_property
    def parameters_by_kind(self) -> FrozenDict[str, int]:
        """Parameters by block, with a prefix for the image encoder; tied weights count once, buffers not."""
        total: Counter[str] = Counter()
        own = {*self.graphs.values()}
        for at in self.weights():
            if count := Binding()(at.node.op.parameters):
                kind = at.node.op.block if at.graph in own else f"encode.{at.node.op.block}"
                total[kind] += count * at.repeat
        return FrozenDict(total)

    @property
    def parameters(self) -> int:
        """The number of parameters, including all experts."""
        return sum(self.parameters_by_kind.values())

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token uses, with embeddings, but only with the top-k routed experts."""
        idle = Fraction(0)
        for at in self.instances():
            if (share := at.node.op.active) < 1:
                op = at.node.op
                rule = op.equation(at.graph.operand_types(at.node))
                biases = {i for i, term in enumerate(rule.operands) if rule.indexed & {*rule.axes([term])}}
                held = (at.graph[at.node.operands[slot].node].op for slot in {*op.matrices} | biases)
                idle += at.repeat * sum(Binding()(weight.parameters) for weight in held) * (1 - share)
        return self.parameters - int(idle)

    @cached_property
    def _caches(self) -> tuple[tuple[Size, int], ...]:
        """The bytes of each cache, and the number of layers with such a cache."""
        caches = (i for i in self.instances() if i.node.op.role == "cache")
        return tuple((i.node.results[0].bytes, i.repeat) for i in caches)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the caches of one sequence with `tokens` tokens."""
        at = Binding(B=1, T=0, C=tokens)
        return sum(at(size) * times for size, times in self._caches)

    @property
    def kv_cache_bytes_per_token(self) -> int:
        """The bytes that the first token of a sequence adds to the caches.

        Later tokens add the same number of bytes, or fewer if a window is full or tokens are compressed.
        """
        return self.cache_bytes(1) - self.cache_bytes(0)

    @property
    def kv_cache_bytes_per_later_token(self) -> float:
        """Cache bytes per token after all windows are full: the mean over the second million tokens."""
        million = 1 << 20  # a multiple of all chunk lengths and compression strides
        return (self.cache_bytes(2 * million) - self.cache_bytes(million)) / million

    @property
    def state_bytes_per_sequence(self) -> int:
        """Cache bytes per sequence, independent of length: states of scans and convolutions."""
        return self.cache_bytes(0)

    def replace(self, **changes: Any) -> Program:
        """A copy with some fields changed."""
        return replace(self, **changes)
