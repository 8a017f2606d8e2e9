"""The sections of an engine's file: memory, dispatch, graphs, passes, precision and scheduler.

Each section registers a reader for its key and returns a frozen record. Most sections are keyed by the first
release with this behavior.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from llmir.base.array_namespace import Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.values import Record
from llmir.ir.core.dispatch_modes import FORMS

from . import engine, schema
from .device import Device
from .engine import ByDevice, Engine, Releases, first_match, options, records, releases, section
from .schema import Key, show

# --- Memory ---

# The basis of `utilization`: for vLLM (`gpu_memory_utilization`) all physical memory; for SGLang
# (`mem_fraction_static`) the free memory before the weights are loaded, for weights and cache together;
# for TensorRT-LLM (`free_gpu_memory_fraction`) the rest after all other uses.
RULES = ("physical", "static", "free")


@dataclass(frozen=True, eq=False, kw_only=True)
class StepBudget(ByDevice):
    """The limits of a step: sequences, and tokens.

    With `whole`, requests are not split, so a step may also contain one request with more tokens than the
    limit.
    """

    sequences: int
    tokens: int
    whole: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryReserve(ByDevice):
    """The bytes of memory that stay free if no share is set.

    They are a constant plus amounts per token of a step, per sequence of the largest decode graph, and per
    rank of tp × pp; at least `least`.
    """

    bytes: int = 0
    token_bytes: float = 0
    graph_bytes: float = 0
    rank_bytes: float = 0
    least: int = 0

    def whole(self, tokens: int, captured: float, ranks: int) -> float:
        """The total in bytes."""
        each = tokens * self.token_bytes, captured * self.graph_bytes, ranks * self.rank_bytes
        return max(self.least, self.bytes + sum(each))


# The way in which an engine divides the cache memory: one pool of equal pages for all layers; one pool for
# layers with windows and one for the others; or one for each window size.
SPLITS = ("shared", "ratio", "windows")
KEPT = ("window", "chunk")


@dataclass(frozen=True)
class CacheRule:
    """The rule by which an engine allocates cache blocks.

    `split` divides memory into pools (`SPLITS`). The pool of layers with windows has `window_ratio` times the
    tokens of the other pool. If there is a pool for each window, pools have shares in proportion to the bytes
    of their windows. Caches of the kinds in `keeps` (`window`, `chunk`) never free a block. A window also
    keeps the tokens of `steps` steps in flight. With `wide_pages`, pages are large enough for a state of a
    layer; otherwise a state takes several pages. If `models`, a list of architectures, is set, all other
    models keep all tokens in one pool.
    """

    split: str = "shared"
    window_ratio: float = 0.0
    keeps: tuple[str, ...] = KEPT
    steps: int = 0
    wide_pages: bool = False
    models: tuple[str, ...] = ()
    source: str = ""

    def of(self, architecture: object) -> CacheRule:
        """The rule for models of an architecture."""
        return self if not self.models or architecture in self.models else CacheRule(source=self.source)


@dataclass(frozen=True, eq=False)
class EngineMemory(Record):
    """The memory that an engine uses in addition to weights and cache; the cache gets the rest.

    At its start, the engine profiles one step with its whole token budget. The forward pass uses the tensors
    that are alive, and `states` more hidden states of all tokens. The sampler then uses the logits, `sampler`
    fp32 values per logit, and `vocabularies` fp32 rows of the vocabulary per multiprocessor. These are in
    addition to the hidden states and `experts` times the workspace of the experts. In either case,
    `kept_bytes` stay in use. `outside` maps tp to bytes outside PyTorch's allocator: contexts, and buffers of
    collectives. `graph_bytes` are for CUDA graphs. If `utilization` is not set, `aside` bytes stay free.
    `caches` is the rule of blocks.
    """

    rule: str
    block: int
    budgets: tuple[StepBudget, ...]
    utilization: float | None = None
    aside: tuple[MemoryReserve, ...] = ()
    states: float = 0
    sampler: float = 0
    vocabularies: float = 0
    experts: float = 0
    kept_bytes: float = 0
    graph_bytes: float = 0
    outside: Mapping[int, float] = field(default_factory=lambda: {1: 0.0})
    origin: str = ""
    rows: int = 0
    error: float | None = None
    caches: CacheRule = CacheRule()

    def outside_bytes(self, tp: int) -> float:
        """The bytes for the largest listed number of ranks up to `tp`."""
        return self.outside[max(n for n in self.outside if n <= tp)]


def _rule(value: object, where: str, unit: float) -> str:
    if value not in RULES:
        raise HardwareError(f"{where} must be {', '.join(RULES)}, got {schema.show(value)}")
    return str(value)


def _share(value: object, where: str, unit: float) -> float:
    found = schema.number(value, where, unit)
    if found > 1:
        raise HardwareError(f"{where} must be a share above 0 up to 1, got {schema.show(value)}")
    return found


def _outside(value: object, where: str, unit: float) -> dict[int, float]:
    pairs = schema.mapping(value, where).items()
    found = {schema.count(tp, f"{where}: tp", 1): schema.amount(v, f"{where}.{tp}", unit) for tp, v in pairs}
    if 1 not in found:
        raise HardwareError(f"{where} must contain tp 1, got {schema.show(value)}")
    return found


def _split(value: object, where: str, unit: float) -> str:
    if value not in SPLITS:
        raise HardwareError(f"{where} must be one of {', '.join(SPLITS)}, got {schema.show(value)}")
    return str(value)


def _kept(value: object, where: str, unit: float) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(each in KEPT for each in value):
        raise HardwareError(f"{where} must be a list of {', '.join(KEPT)}, got {schema.show(value)}")
    return tuple(value)


CACHES = {
    "split": Key("split", _split),
    "window_ratio": Key("window_ratio", schema.number),
    "keeps": Key("keeps", _kept),
    "steps": Key("steps", schema.count),
    "wide_pages": Key("wide_pages", schema.flag),
    "models": Key("models", schema.spellings),
    "source": Key("source", schema.text, required=True),
}


def _caches(value: object, where: str, unit: float) -> CacheRule:
    found = CacheRule(**schema.read_fields(value, where, CACHES))
    if (found.split == "ratio") != bool(found.window_ratio):
        raise HardwareError(f"{where}: split: ratio and window_ratio require each other")
    return found


BUDGET = {
    "sequences": Key("sequences", schema.count, required=True),
    "tokens": Key("tokens", schema.count, required=True),
    "whole": Key("whole", schema.flag),
}
ASIDE = {
    "MiB": Key("bytes", schema.size, 2**20),
    "token_MiB": Key("token_bytes", schema.number, 2**20),
    "graph_MiB": Key("graph_bytes", schema.number, 2**20),
    "rank_MiB": Key("rank_bytes", schema.number, 2**20),
    "least_MiB": Key("least", schema.size, 2**20),
}
MEMORY = {
    "rule": Key("rule", _rule, required=True),
    "block": Key("block", schema.count, required=True),
    "budgets": Key("budgets", options(StepBudget, BUDGET), required=True),
    "utilization": Key("utilization", _share),
    "aside": Key("aside", options(MemoryReserve, ASIDE)),
    "states": Key("states", schema.amount),
    "sampler": Key("sampler", schema.amount),
    "vocabularies": Key("vocabularies", schema.amount),
    "experts": Key("experts", schema.amount),
    "graph_GiB": Key("graph_bytes", schema.amount, 2**30),
    "kept_GiB": Key("kept_bytes", schema.amount, 2**30),
    "outside_GiB": Key("outside", _outside, 2**30, required=True),
    "origin": Key("origin", schema.text, required=True),
    "rows": Key("rows", schema.count),
    "error_percent": Key("error", schema.number, 0.01),
    "caches": Key("caches", _caches),
}


@engine.section("memory")
def memory(value: object, where: str) -> Releases[EngineMemory]:
    """The releases of a file."""
    return releases(value, where, _memory)


def _memory(value: Mapping[Any, Any], where: str) -> EngineMemory:
    fields = schema.read_fields(value, where, MEMORY)
    if ("utilization" in fields) == ("aside" in fields):
        raise HardwareError(f"{where}: set either utilization or aside")
    return EngineMemory(**fields)


# --- Dispatch ---


@dataclass(frozen=True)
class EngineDispatch:
    """The engine's own form of dispatch."""

    by: str


@section("dispatch")
def dispatch(value: object, where: str) -> EngineDispatch:
    """One of the forms; HardwareError for anything else."""
    if value not in FORMS:
        raise HardwareError(f"{where} must be one of {', '.join(FORMS)}, got {show(value)}")
    return EngineDispatch(str(value))


# --- CUDA graphs ---

Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSizes(ByDevice):
    """The largest steps that run as a graph, in tokens of a data-parallel rank: decode-only steps, and other
    steps.

    0 means no graphs.
    """

    decodes: float = 0
    prompts: float = 0

    def hold(self, tokens: Number, decodes: Any, reads: Any) -> Any:
        """Whether a step with `tokens` tokens per rank runs as a graph; the step contains decodes, prompts or
        both.

        A few new tokens per sequence can be drafts to verify, or the rest of a prompt.
        """
        return (decodes & (tokens <= self.decodes)) | (reads & (tokens <= self.prompts))


@dataclass(frozen=True, eq=False)
class CudaGraphs(Record):
    """The largest graphs by device, and the numbers of sequences with a graph.

    `sizes` contains pairs (most, multiple): up to `most` sequences, there is a graph for each multiple, and
    steps are padded to the next one. Without sizes, there is a graph for each number of sequences. If an
    engine has a `default`, the operator can set the largest graph; the default is the number of sequences if
    they do not.
    """

    largest: tuple[GraphSizes, ...]
    sizes: Sizes = ()
    source: str = ""
    default: int = 0

    def padded(self, sequences: Number, xp: Namespace) -> Number:
        """The number of sequences of the graph that runs these decodes; unchanged if it is above the largest
        graph.

        >>> from llmir.base.array_namespace import SCALARS
        >>> graphs = CudaGraphs((), ((1, 1), (2, 2), (4, 4), (256, 8)))
        >>> [graphs.padded(n, SCALARS) for n in (1, 2, 3, 5, 8, 33, 300)]
        [1, 2, 4, 8, 8, 40, 300]
        """
        found = sequences
        for most, multiple in reversed(self.sizes):
            found = xp.where(sequences <= most, xp.ceildiv(sequences, multiple) * multiple, found)
        return found

    def on(self, device: Device, tp: int) -> GraphSizes:
        """The graphs of a device with `tp` tensor-parallel ranks."""
        return first_match(self.largest, device, tp)

    def unstated(self, device: Device, tp: int) -> int:
        """The default size of the largest graph; 0 if it has no effect."""
        return self.default if self.default < self.on(device, tp).decodes else 0


CAPTURED = {
    "decodes": Key("decodes", schema.amount, required=True),
    "prompts": Key("prompts", schema.amount),
}


def _sizes(value: object, where: str, unit: float) -> Sizes:
    pairs = schema.mapping(value, where).items()
    found = tuple(
        (schema.count(most, where, unit), schema.count(each, f"{where}.{most}", unit)) for most, each in pairs
    )
    if list(found) != sorted(found) or any(most % each for most, each in found):
        wanted = "rising numbers of sequences, each with what it is a multiple of"
        raise HardwareError(f"{where}: expected {wanted}, got {schema.show(value)}")
    return found


graphs = engine.section("graphs")(
    records(
        CudaGraphs,
        {
            "largest": Key("largest", options(GraphSizes, CAPTURED), required=True),
            "sizes": Key("sizes", _sizes),
            "source": Key("source", schema.text, required=True),
            "default": Key("default", schema.count),
        },
    )
)


# --- Passes ---


@dataclass(frozen=True)
class Passes:
    """The default pipeline of the engine for every model."""

    pipeline: str
    source: str = ""


passes = engine.section("passes")(
    records(
        Passes,
        {
            "pipeline": Key("pipeline", schema.text, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)


# --- Precision ---


@dataclass(frozen=True, eq=False)
class Fp8Weights(Record):
    """The support for fp8 weights, by the first ISA of each GPU family.

    From `multiplies` on, matrix products use 8-bit activations. From `dequantizes` on, the weight-only
    `kernel` converts weights inside 16-bit products. The engine refuses fp8 weights on other GPUs.
    """

    multiplies: tuple[str, ...] = ()
    dequantizes: tuple[str, ...] = ()
    kernel: str = ""
    source: str = ""


class Fp8Support(NamedTuple):
    """How fp8 weights run on a device: with 8-bit `activations`, or else with a weight-only `kernel`."""

    activations: bool
    kernel: str = ""


def fp8_support(runs: Engine | None, device: Device) -> Fp8Support:
    """How an engine runs fp8 weights on a device. Without an engine, the matrix units of the device decide.

    Raises:
        HardwareError: The engine has no kernel for fp8 weights on the device.

    >>> from llmir.hw import library
    >>> vllm = library.engine("vllm")
    >>> [fp8_support(vllm, library.load(name)) for name in ("l40s", "a100")]
    [Fp8Support(activations=True, kernel=''), Fp8Support(activations=False, kernel='Marlin')]
    """
    native = device.matrix_unit("fp8_e4m3") == "fp8"
    rule = runs.section(Fp8Weights) if runs else None
    if rule is None:
        return Fp8Support(native)
    if _supports(rule.multiplies, device.isa, unknown=native):
        return Fp8Support(activations=True)
    if _supports(rule.dequantizes, device.isa, unknown=bool(rule.dequantizes)):
        return Fp8Support(activations=False, kernel=rule.kernel)
    first = {_generation(isa)[0]: isa for isa in (*rule.multiplies, *rule.dequantizes)}
    family, _ = _generation(device.isa)
    known = [first[family]] if family in first else [*first.values()]
    newer = f"; {', '.join(known)} and newer ones have one" if known else ""
    raise HardwareError(f"weights fp8: {runs} has no kernel for them on {device.isa or device.name}{newer}")


def _supports(first: tuple[str, ...], isa: str, *, unknown: bool) -> bool:
    """Whether an ISA belongs to the family of one of these and is not older; without an ISA, the result is
    `unknown`.
    """
    family, number = _generation(isa)
    known = map(_generation, first)
    return any(family == of and number >= least for of, least in known) if isa else bool(first) and unknown


def _generation(isa: str) -> tuple[str, int]:
    """The family of an ISA and its number in the family: (`gfx9`, 0x42) of gfx942, (`sm_`, 90) of sm_90."""
    if isa.startswith("gfx"):
        return isa[:-2], int(isa[-2:], 16)
    family, _, number = isa.rpartition("_")
    return f"{family}_", int(number) if number.isdigit() else -1


def _isas(value: object, where: str, unit: float) -> tuple[str, ...]:
    found = schema.spellings(value, where, unit) if value != [] else ()
    if wrong := next((isa for isa in found if not re.fullmatch(r"sm_\d{2,3}|gfx\d+[0-9a-f]{2}", isa)), ""):
        raise HardwareError(f"{where} must be a list of ISAs such as sm_89 or gfx942, got {show(wrong)}")
    return found


fp8_weights = engine.section("fp8_weights")(
    records(
        Fp8Weights,
        {
            "multiplies": Key("multiplies", _isas),
            "dequantizes": Key("dequantizes", _isas),
            "kernel": Key("kernel", schema.text),
            "source": Key("source", schema.text, required=True),
        },
    )
)


@dataclass(frozen=True, eq=False)
class ExpertInputs(Record):
    """Experts with these `weights` get these `activations` on GPUs with one of these ISAs.

    If the user sets the dtype of activations, these rules do not apply.
    """

    weights: str
    activations: str
    multiplies: tuple[str, ...] = ()
    source: str = ""

    def on(self, device: Device) -> bool:
        """Whether the engine does this on a device."""
        return device.isa in self.multiplies


expert_inputs = engine.section("expert_inputs")(
    records(
        ExpertInputs,
        {
            "weights": Key("weights", schema.label, required=True),
            "activations": Key("activations", schema.label, required=True),
            "multiplies": Key("multiplies", _isas, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)


# --- Kernels ---


@dataclass(frozen=True, eq=False)
class KernelVariants(Record):
    """Kernels of another calibration that an engine uses in addition to its main kernels if they are faster.

    `vllm` with the variant `eager` also has the kernels of the calibration `vllm-eager`.
    """

    kernels: tuple[str, ...]
    source: str = ""


kernel_variants = engine.section("variants")(
    records(
        KernelVariants,
        {
            "kernels": Key("kernels", schema.spellings, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)


@dataclass(frozen=True, eq=False)
class JoinedKernels(Record):
    """Ops that an engine runs inside the kernel of an adjacent op, without a separate launch.

    `ops` are opcodes, and `blocks` are blocks of the model, with all of their ops.
    """

    ops: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    source: str = ""

    def contains(self, *names: str) -> bool:
        """Whether one of these opcodes and blocks is listed."""
        return not {*self.ops, *self.blocks}.isdisjoint(names)


joined_kernels = engine.section("joins")(
    records(
        JoinedKernels,
        {
            "ops": Key("ops", schema.spellings),
            "blocks": Key("blocks", schema.spellings),
            "source": Key("source", schema.text, required=True),
        },
    )
)


# --- Scheduler ---


@dataclass(frozen=True)
class Scheduler:
    """The properties of a scheduler.

    - `mixes`: Steps contain prefill chunks and decodes; otherwise prefill runs first and decodes wait.
    - `chunked`: Prompts are split into chunks; otherwise a prompt with more tokens than a step is refused.
    - `ahead`: A step is filled while the previous one runs.
    - `cautious`: A prompt is admitted when the cache has space for all of it, not only for its first chunk.
    - `pads`: All sequences of a step run with the length of the longest.
    - `receive_interval`: The number of decode steps between two looks for new requests; 0 for an engine
      without this setting.
    - `patience`, `enough`: Prompts wait up to `patience` decode steps, until they fill the share `enough` of
      the tokens of a step.
    """

    mixes: bool = True
    chunked: bool = True
    pads: bool = False
    ahead: bool = False
    cautious: bool = False
    receive_interval: int = 0
    patience: int = 0
    enough: float = 0.0
    source: str = ""


scheduler = engine.section("scheduler")(
    records(
        Scheduler,
        {
            "mixes": Key("mixes", schema.flag, required=True),
            "chunked": Key("chunked", schema.flag),
            "pads": Key("pads", schema.flag),
            "ahead": Key("ahead", schema.flag),
            "cautious": Key("cautious", schema.flag),
            "receive_interval": Key("receive_interval", schema.count),
            "source": Key("source", schema.text, required=True),
        },
    )
)
