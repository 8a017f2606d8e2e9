"""Sizes: arithmetic is that of integers, text round-trips, arrays agree with points."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.dim import ATOMS, B, Binding, C, Dim, Max, Min, Size, T, at_most, ceildiv, distinct, parse, product
from llmir.errors import ParseError, VerifyError
from llmir.routing import CHANCE

LEAVES = st.one_of(st.integers(-6, 60), st.sampled_from((B, T, C)))


def _combine(children: st.SearchStrategy[tuple[Size, object]]) -> st.SearchStrategy[tuple[Size, object]]:
    two = st.tuples(children, children)
    return st.one_of(
        two.map(lambda p: (p[0][0] + p[1][0], ("+", p[0][1], p[1][1]))),
        two.map(lambda p: (p[0][0] - p[1][0], ("-", p[0][1], p[1][1]))),
        two.map(lambda p: (p[0][0] * p[1][0], ("*", p[0][1], p[1][1]))),
        two.map(lambda p: (Min.of(p[0][0], p[1][0]), ("min", p[0][1], p[1][1]))),
        two.map(lambda p: (Max.of(p[0][0], p[1][0]), ("max", p[0][1], p[1][1]))),
        st.tuples(children, st.integers(1, 9)).map(
            lambda p: (ceildiv(p[0][0], p[1]), ("ceildiv", p[0][1], p[1]))
        ),
    )


# A size, and the same expression as a tree for Python to compute.
EXPRESSIONS = st.recursive(LEAVES.map(lambda x: (x, x)), _combine, max_leaves=8)


def compute(tree: object, env: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, Dim):
        return env[str(tree)]
    operator, left, right = tree  # type: ignore[misc]
    a, b = compute(left, env), compute(right, env)
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "ceildiv": lambda: math.ceil(a / b) if abs(a) < 2**50 else -(-a // b),
    }[operator]()


VALUES = st.integers(0, 300)


@given(EXPRESSIONS, VALUES, VALUES, VALUES)
def test_a_size_is_what_python_computes(expression: tuple[Size, object], b: int, t: int, c: int) -> None:
    size, tree = expression
    value = Binding(B=b, T=t, C=c)(size)
    assert type(value) is int
    assert value == compute(tree, {"B": b, "T": t, "C": c})


@given(EXPRESSIONS)
def test_text_round_trips(expression: tuple[Size, object]) -> None:
    size = expression[0]
    assert parse(str(size)) == size
    assert hash(parse(str(size))) == hash(size)


@given(EXPRESSIONS, st.lists(VALUES, min_size=1, max_size=5), VALUES)
def test_arrays_agree_with_points(expression: tuple[Size, object], batch: list[int], t: int) -> None:
    size = expression[0]
    grid = np.broadcast_to(Binding(B=np.array(batch), T=t, C=3)(size), (len(batch),))
    assert [Binding(B=b, T=t, C=3)(size) for b in batch] == pytest.approx(grid.tolist(), rel=1e-12)


@given(EXPRESSIONS, EXPRESSIONS, VALUES, VALUES, VALUES)
def test_at_most_is_never_wrong(
    a: tuple[Size, object], b: tuple[Size, object], x: int, y: int, z: int
) -> None:
    at = Binding(B=x, T=y, C=z)
    positive = not any(w in str(e[0]) for e in (a, b) for w in ("min", "max", "ceildiv"))
    if positive and at_most(a[0], b[0]):
        assert at(a[0]) <= at(b[0])


def test_equal_polynomials_are_one() -> None:
    assert (B + 1) * (T + 2) == B * T + 2 * B + T + 2
    assert B - B == 0
    assert product([B, 2, T]) == 2 * B * T
    assert ceildiv(8 * B * T, 4) == 2 * B * T


def test_integers_stay_exact_where_floats_would_not() -> None:
    assert Binding(B=10**9, T=10**9, C=1)(B * T * 10**9 + 1) == 10**27 + 1


@given(st.integers(1, 40), st.data(), st.integers(0, 100))
def test_distinct_experts(experts: int, data: st.DataObject, tokens: int) -> None:
    chosen = data.draw(st.integers(1, experts))
    value = Binding(n=tokens)(distinct(experts, chosen, Dim.symbol("n")))
    assert value == pytest.approx(experts * (1 - (1 - chosen / experts) ** tokens), rel=1e-9)
    grid = Binding(n=np.array([tokens]))(distinct(experts, chosen, Dim.symbol("n")))
    assert grid[0] == pytest.approx(value, rel=1e-12)


@given(st.sampled_from(sorted(ATOMS)), st.lists(st.one_of(st.integers(-2, 9), st.just(B + 1)), max_size=6))
def test_an_atom_takes_what_its_fields_say(name: str, arguments: list[Size]) -> None:
    """As many arguments as fields, positive integers where the field is an integer; else an error."""
    stated = fields(ATOMS[name])
    laws = [CHANCE] * sum(f.type == "Law" for f in stated)
    sizes = [f for f in stated if f.type != "Law"]
    fits = len(arguments) == len(sizes) and all(
        f.type == "Size" or (isinstance(a, int) and a > 0) for f, a in zip(sizes, arguments, strict=False)
    )
    if fits:
        made = ATOMS[name].of(*arguments, *laws)
        assert parse(str(made)) == made
    else:
        with pytest.raises(VerifyError, match=f"^{name}: expected"):
            ATOMS[name].of(*arguments, *laws)


BAD = ["", "1 +", "B.x", "f(B, 2)", "max(B)", "B**2", "True", '"x"', "ceildiv(B, 0)", "(", "B T", "1.5"]


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_one_line(text: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)
