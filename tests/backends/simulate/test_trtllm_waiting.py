"""TensorRT-LLM's prompts that wait beside decodes, and whose clients leave meanwhile: closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.step_times import StepTimes

from .serving_cases import ROOM, Toy, load

PATIENCE, STEPS = 9, 60


class Finite(StepTimes):
    """No more runs of steps than there are steps: a server that stands still fails."""

    runs = 0

    def run(self, *asked: Any) -> tuple[int, float]:
        """The same, counted."""
        self.runs += 1
        assert self.runs <= STEPS
        return super().run(*asked)


class Abreast(Toy):
    """On two stages, each of which takes half of a step."""

    def micro_batch(self, decodes: Any, sums: Any, ranks: Any) -> tuple[float, ...]:
        """Seconds of one."""
        seconds = float(self(decodes, sums, ranks[0]))
        return seconds, seconds / 2, seconds / 2


def begins(prompt: int) -> np.ndarray[Any, Any]:
    """When each step of a request alone begins that decodes, and when the last ends."""
    first = Toy()(0, (), [(prompt, 0)])
    steps = [Toy()(1, (context,), ()) for context in range(prompt, prompt + STEPS)]
    return np.asarray(np.cumsum([first, *steps]))


@pytest.mark.parametrize("drafts", [None, (2, 0.0)])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("stays", [1, PATIENCE - 1])
def test_who_leaves_while_held_leaves_nothing_behind(
    drafts: tuple[int, float] | None, ahead: bool, stays: int
) -> None:
    """One decodes; the next is held and leaves; the last waits all its steps, and goes then."""
    at = begins(100)
    come = [0.0, at[3] - 1e-4, at[30] - 1e-4]
    asked = load([100, 50, 50], [STEPS + 1, 5, 1], come)
    leave = np.array([np.inf, stays * 3e-3, np.inf])
    room = ROOM._replace(rows=1 if drafts is None else 3)
    fills = Trtllm(patience=PATIENCE, enough=1.0, ahead=ahead)
    course = serve(Finite(Toy()), fills, room, replace(asked, leave_s=leave, drafts=drafts)).course
    assert course.made == [STEPS + 1, 0, 1]
    assert course.start_s[1] == np.inf
    assert course.start_s[2] == pytest.approx(at[30 + ahead + PATIENCE], rel=1e-9, abs=0)
    read = Toy()(1, (100 + 30 + ahead + PATIENCE,), [(50, 0)]) - Toy()(1, (100 + 30 + ahead + PATIENCE,), ())
    assert course.end_s[0] == pytest.approx(at[-1] + read, rel=1e-9, abs=0)


def test_micro_batches_go_on_when_nobody_is_held_any_more() -> None:
    fills, stages = Trtllm(patience=PATIENCE, enough=1.0), ROOM._replace(micro_batches=2)
    asked = load([100, 50], [STEPS + 1, 5], [0.0, 0.02])
    gone = replace(asked, leave_s=np.array([np.inf, 5e-3]))
    alone = serve(Finite(Abreast()), fills, stages, asked.only(np.array([0]))).course
    course = serve(Finite(Abreast()), fills, stages, gone).course
    assert course.made == [STEPS + 1, 0]
    assert course.end_s[0] == pytest.approx(alone.end_s[0], rel=1e-9, abs=0)
