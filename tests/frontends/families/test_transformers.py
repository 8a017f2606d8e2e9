"""The program of a config computes what transformers computes with the same weights."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.names import checkpoint_place
from llmir.ir.core.program import Instance, Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.ops.moe import GroupedLinear
from llmir.ir.sizes.binding import Binding

from . import transformers_cases
from .transformers_cases import AREAS, CASES, NEXT, PROMPT, chunked, steps

TRUTH = {case: logits for file in AREAS for case, logits in json.loads(file.read_text("utf-8")).items()}
CHUNKS = [1, 5, 2, 4]  # uneven, longer and shorter than the windows


def numberless(name: str) -> str:
    """A name in a checkpoint without the number of its layer."""
    return re.sub(r"\b(layers|h|\w*blocks|\w+_list)\.(\d+|\{layer:.*?\})", r"\1.{layer}", name)


class Checkpoint:
    """The weights as a program takes them: a checkpoint's [out, in] with the axes taken apart."""

    def __init__(self, program: Program) -> None:
        self.terms: dict[tuple[str, int], tuple[list[str], list[str]]] = {}  # by the number of axes too
        self.rows: dict[str, dict[int, int]] = {}  # of the pieces of a tensor
        self.stacked: dict[str, int] = {}  # of what holds all experts, how many there are
        self.shapes: dict[str, partial[tuple[int, ...]]] = {}  # in the file, of what is no product's
        for at in program.instances():
            einsum = getattr(at.node.op, "einsum", None)
            if einsum is None:
                self._other(at)
                continue
            left, right = einsum.split("->")
            terms = [t.split() for t in left.split(",")]
            terms[0] = [axis for axis in terms[0] if axis not in right.split(",")[0].split()]  # of products
            for value, term in zip(at.node.operands[1:], terms[1:], strict=True):
                op = at.graph[value.node].op
                grouped = isinstance(at.node.op, GroupedLinear)
                own, param = term[1:] if grouped else term, numberless(op.param)
                self.terms[param, len(own)] = own, terms[0]
                if grouped and param and "{expert}" not in param:
                    self.stacked[param] = at.node.op.experts
                name, piece, *_ = checkpoint_place(param)
                if piece is not None:
                    sizes = zip(term, map(Binding(), at.graph.type(value).shape), strict=True)
                    rows = math.prod(n for axis, n in sizes if axis not in ("[e]", *terms[0]))
                    self.rows.setdefault(name, {})[piece] = rows

    def _other(self, at: Instance) -> None:
        for slot, value in enumerate(at.node.operands):
            if param := numberless(at.graph[value.node].op.param):
                self.shapes[param] = of = partial(at.node.op.stored, slot)
                shape = of(tuple(map(Binding(), at.graph.type(value).shape)))
                name, piece, *_ = checkpoint_place(param)
                if piece is not None:
                    self.rows.setdefault(name, {})[piece] = shape[0]

    def __call__(self, name: str, type: Tensor) -> np.ndarray[Any, Any]:
        shape = tuple(map(Binding(), type.shape))
        template = numberless(name)
        if "{expert}" in name:
            names = (name.replace("{expert}", str(e)) for e in range(shape[0]))
            return np.stack([self._one(template, n, shape[1:]) for n in names])
        if template in self.stacked:
            return np.stack([self._one(template, name, shape[1:], slice(e, e + 1)) for e in range(shape[0])])
        return self._one(template, name, shape)

    def _one(
        self, template: str, name: str, shape: tuple[int, ...], expert: slice | None = None
    ) -> np.ndarray[Any, Any]:
        def parameter(name: str, whole: tuple[int, ...]) -> np.ndarray[Any, Any]:
            if expert is None:
                return transformers_cases.parameter(name, whole)
            return transformers_cases.parameter(name, (self.stacked[template], *whole))[expert][0]

        term, x = self.terms.get((template, len(shape)), ([], []))
        tensor, piece, blocks, turned, _ = checkpoint_place(name)
        rows = {} if piece is None else self.rows[checkpoint_place(template).tensor]
        start = sum(rows[i] for i in range(piece or 0))
        if template in self.shapes and not term:
            own = self.shapes[template](shape)
            whole = sum(rows.values()) or own[0]
            return parameter(tensor, (whole, *own[1:]))[start : start + own[0]].reshape(shape)
        matrix = bool(set(term) & set(x))
        if piece is None and not matrix:
            return parameter(name, (math.prod(shape),) if "bias" in name else shape).reshape(shape)
        order = [i for i, a in enumerate(term) if a not in x] + [i for i, a in enumerate(term) if a in x]
        outs = math.prod(shape[i] for i in order if term[i] not in x)
        ins, whole = [math.prod(shape) // outs] if matrix else [], sum(rows.values()) or outs
        found = parameter(tensor, (*ins, whole) if turned else (whole, *ins))
        each = (found.T if turned else found).reshape(blocks, -1, *ins)
        part = each[:, start // blocks : (start + outs) // blocks]
        return part.reshape([shape[i] for i in order]).transpose(np.argsort(order))


@pytest.mark.mostly_slow(29)
@pytest.mark.parametrize("pipeline", ["", llmir.pipeline_of(), "fuse-attention,fuse,unroll"])
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
        for name, part in (("prefill", found[:, prompt - 3 : prompt]), ("decode", found[:, prompt:])):
            due = np.array(TRUTH[case][name])
            np.testing.assert_allclose(part, due, rtol=0, atol=1e-5 * np.abs(due).max())


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
