"""Schemes that say each kind of tensor as an object: those of compressed-tensors and of modelopt."""

from __future__ import annotations

from llmir.base.errors import UnsupportedError
from llmir.base.names import plain

from . import unquantized
from .reader import Config
from .source import show

KEY = "quantization_config"
Options = dict[str, str]


# What modelopt calls its formats: FP8 has one scale a matrix.
_MODELOPT = {"FP8": "fp8_t", "NVFP4": "nvfp4"}


def compressed(config: Config, entries: tuple[str, ...]) -> Options:
    """compressed-tensors, one group of all linears."""
    options = _group(config)
    sparse = config.nested("sparsity_config")  # dense weights may bear one too
    if sparse and sparse.fields:
        sparse.unmodelled("format", (None, "dense"), "sparse weights")
        sparse.ignore(*sparse.fields)
    if not any(unquantized.covers(entry, "lm_head") for entry in entries):
        options["plan"] = f"lm_head:{options['weights']}"
    return options


def modelopt(config: Config, entries: tuple[str, ...]) -> Options:
    """NVIDIA's ModelOpt, one format of all linears; `quant_algo` names what its group says."""
    algorithm = config.text("quant_algo")
    if algorithm not in _MODELOPT:
        fact = f"{show(algorithm)} is not supported; {' and '.join(_MODELOPT)} are"
        raise config.error("quant_algo", fact, UnsupportedError)
    options = _group(config, scales="tensor")
    if options["weights"] != _MODELOPT[algorithm]:
        raise config.error("quant_algo", f"{algorithm} contradicts weights in {options['weights']}")
    return options


def _group(config: Config, scales: str | None = None) -> Options:
    """The one group of all linears, and the cache; `scales` is the strategy of weights that state none."""
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
            options["activations"] += "_t"  # found before, one for all tokens
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
