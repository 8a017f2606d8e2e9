"""The tensors that a program expects in its checkpoint, and a comparison with a real checkpoint.

Checkpoints store the weight of a linear as [out, in], with heads and other axes flattened. The equation of
the op that uses the weight determines these axes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.formats import Pairs
from llmir.base.names import CheckpointPlace, checkpoint_place, is_layered, layer_name
from llmir.base.values import Figures
from llmir.frontends.config.reader import METHOD
from llmir.ir.core.dtype import DType
from llmir.ir.core.equation import Equation
from llmir.ir.core.op import Op
from llmir.ir.core.program import LEFT_OUT, Instance, Program
from llmir.ir.sizes.binding import Binding

from .packing import packing
from .tensors import Checkpoint, TensorHeader

# Constants in checkpoints: rotary tables, causal masks (GPT-NeoX's `_keys_to_ignore_on_load_unexpected` in
# transformers), and the constants of xIELU.
IGNORED = (
    ".inv_freq",
    *(f".{part}.{mask}" for part in ("attention", "attn") for mask in ("bias", "masked_bias")),
    *("act_fn.beta", "act_fn.eps"),
)

# How checkpoints of multimodal models call the language model: `model.language_model.layers`, or, as their
# first releases did, `language_model.model.layers` (transformers' `_checkpoint_conversion_mapping`).
_INNER = re.compile(r"^(?:(model\.)language_model\.|language_model\.(?=model\.|lm_head))")
# Top modules outside the language model.
_OTHER = re.compile(
    r"^(?:model\.)?\w*(?:vision|visual|image|audio|projector|connector|merger|aligner)\w*(?:\.|$)"
)

_IGNORED = "constants, vision and audio parts, input scales"


@dataclass(frozen=True)
class Difference:
    """One tensor, or one total, that differs from the expected one."""

    name: str
    expected: str
    found: str


@dataclass(frozen=True)
class Comparison(Figures, Pairs):
    """The comparison of a checkpoint with a program; `agrees` if nothing differs.

    Totals are None if they are not stated.
    """

    model: str
    checkpoint: str  # its path
    tensors: int
    parameters: int
    bytes: int
    found_tensors: int
    shapes_known: bool
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    wrong_shape: Sequence[Difference] = ()
    wrong_dtype: Sequence[Difference] = ()
    wrong_total: Sequence[Difference] = ()
    ignored_tensors: int = 0  # constants, and the parts of a multimodal checkpoint that are not modelled

    @property
    def agrees(self) -> bool:
        """Whether all names and all known shapes, dtypes and totals are equal."""
        names = self.missing or self.unexpected
        return not (names or self.wrong_shape or self.wrong_dtype or self.wrong_total)

    def to_dict(self) -> dict[str, Any]:
        where = {"model": self.model, "checkpoint": self.checkpoint}
        return where | {"agrees": self.agrees} | asdict(self)

    def pairs(self) -> list[tuple[str, str]]:
        """The compared properties, the verdict, and the differences; names that differ only in numbers share
        a line.
        """
        size = f"{self.parameters:,} parameters, {self.bytes:,} bytes"
        known = "names, shapes, element types"
        rows = [
            ("model", self.model),
            ("checkpoint", self.checkpoint),
            ("expected", f"{self.tensors:,} tensors, {size}"),
            ("found", f"{self.found_tensors:,} tensors"),
            *([("ignored", f"{self.ignored_tensors:,} tensors: {_IGNORED}")] if self.ignored_tensors else ()),
            ("compared", known if self.shapes_known else "names (an index does not know shapes)"),
            ("verdict", "all agree" if self.agrees else "DIFFERENT"),
        ]
        problems: list[tuple[str, Iterable[tuple[str, str]]]] = [
            ("missing", ((name, "") for name in self.missing)),
            ("unexpected", ((name, "") for name in self.unexpected)),
            ("wrong shape", map(_words, self.wrong_shape)),
            ("wrong type", map(_words, self.wrong_dtype)),
            ("wrong total", map(_words, self.wrong_total)),
        ]
        for label, found in problems:
            rows += [(label if i == 0 else "", text) for i, text in enumerate(_folded(found))]
        return rows


def _words(d: Difference) -> tuple[str, str]:
    return d.name, f"expected {d.expected}, found {d.found}"


def _folded(found: Iterable[tuple[str, str]]) -> list[str]:
    """One line for all names that differ only in their numbers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, text in found:
        groups.setdefault((re.sub(r"\d+", "*", name), text), []).append(name)
    lines = []
    for (pattern, text), names in groups.items():
        shown = names[0] if len(names) == 1 else f"{pattern} ({len(names):,} tensors)"
        lines.append(f"{shown}: {text}" if text else shown)
    return lines


class _Tensor(NamedTuple):
    """A tensor before packing: its shape as [out, in], with experts first if it stores all of them."""

    shape: tuple[int, ...]
    dtype: DType
    place: CheckpointPlace

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def stored(self) -> TensorHeader:
        """The tensor in a file, for a dtype without packing."""
        shape = self.shape
        if self.place.turned:
            *experts, outs, ins = shape
            shape = (*experts, ins, outs)
        if self.place.flat:
            shape = (shape[0] * shape[1], *shape[2:])
        return TensorHeader(shape, self.dtype.name, Binding()(self.dtype.bytes_of(self.elements)))


def expected(program: Program) -> dict[str, TensorHeader]:
    """Each tensor of the program's checkpoint, by name; `program` is unfused.

    `UnsupportedError` for low-precision matrices in a storage format that llmir does not support.
    """
    found: dict[str, TensorHeader] = {}
    tensors = _tensors(program)
    wide = next((t.dtype.name for t in tensors.values() if not t.dtype.low), "bf16")
    for name, tensor in tensors.items():
        if tensor.dtype.low:
            pack = packing(program.facts.get(METHOD))
            found |= pack.tensors(name, tensor.shape, tensor.dtype, wide)
        else:
            found[name] = tensor.stored()
    return found


def _tensors(program: Program) -> dict[str, _Tensor]:
    """Each tensor with all its pieces, by name."""
    found: dict[str, _Tensor] = {}
    for at in (at for part in program.parts for at in part.instances()):
        for param, own in _stored(at):
            place, shape, outs = checkpoint_place(param), list(own), int(_stacked(at.node.op))
            if place.piece:
                shape[outs] += found[place.tensor].shape[outs]
            found[place.tensor] = _Tensor(tuple(shape), at.node.results[0].dtype, place)
    return found


def _stacked(op: Op) -> bool:
    """Whether all experts are in one tensor."""
    return "expert" in op.axes and "{expert}" not in op.param


class _Use(NamedTuple):
    """How an op uses a weight: the index of the operand, the op's equation, and the weight's axes in it."""

    op: Op
    slot: int
    rule: Equation
    axes: tuple[str, ...]


def _uses(at: Instance) -> Iterator[_Use]:
    for node, slot in at.graph.users[at.node.name]:
        rule = node.op.equation(at.graph.operand_types(node))
        yield _Use(node.op, slot, rule, tuple(d.axes[0] for d in rule.operands[slot]))


def _stored(at: Instance) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of each part of this weight: one for each layer, and for each expert if the name has
    it.
    """
    op, type = at.node.op, at.node.results[0]
    if not op.param:
        return
    if len(op.axes) != len(type.shape):
        raise VerifyError(f"%{at.node.name}: {len(op.axes)} axes cannot name the dimensions of {type}")
    sizes = dict(zip(op.axes, map(Binding(), type.shape), strict=True))
    layers = at.layers if is_layered(op.param) else [at.layers.first]
    experts = range(sizes.get("expert", 1)) if "{expert}" in op.param else [0]
    shape = _shape(at, tuple(axis != "expert" or "{expert}" not in op.param for axis in op.axes))
    for layer in layers:
        for expert in experts:
            yield layer_name(op.param, layer).replace("{expert}", str(expert)), shape


def _shape(at: Instance, kept: tuple[bool, ...]) -> tuple[int, ...]:
    """The stored shape: (indexed…, added, contracted) for the weight of a product, flat for its bias, and
    otherwise as the op states.
    """
    sizes = tuple(Binding()(n) for n, keep in zip(at.node.results[0].shape, kept, strict=True) if keep)
    # Among several users, a product determines the layout: a tied embedding is also lm_head's weight.
    use = min(_uses(at), key=lambda u: not u.op.matrices, default=None)
    if use is None or not use.op.matrices:
        return use.op.stored(use.slot, sizes) if use else sizes
    roles = [use.rule.role(axis) for axis, keep in zip(use.axes, kept, strict=True) if keep]

    def of(role: str) -> list[int]:
        return [n for n, r in zip(sizes, roles, strict=True) if r == role]

    contracted = [math.prod(of("contracted"))] if "contracted" in roles else []
    return (*of("indexed"), math.prod(of("mapped")), *contracted)


def _tied(program: Program, names: dict[str, TensorHeader]) -> dict[str, TensorHeader]:
    """Copies of a tied weight, which a checkpoint may store under the name of the second user."""
    found: dict[str, TensorHeader] = {}
    for at in program.instances():
        if at.node.op.param in names:
            users = [user.name for user, _ in at.graph.users[at.node.name]]
            if len(users) > 1:
                found |= {f"{user}.weight": names[at.node.op.param] for user in users}
    return {name: tensor for name, tensor in found.items() if name not in names}


def _text(program: Program, checkpoint: Checkpoint) -> Mapping[str, TensorHeader | None]:
    """The tensors of the language model, under the names of a text-only checkpoint.

    Tensors of the other parts of a multimodal checkpoint are omitted.
    """
    if LEFT_OUT not in program.facts:
        return checkpoint.tensors
    inner = {_INNER.sub(r"\1", name): tensor for name, tensor in checkpoint.tensors.items()}
    return {name: tensor for name, tensor in inner.items() if not _OTHER.match(name)}


def compare(program: Program, checkpoint: Checkpoint) -> Comparison:
    """How the tensors of a checkpoint differ from those that `program` (unfused) needs."""
    wanted, tensors = expected(program), _tensors(program)
    parameters = sum(tensor.elements for tensor in tensors.values())
    text = _text(program, checkpoint)
    packed = any(tensor.dtype.low for tensor in tensors.values())
    ignored = (*IGNORED, *(packing(program.facts.get(METHOD)).beside if packed else ()))
    found = {name: t for name, t in text.items() if name in wanted or not name.endswith(ignored)}
    tied = _tied(program, wanted)
    copies = {name: tensor for name, tensor in tied.items() if name in found}
    pairs = [(name, ours, theirs) for name, ours in (wanted | copies).items() if (theirs := found.get(name))]
    ignored_tensors = len(checkpoint.tensors) - len(found)
    totals = (
        ("bytes", checkpoint.total_bytes, _bytes),
        ("parameters", None if packed else checkpoint.total_parameters, _parameters),
    )
    return Comparison(
        program.name,
        checkpoint.path,
        len(wanted),
        parameters,
        _bytes(wanted),
        len(found),
        any(found.values()),
        [name for name in wanted if name not in found],
        [name for name in found if name not in wanted and name not in tied],
        [Difference(n, str(list(a.shape)), str(list(b.shape))) for n, a, b in pairs if a.shape != b.shape],
        [Difference(n, a.dtype, b.dtype) for n, a, b in pairs if a.dtype != b.dtype],
        [
            Difference(what, f"{'at least ' if ignored_tensors else ''}{count(wanted):,}", f"{stated:,}")
            for what, stated, count in totals
            if stated is not None
            and not _fits(stated, (count(wanted), count(wanted | copies)), lower_bound=ignored_tensors > 0)
        ],
        ignored_tensors,
    )


def _fits(stated: int, expected: tuple[int, int], *, lower_bound: bool) -> bool:
    """Whether the total in an index is one of the expected totals: without or with the copies of tied
    weights.

    An index also counts ignored tensors, without their sizes. In this case, the total has to be at least the
    expected one.
    """
    return stated >= min(expected) if lower_bound else stated in expected


def _parameters(tensors: Mapping[str, TensorHeader]) -> int:
    return sum(math.prod(t.shape) for t in tensors.values())


def _bytes(tensors: Mapping[str, TensorHeader]) -> int:
    return sum(t.bytes for t in tensors.values())
