"""Scans: in chunks they are the recurrence, and the recurrence is what papers write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import VerifyError
from llmir.ir.core.op import ExecutionPlace, infer
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.ops import make
from llmir.ir.ops.delta import GatedDelta, Lightning
from llmir.ir.ops.scan import Scan, SsdScan
from llmir.ir.sizes.binding import Binding

B, G, R, D, E, N = 2, 2, 3, 4, 5, 6


def _arrays(seed: int, tokens: int, kind: type[Scan], channels: bool) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape)

    at, per = (B, tokens, G), (D,) * channels
    if kind is SsdScan:
        rows = [some(*at, R, D), some(*at, R), some(*at, N), some(*at, N)]
        return [*rows, some(G, R), some(G, R), some(G, R), some(B, G, R, D, N)]
    q, k = some(*at, D), some(*at, D) / 2
    if kind is Lightning:
        q, k = (np.stack([x, x[..., ::-1], x / 3], axis=3) for x in (q, k))
        return [q, k, some(*at, R, E), some(B, G, R, D, E)]
    decay, beta = -np.abs(some(*at, R, *per)), 1 / (1 + np.exp(some(*at, R)))
    return [q, k, some(*at, R, E), decay, beta, some(B, G, R, D, E)]


SCANS: list[tuple[Scan, bool]] = [
    (SsdScan(), False),
    (GatedDelta(scale=0.5), False),
    (GatedDelta(), True),
    (Lightning(layers=3, layer=1), False),
]
OUT = [parse_tensor(f"fp32[B, T, {G}, {R}, {E}]")]


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize(("scan", "channels"), SCANS, ids=str)
@given(tokens=st.integers(1, 9), chunk=st.integers(1, 10), cut=st.integers(0, 9), seed=st.integers(0, 99))
def test_chunks_are_the_recurrence_and_states_go_on(
    scan: Scan, channels: bool, tokens: int, chunk: int, cut: int, seed: int
) -> None:
    arrays = _arrays(seed, tokens, type(scan), channels)
    y, state = scan.evaluate(arrays, OUT, ExecutionPlace())
    along = [
        i for i, x in enumerate(arrays) if x.ndim > 2 and x.shape[:2] == (B, tokens) and i < len(arrays) - 1
    ]
    now, parts = arrays[-1], []
    for piece in (slice(0, min(cut, tokens)), slice(min(cut, tokens), tokens)):
        given = [x[:, piece] if i in along else x for i, x in enumerate(arrays[:-1])]
        if given[0].shape[1]:
            part, now = replace(scan, chunk=chunk).evaluate([*given, now], OUT, ExecutionPlace())
            parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), y, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(now, state, rtol=1e-9, atol=1e-9)


# What kernels allocate for 2 sequences of 1,000 tokens, as (elements, bytes of each), by hand from the shapes
# in state-spaces/mamba (states of 32 heads of 64 × 128 in 8 groups, chunks of 256), in
# flash-linear-attention (32 heads of 128 × 128 for 16 of keys, chunks of 64) and in vLLM's lightning_attn.py
# (64 heads of 96 × 96).
WORKSPACES: list[tuple[Scan, list[str], list[tuple[int, int]]]] = [
    (
        SsdScan(chunk=256),
        [
            *("bf16[B, T, 8, 4, 64]", "bf16[B, T, 8, 4]", *["bf16[B, T, 8, 128]"] * 2),
            *(*["bf16[8, 4]"] * 3, "fp32[B, 8, 4, 64, 128]"),
        ],
        [(2 * 4 * 8 * 256 * 256, 4), (2 * 4 * 32 * 64 * 128, 2), (2 * 2 * 1000 * 32, 4)],
    ),
    (
        GatedDelta(chunk=64),
        [
            *(*["bf16[B, T, 16, 128]"] * 2, "bf16[B, T, 16, 2, 128]"),
            *("fp32[B, T, 16, 2]", "bf16[B, T, 16, 2]", "fp32[B, 16, 2, 128, 128]"),
        ],
        [(2 * 16 * 32 * 128 * 128, 2), (2 * 1000 * 32 * (64 + 3 * 128), 2), (2 * 1000 * 32, 4)],
    ),
    (
        Lightning(chunk=256),
        ["bf16[B, T, 1, 64, 96]"] * 3 + ["fp32[B, 1, 64, 96, 96]"],
        [(2 * 4 * 64 * 96 * 96, 4)],
    ),
]


@pytest.mark.parametrize(("scan", "types", "held"), WORKSPACES, ids=["ssd", "delta", "lightning"])
def test_chunks_take_the_workspace_of_their_kernels(
    scan: Scan, types: list[str], held: list[tuple[int, int]]
) -> None:
    operands = tuple(map(parse_tensor, types))
    results = infer(scan, operands)
    size = scan.workspace(operands, results)
    assert Binding(B=2, T=1000, C=0)(size) == sum(n * bytes for n, bytes in held)
    assert Binding(B=2, T=1, C=1000)(size) < Binding(B=2, T=1000, C=0)(size) / 500
    assert replace(scan, chunk=1).workspace(operands, results) == 0


def test_the_recurrence_of_mamba_2() -> None:
    x, dt, b, c, a_log, bias, skip, state = arrays = _arrays(0, 5, SsdScan, False)
    y, last = SsdScan().evaluate(arrays, OUT, ExecutionPlace())
    for t in range(5):
        step = np.log(1 + np.exp(dt[:, t] + bias))
        written = np.einsum("bgr,bgrd,bgn->bgrdn", step, x[:, t], b[:, t])
        state = np.exp(-np.exp(a_log) * step)[..., None, None] * state + written
        due = np.einsum("bgrdn,bgn->bgrd", state, c[:, t]) + skip[..., None] * x[:, t]
        np.testing.assert_allclose(y[:, t], due)
    np.testing.assert_allclose(last, state)


@pytest.mark.parametrize("channels", [False, True])
def test_the_recurrence_of_the_delta_rule(channels: bool) -> None:
    """The state forgets, what it knows of a key is replaced by β of the value, and the query reads it."""
    q, k, v, decay, beta, state = arrays = _arrays(1, 5, GatedDelta, channels)
    y, last = GatedDelta(scale=0.5).evaluate(arrays, OUT, ExecutionPlace())
    alpha = np.exp(decay if channels else decay[..., None])
    for t in range(5):
        state = alpha[:, t][..., None] * state
        error = v[:, t] - np.einsum("bgrde,bgd->bgre", state, k[:, t])
        state = state + np.einsum("bgr,bgd,bgre->bgrde", beta[:, t], k[:, t], error)
        np.testing.assert_allclose(y[:, t], np.einsum("bgrde,bgd->bgre", state, q[:, t]) / 2)
    np.testing.assert_allclose(last, state)


def test_what_does_not_fit() -> None:
    x, weight = parse_tensor("bf16[B, T, 8]"), parse_tensor("bf16[8, 4]")
    with pytest.raises(VerifyError, match="a state of 4 tokens for 4 taps, expected one less than taps"):
        infer(make("causal_conv"), (x, weight, parse_tensor("bf16[B, 4, 8]")))
    q, v = parse_tensor("bf16[B, T, 1, 2, 4]"), parse_tensor("bf16[B, T, 1, 2, 5]")
    with pytest.raises(VerifyError, match="chunk: expected an integer from 1 up, got 0"):
        infer(make("lightning_attention", chunk=0), (q, q, v, parse_tensor("bf16[B, 1, 2, 4, 5]")))
