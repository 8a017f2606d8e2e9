"""Work grows with the number of ops, and no faster: in flat graphs of many layers too."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import pytest

import llmir
from llmir.graph import Program

from .commands import TINY


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


@pytest.mark.parametrize("what", WORK)
def test_twice_the_layers_are_twice_the_work(what: str) -> None:
    before, work = WORK[what]
    work(flat(2, before))  # what is read once
    programs = [flat(layers, before) for layers in (20, 40, 80)]
    first, second, third = (calls(lambda p=p: work(p)) for p in programs)  # type: ignore[misc]
    assert third - second < 2.3 * (second - first)  # what is cached is not quite even
