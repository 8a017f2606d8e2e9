"""The dtypes that `quantize` accepts for each role, and the scales that it gives them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from llmir.base.errors import ParseError, PassError
from llmir.base.names import unknown
from llmir.ir.core.dtype import DType, dtype, parse_dtype

# Blocks that are not quantized unless a plan names them: they affect quality and are small.
UNQUANTIZED_BLOCKS = frozenset({"lm_head", "norm", "router", "embedding", "streams", "compressor"})
# Collectives that are converted unless a plan differs, by this rule; norms send no values.
UNQUANTIZED_COLLECTIVES = UNQUANTIZED_BLOCKS - {"norm"}

_WIDE = ("fp32", "tf32", "bf16", "fp16")
_CODES = ("nf4", "nf4_dq", "bnb_fp4", "bnb_fp4_dq")
# One scale for all tokens, from an earlier calibration, so no kernel computes it.
STATIC = ("fp8_t", "int8_t")
_BLOCKS = ("fp8_b128x128", "int4_g32", "nvfp4", "mxfp4", *_CODES)
ALLOWED = {
    "weights": (*_WIDE, "fp8", "fp8_e5m2", "int8", "int4", *_BLOCKS),
    "activations": (*_WIDE, "fp8", "fp8_e5m2", "int8", "nvfp4", "mxfp4", *STATIC),
    "kv": ("fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int8"),
    "collectives": ("fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4"),
}


@lru_cache(maxsize=256)
def format_of(what: str, name: str) -> DType:
    """The format called `name` for weights, activations, kv or collectives; `PassError` for an unknown name.

    >>> [str(format_of("weights", n)) for n in ("fp8", "int4", "fp8_b128x128", "bf16")]
    ['fp8_e4m3_c', 'int4_g128', 'fp8_e4m3_b128x128', 'bf16']
    """
    allowed = ALLOWED[what]
    try:
        found = parse_dtype(name)
        kind = (
            found.plain
        )  # any scales for weights; for others the scales that `quantize` chooses, or `STATIC`
        scaled = what == "weights" or found.short in {*STATIC} & {*allowed}
        known = kind.short in allowed and (found == kind or (scaled and not found.roles))
    except ParseError:
        known = False
    if not known:
        raise PassError(f"quantize: {what}: {unknown('dtype', name, allowed)}")
    return found.scaled if what == "weights" else found


def multiplies(activations: DType, weights: DType) -> bool:
    """Whether hardware multiplies two dtypes: both are the same kind of number, and weights have no more
    bits; or the weights are converted int4.
    """
    same = activations.kind == weights.kind or (weights.bits == 4 and weights.kind != "code")
    return same and weights.bits <= activations.bits


def activation_format(wanted: DType, weights: Iterable[DType], roles: str) -> DType:
    """The format of quantized activations: one scale per token, or per tile of the same length as those of
    the weights.

    A dtype with one scale per tensor, or with declared scales, is unchanged.
    """
    if wanted.scale_bits:
        return wanted.laid(roles)
    lengths = [w.block[1] for w in weights if w.block[0] > 1]
    return dtype(f"{wanted}_b1x{lengths[0]}" if lengths else f"{wanted}_c").laid(roles)


def static(wanted: DType) -> bool:
    """Whether activations of this dtype have a static scale: one for all tokens."""
    return wanted.short in STATIC


def cache_format(wanted: DType, rank: int) -> DType:
    """The format of a cache: floats are unchanged, and integers have one scale per token and head."""
    if wanted.kind == "float":
        return wanted
    return dtype(f"{wanted}_c").laid("m" * (rank - 1) + "k")


def wire_format(wanted: DType, rank: int) -> DType:
    """The format in which a value with `rank` dimensions is sent; low precision has one scale per 128
    elements.

    The scales have 32 bits, as for DeepEP's fp8 rows, or 16 bits for int4, as in its groups.
    """
    if not wanted.low:
        return wanted
    return dtype(f"{wanted}_{'g128' if wanted.bits == 4 else 'b1x128'}").laid("m" * (rank - 1) + "k")
