"""Products on AMD's CDNA: tiles of its own libraries, and less hidden behind each other.

Composable Kernel and hipBLASLt are built with tiles from 16 rows up to 256×256 (aiter's tuning tables name
them), and copies to the LDS go by way of registers, so that what multiplies and what the memory delivers
overlap worse than where copies run by themselves.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.array_namespace import Namespace, Number
from llmir.base.dataclass import dataclass

from .base import Kernel, families
from .gemm import Gemm, LentGemm


@families("cdna_gemm_bf16", "cdna_gemm_fp8", "cdna_gemm_fp8_block", "cdna_gemm_nvfp4", "cdna_gemm_int8")
@dataclass(frozen=True)
class CdnaGemm(Gemm):
    """A matrix product on a GPU of AMD's for data centres."""

    tiles: ClassVar[tuple[tuple[int, int], ...]] = (
        *((16, 64), (16, 128), (32, 64), (32, 128), (64, 64)),
        *((64, 128), (128, 128), (128, 256), (256, 256)),
    )
    tile_s: ClassVar[float] = 0.5e-6  # set once with the rows of MI300X and MI355X in view

    @classmethod
    def elsewhere(cls) -> type[Kernel]:
        """Its own tiles."""
        return LentCdnaGemm

    @staticmethod
    def beside(xp: Namespace, tiles: Number, memory: Number) -> Number:
        """Seconds of both: two equal ones take 1.4 times as long as either."""
        return xp.hypot(tiles, memory)


@dataclass(frozen=True)
class LentCdnaGemm(LentGemm, CdnaGemm):
    """The same on another chip."""
