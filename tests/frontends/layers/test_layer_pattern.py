"""Patterns of layers fold into the fewest repeats, and a folded model is the one written out."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.frontends.layers.layer import LONGEST, Times, fold

# Two or three kinds in any order, and repeats of repeats with something before and after.
SHORT = st.lists(st.integers(0, 2), max_size=9).map(tuple)
PERIODS = st.lists(st.integers(0, 3), min_size=1, max_size=5)
PIECES = st.lists(st.tuples(PERIODS, st.integers(1, 6)), max_size=4)


def written_out(parts: tuple[Times, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for times, of in parts:
        found += times * (list(written_out(of)) if isinstance(of, tuple) else [of])
    return tuple(found)


def repeats(parts: tuple[Times, ...]) -> int:
    return sum(1 + (repeats(of) if isinstance(of, tuple) else 0) for _, of in parts)


def depth(parts: tuple[Times, ...]) -> int:
    return max((1 + depth(of) if isinstance(of, tuple) else 1 for _, of in parts), default=0)


@cache
def fewest(kinds: tuple[int, ...], levels: int) -> int:
    """By trying each way to cut the layers in two, and each period of what is whole."""
    if not kinds:
        return 0
    ways = [fewest(kinds[:cut], levels) + fewest(kinds[cut:], levels) for cut in range(1, len(kinds))]
    ways += [1] * (len(set(kinds)) == 1)
    if levels > 1:
        sizes = [n for n in range(1, len(kinds)) if kinds == kinds[:n] * (len(kinds) // n)]
        ways += [1 + fewest(kinds[:n], levels - 1) for n in sizes]
    return min(ways)


@given(SHORT)
def test_no_way_to_write_a_short_pattern_has_fewer_repeats(kinds: tuple[int, ...]) -> None:
    parts = fold(kinds)
    assert written_out(parts) == kinds
    assert repeats(parts) == fewest(kinds, 2)


@given(PIECES)
def test_what_is_folded_is_the_pattern_again(pieces: list[tuple[list[int], int]]) -> None:
    kinds = tuple(kind for body, times in pieces for kind in body * times)
    parts = fold(kinds)
    assert written_out(parts) == kinds
    assert depth(parts) <= 2
    assert repeats(parts) <= sum(1 + len(body) for body, _ in pieces)


PUBLISHED = {
    # name: pattern, the most repeats
    "Llama-3.1-405B": ("a" * 126, 1),
    "DeepSeek-V3": ("d" * 3 + "m" * 58, 2),
    "Gemma-2-27B": ("lg" * 23, 3),
    "Gemma-3-12B": ("lllllg" * 8, 3),
    "Gemma-3-27B": ("lllllg" * 10 + "ll", 4),
    "Llama-4-Scout": ("cccg" * 12, 3),
    "Jamba-v0.1": ("mxmxaxmx" * 4, 9),
    "Granite-4-H-Small": ("mmmmma" + "mmmmmmmmma" * 3 + "mmmm", 6),
    "Nemotron-H-8B": ("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 15),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_patterns_take_few_repeats(name: str) -> None:
    pattern, most = PUBLISHED[name]
    kinds = tuple(map(ord, pattern))
    assert written_out(fold(kinds)) == kinds
    assert repeats(fold(kinds)) <= most


def test_a_pattern_of_any_length_takes_no_time() -> None:
    start = time.process_time()
    fold((0, 1) * (LONGEST // 2))
    fold((0, 1) * 5000)
    assert time.process_time() - start < 20  # some ms alone
