"""Costs of streams and compressed keys by hand, as `test_ops` has it: 3 sequences, 5 tokens after 7."""

from __future__ import annotations

TOKENS = 3 * 5
# opcode -> attributes, operand types, and by hand: matmul FLOPs, vector FLOPs, bytes read, bytes written
COMPRESSED: dict[str, tuple[dict[str, object], tuple[str, ...], float, int, float, int]] = {
    "split_streams": ({"streams": 4}, ("bf16[B, T, 8]",), 0, 0, 2 * TOKENS * 8, 2 * TOKENS * 32),
    "join_streams": (
        {},
        ("bf16[B, T, 4, 8]", "fp32[B, T, 4]", "fp32[4]", "fp32[1]"),
        0,
        TOKENS * (4 * 32 + 6 * 4),
        2 * TOKENS * 32 + 4 * (TOKENS * 4 + 5),
        2 * TOKENS * 8,
    ),
    "enter_streams": (  # 2 and 2 weights, and a matrix of 4
        {"iterations": 3},
        ("bf16[B, T, 2, 8]", "fp32[B, T, 8]", "fp32[8]", "fp32[3]"),
        0,
        TOKENS * (4 * 16 + 6 * 8 + 3 * 4 * 4),
        2 * TOKENS * 16 + 4 * (TOKENS * 8 + 11),
        TOKENS * (2 * 8 + 4 * 2 + 4 * 4),
    ),
    "leave_streams": (
        {},
        ("bf16[B, T, 2, 8]", "bf16[B, T, 8]", "fp32[B, T, 2]", "fp32[B, T, 2, 2]"),
        0,
        TOKENS * 16 * (2 * 2 + 2),
        TOKENS * (2 * 24 + 4 * 6),
        2 * TOKENS * 16,
    ),
    "compress_rows": (  # entries of 4 tokens and the 4 before; the second and the third end at 8 and 12
        {},
        ("bf16[B, 12, 2, 8]", "bf16[B, 12, 2, 8]", "fp32[4, 2, 8]"),
        0,
        3 * 2 * 8 * 8 * 8,
        2 * 2 * 3 * 12 * 16 + 4 * 64,
        2 * 3 * 2 * 8,
    ),
    "compressed_attention": (  # each query sees 3 keys and 1 of 3 entries
        {"mask": "window(3)", "stride": 4, "top_k": 1},
        ("bf16[B, T, 2, 3, 8]", "bf16[B, 7, 8]", "fp32[2, 3]", "bf16[B, 3, 8]", "fp32[B, T, 3]"),
        2 * TOKENS * 6 * (8 + 8) * 4,
        5 * TOKENS * 6 * (4 + 1) + TOKENS * 3,
        2 * (TOKENS * 48 + 3 * 10 * 8) + 4 * (6 + TOKENS * 3),
        2 * TOKENS * 48,
    ),
    "block_scores": (  # 2 heads of 4 over 12 keys in 3 blocks
        {"length": 5},
        ("bf16[B, T, 2, 4]", "bf16[B, C + T, 4]"),
        2 * TOKENS * 2 * 12 * 4,
        TOKENS * 2 * 12,
        2 * (TOKENS * 8 + 3 * 12 * 4),
        4 * TOKENS * 2 * 3,
    ),
    "select_blocks": (
        {"length": 5, "top_k": 2},
        ("fp32[B, 2, 3, T, C + T]", "fp32[B, 2, T, 3]"),
        0,
        TOKENS * 2 * (3 * 12 + 3),
        4 * TOKENS * 2 * (3 * 12 + 3),
        4 * TOKENS * 6 * 12,
    ),
    "block_sparse_attention": (  # positions 7 to 9 see 5 and 3 to 5 keys, 10 and 11 see 5 and 1 or 2
        {"mask": "causal", "length": 5, "top_k": 2},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, C + T, 2, 4]", "bf16[B, C + T, 2, 6]", "fp32[B, 2, T, 3]"),
        2 * 3 * 6 * (4 + 6) * (5 * 5 + 3 + 4 + 5 + 1 + 2),
        5 * 3 * 6 * (5 * 5 + 3 + 4 + 5 + 1 + 2) + TOKENS * 6,
        2 * (TOKENS * 24 + 3 * 12 * 20) + 4 * TOKENS * 6,
        2 * TOKENS * 36,
    ),
    "hash_top_k": (
        {"scale": 2.0},
        ("fp32[B, T, 8]", "int64[100, 3]", "int64[B, T]"),
        0,
        2 * TOKENS * 3,
        TOKENS * (4 * 3 + 8 * 3 + 8),
        8 * TOKENS * 3,
    ),
    "sqrt_softplus_top_k": ({"k": 2}, ("bf16[B, T, 8]",), 0, 7 * TOKENS * 8, 2 * TOKENS * 8, 8 * TOKENS * 2),
    "sqrt_softplus": ({}, ("bf16[B, T, 8]",), 0, 6 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "unrope": (
        {"size": 4, "last": True},
        ("bf16[B, T, 2, 8]",),
        0,
        6 * TOKENS * 8,
        4 * TOKENS * 8,
        4 * TOKENS * 8,
    ),
}
