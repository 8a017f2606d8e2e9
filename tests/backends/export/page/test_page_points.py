"""Pages and modules say in node and in Chromium what Python prices on arrays; what is off is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import llmir
from tests import browser
from tests.backends.export import emit_cases, emit_points
from tests.backends.export.covering import Case, Far, found, pairs
from tests.flat import records
from tests.javascript import in_node

from . import page_cases, page_points

node = pytest.mark.skipif(not emit_cases.available(), reason="needs node")
PLACES = [pytest.param("node", marks=node), pytest.param("chromium", marks=browser.real)]
MODELS = "gpt-oss-20b", "LFM2-350M"
OF: Case = {"device": "h100-sxm", "engine": "vllm", "cost": "default"}
OF |= {"precision": "", "sharding": "stages{pp=2, micro_batches=2}"}
# Points. `python -m tests.backends.export.page.page_points` and `tests.backends.export.emit_points`
# take a thousand.
SOME = 48


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("of", [page_points, emit_points])
def test_many_points_are_those_of_python(of: Any, place: str) -> None:
    with of.comparing(SOME, [place]) as compare:
        for model in MODELS:
            (far,) = compare({**OF, "model": model}).values()
            assert far.points == SOME
            assert far.most < browser.OFF
            assert far.wrong == 0


@pytest.mark.parametrize("of", [page_points, emit_points])
def test_points_have_all_corners_and_are_always_the_same(of: Any) -> None:
    some = of.points(1000)
    assert some == of.points(1000)
    assert len(some) == 1000
    assert len(set(some)) > 900
    assert (1, 1, 1 if of is page_points else 0) in some


@pytest.mark.slow
@node
def test_what_a_page_says_wrong_is_found() -> None:
    program, device, priced, told, functions = page_cases.page_of({**OF, "model": "LFM2-350M"})
    at = [(2 * batch, prompt, generate) for batch, prompt, generate in page_points.points(20)]
    jobs = page_cases.jobs_of(program, device, at, priced)
    expected = page_points.Expected(
        jobs, partial(llmir.analyze, program, device, **records(llmir.analyze, **priced))
    )
    right = page_points.said(told, functions.source, at, in_node)
    assert expected.far(right).most < 1e-14
    for name, rows in right.steps.items():
        for place in np.flatnonzero(rows)[:: len(rows) // 50]:
            other = rows.copy()
            other[place] += 1 if other[place] == int(other[place]) else 1e-9 * other[place]
            far = expected.far(right._replace(steps={**right.steps, name: other}))
            assert far.wrong or far.most > 1e-12
    for name, rows in (("requests", right.requests), ("peaks", right.peaks)):
        for place in np.flatnonzero(rows != page_points.NONE):
            other = rows.copy()
            other.flat[place] += 1 if name == "peaks" else 1e-9 * other.flat[place]
            far = expected.far(right._replace(**{name: other}))
            assert far.wrong or far.most > 1e-12


@contextmanager
def even() -> Iterator[Callable[[Case], int | None]]:
    yield lambda case: None if case["a"] % 2 else case["a"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_cases_that_there_are_come_in_order(processes: int) -> None:
    numbers = ({"a": number} for number in range(1, 100))
    assert [what for _, what in found(even, numbers, 5, processes)] == [2, 4, 6, 8, 10]
    assert [what for _, what in found(even, [{"a": 2}, {"a": 3}], 5, processes)] == [2]


@contextmanager
def wrong() -> Iterator[Callable[[Case], int | None]]:
    yield lambda case: 1 // case["a"]


def test_an_error_of_a_case_is_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(found(wrong, [{"a": 1}, {"a": 0}], 5))


def test_far_ones_add_up() -> None:
    assert Far(1e-16, 2, 10) + Far(3e-16, 1, 5) == Far(3e-16, 3, 15)
    assert len(pairs([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 4}])) == 5
