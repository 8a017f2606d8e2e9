"""Sizes: arithmetic is that of integers, text round-trips, arrays agree with points."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmir.base.errors import ParseError, VerifyError
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import (
    ATOMS,
    B,
    Busiest,
    C,
    Dim,
    Max,
    Min,
    Routed,
    Size,
    T,
    after_step,
    at_most,
    ceildiv,
    distinct,
    maximum,
    minimum,
    parse,
    product,
)
from llmir.ir.sizes.routing_laws import CHANCE, Even, Law, Zipf

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


@example((ceildiv(C, 3) * C + B, None), 1, 2, 3)
@given(EXPRESSIONS, VALUES, VALUES, VALUES)
def test_what_is_cached_has_grown_by_the_new_tokens(
    expression: tuple[Size, object], b: int, t: int, c: int
) -> None:
    """Its value after the step is what it was with as many more in the cache."""
    size = expression[0]
    assert Binding(B=b, T=t, C=c)(after_step(size)) == Binding(B=b, T=t, C=c + t)(size)


@example((B + 1, None))
@given(EXPRESSIONS)
def test_text_round_trips(expression: tuple[Size, object]) -> None:
    size = expression[0]
    assert parse(str(size)) == size
    assert hash(parse(str(size))) == hash(size)


@pytest.mark.slow
@given(EXPRESSIONS, st.lists(VALUES, min_size=1, max_size=5), VALUES)
def test_arrays_agree_with_points(expression: tuple[Size, object], batch: list[int], t: int) -> None:
    size = expression[0]
    grid = np.broadcast_to(Binding(B=np.array(batch), T=t, C=3)(size), (len(batch),))
    assert [Binding(B=b, T=t, C=3)(size) for b in batch] == pytest.approx(grid.tolist(), rel=1e-12, abs=0)


@given(EXPRESSIONS, EXPRESSIONS, VALUES, VALUES, VALUES)
def test_at_most_is_never_wrong(
    a: tuple[Size, object], b: tuple[Size, object], x: int, y: int, z: int
) -> None:
    at = Binding(B=x, T=y, C=z)
    positive = not any(w in str(e[0]) for e in (a, b) for w in ("min", "max", "ceildiv"))
    if positive and at_most(a[0], b[0]):
        assert at(a[0]) <= at(b[0])


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_sizes_are_a_commutative_ring(
    a: tuple[Size, object], b: tuple[Size, object], c: tuple[Size, object]
) -> None:
    """However a size is put together, it is the same one and prints alike."""
    x, y, z = a[0], b[0], c[0]
    for one, other in (
        (x + y, y + x),
        (x * y, y * x),
        ((x + y) + z, x + (y + z)),
        ((x * y) * z, x * (y * z)),
        ((x + y) * z, x * z + y * z),
        (x - y, x + -1 * y),
        ((x - y) + y, x),
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert str(one) == str(other)


POLYNOMIALS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(sum), st.tuples(inner, inner).map(product), inner.map(lambda x: 7 - x)
    ),
    max_leaves=6,
)


@given(POLYNOMIALS, POLYNOMIALS)
def test_polynomials_are_equal_where_their_values_are(a: Size, b: Size) -> None:
    """At a point so far out that no two polynomials of these degrees and coefficients meet there."""
    far = Binding(B=10**20, T=10**200, C=10**2000)
    assert (a == b) == (far(a) == far(b))
    assert at_most(a, a)
    assert at_most(a, a + B)
    assert not at_most(a + 1, a)


@given(POLYNOMIALS)
def test_terms_print_by_degree_and_then_by_name(size: Size) -> None:
    terms = [[f for f in t.split("*") if not f.lstrip("-").isdigit()] for t in str(size).split(" + ")]
    assert terms == sorted(terms, key=lambda names: (-len(names), names))
    assert all(names == sorted(names) for names in terms)


@example(3 * B + 4, 2, 1, 0, 0)
@given(POLYNOMIALS, st.integers(1, 6), VALUES, VALUES, VALUES)
def test_ceildiv_rounds_up(size: Size, by: int, b: int, t: int, c: int) -> None:
    """It is a polynomial where that divides, and rounded wherever it does not."""
    at = Binding(B=b, T=t, C=c)
    assert at(ceildiv(size, by)) == -(-at(size) // by)
    assert ceildiv(size * by, by) == size
    assert ceildiv(size, 1) == size


def test_functions_of_numbers_are_numbers() -> None:
    assert [Min.of(3, 5), Max.of(3, 5), ceildiv(7, 2), ceildiv(-7, 2)] == [3, 5, 4, -3]


@given(st.lists(VALUES, min_size=1, max_size=4), VALUES)
def test_the_smaller_and_the_larger_element_by_element(many: list[int], one: int) -> None:
    for a, b in ((np.array(many), one), (one, np.array(many)), (np.array(many), np.array(many) * 2 - one)):
        pairs = list(zip(np.broadcast_to(a, (len(many),)), np.broadcast_to(b, (len(many),)), strict=True))
        assert [min(p) for p in pairs] == list(minimum(a, b))
        assert [max(p) for p in pairs] == list(maximum(a, b))


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
    assert value == pytest.approx(experts * (1 - (1 - chosen / experts) ** tokens), rel=1e-9, abs=0)
    grid = Binding(n=np.array([tokens]))(distinct(experts, chosen, Dim.symbol("n")))
    assert grid[0] == pytest.approx(value, rel=1e-12, abs=0)


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ceildiv(B, 281474976710657)", r"from 1 to 2\*\*48"),
        ("distinct(1048577, 1, B, 8)", "from 1 to 1,048,576"),
        ("ceildiv(B, T)", "expected integers from 1"),
        ("ceildiv(B, -1)", "expected integers from 1"),
        ("routed(B, 2, 8, 5)", "a law of routing"),
        ("busiest(2, 2, B)", "got 3 arguments"),
    ],
)
def test_an_atom_says_what_it_takes(text: str, says: str) -> None:
    name, arguments = text.rstrip(")").split("(")
    with pytest.raises(VerifyError, match=says):
        ATOMS[name].of(*map(parse, arguments.split(", ")))


def test_the_largest_integers_of_atoms() -> None:
    assert str(ceildiv(B, 2**48)) == "ceildiv(B, 281474976710656)"
    assert Binding(B=2**50)(ceildiv(B, 2**48)) == 4
    assert str(distinct(2**20, 1, B)) == "distinct(1048576, 1, B, 1048576)"


@given(
    st.integers(1, 30), st.integers(1, 9), st.integers(0, 50), st.sampled_from((CHANCE, Even(), Zipf(1.0)))
)
def test_all_rows_are_those_of_one_rank(experts: int, chosen: int, tokens: int, by: Law) -> None:
    """And of two ranks the busiest has at least half of them, as routed says how many there are."""
    chosen = min(chosen, experts)
    at = Binding(B=tokens)
    rows = at(Routed.of(B, chosen, 2 * experts, by))
    assert rows == tokens * chosen
    assert at(Busiest.of(1, chosen, B, experts, by)) == rows
    assert rows / 2 <= at(Busiest.of(2, chosen, B, 2 * experts, by)) <= rows


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 12), st.integers(0, 50))
def test_experts_held_are_at_least_their_share_of_those_touched(
    held: int, ranks: int, chosen: int, tokens: int
) -> None:
    experts = held * ranks
    chosen = min(chosen, experts)
    touched = Binding(n=tokens)(distinct(held, chosen, Dim.symbol("n"), experts))
    share = held * (1 - (1 - chosen / experts) ** tokens)
    assert touched >= share * (1 - 1e-9)
    assert ranks > 1 or touched == pytest.approx(share, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("longest", "longer"),
    [
        ("B" * 2000, "B" * 2001),
        (" + ".join(f"s{i}" for i in range(200)), " + ".join(f"s{i}" for i in range(201))),
        ("*".join("B" * 16), "*".join("B" * 17)),
        ("9" * 30 + "*B", "1" + "0" * 30 + "*B"),
        ("-" + "9" * 30, "-1" + "0" * 30),
    ],
)
def test_the_largest_size_that_is_read(longest: str, longer: str) -> None:
    """2,000 characters, 200 terms, 16 factors, 30 digits."""
    assert parse(longest)
    with pytest.raises(ParseError):
        parse(longer)


@given(POLYNOMIALS)
def test_numbers_of_numpy_are_numbers(size: Size) -> None:
    """And a float is none."""
    assert size * np.int64(3) + np.int32(2) == size * 3 + 2
    assert B * np.int64(3) - size == 3 * B - size
    assert all(type(c) is int for _, c in (B * np.int64(2) + np.int64(1)).terms)
    with pytest.raises(TypeError):
        B + 1.5  # type: ignore[operator]


BAD = [
    "",
    "1 +",
    "B.x",
    "f(B, 2)",
    "max(B)",
    "B**2",
    "True",
    '"x"',
    "ceildiv(B, 0)",
    "(",
    "B T",
    "1.5",
    "1and B",
    '"\\d"',
]


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_one_line(text: str) -> None:
    with warnings.catch_warnings(), pytest.raises(ParseError) as error:
        warnings.simplefilter("error")
        parse(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)
