"""Norms that narrow, and zeros, counted by hand, as `tests.ir.ops.test_ops` asks for."""

from __future__ import annotations

TOKENS = 15  # 3 sequences of 5

REDUCED = {"all_reduce_add_rms_norm", "all_reduce_add_rms_norm_quantize"}  # see test_fuse_all_reduce

NORMS = {
    "rms_norm_quantize": (
        {"to": "fp8_e4m3_c.mmk"},
        ("bf16[B, T, 8]", "bf16[8]"),
        0,
        (4 + 2) * TOKENS * 8,
        2 * TOKENS * 8 + 2 * 8,
        TOKENS * (8 + 4),
    ),
    "add_rms_norm_quantize": (
        {"to": "fp8_e4m3_t", "static": True},
        ("bf16[B, T, 8]", "bf16[B, T, 8]", "bf16[8]"),
        0,
        (5 + 1) * TOKENS * 8,
        2 * 2 * TOKENS * 8 + 2 * 8,
        2 * TOKENS * 8 + TOKENS * 8 + 4,
    ),
    "concat": ({}, ("bf16[B, 4, 8]", "bf16[B, T, 8]"), 0, 0, 2 * 3 * (4 + 5) * 8, 2 * 3 * (4 + 5) * 8),
    "reorder": ({}, ("bf16[B, 4, 8]",), 0, 0, 2 * 3 * 4 * 8, 2 * 3 * 4 * 8),
    "log_softmax_top_k": ({"k": 4}, ("bf16[B, 8]",), 0, 6 * 3 * 8, 2 * 3 * 8, (4 + 4) * 3 * 4),
    "square": ({}, ("fp32[B, T, 8]",), 0, TOKENS * 8, 4 * TOKENS * 8, 4 * TOKENS * 8),
    "row_mean": ({}, ("fp32[B, T, 8]",), 0, TOKENS * 8, 4 * TOKENS * 8, 4 * TOKENS),
    "shift": ({"amount": 1e-6}, ("fp32[B, T]",), 0, TOKENS, 4 * TOKENS, 4 * TOKENS),
    "inverse_root": ({}, ("fp32[B, T]",), 0, 2 * TOKENS, 4 * TOKENS, 4 * TOKENS),
    "scale_rows": (
        {},
        ("fp32[B, T, 8]", "fp32[B, T]"),
        *(0, TOKENS * 8, 4 * (TOKENS * 8 + TOKENS), 4 * TOKENS * 8),
    ),
    "scale_by_cosine": ({}, ("bf16[B, T, 2, 4]",), 0, 2 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "scale_by_sine": ({}, ("bf16[B, T, 2, 4]",), 0, 2 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "negate_half": ({}, ("bf16[B, T, 2, 4]",), 0, 2 * TOKENS * 4, 2 * TOKENS * 4, 2 * TOKENS * 4),
    "join_half": ({}, ("bf16[B, T, 2, 4]", "bf16[B, T, 2, 2]"), 0, 0, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "zeros": ({}, ("bf16[B, T, 8]",), 0, 0, 0, 0),
}
