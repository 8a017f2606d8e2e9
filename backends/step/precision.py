"""In what element types a program stores and computes, in the names that `quantize` takes."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

# Held apart: these blocks mostly keep the type that the model came in.
_APART = ("lm_head", "router", "embedding")


@lru_cache(maxsize=256)
def precision(program: Program) -> dict[str, str | None]:
    """The types of most weights that are multiplied, what they are multiplied by, caches, and what is sent.

    lm_head, router and embedding count where there are no others; None is for a program without any.
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
                static = x.scale_bits and x.block == (0, 0)  # one scale for all, which is known
                activations[main, (x if static else x.plain).short] += size
        elif op.role == "cache":
            caches[at.node.results[0].dtype.plain.short] += at.repeat
        elif op.exchanges:
            if types[0].dtype.kind == "int" and not types[0].dtype.low:
                continue  # which expert a row goes to
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


def words(program: Program) -> list[str]:
    """The same to read: `bf16` if all are alike, else what each is."""
    found = {k: v for k, v in precision(program).items() if v}
    if len(set(found.values())) <= 1:
        return list(found.values())[:1]
    return [f"{'KV cache' if k == 'kv_cache' else k} {v}" for k, v in found.items()]
