"""Ops of images, last tokens and adaptive norms, for `test_ops.CASES`: what each does, by hand."""

from __future__ import annotations

TOKENS = 3 * 5
_X, _OF_SEQUENCES = "bf16[B, T, 8]", "bf16[B, 8]"
_ROWS, _EACH = 2 * TOKENS * 8, 2 * 3 * 8  # bytes

IMAGES: dict[str, tuple[dict[str, object], tuple[str, ...], float, int, float, int]] = {
    "patch_embedding": (  # 4 patches of 2 × 2 pixels and 3 channels
        {},
        ("bf16[B, 4, 3, 2, 2]", "bf16[3, 2, 2, 8]", "bf16[8]"),
        2 * 3 * 4 * 12 * 8,
        3 * 4 * 8,
        2 * (3 * 4 * 12 + 12 * 8 + 8),
        2 * 3 * 4 * 8,
    ),
    "append_row": ({}, ("bf16[B, 4, 8]", "bf16[1, 8]"), 0, 0, 2 * (3 * 4 * 8 + 8), 2 * 3 * 5 * 8),
    # Two rows of images a sequence, and where they go.
    "place_images": (
        {"token": 9},
        (_X, "bf16[B, 2, 8]", "int64[B, T]"),
        0,
        0,
        2 * 3 * 2 * 8 + 8 * TOKENS,
        2 * 3 * 2 * 8,
    ),
    "sinusoid": ({"elements": 6}, ("bf16[B]",), 0, 2 * 3 * 6, 2 * 3, 2 * 3 * 6),
    "modulate": ({}, (_X, _OF_SEQUENCES, _OF_SEQUENCES), 0, 2 * TOKENS * 8, _ROWS + 2 * _EACH, _ROWS),
    "sequence_mul": ({}, (_X, _OF_SEQUENCES), 0, TOKENS * 8, _ROWS + _EACH, _ROWS),
    "last_tokens": ({"count": 2}, (_X,), 0, 0, 2 * _EACH, 2 * _EACH),
}
