"""Where results lie: what ranks compute on their pieces, put together as the layout says, is the whole."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import dtype
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.tensor import Placement, Tensor, parse_tensor

MESH = {"x": 2, "y": 3}
RANKS = [dict(zip(MESH, at, strict=True)) for at in product(*map(range, MESH.values()))]
SIZES = dict.fromkeys("abcde", 6)
PLACEMENTS: tuple[Placement, ...] = ((), ("x",), ("y",), ("x", "y"), ("y", "x"))
BF16 = dtype("bf16")


def axes(most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from("abcde"), min_size=1, max_size=most, unique=True).map(tuple)


@st.composite
def equations(draw: st.DrawFn) -> Equation:
    """Of two operands; the result has some of their axes."""
    one, other = draw(axes()), draw(axes())
    result = draw(st.permutations(sorted(set(one) | set(other))))[: draw(st.integers(1, 4))]
    return equation(f"{' '.join(one)}, {' '.join(other)} -> {' '.join(result)}")


def names(term: tuple[Any, ...]) -> list[str]:
    return [d.axes[0] for d in term]


def piece(rank: dict[str, int], placements: tuple[Placement, ...]) -> tuple[slice, ...]:
    """Of an array whose dimensions all have 6 elements: the major axis of the mesh cuts first."""
    found = []
    for placement in placements:
        start, size = 0, 6
        for axis in placement:
            size //= MESH[axis]
            start += rank[axis] * size
        found.append(slice(start, start + size))
    return tuple(found)


@given(equations(), st.data())
def test_what_ranks_compute_is_the_whole(rule: Equation, data: st.DataObject) -> None:
    """Each axis lies in one way, or in any; and the first operand may be a sum that is still owed."""
    by_axis = {a: data.draw(st.sampled_from(PLACEMENTS)) for a in "abcde"}
    if data.draw(st.booleans()):
        by_axis = dict.fromkeys("abcde", ()) | {data.draw(st.sampled_from("abcde")): ("x",), "e": ("y",)}
    types = []
    for term in rule.operands:
        placements = [by_axis[a] for a in names(term)]
        if data.draw(st.integers(0, 5)) == 0:
            placements[0] = data.draw(st.sampled_from(PLACEMENTS))
        owed: Placement = data.draw(st.sampled_from(((), (), ("x",), ("x", "y")))) if not types else ()
        types.append(Tensor((6,) * len(term), BF16, placements, owed))
    used = {
        axis: {
            p
            for t, o in zip(rule.operands, types, strict=True)
            for d, p in zip(names(t), o.placements, strict=True)
            if d == axis
        }
        for axis in "abcde"
    }
    over = [m for found in used.values() for p in found for m in p]
    can = all(len(found) <= 1 for found in used.values()) and len(set(over)) == len(over)
    if not can or set(over) & set(types[0].partial):
        with pytest.raises(VerifyError):
            rule.layout(types, {0})
        return
    layout = rule.layout(types, {0})
    placements, _ = layout.of(rule.results[0])
    assert list(layout.partial) == sorted(layout.partial)

    chance = np.random.default_rng(0)
    arrays = [chance.integers(-9, 10, t.shape) for t in types]
    owed_over = [range(MESH[a]) for a in types[0].partial]
    summands = {at: chance.integers(-9, 10, arrays[0].shape) for at in product(*owed_over)}
    arrays[0] = sum(summands.values(), start=np.zeros_like(arrays[0]))
    whole = np.einsum(rule.einsum(), *arrays)
    pieces = []
    for rank in RANKS:
        own = summands[tuple(rank[a] for a in types[0].partial)]
        local = [own[piece(rank, types[0].placements)], arrays[1][piece(rank, types[1].placements)]]
        pieces.append(np.einsum(rule.einsum(), *local))

    together: dict[tuple[int, ...], Any] = {}  # by the position on axes over which it is no sum
    for rank, part in zip(RANKS, pieces, strict=True):
        split = {m for p in placements for m in p}
        if any(rank[a] for a in MESH if a not in split and a not in layout.partial):
            continue  # a copy
        where = piece(rank, placements)
        found = together.setdefault((0,), np.zeros_like(whole))
        found[where] += part
    assert (together[(0,)] == whole).all()
    for rank, part in zip(RANKS, pieces, strict=True):  # and what is a copy is one
        twin = next(
            p
            for r, p in zip(RANKS, pieces, strict=True)
            if all(r[a] == rank[a] for a in (*layout.partial, *(m for q in placements for m in q)))
        )
        assert (twin == part).all()


@given(equations(), st.data())
def test_numpys_notation_is_the_equations(rule: Equation, data: st.DataObject) -> None:
    """The letters against numpy's other form, lists of numbers."""
    chance = np.random.default_rng(1)
    number = {a: i for i, a in enumerate("abcde")}
    arrays = [chance.integers(-9, 10, (2,) * len(term)) for term in rule.operands]
    operands = data.draw(st.sampled_from(((0, 1), (1, 0), None)))
    order = operands or (0, 1)
    lists: list[Any] = [x for i in order for x in (arrays[i], [number[a] for a in names(rule.operands[i])])]
    expected = np.einsum(*lists, [number[a] for a in names(rule.results[0])])
    assert (np.einsum(rule.einsum(operands), *(arrays[i] for i in order)) == expected).all()


def test_numpys_notation_of_one_result() -> None:
    rule = equation("b t h, h f, h g -> b t f, b t g")
    assert [rule.einsum((0, 1)), rule.einsum((0, 2), 1)] == ["abc,cd->abd", "abc,cd->abd"]


@given(equations(), st.dictionaries(st.sampled_from("abcde"), st.integers(2, 9), min_size=5), st.data())
def test_sizes_are_read_off_and_contradictions_found(
    rule: Equation, sizes: dict[str, int], data: st.DataObject
) -> None:
    def shapes(known: dict[str, int]) -> list[tuple[int, ...]]:
        return [tuple(known[a] for a in names(term)) for term in rule.operands]

    tensors = [Tensor(shape, BF16) for shape in shapes(sizes)]
    found = rule.sizes(tensors)
    assert found == {a: sizes[a] for a in rule.axes(rule.operands)}
    assert [d.size(found) for d in rule.results[0]] == [sizes[a] for a in names(rule.results[0])]
    shared = set(names(rule.operands[0])) & set(names(rule.operands[1]))
    if shared:
        axis = data.draw(st.sampled_from(sorted(shared)))
        other = Tensor(shapes(sizes | {axis: sizes[axis] + 1})[1], BF16)
        with pytest.raises(VerifyError, match=f"axis '{axis}' is both {sizes[axis]} and {sizes[axis] + 1}"):
            rule.sizes([tensors[0], other])
    with pytest.raises(VerifyError, match="takes 2 operands, got 1"):
        rule.sizes(tensors[:1])


@pytest.mark.parametrize(
    ("text", "types", "says"),
    [
        ("b t h, (b t) k -> b t k", ("bf16[2, 3, 4]", "bf16[6, 5]"), ""),
        ("b t h, (b t) k -> b t k", ("bf16[2, 3, 4]", "bf16[5, 5]"), r"\(b t\) is 6, not 5"),
        ("b c, b t, b (c + t) -> b", ("bf16[2, 3]", "bf16[2, 4]", "bf16[2, 7]"), ""),
        ("b c, b t, b (c + t) -> b", ("bf16[2, 3]", "bf16[2, 4]", "bf16[2, 12]"), r"\(c t\) is 7, not 12"),
        ("b t, (b t k) -> b", ("bf16[2, 3]", "bf16[6]"), "no operand determines the size of axis 'k'"),
    ],
)
def test_dimensions_of_several_axes(text: str, types: tuple[str, ...], says: str) -> None:
    tensors = [parse_tensor(t) for t in types]
    if not says:
        assert equation(text).sizes(tensors)["b"] == 2
    else:
        with pytest.raises(VerifyError, match=says):
            equation(text).sizes(tensors)


@pytest.mark.parametrize(
    ("text", "types", "result"),
    [
        # Tokens split together stay so where the op maps them, one by one.
        ("b t h, h f -> b t f", ("bf16[B, T, 8]~x", "bf16[8, 6]"), "bf16[B, T, 6]~x"),
        ("b t h, h f -> b t f", ("bf16[B, T, 8]~x", "bf16[8, 6@y]"), "bf16[B, T, 6@y]~x"),
        ("b t h, h f -> b t f", ("bf16[B@y, T, 8]~x", "bf16[8, 6]"), "bf16[B@y, T, 6]~x"),
        ("b t h, b t h -> b t h", ("bf16[B, T, 6]~x", "bf16[B, T, 6]~x"), "bf16[B, T, 6]~x"),
        ("b t h -> b t", ("bf16[B, T, 6]~x",), "bf16[B, T]~x"),
        # Rows that run over the tokens are split as they are, and the batch's own split comes first.
        ("b t h, b t k -> (b t k) h", ("bf16[B, T, 8]~x", "bf16[B, T, 2]~x"), "bf16[2*B*T@x, 8]"),
        ("b t h, b t k -> (b t k) h", ("bf16[B@y, T, 8]~x", "bf16[B@y, T, 2]~x"), "bf16[2*B*T@y.x, 8]"),
        ("b t h, b t k -> (b t k) h", ("bf16[B@y, T, 8]", "bf16[B@y, T, 2]"), "bf16[2*B*T@y, 8]"),
        ("b t h -> (b t) h", ("bf16[B, T, 8]~x",), "bf16[B*T@x, 8]"),
        ("b t h -> (b t) h b", ("bf16[B, T, 8]~x",), "bf16[B*T@x, 8, B]"),
        # What no token of one rank gives alone is refused.
        ("b t h, h f -> b t f", ("bf16[B, T, 8]~x", "bf16[8, 6@x]"), "two axes are split over one mesh axis"),
        ("b t h, b s h -> b t s", ("bf16[B, T, 8]~x", "bf16[B, C, 8]"), "tokens must stay whole"),
        ("b t h, t h -> b t h", ("bf16[B, T, 8]~x", "bf16[T, 8]"), "tokens must stay whole"),
        ("b t h, h f -> f b t", ("bf16[B, T, 8]~x", "bf16[8, 6]"), "tokens must stay whole"),
        ("b t h, h f -> b f t", ("bf16[B, T, 8]~x", "bf16[8, 6]"), "tokens must stay whole"),
        ("b t h, h f -> t b f", ("bf16[B, T, 8]~x", "bf16[8, 6]"), "tokens must stay whole"),
        ("b t h -> b t h, b h", ("bf16[B, T, 8]~x",), "tokens must stay whole"),
        ("b t h -> (h b t)", ("bf16[B, T, 8]~x",), "tokens must stay whole"),
        ("b t! h -> b t h", ("bf16[B, T, 8]~x",), "tokens must stay whole, they are sharded over x"),
        ("b t h -> b h", ("bf16[B, T, 8]~x",), "tokens must stay whole"),
        ("b t~ h -> b t h", ("bf16[B, T, 8]~x",), "tokens must stay whole"),
        ("b t h, b t h -> b t h", ("bf16[B, T, 8]~x", "bf16[B, T, 8]"), "tokens have two placements"),
        ("b t h, c d h -> b t c d", ("bf16[B, T, 8]~x", "bf16[B, T, 8]~x"), "tokens must stay whole"),
        # Looked up in the rows of a rank: the other ranks' rows are still to be added.
        ("[v] h, b t -> b t h", ("bf16[64@x, 8]", "int64[B, T]"), "bf16[B, T, 8]+x"),
        ("b t h! -> b t h", ("bf16[B, T, 8@x]",), "axis 'h' must stay whole"),
        ("b t h! -> b t h", ("bf16[B@x, T, 8]",), "bf16[B@x, T, 8]"),
        ("b t h -> b t h", ("bf16[B, T, 8]+x",), "needs the whole sum"),
        ("b t h -> b t h", ("bf16[B, T, 8]",), "bf16[B, T, 8]"),
    ],
)
def test_tokens_that_are_split_together(text: str, types: tuple[str, ...], result: str) -> None:
    rule, tensors = equation(text), [parse_tensor(t) for t in types]
    if not result.startswith("bf16["):
        with pytest.raises(VerifyError, match=result):
            rule.layout(tensors)
        return
    layout, sizes = rule.layout(tensors), rule.sizes(tensors)
    placements, tokens = layout.of(rule.results[0])
    shape = [d.size(sizes) for d in rule.results[0]]
    assert str(Tensor(shape, BF16, placements, layout.partial, tokens)) == result


def test_a_product_says_which_axes_are_summed() -> None:
    """An axis of one operand alone must be in the result, or marked."""
    equation("b h, h f -> b f").check_product(0, 1, 0)
    equation("b h +k, h f -> b f").check_product(0, 1, 0)
    equation("[e] h k, h f -> f k").check_product(0, 1, 0)
    with pytest.raises(VerifyError, match=r"axis 'j' is in one operand alone .* \+j says that it is summed"):
        equation("b h k j, h f -> b f").check_product(0, 1, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("? a -> a", r'cannot read "\?"'),
        ("a ? -> a", r'cannot read "\?"'),
        ("a -> a !", "cannot read"),
        ("+k -> k", "axis 'k' is in a result, so it is not summed"),
        ("a, b", "expected operands -> results"),
        ("a -> b -> c", "expected operands -> results"),
    ],
)
def test_what_is_no_equation(text: str, says: str) -> None:
    with pytest.raises(VerifyError, match=says):
        equation(text)


def test_marks_of_axes() -> None:
    rule = equation("[v] h!, b t~ +k, (b t) -> b t h, (c + t)")
    assert (rule.indexed, rule.whole, rule.windowed, rule.summed) == ({"v"}, {"h"}, {"t"}, {"k"})
    assert rule.axes(rule.operands) == ("v", "h", "b", "t", "k")
    assert (rule.operands[2][0].axes, rule.operands[2][0].end_to_end) == (("b", "t"), False)
    assert (rule.results[1][0].axes, rule.results[1][0].end_to_end) == (("c", "t"), True)
    assert str(rule) == "[v] h!, b t~ +k, (b t) -> b t h, (c + t)"


@given(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=5), st.data())
def test_part_of_a_mesh_has_the_same_groups_and_pieces(sizes: list[int], data: st.DataObject) -> None:
    mesh = Mesh(tuple((f"a{i}", n) for i, n in enumerate(sizes)))
    names = [name for name, _ in mesh.axes]
    over = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    used = set(data.draw(st.lists(st.sampled_from(names)))) | set(over)
    part = mesh.around(over, used)
    assert part.group(over) == mesh.group(over)
    assert part.size(used) == mesh.size(used)
