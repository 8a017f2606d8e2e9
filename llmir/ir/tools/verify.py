"""The verifier, which infers the types of each op again after every pass, and checks the rules of the IR."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from llmir.base import arguments
from llmir.base.errors import LlmirError, VerifyError
from llmir.ir.core.graph import Graph
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Loop, infer
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.ops.pipeline_stage import Send
from llmir.ir.sizes.polynomial import put

# A step is estimated op by op. The largest model has a few thousand ops if all layers are unrolled. Each
# nesting level is walked three times to estimate memory.
MOST_OPS, MOST_LEVELS = 2_000_000, 6


def verify(program: Program) -> Program:
    """Verify a program.

    Args:
        program: The program.

    Returns:
        The program.

    Raises:
        VerifyError: The program breaks a rule. The message names the op and the rule.

    >>> from llmir.api.load import load
    >>> verify(load("gpt2")).name
    'GPT-2'
    """
    if "_verified" in vars(program):  # a verified program never changes
        return program
    if not program.entries or len(set(program.entries)) != len(program.entries):
        raise VerifyError(f"a program has entries, each once, got {', '.join(program.entries) or 'none'}")
    for entry in program.entries:
        graph = program[entry]
        for value in graph.outputs:
            if graph.type(value).partial:
                raise VerifyError(f"@{entry}: output {value} is a partial sum, {graph.type(value)}")
    for stage, (before, after) in enumerate(pairwise(program.entries)):
        _verify_handover(program[before], program[after], stage + 1)
    for name, graph in program.graphs.items():
        if name != graph.name:
            raise VerifyError(f"graph @{graph.name} is filed under @{name}")
        _verify_graph(graph, program.mesh)
        for node in graph.nodes:
            if node.op.loop:
                _verify_body(program, graph, node.name, node.op.loop, graph.operand_types(node))
    _verify_nesting(program)
    for name, phase in program.phases.items():
        check = {"encode": _verify_encode, "draft": _verify_draft}.get(name, _verify_phase)
        check(program, name, verify(phase))
    vars(program)["_verified"] = True
    return program


def _verify_encode(program: Program, name: str, phase: Program) -> None:
    """Check that the phase has image inputs, and the mesh of the program."""
    if phase.mesh != program.mesh:
        raise VerifyError(f"phase {name}: mesh is {phase.mesh}, of the program {program.mesh}")
    if not phase.patches:
        raise VerifyError(f"phase {name}: takes no patches of images")


def _verify_draft(program: Program, name: str, phase: Program) -> None:
    """Check the mesh and the micro-batches of the phase, and that its inputs are tokens and hidden states."""
    for what in ("mesh", "micro_batches"):
        if getattr(phase, what) != getattr(program, what):
            found = f"{what} is {getattr(phase, what)}, of the program {getattr(program, what)}"
            raise VerifyError(f"phase {name}: {found}")
    if len(phase.entries) > 1 or len(_face(phase, phase.entries[0])[0]) < 2:
        raise VerifyError(f"phase {name}: expected one stage, of tokens and hidden states")


def _verify_phase(program: Program, name: str, phase: Program) -> None:
    """Check that a phase has the mesh, the steps, the weights and the caches of its program."""

    def fail(fact: str) -> None:
        raise VerifyError(f"phase {name}: {fact}")

    for what in ("name", "mesh", "micro_batches", "facts"):
        if getattr(phase, what) != getattr(program, what):
            fail(f"{what} is {getattr(phase, what)}, of the program {getattr(program, what)}")
    ours, theirs = ([_face(p, entry) for entry in p.entries] for p in (phase, program))
    if not ours[0][0].items() <= theirs[0][0].items() or len(ours) != len(theirs):
        fail("takes other inputs, or has other stages")
    if _of_one(ours[-1][1]) != _of_one(theirs[-1][1]):
        fail("gives other outputs")
    for what, words in (("cache", "another type"), ("weight", "another shape")):
        held, known = _held(phase, what), _held(program, what)
        for key, type in held.items():
            if key not in known:
                fail(f"{what} {key} is not one of the program")
            if known[key] != type if what == "cache" else known[key].shape != type.shape:
                fail(f"{what} {key} is of {words}, {type}; of the program it is {known[key]}")
        if what == "cache" and (missing := known.keys() - held.keys()):
            fail(f"cache {min(missing)} of the program is missing")


def _of_one(types: tuple[Tensor, ...]) -> list[tuple[object, ...]]:
    """The types for one new token, so that types with different numbers of tokens become comparable."""
    return [(t.dtype, [put(n, {"T": 1}) for n in t.shape], t.placements, t.partial, t.tokens) for t in types]


def _face(program: Program, entry: str) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """The input types of an entry by name, and its output types."""
    graph = program[entry]
    return {n.name: n.results[0] for n in graph.inputs}, tuple(map(graph.type, graph.outputs))


def _held(program: Program, role: str) -> dict[str, Tensor]:
    """The types of all sources with a role, by checkpoint name if a source has such a name, else by path."""
    found = (at for at in program.instances() if at.node.op.role == role)
    return {
        f"{at.node.op.param} of {at.layers}" if at.node.op.param else at.path: at.node.results[0]
        for at in found
    }


@lru_cache(maxsize=4096)
def _verify_graph(graph: Graph, mesh: Mesh) -> None:
    # The result for a graph can be cached, because a graph is frozen.
    known: set[Tensor] = set()
    for node in graph.nodes:
        where = f"@{graph.name}: %{node.name} ({node.op.opcode})"
        try:
            types = infer(node.op, graph.operand_types(node))
        except LlmirError as error:
            raise VerifyError(f"{where}: {error}") from None
        if types != node.results:
            raise VerifyError(f"{where}: gives {_list(types)}, but {_list(node.results)} is stated")
        for type in node.results:
            if type.spread and type not in known:
                if len(set(type.spread)) != len(type.spread):
                    raise VerifyError(f"@{graph.name}: %{node.name} uses a mesh axis twice: {type}")
                mesh.size(type.spread)
                known.add(type)


def _verify_body(program: Program, graph: Graph, name: str, op: Loop, operands: tuple[Tensor, ...]) -> None:
    body = program[op.body]
    where = f"@{graph.name}: %{name} (repeat @{op.body})"
    takes = tuple(n.results[0] for n in body.inputs)
    gives = tuple(body.type(v) for v in body.outputs)
    given = {n.name for n in body.inputs}
    handed = next((v for v in body.outputs if v.node in given), None)
    if handed:
        raise VerifyError(f"{where}: the body hands {handed} through; let it be captured, not carried")
    if takes != operands:
        raise VerifyError(f"{where}: the body takes {_list(takes)}, got {_list(operands)}")
    if gives != (due := (*takes[: op.carried], *op.gives)):
        raise VerifyError(f"{where}: the body must return {_list(due)}, not {_list(gives)}")


def _verify_handover(before: Graph, after: Graph, stage: int) -> None:
    for node in before.nodes:
        if isinstance(node.op, Send) and node.op.to != stage:
            raise VerifyError(f"@{before.name}: %{node.name} sends to stage {node.op.to}, expected {stage}")
    given = tuple(before.type(v) for v in before.outputs)
    taken = tuple(n.results[0] for n in after.inputs[: len(given)])
    if taken != given:
        takes, gives = f"@{after.name}: takes {_list(taken)} first", f"@{before.name} gives {_list(given)}"
        raise VerifyError(f"{takes}, but {gives}")


def _verify_nesting(program: Program) -> None:
    """Check that no graph contains itself, and that the ops of the entries can be listed."""
    known: dict[
        str, tuple[int, int]
    ] = {}  # (number of ops, nesting levels) of a graph; each body counts once

    def size(name: str, path: tuple[str, ...]) -> tuple[int, int]:
        if name in path:
            raise VerifyError(f"graph @{name} repeats itself")
        if len(path) >= MOST_LEVELS:
            raise VerifyError(f"graph @{name}: repeats are nested more than {MOST_LEVELS} deep")
        if name not in known:
            nodes = program[name].nodes
            inside = [size(n.op.loop.body, (*path, name)) for n in nodes if n.op.loop]
            known[name] = len(nodes) + sum(n for n, _ in inside), 1 + max((n for _, n in inside), default=0)
        ops, levels = known[name]
        if len(path) + levels > MOST_LEVELS:
            raise VerifyError(f"graph @{name}: repeats are nested more than {MOST_LEVELS} deep")
        if ops > MOST_OPS:
            raise VerifyError(f"graph @{name} runs {ops:,} ops: the limit is {MOST_OPS:,}")
        return ops, levels

    for name in program.graphs:
        size(name, ())


def _list(types: tuple[Tensor, ...]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def checked_program(program: object) -> Program:
    """Verify an argument, and return a cached equal program if there is one; InputError for a non-program."""
    if not isinstance(program, Program):
        arguments.refuse("program", program, "a Program, such as llmir.load gives")
    return _verified(program)


@lru_cache(maxsize=256)
def _verified(program: Program) -> Program:
    """Verify a program, which a caller may have built; the result is cached, because programs never change.

    Equal programs share the cached properties of the first verified program.
    """
    return verify(program)
