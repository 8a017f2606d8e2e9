"""What torch counts of scans: transformers' slow paths, which do other products than the op that they mean.

Everything else of a model is compared as it is. A program's own scans are recurrences, without products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

Sizes = Mapping[str, int]
CHUNK_FIELDS = ("chunk_size", "mamba_chunk_size")
# Modules that torch's counts put under another kind, by the paths of their parts.
MERGED = {
    "MiniMaxForCausalLM": {"linear_attention_core": "attention_core"},
    "KimiLinearForCausalLM": {"linear_attention_core": "attention_core"},
    "NemotronHForCausalLM": {"attention_core": "ssm"},
    "Gemma3nForCausalLM": dict.fromkeys(("altup", "laurel", "per_layer_input"), "other"),
    "DiTTransformer2DModel": {"conditioning": "norm", "embedding": "other", "head": "other"},
    "LlavaOnevisionForConditionalGeneration": {
        **{f"encode.{part}": "vision_tower" for part in ("embedding", "attention", "mlp", "norm")},
        "encode.projector": "projector",
    },
}


def _conv(n: Sizes, new: int, first: bool, chunk: int) -> int:
    """The padding of a prefill is convolved too; a decode step convolves one token more than the new one."""
    return 2 * n["w"] * n["channels"] * (new + n["w"] - 1 if first else 2)


def _selective(n: Sizes, new: int, first: bool, chunk: int) -> int:
    """The output of each token, by a product with the state."""
    return 2 * n["f"] * n["n"] * new


def _ssd(n: Sizes, new: int, first: bool, chunk: int) -> int:
    """Whole chunks, with products between all their states; in decode the output alone."""
    heads, state = n["g"] * n["r"], n["d"] * n["n"]
    if not first:
        return 2 * heads * state
    count = -(-new // chunk)
    inside = chunk * chunk * (n["n"] + n["d"]) + 2 * chunk * state
    return 2 * heads * (count * inside + (count + 1) ** 2 * state)


def _delta(n: Sizes, new: int, first: bool, chunk: int) -> int:
    """Whole chunks of 64; triangles are solved, which counts nothing, as do the sums of decode."""
    keys, scores = n["d"] * n["e"], 64 * (2 * n["d"] + n["e"])
    return 2 * n["g"] * n["r"] * -(-new // 64) * 64 * (scores + 3 * keys) if first else 0


def _lightning(n: Sizes, new: int, first: bool, chunk: int) -> int:
    """Chunks of 256 and what is left of them: scores, their mix, and to and from the state."""
    lengths = [256] * (new // 256) + [new % 256] if first else [1]
    scores = sum(length * length for length in lengths) * (n["d"] + n["e"]) if first else 0
    return 2 * n["r"] * (scores + 2 * sum(lengths) * n["d"] * n["e"])


TORCH: dict[str, Callable[[Sizes, int, bool, int], int]] = {
    "causal_conv": _conv,
    "selective_scan": _selective,
    "ssd_scan": _ssd,
    "gated_delta": _delta,
    "lightning_attention": _lightning,
}


def _sizes(at: Instance) -> Sizes:
    types = at.graph.operand_types(at.node)
    whole = Binding(B=1, T=1, C=0)
    found = {axis: int(whole(n)) for axis, n in at.node.op.equation(types).sizes(types).items()}
    return {**found, "channels": int(whole(types[0].elements))}


def matmul_flops(
    program: Program, config: Mapping[str, Any], batch: int, new: int, context: int
) -> Counter[str]:
    """Of all scans of one step, by the block that they are in."""
    chunk = next((config[field] for field in CHUNK_FIELDS if field in config), 256)
    found: Counter[str] = Counter()
    for at in program.instances():
        if at.node.op.kind == "scan":
            flops = TORCH[at.node.op.opcode](_sizes(at), new, context == 0, chunk)
            found[_kind(at)] += batch * at.repeat * flops
    return found


def _kind(at: Instance) -> str:
    """Its block, but torch's counts take a convolution of `self_attn` for a projection."""
    weight = at.graph[at.node.operands[1].node].op.param
    return "attention" if at.node.op.opcode == "causal_conv" and "self_attn" in weight else at.node.op.block


def state_bytes(program: Program) -> int:
    """transformers keeps a token more of each convolution than one needs: all of its taps."""
    windows = (at for at in program.instances() if at.node.op.opcode == "causal_conv")
    rows = ((at.graph.type(at.node.operands[2]), at.repeat) for at in windows)
    more = sum(int(Binding(B=1)(state.resized(1, 1).bytes)) * times for state, times in rows)
    return program.state_bytes_per_sequence + more
