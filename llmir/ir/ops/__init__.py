"""The op classes. The registry `OPS` maps each opcode to its class.

Each file covers one topic. Start with `linear.py` (`Linear`) and `elementwise.py` (`Add`, `Silu`). An op that
overrides most rules is `attention.py` (`FlashAttention`). `collective.py` (`Collective`) is the base of ops
that move values between ranks. A new op registers itself where its class is defined. Afterwards, `python
scripts/opmethods.py` writes the module of the op into `index.py`, and the types of its builder method into a
stub. Imports `llmir.base`, `llmir.ir.sizes` and `llmir.ir.core`.
"""

from dataclasses import MISSING, fields
from functools import lru_cache
from inspect import cleandoc
from typing import Any

from llmir.base.arguments import check_field, refuse
from llmir.base.errors import VerifyError
from llmir.base.names import unknown
from llmir.ir.core.op import OPS, Op
from llmir.ir.core.tensor import Tensor

from .sources import Cache, Source, Weight

__all__ = ["OPS", "Cache", "Source", "Weight", "describe", "make"]


def describe(kind: type[Op]) -> dict[str, Any]:
    """The description of an op that `llmir ops` lists.

    >>> from llmir.ir.core.op import OPS
    >>> described = describe(OPS["add_rms_norm"])
    >>> described["takes"], described["equation"], described["flops"]
    ('x, y, weight', '* h!, * h!, h! -> * h!, * h!', '5 an element')
    """
    attributes = [
        {"name": f.name, "type": str(f.type)} | ({} if f.default is MISSING else {"default": f.default})
        for f in fields(kind)
        if f.name != "block"
    ]
    return {
        "name": kind.opcode,
        "kind": kind.kind,
        "takes": ", ".join(kind.takes),
        "equation": kind.rule or "its own",
        "attributes": attributes,
        "flops": _flops(kind),
        "summary": cleandoc(kind.__doc__ or "").partition("\n")[0],
        "doc": cleandoc(kind.__doc__ or ""),
        "defined_in": kind.__module__,
    }


def _flops(kind: type[Op]) -> str:
    """The FLOP formula of an op: 2·m·n·k for its matrix products, plus other FLOPs that the class states."""
    found = [] if kind.gemms is Op.gemms else ["2·m·n·k"]
    if kind.matrix is not Op.matrix:
        found = [_said(kind.matrix)]
    if kind.vector is not Op.vector:
        found.append(_said(kind.vector))
    elif kind.vector_flops:
        found.append(f"{kind.vector_flops} an element")
    return "; ".join(found) or "none"


def _said(rule: Any) -> str:
    return " ".join((rule.__doc__ or "").split()).rstrip(".")


def make(opcode: str, **attributes: Any) -> Op:
    """Create the op with this opcode; VerifyError for unknown names or wrong types of attributes."""
    if opcode not in OPS:
        raise VerifyError(unknown("op", opcode, OPS, "llmir ops"))
    kind: Any = OPS[opcode]  # a class is always hashable
    return (_known if all(map(_plain, attributes.values())) else _make)(kind, **attributes)


def _plain(value: object) -> bool:
    """Whether an attribute has a plain type, so that attributes with equal values are interchangeable."""
    words = type(value) is tuple and all(type(each) is str for each in value)
    return words or type(value) in (str, int, float, bool, Tensor, type(None))


def _make(kind: type[Op], /, **attributes: Any) -> Op:
    given = dict(attributes)
    for field in fields(kind):
        if field.name in given:
            where = f"{kind.opcode}: {field.name}"
            value = check_field(where, given[field.name], field.type, field.metadata, VerifyError)
            if field.type == "Tensor" and not isinstance(value, Tensor):
                refuse(where, value, "a type such as bf16[B, T, 8]", VerifyError)
            given[field.name] = value
    try:
        return kind(**given)
    except TypeError as error:
        raise VerifyError(f"{kind.opcode}: {str(error).split('__init__() ')[-1]}") from None


_known = lru_cache(maxsize=1 << 12, typed=True)(_make)  # a model contains many ops, but few distinct ones
