"""The ways to lay a model over the devices of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Split(NamedTuple):
    """Ranks of one replica: tensor, pipeline, data and expert parallel, and whether tokens are split too."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    sp: bool = False

    @property
    def devices(self) -> int:
        """How many one replica takes."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        """`tp 4, pp 2`: what is more than 1."""
        named = zip(("tp", "pp", "dp", "ep"), self[:4], strict=True)
        words = [f"{name} {n}" for name, n in named if n > 1 or (name == "tp" and self.dp == self.pp == 1)]
        return ", ".join((*words, *(["sp"] if self.sp else [])))


def splits(most: int, tensor: Sequence[int], stages: int, *, experts: bool) -> Iterator[Split]:
    """Those of up to `most` devices, by the ways that a model can be split and how many stages it can have.

    Pipeline stages and data-parallel ranks are powers of two. Ranks of `dp` share what experts a model has,
    all of which lie split over all ranks, or whole on as many; without experts they would be replicas, which
    are counted apart.

    >>> [str(split) for split in splits(4, (1, 2), 2, experts=False)]
    ['tp 1', 'pp 2', 'tp 2', 'tp 2, sp', 'tp 2, pp 2', 'tp 2, pp 2, sp']
    """
    powers = [1 << n for n in range(most.bit_length())]
    for tp in tensor:
        for dp in powers if experts else (1,):
            for pp in powers:
                if tp * dp * pp > most or pp > stages:
                    break
                for ep in dict.fromkeys((1, tp * dp)) if experts else (1,):
                    for sp in (False, True) if tp > 1 else (False,):
                        yield Split(tp, pp, dp, ep, sp)
