"""ATOM's scheduler: waiting prompts run first and alone, and decodes wait for them."""

from __future__ import annotations

from typing import ClassVar

from llmir.backends.simulate.server import POLICIES
from llmir.base.dataclass import dataclass

from .vllm import Vllm


@POLICIES.register("atom")
@dataclass(frozen=True)
class Atom(Vllm):
    """`Scheduler.schedule` of atom/model_engine/scheduler.py (github.com/ROCm/ATOM).

    A request is admitted if there are blocks for its prompt. If decodes run out of blocks, the request that
    was admitted last is preempted and moves to the front of the queue, as in vLLM.
    """

    name: ClassVar[str] = "atom"
    mixes: bool = False
    cautious: bool = True
