"""How each `quant_method` says the types of weights, activations and caches, as options of `quantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmir.base.errors import UnsupportedError

from . import groups, unquantized
from .groups import Options
from .reader import Config
from .source import show


class Method(NamedTuple):
    """How a method is read, in which fields it lists what it leaves, and the blocks that it takes alone."""

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
    if config.fields.get("scale_fmt") is not None:  # powers of two of DeepSeek-V3.1 are in fp32 as others
        _one_of(config, "scale_fmt", ("float", "ue8m0"), "scales")
    weights = f"fp8_b{block[0]}x{block[1]}" if block else "fp8"
    if (experts := config.fields.get("expert_dtype")) is not None:
        _one_of(config, "expert_dtype", ("fp8", "fp4"), "experts")
    fp4 = experts == "fp4"  # DeepSeek-V4's, 32 under a scale of 8 bits
    activations = "fp8_t" if config.fields.get("activation_scheme") == "static" else "fp8"
    return {"weights": weights, "activations": activations, "plan": "routed_experts:mxfp4" if fp4 else ""}


def _fbgemm(config: Config, entries: tuple[str, ...]) -> Options:
    """FBGEMM's fp8, of Meta's own checkpoints: a scale for each row of weights and for each token."""
    config.ignore("activation_scale_ub")  # a bound on those of the tokens
    return {"weights": "fp8", "activations": "fp8"}


def _awq(config: Config, entries: tuple[str, ...]) -> Options:
    bits, group = _bits(config), _group(config)
    config.ignore("zero_point")  # stored either way
    return {"weights": f"{_integer(bits, group)}z"}


def _gptq(config: Config, entries: tuple[str, ...]) -> Options:
    """Zero points and the group of each input channel are stored, whether they say something or not."""
    weights = f"{_integer(_bits(config), _group(config))}zi"
    config.ignore("desc_act", "sym")
    return {"weights": weights, "plan": f"lm_head:{weights}" if config.flag("lm_head", False) else ""}


def _mxfp4(config: Config, entries: tuple[str, ...]) -> Options:
    """As transformers has it: routed experts, and nothing else."""
    return {"weights": "mxfp4"}


def _bitsandbytes(config: Config, entries: tuple[str, ...]) -> Options:
    """In 8 bits both operands, outliers aside; in 4 bits weights alone, under scales of 64."""
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
    """With lm_head, which a list of what stays leaves out where it does not name it."""
    if entries and not any(unquantized.covers(entry, "lm_head") for entry in entries):
        options["plan"] = f"lm_head:{options['weights']}"
    return options


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


def _integer(bits: int, group: int) -> str:
    return f"int{bits}_g{group}" if group else f"int{bits}_c16"


def _one_of(config: Config, key: str, known: tuple[str, ...], what: str) -> None:
    config.ignore(key)
    if key in config and config.fields[key] not in known:
        fact = f"{show(config.fields[key])} is not supported ({what}); {' or '.join(known)} is"
        raise config.error(key, fact, UnsupportedError)


_CODES = {"nf4": "nf4", "fp4": "bnb_fp4"}  # what bitsandbytes calls its tables
_METHODS = {
    # transformers names the second list, vLLM the first.
    "fp8": Method(_fp8, ("ignored_layers", "modules_to_not_convert")),
    "awq": Method(_awq),
    "gptq": Method(_gptq),
    "compressed-tensors": Method(groups.compressed, ("ignore",)),
    "modelopt": Method(groups.modelopt, ("ignore",)),
    "fbgemm_fp8": Method(_fbgemm),
    "mxfp4": Method(_mxfp4, blocks=frozenset({"routed_experts"})),
    "bitsandbytes": Method(_bitsandbytes, ("llm_int8_skip_modules",)),
}
