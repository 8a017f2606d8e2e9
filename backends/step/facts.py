"""Facts of a program: its weights by block and kind, and its precision.

`weights` lists parameters and bytes by kind, per layer and in total. `precision` names the dtypes of weights,
activations, caches and collectives in the form of the pass `quantize`. `program_notes` are the notes of an
estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.hw.engine_sections import fp8_support
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

# Weights

NAMES = {"embed": "embedding"}  # names of weights that differ from their contents
ROUTER = "router"


@dataclass(frozen=True)
class WeightSum:
    """The weights of one kind, such as `q_proj` with its bias, of `layers` layers with equal weights.

    Weights outside of layers have None for layers and for the values per layer. Bytes are those of the whole
    model, including scales: the sum over all ranks, without replicas.
    """

    block: str
    name: str
    dtype: str
    layers: int | None
    layer_parameters: int | None
    layer_bytes: int | None
    parameters: int
    bytes: int


@lru_cache(maxsize=256)
def weights(program: Program) -> tuple[WeightSum, ...]:
    """All weights: the embedding, the layers, and the rest; they add up to `program.parameters`."""
    places: dict[tuple[str, str, str], list[Instance]] = {}
    for at in program.weights():
        where, name = _name(program, at)
        places.setdefault((where, at.node.op.block, name), []).append(at)
    times: dict[WeightSum, int] = {}
    for (where, block, name), held in places.items():
        one = _one(block, name, held, inside=bool(where))
        times[one] = times.get(one, 0) + held[0].repeat
    return tuple(sorted((_all(one, n) for one, n in times.items()), key=_place))


def _name(program: Program, at: Instance) -> tuple[str, str]:
    """The path inside the layer (empty outside of layers), and the name of the weight."""
    path = at.path.removeprefix(program.prefix(program.entries[at.stage]))
    stem = path.removesuffix(".weight").removesuffix(".bias")
    where, _, name = stem.rpartition(".")
    name = ROUTER if at.node.op.block == ROUTER else NAMES.get(name, name)
    return f"{at.stage}.{where}" if where else "", name


def _one(block: str, name: str, held: list[Instance], *, inside: bool) -> WeightSum:
    """The weights of one kind, in one layer or outside of layers."""
    types = [at.node.results[0] for at in held]
    parameters = sum(Binding()(at.node.op.parameters) for at in held)
    size = sum(Binding()(t.bytes) for t in types)
    return WeightSum(
        block=block,
        name=name,
        dtype=types[0].dtype.short,
        layers=1 if inside else None,
        layer_parameters=parameters if inside else None,
        layer_bytes=size if inside else None,
        parameters=parameters,
        bytes=size,
    )


def _all(one: WeightSum, times: int) -> WeightSum:
    layers = times if one.layers else None
    return replace(one, layers=layers, parameters=times * one.parameters, bytes=times * one.bytes)


def _place(weight: WeightSum) -> int:
    return 1 if weight.layers else 0 if weight.name == "embedding" else 2


# Precision

FP8 = "fp8"
# Counted separately: these blocks mostly have the original dtype of the model.
_APART = ("lm_head", "router", "embedding")


@lru_cache(maxsize=256)
def precision(program: Program) -> dict[str, str | None]:
    """The most frequent dtypes of weights of products, of the inputs of these products, of caches, and of
    collectives.

    lm_head, router and embedding count only if there are no other weights; a dtype is None if there is none.
    """
    weights: Counter[tuple[bool, str]] = Counter()
    activations: Counter[tuple[bool, str]] = Counter()
    caches: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    sent: Counter[tuple[bool, str]] = Counter()
    for at in program.instances():
        op, types = at.node.op, at.graph.operand_types(at.node)
        if op.matrices:
            main = op.block not in _APART
            for matrix in (types[slot] for slot in op.matrices):
                size = Binding()(matrix.elements) * at.repeat
                weights[main, matrix.dtype.short] += size
                x = types[0].dtype
                static = x.scale_bits and x.block == (0, 0)  # one scale for all elements, known in advance
                activations[main, (x if static else x.plain).short] += size
        elif op.role == "cache":
            caches[at.node.results[0].dtype.plain.short] += at.repeat
        elif op.exchanges:
            if types[0].dtype.kind == "int" and not types[0].dtype.low:
                continue  # the expert of a row
            sent[op.block not in _APART, types[0].dtype.plain.short] += at.repeat
        elif op.role == "weight":
            plain[at.node.results[0].dtype.short] += at.repeat
    return {
        "weights": _most(weights) or (plain.most_common(1)[0][0] if plain else None),
        "activations": _most(activations),
        "kv_cache": caches.most_common(1)[0][0] if caches else None,
        "collectives": _most(sent),
    }


def _most(found: Counter[tuple[bool, str]]) -> str | None:
    return max(found, key=lambda k: (k[0], found[k]))[1] if found else None


def precision_text(program: Program, model: DeviceCostModel | None = None) -> list[str]:
    """The precision as text: `bf16` if all dtypes are equal, otherwise one entry for each.

    With fp8 weights it names the engine and GPU that determine the activations, if the engine supports them.
    """
    found = {k: v for k, v in precision(program).items() if v}
    decided = _fp8_kernel(found, model) if model and model.runs else ""
    if len(set(found.values())) <= 1 and not decided:
        return list(found.values())[:1]
    words = {k: f"{'KV cache' if k == 'kv_cache' else k} {v}" for k, v in found.items()}
    return [f"{text}{decided if k == 'activations' else ''}" for k, text in words.items()]


def _fp8_kernel(found: Mapping[str, str], model: DeviceCostModel) -> str:
    """The engine that runs fp8 weights with these activations, such as ` (vLLM on sm_90)`;
    otherwise empty.
    """
    if not found.get("weights", "").startswith(FP8) or found["weights"] == f"{FP8}_e5m2":
        return ""
    assert model.runs is not None
    try:
        support = fp8_support(model.runs, model.device)
    except HardwareError:
        return ""
    if support.activations != found.get("activations", "").startswith(FP8):
        return ""
    on = f"{model.runs.title} on {model.device.isa or model.device.name}"
    return f" ({on}: weight-only, {support.kernel})" if support.kernel else f" ({on})"


# Notes

UNLOWERED = (
    "no pass has run: this program is estimated as it is; "
    "a model given by its name runs the passes of its engine"
)


def program_notes(program: Program) -> tuple[str, ...]:
    """The notes of a program that is estimated; the first one says so if no pass has run on a model as it was
    loaded.
    """
    return program.notes if UNLOWERED in program.notes or not is_as_loaded(program) else with_note(program)


def with_note(program: Program) -> tuple[str, ...]:
    """The notes of a program on which no pass has run."""
    return UNLOWERED, *program.notes


def is_as_loaded(program: Program) -> bool:
    """Whether a program is a model on which no pass has run: whole, unfused, with the dtypes of its
    checkpoint.
    """
    if "architecture" not in program.facts or program.devices > 1 or program.is_lowered:
        return False
    weights = (n for graph in program.graphs.values() for n in graph.sources if n.op.role == "weight")
    return "quantization" in program.facts or not any(n.results[0].dtype.low for n in weights)
