"""Collectives that send tokens to the ranks of their experts, and return one sum per rank.

They follow DeepEP (deepseek-ai/DeepEP, csrc/kernels): a token goes once to each rank that has one of its
experts, and between nodes once to each such node; each of these ranks returns one sum per token.
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
    """What the tokens of `x` are split over."""
    return (*x.placements[0], *x.tokens)


@dataclass(frozen=True)
class SendTokens(Collective):
    """Tokens of `x`, and what stands beside each, go once to every rank that has an expert of theirs.

    They choose among `experts`, `top_k` each, by the law `routing`. Along the first dimension are those that
    came; the second is 1. `mode` is that of DeepEP's kernels, normal or low_latency, where it is known, and
    `sms` the multiprocessors that normal ones were given.
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
        """As many tokens reach a rank as that law says."""
        return replace(self, routing=law)

    @property
    def pattern(self) -> str:
        """Each rank to all others."""
        return "all_to_all"

    def moved(self, x: Tensor) -> Tensor:
        """The tokens of the busiest rank."""
        if not set(self.over) <= set(_split(x)):
            raise VerifyError(f"tokens of {x} are not split over {'.'.join(self.over)}")
        tokens = sent(product(x.shape[:2]), self.top_k, self.experts, law(self.routing))
        return Tensor((tokens, 1, *x.shape[2:]), x.dtype, (_split(x), (), *x.placements[2:]), x.partial)

    def payload(self, x: Tensor, y: Tensor) -> Tensor:
        """What reaches a rank."""
        return y

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """All tokens: which of them a rank has an expert of is a matter of cost, not of value."""
        flat = [m.reshape(-1, 1, *m.shape[2:]) for m in members]
        lengths, positions = [len(m) for m in flat], members[0].shape[1]
        at.sent[self.over, sum(lengths)] = [*lengths, positions]
        return np.concatenate(flat)


@dataclass(frozen=True)
class ReturnTokens(Collective):
    """The sums of a token that ranks made go back to where its `weights` stayed, and are added there.

    `mode` and `sms` are as those of `send_tokens`.
    """

    opcode = "return_tokens"
    kind = "collective"
    takes = ("sums", "weights")

    mode: str = ""
    sms: int = SMS

    @property
    def pattern(self) -> str:
        """Each rank to all others."""
        return "all_to_all"

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Lying as tokens did before they were sent."""
        sums, weights = operands
        if everyone(sums.shape[0]) != product(weights.shape[:2]) or sums.placements[0] != _split(weights):
            raise VerifyError(f"return_tokens: {sums} is not of the tokens of {weights}")
        shape = (*weights.shape[:2], *sums.shape[2:])
        placements = (*weights.placements[:2], *sums.placements[2:])
        return (Tensor(shape, sums.dtype, placements, sums.partial, weights.tokens),)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """Its own tokens of everybody's sums."""
        *lengths, positions = at.sent[self.over, len(members[0])]
        start = sum(lengths[:place])
        mine = total(members)[start : start + lengths[place]]
        return mine.reshape(-1, positions, *mine.shape[2:])
