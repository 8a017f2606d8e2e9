"""The lists of modules that a quantized checkpoint leaves as they are."""

from __future__ import annotations

import pytest

from llmir.frontends.config.quantization import _WORDS, covers


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("re:.*self_attn.*", True),
        ("re:.*mlp.gate$", True),
        (r"re:.*mlp\.(gate|up)_proj.*", True),
        ("re:.*experts\\..\\.up_proj", False),  # one of fewer than ten
        ("re:.*experts.[0-9].*", False),
        ("re:.*layers.1.*", False),
        ("re:.+layers\\.\\d", False),
        ("model.layers.3", False),
    ],
)
def test_a_pattern_of_words_says_the_same_of_all_numbers(entry: str, words: bool) -> None:
    assert bool(_WORDS.fullmatch(entry)) == words
    ends = ("self_attn.q_proj", "mlp.gate", "mlp.up_proj", "mlp.experts.{}.up_proj", "mlp.gate.{}")
    for end in ends if words else ():
        names = (f"model.layers.{i}.{end.format(i * 7)}" for i in (0, 1, 9, 10, 123))
        assert len({covers(entry, name) for name in names}) == 1
