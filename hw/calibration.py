"""What kernels were measured to take on a device: their parameters by engine and family, with an origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmir.frozen import Record

# The order in which engines are asked: the first that a device was measured with is its default, and what an
# engine lacks it takes from the next. Others follow by name.
ENGINES = ("vllm", "sglang", "trtllm", "vidur", "pytorch", "nccl", "torch.distributed nccl")
# Kernels that engines call, which are no engine: of a device that was measured with these alone, all else is
# borrowed. AITER is what vLLM and SGLang use on AMD's GPUs (github.com/ROCm/aiter).
LIBRARIES = ("nccl", "torch.distributed nccl", "aiter")


@dataclass(frozen=True, eq=False)
class Fitted(Record):
    """The parameters of one family of kernels, fitted to so many `rows`.

    `error` is the mean size of the relative error on shapes that were left out of the fit, as a ratio.
    """

    parameters: Mapping[str, float]
    origin: str
    rows: int
    error: float


@dataclass(frozen=True, eq=False)
class Calibration(Record):
    """What was fitted for each engine and family; `engine` is the one to take where none is named."""

    engine: str
    engines: Mapping[str, Mapping[str, Fitted]]

    @property
    def partial(self) -> bool:
        """Whether a library's kernels were measured and no engine's."""
        return self.engine in LIBRARIES


def rank(engine: str) -> tuple[int, str]:
    """Where an engine stands in the order in which they are asked.

    >>> sorted(["ours", "trtllm", "sglang-triton", "vllm"], key=rank)
    ['vllm', 'trtllm', 'ours', 'sglang-triton']
    """
    return ENGINES.index(engine) if engine in ENGINES else len(ENGINES), engine
