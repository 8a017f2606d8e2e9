"""`quantization_config`: in what types a checkpoint stores its weights, as the text of a pass.

Frontends know no passes, so a program says this as its fact `quantization`, and whoever loads it runs that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmir.errors import UnsupportedError
from llmir.graph import Program
from llmir.names import plain

from . import unquantized
from .config import Config
from .fields import QUANTIZATION_INERT, QUANTIZATION_NEUTRAL
from .source import show
from .unquantized import Apart

KEY = "quantization_config"
_STATIC = f"$.{KEY}: static activation scales are counted as dynamic ones"


def scheme(config: Config, build: Callable[[Apart], Program]) -> tuple[Program, str]:
    """A program, and the pass that gives it the types of its checkpoint; "" for one that is not quantized.

    `build` makes the program, with bodies of their own for layers that leave other modules as they are.
    """
    program, inner = build(()), config.nested(KEY)
    if inner is None:
        return program, ""
    try:
        return _scheme(inner, program, build)
    except UnsupportedError as error:
        if not config.lenient:
            raise
        config.note(f"{error}; taken as not quantized")
        return program, ""


def _scheme(config: Config, program: Program, build: Callable[[Apart], Program]) -> tuple[Program, str]:
    method = _method(config)
    entries = tuple(entry for key in method.lists for entry in config.texts(key))
    apart = unquantized.by_layer(program, entries)
    program = build(apart) if len(set(apart)) > 1 else program
    options, blocks = method.read(config, entries), method.blocks
    config.finish(QUANTIZATION_INERT, QUANTIZATION_NEUTRAL)
    more = options.pop("plan", "")  # of lm_head
    if not (more or options.get("kv") or unquantized.quantizes(program, apart, blocks)):
        fact = "quantizes nothing of this model, of which every matrix stays as it is"
        raise config.error("quant_method", f"{show(options['weights'])} {fact}", UnsupportedError)
    others = [f"{b}:keep" for b in _blocks(program) if blocks and b not in (*blocks, "lm_head", "router")]
    plan = ", ".join(part for part in (*others, unquantized.plan(program, apart), more) if part)
    given = [f"{k}={v}" for k, v in options.items() if v] + ([f"plan=({plan})"] if plan else [])
    return program, f"quantize{{{', '.join(given)}}}"


Options = dict[str, str]


class _Method(NamedTuple):
    """How a method is read, in which fields it lists what it leaves, and the blocks that it takes alone."""

    read: Callable[[Config, tuple[str, ...]], Options]
    lists: tuple[str, ...] = ("modules_to_not_convert",)
    blocks: frozenset[str] | None = None


def _method(config: Config) -> _Method:
    loads = {"load_in_4bit", "load_in_8bit"} & config.fields.keys()
    method = config.text("quant_method", "bitsandbytes" if loads else None).lower()
    if method not in _METHODS:
        known = ", ".join(_METHODS)
        raise config.error(
            "quant_method", f"{method!r} is not supported; supported are {known}", UnsupportedError
        )
    return _METHODS[method]


def _fp8(config: Config, entries: tuple[str, ...]) -> Options:
    """transformers' FineGrainedFP8, and vLLM's fp8."""
    block = config.integers("weight_block_size")
    if len(block) not in (0, 2) or 0 in block:
        raise config.error("weight_block_size", f"expected two positive integers, got {show(list(block))}")
    _one_of(config, "fmt", ("e4m3", "float8_e4m3fn"), "format")
    _one_of(config, "activation_scheme", ("dynamic", "static"), "activations")
    if config.fields.get("activation_scheme") == "static":
        config.note(_STATIC)
    weights = f"fp8_b{block[0]}x{block[1]}" if block else "fp8"
    return {"weights": weights, "activations": "fp8"}


def _awq(config: Config, entries: tuple[str, ...]) -> Options:
    bits, group = _bits(config), _group(config)
    return {"weights": _integer(bits, group, zeros=config.flag("zero_point", True))}


def _gptq(config: Config, entries: tuple[str, ...]) -> Options:
    bits, group = _bits(config), _group(config)
    if config.flag("desc_act", False):
        config.note(f"$.{KEY}.desc_act: the order of the input channels is neither stored nor read here")
    weights = _integer(bits, group, zeros=not config.flag("sym", True))
    return {"weights": weights, "plan": f"lm_head:{weights}" if config.flag("lm_head", False) else ""}


def _mxfp4(config: Config, entries: tuple[str, ...]) -> Options:
    """As transformers has it: routed experts, and nothing else."""
    return {"weights": "mxfp4"}


def _bitsandbytes(config: Config, entries: tuple[str, ...]) -> Options:
    eight, four = (config.flag(f"load_in_{bits}bit", False) for bits in (8, 4))
    if eight and not four:
        return {"weights": "int8", "activations": "int8"}  # outliers aside
    raise config.error(
        "load_in_4bit", "bitsandbytes in 4 bits is not supported; in 8 bits is", UnsupportedError
    )


def _compressed(config: Config, entries: tuple[str, ...]) -> Options:
    """compressed-tensors, one group of all linears."""
    groups = config.nested("config_groups")
    names = list(groups.fields) if groups else []
    if not groups or len(names) != 1:
        raise config.error("config_groups", f"expected one group, got {len(names)}", UnsupportedError)
    group = groups.nested(names[0])
    matrices = group.nested("weights") if group else None
    if not group or not matrices:
        raise groups.error(names[0], "expected an object with weights")
    group.ignore("format")
    group.unmodelled("output_activations", (None,), "results of few bits")
    if group.texts("targets") not in ((), ("Linear",)):
        fact = f'{show(group.fields["targets"])} is not supported; ["Linear"] is'
        raise group.error("targets", fact, UnsupportedError)
    weights = _compressed_weights(matrices)
    options = {"weights": weights, "activations": "", "kv": ""}
    if inputs := group.nested("input_activations"):
        options["activations"] = _symmetric(inputs)
        if inputs.fields.get("dynamic") is False:
            config.note(_STATIC)
    if cache := config.nested("kv_cache_scheme"):
        options["kv"] = _symmetric(cache)
    sparse = config.nested("sparsity_config")  # dense weights may bear one too
    if sparse and sparse.fields:
        sparse.unmodelled("format", (None, "dense"), "sparse weights")
        sparse.ignore(*sparse.fields)
    if not any(unquantized.covers(entry, "lm_head") for entry in entries):
        options["plan"] = f"lm_head:{weights}"
    return options


def _compressed_weights(scheme: Config) -> str:
    kind, strategy = _number(scheme), scheme.text("strategy")
    if kind == "nvfp4":
        return kind
    if strategy == "group":
        group = scheme.integer("group_size")
        return f"{kind}_g{group}" + ("" if scheme.flag("symmetric", True) else "z")
    _symmetric(scheme)
    if strategy == "block" and len(block := scheme.integers("block_structure")) == 2 and all(block):
        return f"{kind}_b{block[0]}x{block[1]}"
    scales = {"channel": "c" if kind != "int4" else "c16", "tensor": "t"}.get(strategy)
    if scales is None:
        raise scheme.error("strategy", f"{show(strategy)} is not supported", UnsupportedError)
    return f"{kind}_{scales}"


def _symmetric(scheme: Config) -> str:
    """A kind of number without zero points."""
    scheme.unmodelled("symmetric", (None, True), "zero points, but for groups of weights,")
    return _number(scheme)


def _number(scheme: Config) -> str:
    kinds = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4", (4, "float"): "nvfp4"}
    bits, kind = scheme.integer("num_bits"), scheme.text("type", "int")
    # How scales lie and are found; what of it decides bytes is read by those who call this.
    scheme.ignore("actorder", "block_structure", "dynamic", "group_size", "observer", "observer_kwargs")
    scheme.ignore("scale_dtype", "strategy", "symmetric", "zp_dtype")
    if (bits, kind) not in kinds:
        known = ", ".join(f"{b}-bit {k}" for b, k in kinds)
        fact = f"{bits}-bit {plain(kind)} is not supported; {known} are"
        raise scheme.error("num_bits", fact, UnsupportedError)
    return kinds[bits, kind]


_METHODS = {
    # transformers names the second list, vLLM the first.
    "fp8": _Method(_fp8, ("ignored_layers", "modules_to_not_convert")),
    "awq": _Method(_awq),
    "gptq": _Method(_gptq),
    "compressed-tensors": _Method(_compressed, ("ignore",)),
    "mxfp4": _Method(_mxfp4, blocks=frozenset({"routed_experts"})),
    "bitsandbytes": _Method(_bitsandbytes, ("llm_int8_skip_modules",)),
}


def _bits(config: Config) -> int:
    bits = config.integer("bits" if "bits" in config else "w_bit", 4)
    if bits not in (4, 8):
        raise config.error("bits", f"{bits} is not supported; 4 and 8 are", UnsupportedError)
    return bits


def _group(config: Config) -> int:
    """Elements that share a scale; 0 for all of a channel, which configs write as −1."""
    key = "group_size" if "group_size" in config else "q_group_size"
    config.ignore(key)
    return 0 if config.fields.get(key) == -1 else config.integer(key, 128)


def _integer(bits: int, group: int, *, zeros: bool) -> str:
    return f"int{bits}_g{group}{'z' if zeros else ''}" if group else f"int{bits}_c16"


def _one_of(config: Config, key: str, known: tuple[str, ...], what: str) -> None:
    config.ignore(key)
    if key in config and config.fields[key] not in known:
        fact = f"{show(config.fields[key])} is not supported ({what}); {' or '.join(known)} is"
        raise config.error(key, fact, UnsupportedError)


def _blocks(program: Program) -> list[str]:
    """The blocks that have products."""
    nodes = (n for g in program.graphs.values() for n in g.nodes)
    return list(dict.fromkeys(n.op.block for n in nodes if n.op.matrices))
