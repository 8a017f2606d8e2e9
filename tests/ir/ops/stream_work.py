"""Ops of streams, positions and inputs of layers, for `test_ops.CASES`: what each does, by hand."""

from __future__ import annotations

TOKENS = 3 * 5
_X, _STREAMS = "bf16[B, T, 8]", "bf16[B, T, 4, 8]"
_ROWS = 2 * TOKENS * 8  # bytes

STREAMS: dict[str, tuple[dict[str, object], tuple[str, ...], float, int, float, int]] = {
    "subtract": ({}, (_X, _X), 0, TOKENS * 8, 2 * _ROWS, _ROWS),
    "tanh": ({}, (_X,), 0, 4 * TOKENS * 8, _ROWS, _ROWS),
    "scale_by": ({}, (_X, "bf16[8]"), 0, TOKENS * 8, _ROWS + 16, _ROWS),
    "match_rms": ({}, (_X, _X), 0, 6 * TOKENS * 8, 2 * _ROWS, _ROWS),
    "layer_embedding": (
        {"rows": 100},
        ("bf16[100, 3, 8]", "int64[B, T]"),
        0,
        0,
        3 * _ROWS + 8 * TOKENS,
        3 * _ROWS,
    ),
    "positions": ({"offset": 2}, (_X, "bf16[100, 8]"), 0, TOKENS * 8, _ROWS + 2 * 5 * 8, _ROWS),
    "pick": ({"index": 1}, (_STREAMS,), 0, 0, _ROWS, _ROWS),
    "stream_mix": (
        {},
        (_STREAMS, "bf16[B, T, 4, 4]"),
        2 * TOKENS * 4 * 4 * 8,
        0,
        4 * _ROWS + 2 * TOKENS * 16,
        4 * _ROWS,
    ),
    "stream_add": (
        {"first": 1},
        (_STREAMS, _X, "bf16[B, T, 4]"),
        0,
        2 * TOKENS * 4 * 8,
        5 * _ROWS + 2 * TOKENS * 4,
        4 * _ROWS,
    ),
    "moments": ({}, (_X,), 0, 3 * TOKENS * 8, _ROWS, 2 * TOKENS * 2),
    "gaussian_top": (
        {"sparsity": 0.9},
        (_X, "bf16[B, T, 2]"),
        0,
        2 * TOKENS * 8,
        _ROWS + 2 * TOKENS * 2,
        _ROWS,
    ),
    "pick_replica": (
        {"experts": 6, "places": 8},
        ("int32[B, T, 2]",),
        0,
        TOKENS * 2,
        3 * 4 * TOKENS * 2,
        4 * TOKENS * 2,
    ),
    "expert_scale": (
        {},
        ("fp32[B, T, 2]", "int32[B, T, 2]", "bf16[6]"),
        0,
        TOKENS * 2,
        8 * TOKENS * 2 + 12,
        4 * TOKENS * 2,
    ),
}
