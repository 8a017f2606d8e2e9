"""What a search for plans tells while it simulates."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.backends.search.plan import Candidate
from llmir.base.errors import InputError
from tests.flat import records

ASKED: dict[str, Any] = {"rate": 5, "prompt": 500, "generate": 50, "requests": 100, "max_tpot": "30ms"}


@pytest.mark.slow
@pytest.mark.parametrize("link", [None, "nvlink"])
def test_each_run_is_told_by_its_number_and_plan(link: str | None) -> None:
    told: list[tuple[int, str]] = []

    def tell(runs: int, plan: str) -> None:
        told.append((runs, plan))

    plans = llmir.plan(
        "llama3.1-8b", "h100-sxm", **records(llmir.plan, **ASKED, gpus=4, link=link, progress=tell)
    )
    assert [runs for runs, _ in told] == [*range(1, len(told) + 1)]
    assert len(told) >= sum(len(each.trial.runs) for each in plans.shown)  # and those that decided nothing
    names = {plan for _, plan in told}
    of = {f"{each.replicas} × {each.structure.name}" for each in plans.shown if type(each) is Candidate}
    assert of and of <= names
    assert (link is not None) == any(plan.startswith("pools ") for plan in names), names


@pytest.mark.slow
def test_an_error_in_it_ends_the_search() -> None:
    with pytest.raises(ZeroDivisionError):
        llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **ASKED, progress=lambda *_: 1 // 0))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InputError, match=r"progress: expected a function .* got 'loud'"):
        llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **ASKED, progress="loud"))  # type: ignore[arg-type]
