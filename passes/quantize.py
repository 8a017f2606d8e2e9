"""quantize: change the dtypes of weights, activations, caches and collectives.

Options choose dtypes by role, and a plan chooses them by module. `formats.py` contains the allowed dtypes,
`modules.py` the plans, `retype.py` rebuilds a graph, and `collectives.py` converts the values that ranks
send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.dtype import DType, dtype
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.program import Program
from llmir.ir.tools.loops import inner_first
from llmir.ir.tools.pipeline import Pass

from . import formats
from .collectives import with_wire_type
from .modules import KEEP, Entry, Modules, op_names, print_plan, read_plan, short_names, weight_names
from .retype import Types, retype_graph


@dataclass(frozen=True)
class Quantize(Pass):
    """Change dtypes: `weights`, `activations`, `kv` and `collectives` by role, `plan` by module.

    - Low-precision weights exclude lm_head, norms, router and embeddings unless the plan names them. A dtype
      of 16 bits or more applies to all weights.
    - Low-precision activations are quantized with one scale per token, before products with low-precision
      weights. These products then compute in this dtype. A dtype of 16 bits or more is the dtype of the whole
      model's arithmetic.
    - Low-precision collectives exclude the collectives of lm_head, router and embedding. Run the pass after
      `shard`.
    - A plan maps modules to weight dtypes or to dtypes by role, such as `{"down_proj": "bf16", "mlp":
      {"activations": "keep"}}`. Patterns may contain `*`, `keep` means unchanged, and the last match for a
      role applies.
    """

    name: ClassVar[str] = "quantize"
    encodes: ClassVar[bool] = False  # checkpoints do not quantize towers

    weights: str = ""
    activations: str = ""
    kv: str = ""
    plan: str | Mapping[str, str | Mapping[str, str]] = ""
    collectives: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in formats.ALLOWED:
            self._asked(what)
        object.__setattr__(self, "plan", print_plan(read_plan(self.plan)))
        weights, activations = self._asked("weights"), self._asked("activations")
        narrow = weights and activations and weights.low and activations.low
        if weights and activations and narrow and not formats.multiplies(activations, weights):
            both = f"weights {self.weights} with activations {self.activations}"
            rule = "activations must be of the same kind as the weights and at least as wide, or left out"
            raise PassError(f"quantize: no kernel multiplies {both}; {rule}")

    def _asked(self, what: str) -> DType | None:
        """The format that the options request for a role; None without a request."""
        name: str = getattr(self, what)
        return formats.format_of(what, name) if name else None

    def __call__(self, program: Program) -> Program:
        """Set the dtype of each source, infer all other dtypes, and convert the payloads of collectives."""
        if self == Quantize():
            return program
        modules = Modules(self._entries())
        step = _Step(self, modules, _model_type(program))
        graphs = inner_first(program, step.graph)
        modules.check()
        self._check(program, step)
        same = all(graph is program.graphs[name] for name, graph in graphs.items())
        notes = tuple(dict.fromkeys((*program.notes, *step.widened)))
        return program if same else program.replace(graphs=graphs, notes=notes)

    def _entries(self) -> tuple[Entry, ...]:
        """The entries of the plan; PassError for a `keep` without effect."""
        entries = read_plan(self.plan)
        changed = {role for role in formats.ALLOWED if getattr(self, role)}
        changed |= {e.role for e in entries if e.format != KEEP}
        for entry in entries:
            if entry.role not in changed:
                what = f"keep has nothing to keep {entry.pattern!r} from"
                raise PassError(f"quantize: plan: {what}, because there is no dtype for {entry.role}")
        return entries

    def _check(self, program: Program, step: _Step) -> None:
        """Raise PassError if a requested role has no modules."""
        if self.weights and "weights" not in step.able:
            blocks = ", ".join(sorted(formats.UNQUANTIZED_BLOCKS))
            kept = f"weights of {blocks} stay as they are, unless a plan names them"
            nothing = f"no weight of program {program.name!r} can have this dtype"
            raise PassError(f"quantize: weights {self.weights}: {nothing}; {kept}")
        activations = self._asked("activations")
        if activations and activations.low and not step.quantized:
            raise PassError(
                f"quantize: activations {self.activations}: requires weights of the same kind, at most as "
                "wide; set weights, too"
            )
        if self.kv and "kv" not in step.able:
            raise PassError(f"quantize: kv {self.kv}: program {program.name!r} has no cache")
        if self.collectives and not step.collectives:
            raise PassError(
                f"quantize: collectives {self.collectives}: no collective joins ranks in program "
                f"{program.name!r}; shard it first: --tp, or shard{{tp=…}} in a pipeline"
            )
        if self.collectives and "collectives" not in step.able:
            others = ", ".join(sorted(formats.UNQUANTIZED_COLLECTIVES))
            kept = f"{others} stay as they are, unless a plan names them"
            nothing = f"no collective of program {program.name!r} can have this dtype"
            raise PassError(f"quantize: collectives {self.collectives}: {nothing}; {kept}")


class _Step:
    """One run of the pass over a program: the requested formats, and the modules that match."""

    def __init__(self, asked: Quantize, modules: Modules, model: DType) -> None:
        self.asked, self.modules, self.model = asked, modules, model
        roles = {what: getattr(asked, what) for what in formats.ALLOWED}
        self.formats = {what: formats.format_of(what, name) if name else None for what, name in roles.items()}
        stated = {what for what, name in roles.items() if name} | {e.role for e in modules.entries}
        self.retypes = bool(stated - {"collectives"})
        self.quantized = self.collectives = 0
        self.widened: list[str] = []  # notes on weights that need more bits than before
        self.able: set[str] = set()  # roles that an option (not a plan) can change in at least one module

    def graph(self, graph: Graph) -> Graph:
        """The graph with the new dtypes."""
        found = graph
        if self.retypes:
            found, quantized = retype_graph(graph, self._types(graph))
            self.quantized += len(quantized)
        return with_wire_type(found, lambda node: self._carried(found, node))

    def _given(self, role: str, names: set[str], known: list[str]) -> tuple[DType | None, Entry | None]:
        """The requested format of a module, if any, and the entry of the plan that requests the format."""
        entry = self.modules.said(role, names, known)
        if entry is None:
            return self.formats[role], None
        if entry.format == KEEP:
            self.modules.take(entry)
            return None, entry
        return formats.format_of(role, entry.format), entry

    def _types(self, graph: Graph) -> Types:
        sources: dict[str, DType] = {}
        products: dict[str, DType] = {}
        called: dict[str, set[str]] = {}
        for node in graph.nodes:
            if node.op.role == "weight":
                uses = graph.users[node.name]
                called[node.name] = weight_names(graph, node, [user for user, _ in uses])
                if given := self._weight(graph, uses, called[node.name]):
                    sources[node.name] = given
                    self._widen(node.results[0].dtype, given, uses[0][0].op.block)
            elif node.op.cached and (not node.op.axes or "cached" in node.op.axes):
                if to := self._cache(graph, node):
                    sources[node.name] = to
            elif node.op.matrices and (to := self._activations(graph, node, called, sources)):
                products[node.name] = to
        activations = self.formats["activations"]
        wide = {self.model: activations} if activations and not activations.low else {}
        return Types(sources, products, wide)

    def _weight(self, graph: Graph, uses: Sequence[tuple[Node, int]], names: set[str]) -> DType | None:
        """The new dtype of a weight; None if it stays unchanged."""
        given, entry = self._given("weights", names, short_names(user for user, _ in uses))
        roles = _matrix_roles(uses)
        general = self.formats["weights"]
        if general and _fits(general, roles) and (not general.low or _by_default(uses)):
            self.able.add("weights")
        elif not entry:
            return None
        if given is None or not _fits(given, roles):
            return None
        self.modules.take(entry)
        return given.laid(roles)

    def _widen(self, before: DType, given: DType, block: str) -> None:
        """Add a note on a low-precision weight that needs more bytes in the requested dtype."""
        if before.low and given.low and before.bits < given.bits:
            kept = f"a plan with `{block}: keep` leaves them"
            self.widened.append(
                f"weights of {block} are widened from {before.scheme} to {given.scheme}; {kept}"
            )

    def _cache(self, graph: Graph, node: Node) -> DType | None:
        """The new dtype of a cache; None if it stays unchanged."""
        self.able.add("kv")
        given, entry = self._given("kv", op_names(graph, node), short_names([node]))
        if given is None:
            return None
        self.modules.take(entry)
        return formats.cache_format(given, len(node.results[0].shape))

    def _activations(
        self, graph: Graph, node: Node, called: Mapping[str, set[str]], weights: Mapping[str, DType]
    ) -> DType | None:
        """The low-precision dtype of a product's input, if any; unchanged without a request."""
        matrices = [node.operands[slot].node for slot in node.op.matrices]
        own, known = op_names(graph, node), short_names([node])
        said = [self._given("activations", own | called.get(m, set()), known) for m in matrices]
        if len({(given, entry is None) for given, entry in said}) > 1:
            raise PassError(f"quantize: plan: {node.name} is one op, but its modules have other activations")
        given, before = said[0][0], graph.type(node.operands[0]).dtype
        for _, entry in said:
            self.modules.take(entry)
        if given is None:
            return before.plain if before.low else None
        if said[0][1]:
            return self._explicit(graph, node, given, weights)
        return given if given.low else None

    def _explicit(self, graph: Graph, node: Node, given: DType, weights: Mapping[str, DType]) -> DType | None:
        """The format that a plan requests for one product, if hardware supports this format."""
        if not given.low:
            model = self.formats["activations"]
            model = self.model if model is None or model.low else model
            if given != model:
                rule = f"narrow, or in the model's own type, {model}"
                raise PassError(f"quantize: plan: {node.name}: activations are {rule}, got {given}")
            return None
        for slot in node.op.matrices:
            matrix = weights.get(node.operands[slot].node, graph.type(node.operands[slot]).dtype)
            if not matrix.low or not formats.multiplies(given, matrix):
                rule = "weights of their kind and as narrow"
                raise PassError(
                    f"quantize: plan: {node.name}: activations {given} need {rule}, not {matrix.scheme}"
                )
        return given

    def _carried(self, graph: Graph, node: Node) -> DType | None:
        """The new dtype of a collective's payload; None if it stays unchanged."""
        self.collectives += 1
        first = graph[node.operands[0].node]
        while first.op.relays:
            first = graph[first.operands[0].node]
        names = op_names(graph, node) | op_names(graph, first) - {first.op.block} | {node.op.opcode}
        given, entry = self._given("collectives", names, [node.op.opcode, *short_names([first, node])])
        general = self.formats["collectives"]
        if general and (not general.low or node.op.block not in formats.UNQUANTIZED_COLLECTIVES):
            self.able.add("collectives")
        elif not entry:
            return None
        self.modules.take(entry)
        return given


def _matrix_roles(uses: Sequence[tuple[Node, int]]) -> str:
    """The roles of a weight's dimensions, preferably in a product; "" if no user treats it as a matrix."""
    uses = sorted(uses, key=lambda use: use[1] not in use[0].op.matrices)
    return next((roles for node, slot in uses if (roles := node.op.scale_roles(slot))), "")


def _fits(given: DType, roles: str) -> bool:
    """Whether a weight can have a dtype; scales and tf32 require a matrix with roles of dimensions."""
    return bool(roles) or not (given.low or given.name == "tf32")


def _by_default(uses: Sequence[tuple[Node, int]]) -> bool:
    """Whether all users of a weight are products in blocks that the pass quantizes by default."""
    return all(n.op.matrices and n.op.block not in formats.UNQUANTIZED_BLOCKS for n, _ in uses)


def _model_type(program: Program) -> DType:
    """The dtype of the hidden state: the dtype of the first computed floating-point value."""
    graphs = [*(program[entry] for entry in program.entries), *program.graphs.values()]
    for graph in graphs:
        for node in graph.nodes:
            type = node.results[0].dtype
            if node.op.role == "activation" and type.kind == "float" and not type.low:
                return type
    return dtype("bf16")
