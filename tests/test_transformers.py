"""The program of a config computes what transformers computes with the same weights."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret import interpret
from llmir.dim import Binding
from llmir.frontends.layouts import Layout
from llmir.frontends.weights import laid
from llmir.graph import Program
from llmir.names import stored
from llmir.tensor import Tensor

from .transformers_cases import CASES, FILE, NEXT, PROMPT, chunked, parameter, steps

TRUTH = json.loads(FILE.read_text("utf-8"))
CHUNKS = [1, 5, 2, 4]  # uneven, longer and shorter than the windows


class Checkpoint:
    """The weights as a program takes them: what a checkpoint stores, with axes and pieces taken apart."""

    def __init__(self, program: Program) -> None:
        self.pieces: dict[str, dict[int, tuple[Layout, dict[str, int]]]] = {}  # with the sizes of their axes
        for at in program.instances():
            if param := at.node.op.param:
                name, piece = stored(param)
                sizes = dict(zip(at.node.op.axes, map(Binding(), at.node.results[0].shape), strict=True))
                if "{expert}" in param:
                    del sizes["expert"]
                self.pieces.setdefault(name, {})[piece or 0] = laid(at), sizes

    def __call__(self, name: str, type: Tensor) -> np.ndarray[Any, Any]:
        if "{expert}" not in name:
            return self._one(name, name)
        each = (name.replace("{expert}", str(e)) for e in range(Binding()(type.shape[0])))
        return np.stack([self._one(name, one) for one in each])

    def _one(self, param: str, name: str) -> np.ndarray[Any, Any]:
        tensor, piece = stored(param)
        if tensor not in self.pieces:
            tensor = re.sub(r"\.\d+\.", ".{layer}.", tensor, count=1)
        pieces, piece = self.pieces[tensor], piece or 0
        layout, sizes = pieces[piece]
        lengths = [math.prod(_split(*pieces[i], layout.joined)[1].values()) for i in sorted(pieces)]
        shape, apart, order = [], [], []  # as stored; with pieces apart; the axes of this one
        for i in range(len(layout.dimensions)):
            outer, inner = _split(layout, sizes, i)
            whole = (
                [*outer.values(), sum(lengths)] if i == layout.joined else [*outer.values(), *inner.values()]
            )
            if i == layout.joined:
                along = len(apart + whole) - 1
            shape.append(math.prod(whole))
            apart += whole
            order += [a for a in (*outer, *inner) if a in sizes]
        before = sum(lengths[:piece])
        found = np.take(
            parameter(stored(name)[0], tuple(shape)).reshape(apart),
            range(before, before + lengths[piece]),
            along,
        )
        return found.reshape([sizes[a] for a in order]).transpose([order.index(a) for a in sizes])


def _split(layout: Layout, sizes: dict[str, int], dimension: int) -> tuple[dict[str, int], dict[str, int]]:
    """The axes of a dimension before those along which pieces lie, and these."""
    axes = layout.dimensions[dimension]
    start = next((i for i, a in enumerate(axes) if "+" in a), 0 if dimension == layout.joined else len(axes))
    found = {a.removeprefix("+"): sizes.get(a.removeprefix("+"), 1) for a in axes}
    names = list(found)
    return {a: found[a] for a in names[:start]}, {a: found[a] for a in names[start:]}


@pytest.mark.parametrize("pipeline", ["", llmir.DEFAULT_PIPELINE, "fuse-attention,fuse,unroll"])
@pytest.mark.parametrize("case", CASES)
def test_logits_of_prefill_and_of_cached_decode(case: str, pipeline: str) -> None:
    program = llmir.load(CASES[case], logits="all")
    weights = Checkpoint(program)
    program = llmir.run(program, pipeline)
    prompt = len(PROMPT[0])
    decoded = [1] * steps(case)
    for pieces in [prompt], *([CHUNKS] if chunked(case) else []):
        found = _logits(program, weights, [*pieces, *decoded])
        # transformers takes norms, positions and softmax in fp32 whatever the model's type.
        np.testing.assert_allclose(found[:, prompt - 3 : prompt], TRUTH[case]["prefill"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found[:, prompt:], TRUTH[case]["decode"], rtol=0, atol=1e-5)


def _logits(program: Program, weights: Checkpoint, pieces: list[int]) -> np.ndarray[Any, Any]:
    """The logits of all positions, of the prompt and what follows in pieces of so many tokens."""
    tokens = np.concatenate([PROMPT, NEXT], axis=1)
    caches: dict[str, Any] = {}
    found, start = [], 0
    for size in pieces:
        step = {"tokens": tokens[:, start : start + size]}
        (out,), caches = interpret(program, step, weights, caches, context=start)
        found.append(out)
        start += size
    return np.concatenate(found, axis=1)
