"""What a time is made of: measured kernels, of this device or borrowed, or rates of the datasheet."""

from __future__ import annotations

from llmir.base.dataclass import dataclass


@dataclass(frozen=True)
class Basis:
    """The basis of a price: `kind` is calibrated, roofline or efficiency; only times of one kind compare.

    Of calibrated kernels, `device` is the one that they were measured on if it is another, `engine` whose
    they are if the one asked for has none, and `by` the family of kernels that stands in where none is known
    for the op. A roofline beside calibrated kernels says `why`.

    >>> print(Basis("calibrated"), Basis("calibrated", device="H100-SXM"), sep="; ")
    calibrated; borrowed from H100-SXM
    >>> print(Basis("calibrated", engine="vidur", by="add"))
    calibrated for vidur, by add
    """

    kind: str
    device: str = ""
    engine: str = ""
    by: str = ""
    why: str = ""

    @property
    def borrowed(self) -> bool:
        """Whether the kernels were measured on another device."""
        return bool(self.device)

    def __str__(self) -> str:
        if self.borrowed:
            words = f"borrowed from {self.device}" + (f" ({self.engine})" if self.engine else "")
        else:
            words = self.kind + (f" for {self.engine}" if self.engine else "")
        return words + (f", by {self.by}" if self.by else "") + (f" {self.why}" if self.why else "")


CALIBRATED = Basis("calibrated")
ROOFLINE = Basis("roofline")
EFFICIENCY = Basis("efficiency")
BETWEEN_NODES = Basis("roofline", why="between nodes")
