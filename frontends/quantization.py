"""`quantization_config`: in what types a checkpoint stores its weights, as the text of a pass.

Frontends know no passes, so a program says this as its fact `quantization`, and whoever loads it runs that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from llmir.errors import ConfigError, UnsupportedError
from llmir.graph import Program
from llmir.names import plain

from .config import Config
from .fields import QUANTIZATION_INERT, QUANTIZATION_NEUTRAL
from .source import show

KEY = "quantization_config"


def scheme(config: Config, program: Program) -> str:
    """The pass that gives the program the types of its checkpoint, "" for one that is not quantized."""
    inner = config.nested(KEY)
    if inner is None:
        return ""
    try:
        options = _options(inner, program)
        inner.finish(QUANTIZATION_INERT, QUANTIZATION_NEUTRAL)
        if not options.get("kv") and not _left(program, options["plan"]):
            fact = "quantizes nothing of this model, of which every matrix stays as it is"
            raise inner.error("quant_method", f"{show(options['weights'])} {fact}", UnsupportedError)
    except UnsupportedError as error:
        if not config.lenient:
            raise
        config.note(f"{error}; taken as not quantized")
        inner.ignore(*inner.fields)
        return ""
    plan = options.pop("plan")
    given = [f"{k}={v}" for k, v in options.items() if v] + ([f"plan=({plan})"] if plan else [])
    return f"quantize{{{', '.join(given)}}}" if given else ""


Options = dict[str, str]


def _options(config: Config, program: Program) -> Options:
    loads = {"load_in_4bit", "load_in_8bit"} & config.fields.keys()
    method = config.text("quant_method", "bitsandbytes" if loads else None).lower()
    if method not in _METHODS:
        known = ", ".join(_METHODS)
        raise config.error(
            "quant_method", f"{method!r} is not supported; supported are {known}", UnsupportedError
        )
    return _METHODS[method](config, program)


def _fp8(config: Config, program: Program) -> Options:
    """transformers' FineGrainedFP8, and vLLM's fp8."""
    block = config.integers("weight_block_size")
    if len(block) not in (0, 2) or 0 in block:
        raise config.error("weight_block_size", f"expected two positive integers, got {show(list(block))}")
    _one_of(config, "fmt", ("e4m3", "float8_e4m3fn"), "format")
    _one_of(config, "activation_scheme", ("dynamic", "static"), "activations")
    if config.fields.get("activation_scheme") == "static":
        config.note(f"$.{KEY}: static activation scales are counted as dynamic ones")
    weights = f"fp8_b{block[0]}x{block[1]}" if block else "fp8"
    # transformers names the second list, vLLM the first.
    kept = (*config.texts("ignored_layers"), *config.texts("modules_to_not_convert"))
    return {"weights": weights, "activations": "fp8", "plan": _kept(config, program, kept)}


def _awq(config: Config, program: Program) -> Options:
    bits, group = _bits(config), _group(config)
    zeros = config.flag("zero_point", True)
    plan = _kept(config, program, config.texts("modules_to_not_convert"))
    return {"weights": _integer(bits, group, zeros=zeros), "plan": plan}


def _gptq(config: Config, program: Program) -> Options:
    bits, group = _bits(config), _group(config)
    if config.flag("desc_act", False):
        config.note(f"$.{KEY}.desc_act: the order of the input channels is neither stored nor read here")
    plan = _kept(config, program, config.texts("modules_to_not_convert"))
    weights = _integer(bits, group, zeros=not config.flag("sym", True))
    if config.flag("lm_head", False):
        plan = _joined(plan, f"lm_head:{weights}")
    return {"weights": weights, "plan": plan}


def _mxfp4(config: Config, program: Program) -> Options:
    """As transformers has it: routed experts, and nothing else."""
    others = [b for b in _blocks(program) if b not in ("routed_experts", "lm_head", "router")]
    kept = _kept(config, program, config.texts("modules_to_not_convert"))
    return {"weights": "mxfp4", "plan": _joined(*(f"{b}:keep" for b in others), kept)}


def _bitsandbytes(config: Config, program: Program) -> Options:
    plan = _kept(config, program, config.texts("llm_int8_skip_modules"))
    eight, four = (config.flag(f"load_in_{bits}bit", False) for bits in (8, 4))
    if eight and not four:
        return {"weights": "int8", "activations": "int8", "plan": plan}  # outliers aside
    raise config.error(
        "load_in_4bit", "bitsandbytes in 4 bits is not supported; in 8 bits is", UnsupportedError
    )


def _compressed(config: Config, program: Program) -> Options:
    """compressed-tensors, one group of all linears."""
    config.ignore("config_groups", "kv_cache_scheme")
    groups = config.fields.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        got = f"{len(groups)} groups" if isinstance(groups, Mapping) else show(groups)
        raise config.error("config_groups", f"expected one group, got {got}", UnsupportedError)
    [(name, group)] = groups.items()
    where = f"config_groups.{name}"
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise config.error(where, "expected an object with weights")
    _known(config, where, group, "format input_activations targets weights")
    if list(group.get("targets") or ["Linear"]) != ["Linear"]:
        fact = f'{show(group["targets"])} is not supported; ["Linear"] is'
        raise config.error(f"{where}.targets", fact, UnsupportedError)
    weights = _compressed_weights(config, f"{where}.weights", group["weights"])
    options = {"weights": weights, "activations": "", "kv": ""}
    if isinstance(inputs := group.get("input_activations"), Mapping):
        options["activations"] = _number(config, f"{where}.input_activations", inputs)
    if isinstance(cache := config.fields.get("kv_cache_scheme"), Mapping):
        options["kv"] = _number(config, "kv_cache_scheme", cache)
    sparse = config.nested("sparsity_config")  # dense weights may bear one too
    if sparse and sparse.fields:
        sparse.unmodelled("format", (None, "dense"), "sparse weights")
        sparse.ignore(*sparse.fields)
    ignored = config.texts("ignore")
    plan = _kept(config, program, ignored)
    if not any(_covers(i, "lm_head") for i in ignored):
        plan = _joined(plan, f"lm_head:{weights}")
    return options | {"plan": plan}


def _compressed_weights(config: Config, where: str, scheme: Mapping[str, Any]) -> str:
    kind, strategy, group = _number(config, where, scheme), scheme.get("strategy"), scheme.get("group_size")
    block = scheme.get("block_structure")
    if kind == "nvfp4":
        return kind
    if strategy == "group" and type(group) is int and group > 0:
        return f"{kind}_g{group}" + ("" if scheme.get("symmetric", True) else "z")
    if strategy == "block" and isinstance(block, list) and len(block) == 2:
        return f"{kind}_b{block[0]}x{block[1]}"
    scales = {"channel": "c" if kind != "int4" else "c16", "tensor": "t"}.get(str(strategy))
    if scales is None:
        raise config.error(f"{where}.strategy", f"{show(strategy)} is not supported", UnsupportedError)
    return f"{kind}_{scales}"


def _number(config: Config, where: str, scheme: Mapping[str, Any]) -> str:
    kinds = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4", (4, "float"): "nvfp4"}
    _known(config, where, scheme, _NUMBER_FIELDS)
    bits, kind = scheme.get("num_bits"), scheme.get("type", "int")
    found = kinds.get((bits, kind)) if isinstance(bits, int) else None
    if found is None:
        known = ", ".join(f"{b}-bit {k}" for b, k in kinds)
        raise config.error(where, f"{show(bits)}-bit {kind} is not supported; {known} are", UnsupportedError)
    return found


_NUMBER_FIELDS = """
    actorder block_structure dynamic group_size num_bits observer observer_kwargs scale_dtype strategy
    symmetric type zp_dtype
"""


def _known(config: Config, where: str, fields: Mapping[str, Any], names: str) -> None:
    """An error for a field of an object inside that is not of these, unless it is null."""
    for key, value in fields.items():
        if value is not None and key not in names.split():
            fact = f"{show(value)} is not modelled (an unknown field may act)"
            raise config.error(f"{where}.{plain(str(key))}", fact, UnsupportedError)


_METHODS: dict[str, Callable[[Config, Program], Options]] = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
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


def _joined(*parts: str) -> str:
    return ", ".join(p for p in parts if p)


def _blocks(program: Program) -> list[str]:
    """The blocks that have products."""
    nodes = (n for g in program.graphs.values() for n in g.nodes)
    return list(dict.fromkeys(n.op.block for n in nodes if n.op.matrices))


def _covers(entry: str, module: str) -> bool:
    """Whether an entry of a list names this module: by its name, the end of that, a parent, `*` or `re:`."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            raise ConfigError(f"$.{KEY}: {show(entry)} is not a regular expression") from None
    if "*" in entry:
        return fnmatchcase(module, entry) or fnmatchcase(module, f"{entry}.*")
    return f".{entry}." in f".{module}."


def _pattern(module: str) -> str:
    return module.replace("{layer}", "*").replace("{expert}", "*")


def _left(program: Program, plan: str) -> bool:
    """Whether a matrix is left that the plan does not keep."""
    entries = dict(entry.split(":", 1) for entry in plan.split(", ") if entry)
    if any(form != "keep" for form in entries.values()):
        return True
    matrices = (
        (_pattern(op.param.removesuffix(".weight")), op.block)
        for at in program.instances()
        if (op := at.node.op).param and "{layer}" in op.param and len(at.node.results[0].shape) > 1
    )
    kept = {*entries, "router"}  # which no method takes unless told to
    return any(not kept & {module, block} and not module.endswith(".bias") for module, block in matrices)


def _kept(config: Config, program: Program, entries: tuple[str, ...]) -> str:
    """The part of a plan for modules that stay as they are; of some layers only is a note."""
    found: list[str] = []
    for at in program.instances():
        op = at.node.op
        if "{layer}" not in op.param or len(at.node.results[0].shape) < 2:
            continue
        module = op.param.removesuffix(".weight")
        layers = [module.replace("{layer}", str(i)).replace("{expert}", "0") for i in at.layers]
        kept = sum(any(_covers(e, name) for e in entries) for name in layers)
        pattern = _pattern(module)
        if kept == len(layers):
            found.append(f"{pattern}:keep")
        elif kept:
            config.note(
                f"$.{KEY}: {pattern} stays as it is in {kept} of {len(layers)} layers; "
                "layers of one body share their types, and it is counted as quantized in all"
            )
    return ", ".join(dict.fromkeys(found))
