"""The layout of a page's graph: rows in the order of the flow, with `dot` and without it."""

from __future__ import annotations

import shutil
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.backends.export.page import setups


@st.composite
def flows(draw: st.DrawFn) -> nx.DiGraph:
    """Graphs whose links lead from a number to a larger one, as schedules have them."""
    count = draw(st.integers(1, 9))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    flow = nx.DiGraph()
    flow.add_nodes_from(range(count))
    flow.add_edges_from(draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    return flow


def judged(flow: nx.DiGraph, rows: list[list[int]]) -> None:
    """Each box is there once, and below all that lead to it, one of them in the row above."""
    assert sorted(box for row in rows for box in row) == sorted(flow.nodes)
    rank = {box: i for i, row in enumerate(rows) for box in row}
    for box in flow.nodes:
        above = [rank[tail] for tail in flow.predecessors(box)]
        assert rank[box] == max(above, default=-1) + 1


@given(flow=flows())
def test_rows_without_dot(flow: nx.DiGraph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setups, "_across", lambda flow: {})
        rows = setups.layer_boxes(flow)
    judged(flow, rows)
    assert all(row == sorted(row) for row in rows)


@pytest.mark.skipif(not shutil.which("dot"), reason="needs dot")
def test_rows_by_dot_cross_less() -> None:
    # 0 leads to 3 and 1 to 2, so that the second row goes the other way round.
    flow = nx.DiGraph([(0, 3), (1, 2), (3, 4), (2, 5)])
    rows: Any = setups.layer_boxes(flow)
    judged(flow, rows)
    first, second = rows[0], rows[1]
    assert [first.index(0), second.index(3)] in ([0, 0], [1, 1])


def test_no_dot_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    judged(nx.DiGraph([(0, 1), (0, 2)]), setups.layer_boxes(nx.DiGraph([(0, 1), (0, 2)])))
