"""What ops of attention cost, counted by hand, as `test_ops` has it: 3 sequences, 5 new tokens after 7."""

from __future__ import annotations

from .compressed_attention_work import COMPRESSED

TOKENS = 3 * 5
# opcode -> attributes, operand types, and by hand: matmul FLOPs, vector FLOPs, bytes read, bytes written
ATTENTION: dict[str, tuple[dict[str, object], tuple[str, ...], float, int, float, int]] = {
    **COMPRESSED,
    "attention_scores": (
        {},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, C + T, 2, 4]"),
        2 * 3 * 6 * 5 * 12 * 4,
        0,
        2 * (TOKENS * 24 + 3 * 12 * 8),
        2 * 3 * 6 * 5 * 12,
    ),
    "attention_mask": (
        {"mask": "causal"},
        ("bf16[B, 2, 3, T, C + T]",),
        0,
        18 * 5 * 12,
        2 * 18 * 60,
        2 * 18 * 60,
    ),
    "attention_mix": (
        {},
        ("bf16[B, 2, 3, T, C + T]", "bf16[B, C + T, 2, 6]"),
        2 * 3 * 6 * 5 * 12 * 6,
        0,
        2 * (18 * 60 + 3 * 12 * 12),
        2 * TOKENS * 36,
    ),
    "flash_attention": (
        {"mask": "causal"},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, C + T, 2, 4]", "bf16[B, C + T, 2, 6]"),
        2 * 3 * 6 * (4 + 6) * sum(7 + i for i in range(1, 6)),
        5 * 3 * 6 * sum(7 + i for i in range(1, 6)),
        2 * (TOKENS * 24 + 3 * 12 * 2 * 10),
        2 * TOKENS * 36,
    ),
    "latent_scores": (  # 4 heads of 6 and 2
        {},
        ("bf16[B, T, 4, 6]", "bf16[B, T, 4, 2]", "bf16[B, C + T, 4, 6]", "bf16[B, C + T, 2]"),
        2 * 3 * 4 * 5 * 12 * (6 + 2),
        0,
        2 * (TOKENS * 32 + 3 * 12 * 26),
        2 * 3 * 4 * 5 * 12,
    ),
    "index_scores": (  # 3 heads of 4
        {},
        ("bf16[B, T, 3, 4]", "bf16[B, C + T, 4]", "bf16[B, T, 3]"),
        2 * TOKENS * 12 * 3 * (4 + 1),
        TOKENS * 12 * 3,
        2 * (TOKENS * 15 + 3 * 12 * 4),
        4 * TOKENS * 12,
    ),
    "select_keys": (
        {"top_k": 4, "mask": "causal"},
        ("fp32[B, 2, T, C + T]", "fp32[B, T, C + T]"),
        0,
        TOKENS * 12 * 3,
        4 * TOKENS * 12 * 3,
        4 * TOKENS * 12 * 2,
    ),
    "sparse_latent_attention": (  # absorbed, 2 keys a query: 10 of 12 at most
        {"mask": "causal", "top_k": 2},
        (
            "bf16[B, T, 4, 8]",
            "bf16[B, T, 4, 2]",
            "bf16[B, C + T, 8]",
            "bf16[B, C + T, 2]",
            "fp32[B, T, C + T]",
        ),
        2 * 3 * 4 * (8 + 2 + 8) * 5 * 2,
        5 * 3 * 4 * 5 * 2 + TOKENS * 12,
        2 * (TOKENS * 40 + 3 * 10 * 10) + 4 * TOKENS * 12,
        2 * TOKENS * 32,
    ),
    "latent_mix": (
        {},
        ("bf16[B, 4, T, C + T]", "bf16[B, C + T, 8]"),
        2 * 3 * 4 * 5 * 12 * 8,
        0,
        2 * (3 * 4 * 5 * 12 + 3 * 12 * 8),
        2 * TOKENS * 32,
    ),
    "latent_attention": (  # absorbed: latents of 8
        {"mask": "causal"},
        ("bf16[B, T, 4, 8]", "bf16[B, T, 4, 2]", "bf16[B, C + T, 8]", "bf16[B, C + T, 2]"),
        2 * 3 * 4 * (8 + 2 + 8) * sum(7 + i for i in range(1, 6)),
        5 * 3 * 4 * sum(7 + i for i in range(1, 6)),
        2 * (TOKENS * 40 + 3 * 12 * 10),
        2 * TOKENS * 32,
    ),
}
