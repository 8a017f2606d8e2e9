"""What pages compute is what `workload` says: pairs of model, device, precision, split and cost model."""

from __future__ import annotations

import itertools

import pytest

from . import emit_cases, page_cases

SOME = 4  # programs a part; `python -m tests.page_cases` takes as many as it is told


@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_workload(seed: int) -> None:
    some = list(itertools.islice(page_cases.known(page_cases.POINTS, seed), SOME))
    assert len(some) == SOME
    for case, off in some:
        assert off < 1e-12, case
