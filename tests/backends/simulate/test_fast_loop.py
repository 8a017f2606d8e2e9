"""A server while there is room: the fast loop leaves what the general one leaves, to the last digit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmir.backends.simulate import cluster as module
from llmir.backends.simulate.load import Load, sample_load
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.server import Capacity, Policy, Server, fast_loop, is_deterministic
from llmir.backends.simulate.step_times import StepTimes

from .serving_cases import Case, Toy, grouped, left, policies, policy
from .serving_cases import load as load_of

COLUMNS = ("start_s", "first_s", "end_s", "preemptions", "made")


def both(fills: Policy, capacity: Capacity, load: Load, step: Any = None) -> tuple[Server, list[range]]:
    """A server after a load, which is as without the fast loop; and the requests of each time in the loop."""
    spans = []

    def noted(server: Server, first: int, comes_s: Any) -> int:
        spans.append(range(first, fast_loop(server, first, comes_s)))
        return spans[-1].stop

    with patch.object(module, "fast_loop", noted):
        fast = module.serve(StepTimes(step or Toy()), fills, capacity, load)
    with patch.object(module, "is_deterministic", lambda server: False):
        slow = module.serve(StepTimes(step or Toy()), fills, capacity, load)
    for name in COLUMNS:
        assert getattr(fast.course, name) == getattr(slow.course, name), name
    for name in ("joined_s", "resumed_s"):
        assert sorted(getattr(fast.course, name)) == sorted(getattr(slow.course, name)), name
    assert fast.log == slow.log
    left(fast)
    return fast, [span for span in spans if span]


@st.composite
def roomy(draw: Any) -> Case:
    """Bursts and pauses; at some times blocks run short, at others they do not."""
    fills, count = draw(policies()), draw(st.integers(1, 40))
    lists = lambda each: st.lists(each, min_size=count, max_size=count)  # noqa: E731
    prompt, generate = draw(lists(st.integers(1, 40))), draw(lists(st.integers(1, 40)))
    steps = draw(lists(st.sampled_from([0.0, 0.0, 1e-3, 0.01, 0.02, 0.3])))
    cached = [draw(st.integers(0, p - 1)) for p in prompt] if draw(st.booleans()) else None
    load = load_of(prompt, generate, np.cumsum(steps), cached)
    if draw(st.booleans()):
        load = replace(load, asked=load.generate + draw(st.integers(0, 9)))
    size = 1 if fills.name == "sglang" else draw(st.sampled_from([1, 4, 16]))
    blocks = (-(-load.longest // size) + 2) * draw(st.sampled_from([2, 4, 8, 40]))
    tokens = draw(st.integers(8, 64)) if fills.chunked else load.longest + draw(st.integers(0, 30))
    room = Capacity(blocks, size, tokens, draw(st.integers(1, min(tokens, 12))))
    return fills, load, draw(grouped(room)) if fills.name != "sglang" and draw(st.booleans()) else room


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(roomy())
def test_it_leaves_what_the_general_loop_leaves(case: Case) -> None:
    fills, load, capacity = case
    both(fills, capacity, load)


def test_arrivals_at_the_very_end_of_a_step_go_as_in_the_general_loop() -> None:
    """Steps of a second, and requests that come at whole and half seconds."""

    class Second(Toy):
        def __call__(self, decodes: int, sums: Any, chunks: Any) -> Any:
            return 1.0 + 0 * np.asarray(sums[0] if sums else 0)

    rng = np.random.default_rng(0)
    for ahead in (False, True):
        for sequences in (1, 2, 9):
            arrival = np.cumsum(rng.integers(0, 5, 300) / 2)
            load = load_of(rng.integers(1, 9, 300), rng.integers(1, 5, 300), arrival)
            _, spans = both(Vllm(ahead=ahead), Capacity(10_000, 4, 16, sequences), load, Second())
            assert sum(map(len, spans)) == len(load)


@pytest.mark.parametrize(
    ("engine", "size"), [("vllm", 16), ("vllm", 1), ("v0", 4), ("sglang", 1), ("trtllm", 16)]
)
@pytest.mark.parametrize("ahead", [False, True])
def test_it_goes_on_after_each_rush(engine: str, size: int, ahead: bool) -> None:
    load = sample_load(900, "uniform:1,400", "uniform:1,90", rate=4)
    rush = (np.arange(900) // 100 % 3 == 1)[1:]
    gaps = np.diff(load.arrival_s) * np.where(rush, 0.05, 1)
    load = replace(load, arrival_s=np.concatenate([[0.0], np.cumsum(gaps)]))
    fills = policy(engine, engine in ("vllm", "sglang"), ahead=ahead)
    found, spans = both(fills, Capacity(3200 // size, size, 512, 64), load)
    least = {"trtllm": -1, "sglang": 2}.get(engine, 10)  # SGLang admits fewer after its first preemptions
    assert sum(found.course.preemptions) > least
    assert len(spans) >= 3
    assert sum(map(len, spans)) > 300


def test_it_is_left_to_those_whose_policy_is_known_and_who_share_nothing() -> None:
    class Own(Vllm):
        def roomy(self, capacity: Capacity) -> int | None:
            return Policy.roomy(self, capacity)

    load, room = load_of([5, 5], [5, 5], [0, 1]), Capacity(100, 4, 64, 8)
    shared = replace(load, hashes=((1,), (1,)))
    for fills, comes, step, may in (
        (Vllm(), load, Toy(), True),
        (Own(), load, Toy(), False),
        (Vllm(), shared, Toy(), False),
        (Vllm(), replace(load, timeout_s=9.0), Toy(), False),
        (Vllm(), load, Toy(window=7), False),
    ):
        server = module.serve(StepTimes(step), fills, room, comes)
        assert is_deterministic(server) is may
