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
    was admitted last is preempted and moves to the front of the queue, as in vLLM. ATOM admits it again only
    when there are as many free blocks as it had, of which other requests have taken some. The `watermark` has
    this effect here; its size is assumed, and is that of vLLM before 0.8.
    """

    name: ClassVar[str] = "atom"
    mixes: bool = False
    cautious: bool = True
    watermark: float = 0.01
