"""Invariants of simulated servers, on fewer loads than `make invariants` runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings

from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.server import Capacity
from tests.commands import Run

from . import invariants
from .invariants import PREEMPT, System, audit, systems
from .serving_cases import load

# The last prompt but one leaves the pipeline of the prefill server while the next micro-batch is in its first
# stage, and decode servers must not go on before.
PASSING = System(
    "pools",
    Vllm(chunked=False),
    load([1, 9, *[1] * 10], [1, 4, *[1] * 8, 2, 1], [0.0] * 9 + [0.0046875, 0.00546875, 0.00898438]),
    Capacity(blocks=15, block=1, tokens=13, sequences=12, micro_batches=3),
)


@settings(max_examples=60)
@given(systems())
@example(PASSING)
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
