"""Invariants of simulated servers, on fewer loads than `make invariants` runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from tests.commands import Run

from . import invariants
from .invariants import PREEMPT, System, audit, systems


@settings(max_examples=60)
@given(systems())
def test_no_invariant_is_broken(system: System) -> None:
    audit(system)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_no_invariant_is_broken_by_loads_that_preempt(number: int) -> None:
    tried, preempted = invariants.run(1000, number)
    assert tried.total() == 1000
    assert preempted.total() >= PREEMPT * 1000
    assert min(preempted.values()) > 0


def test_a_session_of_one_turn_finds_no_prefix_after_preemptions(run: Run) -> None:
    """Each prompt is of its own: what a preempted request finds of its answer is no hit."""
    asked = "--rate 3 --turns 1 --prompt 20 --generate uniform:200,600 --requests 60 --seed 1"
    reserve = "--reserve 18061721600B --format json"
    command = f"serve-sim llama3.2-1b --hw l4 --engine vllm {asked} {reserve}"
    ended = run(*command.split())
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["preemptions"] > 100
    assert found["prefix_hits"] == 0
