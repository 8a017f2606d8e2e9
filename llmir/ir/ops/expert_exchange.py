"""Collectives that send tokens to the ranks of their experts, and return partial sums to the tokens' ranks.

The ops follow DeepEP (deepseek-ai/DeepEP, csrc/kernels). A token is sent once to each rank that stores at
least one of the token's experts. Between nodes, a token is sent once to each node with such a rank. Each
receiving rank returns one sum per token: the weighted outputs of its experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.op import Array, Op, RankGroup
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.sizes.polynomial import product
from llmir.ir.sizes.ragged import everyone, sent
from llmir.ir.sizes.routing_laws import CHANCE, law

from .collective import Collective, total

SMS = 20  # `Buffer.num_sms` in deep_ep/buffer.py


def _split(x: Tensor) -> Placement:
    """The mesh axes that split the tokens of `x`."""
    return (*x.placements[0], *x.tokens)


@dataclass(frozen=True)
class SendTokens(Collective):
    """Send each token, with the additional operands, once to every rank that stores one of its experts.

    Each token chooses `top_k` of `experts` by the law `routing`. The first dimension of the result counts
    received tokens; the second is 1. `mode` is the mode of DeepEP's kernels (normal or low_latency), if
    known. `sms` is the number of multiprocessors that normal-mode kernels use.
    """

    opcode = "send_tokens"
    kind = "collective"
    takes = ("x", "*beside")

    top_k: int
    experts: int
    routing: str = str(CHANCE)
    mode: str = ""
    sms: int = SMS

    @property
    def expert_choices(self) -> int:
        """`experts`."""
        return self.experts

    def routed_by(self, law: str) -> Op:
        return replace(self, routing=law)

    @property
    def pattern(self) -> str:
        """Each rank sends to all others."""
        return "all_to_all"

    def moved(self, x: Tensor) -> Tensor:
        """The tokens of the busiest rank."""
        if not set(self.over) <= set(_split(x)):
            raise VerifyError(f"tokens of {x} are not split over {'.'.join(self.over)}")
        tokens = sent(product(x.shape[:2]), self.top_k, self.experts, law(self.routing))
        return Tensor((tokens, 1, *x.shape[2:]), x.dtype, (_split(x), (), *x.placements[2:]), x.partial)

    def payload(self, x: Tensor, y: Tensor) -> Tensor:
        """The tokens that a rank receives."""
        return y

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """All tokens; the number of tokens that a rank receives affects only the cost."""
        flat = [m.reshape(-1, 1, *m.shape[2:]) for m in members]
        lengths, positions = [len(m) for m in flat], members[0].shape[1]
        at.sent[self.over, sum(lengths)] = [*lengths, positions]
        return np.concatenate(flat)


@dataclass(frozen=True)
class ReturnTokens(Collective):
    """Return each token's partial sums from the ranks of its experts to its original rank; add them there.

    `mode` and `sms` are as in `send_tokens`.
    """

    opcode = "return_tokens"
    kind = "collective"
    takes = ("sums", "weights")

    mode: str = ""
    sms: int = SMS

    @property
    def pattern(self) -> str:
        """Each rank sends to all others."""
        return "all_to_all"

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The placement of the tokens before the exchange."""
        sums, weights = operands
        if everyone(sums.shape[0]) != product(weights.shape[:2]) or sums.placements[0] != _split(weights):
            raise VerifyError(f"return_tokens: {sums} is not of the tokens of {weights}")
        shape = (*weights.shape[:2], *sums.shape[2:])
        placements = (*weights.placements[:2], *sums.placements[2:])
        return (Tensor(shape, sums.dtype, placements, sums.partial, weights.tokens),)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The rank's own tokens, with the partial sums of all ranks added."""
        *lengths, positions = at.sent[self.over, len(members[0])]
        start = sum(lengths[:place])
        mine = total(members)[start : start + lengths[place]]
        return mine.reshape(-1, positions, *mine.shape[2:])
