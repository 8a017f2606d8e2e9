"""Work grows with the number of ops, and no faster: in flat graphs of many layers too."""

from __future__ import annotations

import cProfile
import logging
import pstats
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import llmir
from llmir.base.errors import PassError
from llmir.ir.core.program import Program
from llmir.ir.tools import pipeline
from llmir.passes import unroll
from llmir.passes.unroll import written_out
from tests.commands import TINY, runner


def flat(layers: int, pipeline: str) -> Program:
    return llmir.run(llmir.load({**TINY, "num_hidden_layers": layers}), f"unroll{pipeline}")


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, which is the same on every machine."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


FUSED = ",fuse-attention,fuse,dce"
WORK: dict[str, tuple[str, Callable[[Program], object]]] = {
    "fuse-attention": ("", lambda p: llmir.run(p, "fuse-attention")),
    "fuse": (",fuse-attention", lambda p: llmir.run(p, "fuse")),
    "shard": (FUSED, lambda p: llmir.run(p, "shard{tp=2}")),
    "sp": (FUSED, lambda p: llmir.run(p, "shard{tp=2, sp=1}")),
    "quantize": ("", lambda p: llmir.run(p, "quantize{weights=fp8, activations=fp8, kv=fp8}")),
    "text": (FUSED, lambda p: llmir.parse_program(llmir.print_program(p))),
    "times": (FUSED, lambda p: llmir.workload(p, "h100-sxm").e2e_s),
    "memory": (FUSED, lambda p: llmir.analyze(p, "h100-sxm").peak_memory_bytes),
    "rows": (FUSED, lambda p: llmir.analyze(p, "h100-sxm").to_dict()),
    "table": (FUSED, lambda p: str(llmir.analyze(p, "h100-sxm"))),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WORK)
def test_twice_the_layers_are_twice_the_work(what: str) -> None:
    before, work = WORK[what]
    work(flat(10, before))  # fills caches, as each of the programs does for half of the next
    programs = [flat(layers, before) for layers in (20, 40, 80)]
    pipeline._known_after.cache_clear()  # else a pass that ran in another test has no work here
    first, second, third = (calls(lambda p=p: work(p)) for p in programs)  # type: ignore[misc]
    assert third - second <= 2.1 * (second - first)


@pytest.mark.parametrize("model", ["llama3.2-1b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("steps", ["", "stages{pp=2}", "fuse-attention,fuse"])
def test_the_size_of_a_flat_graph_is_known_before(model: str, steps: str) -> None:
    program = llmir.run(llmir.load(model), steps)
    graphs = llmir.run(program, "unroll").graphs
    assert {e: written_out(program, e) for e in program.entries} == {
        e: len(g.nodes) for e, g in graphs.items()
    }


class AnnouncedError(Exception):
    """Raised where something is announced, so that it does not start."""


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AnnouncedError(record.getMessage())


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (
            lambda: llmir.run(llmir.load({**TINY, "num_hidden_layers": 10_000}), "unroll"),
            "unroll writes out 3",
        ),
        (
            lambda: llmir.analyze(llmir.load(TINY), "h100", batch=np.ones((1, 5000)), new=np.ones((5000, 1))),
            "each figure of a grid of 25,000,000 points takes",
        ),
    ],
)
def test_what_takes_long_says_so_before_it_starts(work: Callable[[], object], says: str) -> None:
    log, handler = logging.getLogger("llmir"), Raising()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with pytest.raises(AnnouncedError, match=says):
            work()
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def test_a_command_notes_it_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(capsys, tmp_path, monkeypatch)
    quiet = run("opt", "tiny.json", "-p", "unroll")
    monkeypatch.setattr(unroll, "LONG", 10)
    pipeline._known_after.cache_clear()  # else the pass has no work to speak of
    loud = run("opt", "tiny.json", "-p", "unroll")
    ops = sum(line.startswith("  %") for line in quiet.out.splitlines())
    assert (quiet.err, loud.err) == ("", f"note: unroll writes out {ops} ops\n")
    assert loud.out == quiet.out
    assert not logging.getLogger("llmir").handlers


LOOPS = """graph @inner {
  %x = input() : bf16[B]
  %y = silu(%x) : bf16[B]
  return %y
}
graph @outer {
  %x = input() : bf16[B]
  %y = repeat(%x) {body=inner, times=10000} : bf16[B]
  return %y
}
graph @main {
  %x = input() : bf16[B]
  %y = repeat(%x) {body=outer, times=10000} : bf16[B]
  return %y
}
"""


def test_more_ops_than_fit_are_refused_before_any_is_written() -> None:
    program = llmir.parse_program(LOOPS)
    assert written_out(llmir.parse_program(LOOPS.replace("10000", "30")), "main") == 1 + 30 * 30
    with pytest.raises(PassError, match=r"has 100,000,001 unrolled ops; the limit is 2,000,000"):
        llmir.run(program, "unroll")
