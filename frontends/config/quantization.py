"""`quantization_config`: the element types of a checkpoint, as the text of a `quantize` pass.

Frontends import no passes, so the program states the pass as its fact `quantization`, and `llmir.load` runs
it. The sections of this file read the lists of modules that a checkpoint leaves unquantized, the schemes of
compressed-tensors and ModelOpt (one object per kind of tensor), and each `quant_method`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmir.base.errors import ConfigError, UnsupportedError
from llmir.base.names import checkpoint_place, is_layered, layer_name, plain
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

from .reader import METHOD, QUANTIZATION_INERT, QUANTIZATION_NEUTRAL, Config
from .source import show

# --- Unquantized modules ---

_WHERE = "$.quantization_config"

UnquantizedModules = tuple[frozenset[str], ...]
"""For each layer the modules that it leaves, with `*` for layers and experts."""

# A pattern of words and `.*` is independent of numbers, which are between dots and never between letters.
_WORDS = re.compile(r"re:(\.\*|\\\.|[a-z_()|^$]|(?<=[a-z_])\.(?=[a-z_]))+", re.IGNORECASE)


def covers(entry: str, module: str) -> bool:
    """Whether an entry of a list of modules matches this module: by its name, the end of its name, a parent,
    a pattern with `*`, or `re:`.
    """
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            raise ConfigError(f"{_WHERE}: {show(entry)} is not a regular expression") from None
    if "*" in entry:
        return fnmatchcase(module, entry) or fnmatchcase(module, f"{entry}.*")
    return f".{entry}." in f".{module}."


def by_layer(program: Program, entries: tuple[str, ...]) -> UnquantizedModules:
    """The unquantized modules of each layer; UnsupportedError if only some experts of a layer are
    unquantized.
    """
    layers = 1 + max((layer for at, _ in _modules(program) for layer in at.layers), default=0)
    found: list[set[str]] = [set() for _ in range(layers)]
    # Only these patterns can distinguish experts; the other patterns are tested with one expert.
    numbers = tuple(e for e in entries if not _WORDS.fullmatch(e))
    telling = tuple(e for e in numbers if re.search(r"^re:|\*|^\d|experts\.\d", e))
    others = tuple(e for e in entries if e not in telling)
    # A pattern without a digit or a `*` that could match one applies equally to all layers of a body.
    alike = not any(re.search(r"^re:|[\d?\[]", e) for e in numbers)
    for at, module in _modules(program) if entries else ():
        experts = _experts(at) if telling and "{expert}" in module and not alike else 1
        for layer in [at.layers.first] if alike else at.layers:
            names = [layer_name(module, layer).replace("{expert}", str(i)) for i in range(experts)]
            left = {_named(others, names[0]) or _named(telling, name) for name in names}
            if len(left) > 1:
                fact = "some experts are not quantized; llmir models all or none"
                raise UnsupportedError(f"{_WHERE}: {names[0].rpartition('.0.')[0]}: {fact}")
            if left == {True}:
                for each in at.layers if alike else [layer]:
                    found[each].add(pattern(module))
    return tuple(map(frozenset, found))


def precision_plan(program: Program, apart: UnquantizedModules) -> str:
    """The part of a `quantize` plan that leaves modules unquantized; by body, if bodies differ."""
    kept: dict[str, dict[str, bool]] = {}  # module -> op in its body -> whether it stays
    for at, module in _modules(program):
        [user] = {user.name for user, _ in at.graph.users[at.node.name]}
        kept.setdefault(pattern(module), {})[f"{at.graph.name}.{user}"] = (
            pattern(module) in apart[at.layers.first]
        )
    entries: list[str] = []
    for module, ops in kept.items():
        entries += [module] if all(ops.values()) else [op for op, stays in ops.items() if stays]
    return ", ".join(f"{entry}:keep" for entry in dict.fromkeys(entries))


def quantizes(program: Program, apart: UnquantizedModules, blocks: frozenset[str] | None = None) -> bool:
    """Whether there is a matrix to quantize, in these blocks if they are given."""
    return any(
        pattern(module) not in apart[at.layers.first]
        for at, module in _modules(program)
        if at.node.op.block != "router"  # which no method supports
        and (blocks is None or at.node.op.block in blocks)
    )


def pattern(module: str) -> str:
    """The name of the module of all layers and experts in a plan."""
    return layer_name(module, "*").replace("{expert}", "*")


def _named(entries: tuple[str, ...], name: str) -> bool:
    return any(covers(entry, name) for entry in entries)


def _modules(program: Program) -> Iterator[tuple[Instance, str]]:
    """The matrices of layers, and their modules."""
    for at in program.instances():
        if not is_layered(at.node.op.param):
            continue
        if any(slot in user.op.matrices for user, slot in at.graph.users[at.node.name]):
            yield at, checkpoint_place(at.node.op.param).tensor.removesuffix(".weight")


def _experts(at: Instance) -> int:
    count: int = Binding()(at.node.results[0].shape[at.node.op.axes.index("expert")])
    return count


# --- Schemes by groups ---

KEY = "quantization_config"
Options = dict[str, str]


# ModelOpt's names of formats: FP8 has one scale per matrix.
_MODELOPT = {"FP8": "fp8_t", "NVFP4": "nvfp4"}


def compressed_tensors(config: Config, entries: tuple[str, ...]) -> Options:
    """compressed-tensors, one group of all linears."""
    options = _single_group(config)
    sparse = config.nested("sparsity_config")  # dense weights may bear one too
    if sparse and sparse.fields:
        sparse.unmodelled("format", (None, "dense"), "sparse weights")
        sparse.ignore(*sparse.fields)
    if not any(covers(entry, "lm_head") for entry in entries):
        options["plan"] = f"lm_head:{options['weights']}"
    return options


def modelopt(config: Config, entries: tuple[str, ...]) -> Options:
    """NVIDIA's ModelOpt with one format for all linears, named by `quant_algo`."""
    algorithm = config.text("quant_algo")
    if algorithm not in _MODELOPT:
        fact = f"{show(algorithm)} is not supported; {' and '.join(_MODELOPT)} are"
        raise config.error("quant_algo", fact, UnsupportedError)
    options = _single_group(config, scales="tensor")
    if options["weights"] != _MODELOPT[algorithm]:
        raise config.error("quant_algo", f"{algorithm} contradicts weights in {options['weights']}")
    return options


def _single_group(config: Config, scales: str | None = None) -> Options:
    """The single group of all linears, and the cache; `scales` is the default strategy of weights."""
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
    options = {"weights": _weights(matrices, scales), "activations": "", "kv": ""}
    if inputs := group.nested("input_activations"):
        options["activations"] = _symmetric(inputs)
        if inputs.fields.get("dynamic") is False and options["activations"] in ("fp8", "int8"):
            options["activations"] += "_t"  # read earlier, once for all tokens
    if cache := config.nested("kv_cache_scheme"):
        options["kv"] = _symmetric(cache)
    return options


def _weights(scheme: Config, scales: str | None) -> str:
    kind = _number(scheme)
    if kind == "nvfp4":
        return kind
    strategy = scheme.text("strategy", scales)
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
    """A kind of number that has no zero points."""
    scheme.unmodelled("symmetric", (None, True), "zero points, but for groups of weights,")
    return _number(scheme)


def _number(scheme: Config) -> str:
    kinds = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4", (4, "float"): "nvfp4"}
    bits, kind = scheme.integer("num_bits"), scheme.text("type", "int")
    # Layout and origin of scales; the callers read the fields that determine bytes.
    scheme.ignore("actorder", "block_structure", "dynamic", "group_size", "observer", "observer_kwargs")
    scheme.ignore("scale_dtype", "strategy", "symmetric", "zp_dtype")
    if (bits, kind) not in kinds:
        known = ", ".join(f"{b}-bit {k}" for b, k in kinds)
        fact = f"{bits}-bit {plain(kind)} is not supported; {known} are"
        raise scheme.error("num_bits", fact, UnsupportedError)
    return kinds[bits, kind]


# --- Quantization methods ---


class Method(NamedTuple):
    """The reader of a method, the fields that list unquantized modules, and the blocks to which the method is
    limited.
    """

    read: Callable[[Config, tuple[str, ...]], Options]
    lists: tuple[str, ...] = ("modules_to_not_convert",)
    blocks: frozenset[str] | None = None


def method(config: Config) -> tuple[str, Method]:
    """The name and the method of a `quantization_config`; `UnsupportedError` for one that is not known."""
    loads = {"load_in_4bit", "load_in_8bit"} & config.fields.keys()
    name = config.text("quant_method", "bitsandbytes" if loads else None).lower()
    if name not in _METHODS:
        fact = f"{name!r} is not supported; supported are {', '.join(_METHODS)}"
        raise config.error("quant_method", fact, UnsupportedError)
    return name, _METHODS[name]


def _fp8(config: Config, entries: tuple[str, ...]) -> Options:
    """transformers' FineGrainedFP8, and vLLM's fp8."""
    block = config.integers("weight_block_size")
    if len(block) not in (0, 2) or 0 in block:
        raise config.error(
            "weight_block_size", f"expected two integers from 1 to 2**48, got {show(list(block))}"
        )
    _one_of(config, "fmt", ("e4m3", "float8_e4m3fn"), "format")
    _one_of(config, "activation_scheme", ("dynamic", "static"), "activations")
    config.ignore("scale_fmt", "expert_dtype")
    if (
        config.fields.get("scale_fmt") is not None
    ):  # the power-of-two scales of DeepSeek-V3.1 are stored in fp32 like others
        _one_of(config, "scale_fmt", ("float", "ue8m0"), "scales")
    weights = f"fp8_b{block[0]}x{block[1]}" if block else "fp8"
    if (experts := config.fields.get("expert_dtype")) is not None:
        _one_of(config, "expert_dtype", ("fp8", "fp4"), "experts")
    fp4 = experts == "fp4"  # DeepSeek-V4's, 32 under a scale of 8 bits
    activations = "fp8_t" if config.fields.get("activation_scheme") == "static" else "fp8"
    return {"weights": weights, "activations": activations, "plan": "routed_experts:mxfp4" if fp4 else ""}


def _fbgemm(config: Config, entries: tuple[str, ...]) -> Options:
    """FBGEMM's fp8 in Meta's checkpoints: a scale for each row of weights and for each token."""
    config.ignore("activation_scale_ub")  # an upper bound of token scales
    return {"weights": "fp8", "activations": "fp8"}


def _awq(config: Config, entries: tuple[str, ...]) -> Options:
    bits, group = _bits(config), _group_size(config)
    config.ignore("zero_point")  # both are possible
    return {"weights": f"{_integer(bits, group)}z"}


def _gptq(config: Config, entries: tuple[str, ...]) -> Options:
    """Zero points and the group of each input channel are always stored."""
    weights = f"{_integer(_bits(config), _group_size(config))}zi"
    config.ignore("desc_act", "sym")
    return {"weights": weights, "plan": f"lm_head:{weights}" if config.flag("lm_head", False) else ""}


def _mxfp4(config: Config, entries: tuple[str, ...]) -> Options:
    """Only routed experts are quantized, as in transformers."""
    return {"weights": "mxfp4"}


def _bitsandbytes(config: Config, entries: tuple[str, ...]) -> Options:
    """With 8 bits, both operands are quantized, except outliers. With 4 bits, only weights are, with one
    scale per 64 elements.
    """
    eight, four = (config.flag(f"load_in_{bits}bit", False) for bits in (8, 4))
    if eight == four:
        raise config.error(
            "load_in_4bit", f"expected this or load_in_8bit, got {'both' if four else 'neither'}"
        )
    config.ignore("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")  # stated in 8 bits too
    if eight:
        return _headed({"weights": "int8", "activations": "int8"}, entries)
    kind = config.text("bnb_4bit_quant_type", "fp4")
    if kind not in _CODES:
        fact = f"{show(kind)} is not supported; {' and '.join(_CODES)} are"
        raise config.error("bnb_4bit_quant_type", fact, UnsupportedError)
    double = config.flag("bnb_4bit_use_double_quant", False)
    return _headed({"weights": _CODES[kind] + ("_dq" if double else "")}, entries)


def _headed(options: Options, entries: tuple[str, ...]) -> Options:
    """Quantize lm_head too, unless the list of unquantized modules names it."""
    if entries and not any(covers(entry, "lm_head") for entry in entries):
        options["plan"] = f"lm_head:{options['weights']}"
    return options


def _bits(config: Config) -> int:
    bits = config.integer("bits" if "bits" in config else "w_bit", 4)
    if bits not in (4, 8):
        raise config.error("bits", f"{bits} is not supported; 4 and 8 are", UnsupportedError)
    return bits


def _group_size(config: Config) -> int:
    """Number of elements that share a scale; 0 for a whole channel, which configs write as −1."""
    key = "group_size" if "group_size" in config else "q_group_size"
    config.ignore(key)
    return 0 if config.fields.get(key) == -1 else config.integer(key, 128)


def _integer(bits: int, group: int) -> str:
    return f"int{bits}_g{group}" if group else f"int{bits}_c16"


def _one_of(config: Config, key: str, known: tuple[str, ...], what: str) -> None:
    config.ignore(key)
    if key in config and config.fields[key] not in known:
        fact = f"{show(config.fields[key])} is not supported ({what}); {' or '.join(known)} is"
        raise config.error(key, fact, UnsupportedError)


_CODES = {"nf4": "nf4", "fp4": "bnb_fp4"}  # bitsandbytes' names of its tables
_METHODS = {
    # transformers names the second list, vLLM the first.
    "fp8": Method(_fp8, ("ignored_layers", "modules_to_not_convert")),
    "awq": Method(_awq),
    "gptq": Method(_gptq),
    "compressed-tensors": Method(compressed_tensors, ("ignore",)),
    "modelopt": Method(modelopt, ("ignore",)),
    "fbgemm_fp8": Method(_fbgemm),
    "mxfp4": Method(_mxfp4, blocks=frozenset({"routed_experts"})),
    "bitsandbytes": Method(_bitsandbytes, ("llm_int8_skip_modules",)),
}


# --- Quantization of a program ---


def scheme(config: Config, build: Callable[[UnquantizedModules], Program]) -> tuple[Program, dict[str, str]]:
    """Read the quantization of a config.

    Args:
        config: The config of the model.
        build: Builds the program, with separate bodies for layers that differ in unquantized modules.

    Returns:
        The program, and its facts: the pass that sets the checkpoint's dtypes, and the name of the method.
            The facts are empty for an unquantized model.
    """
    program, inner = build(()), config.nested(KEY)
    if inner is None:
        return program, {}
    try:
        return _scheme(inner, program, build)
    except UnsupportedError as error:
        if not config.lenient:
            raise
        config.note(f"{error}; treated as not quantized")
        return program, {}


def _scheme(
    config: Config, program: Program, build: Callable[[UnquantizedModules], Program]
) -> tuple[Program, dict[str, str]]:
    name, found = method(config)
    entries = tuple(entry for key in found.lists for entry in config.texts(key))
    apart = by_layer(program, entries)
    program = build(apart) if len(set(apart)) > 1 else program
    options, blocks = found.read(config, entries), found.blocks
    config.finish(QUANTIZATION_INERT, QUANTIZATION_NEUTRAL)
    more = options.pop("plan", "")  # for lm_head
    if not (more or options.get("kv") or quantizes(program, apart, blocks)):
        fact = "quantizes nothing of this model, of which every matrix stays as it is"
        raise config.error("quant_method", f"{show(options['weights'])} {fact}", UnsupportedError)
    others = [f"{b}:keep" for b in _blocks(program) if blocks and b not in (*blocks, "lm_head", "router")]
    plan = ", ".join(part for part in (*others, precision_plan(program, apart), more) if part)
    given = [f"{k}={v}" for k, v in options.items() if v] + ([f"plan=({plan})"] if plan else [])
    return program, {"quantization": f"quantize{{{', '.join(given)}}}", METHOD: name}


def _blocks(program: Program) -> list[str]:
    """The blocks with matrix products."""
    nodes = (n for g in program.graphs.values() for n in g.nodes)
    return list(dict.fromkeys(n.op.block for n in nodes if n.op.matrices))
