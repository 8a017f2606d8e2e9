"""Weights, tokens and logits of programs that the interpreter runs."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from llmir.backends.interpret.program import interpret
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor


def weight(name: str, type: Tensor) -> np.ndarray[Any, Any]:
    """Random numbers that depend on the name alone, so that every form of a program gets the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.normal(size=type.shape) / np.sqrt(max(type.shape[0], 1))


def ids(batch: int, new: int, vocab: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch * 97 + new).integers(0, vocab, (batch, new))


def logits(program: Program, tokens: np.ndarray[Any, Any], *pieces: int) -> np.ndarray[Any, Any]:
    """The logits of the last of several steps, which take so many tokens each."""
    caches: dict[str, Any] = {}
    out: list[Any] = []
    start = 0
    for size in pieces:
        step = {"tokens": tokens[:, start : start + size]}
        out, caches = interpret(program, step, weight, caches, context=start)
        start += size
    assert start == tokens.shape[1]
    return out[0]  # type: ignore[no-any-return]


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-9))
