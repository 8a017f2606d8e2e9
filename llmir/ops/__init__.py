"""The ops, one class each, in `OPS` by their names."""

from dataclasses import MISSING, fields
from inspect import cleandoc
from typing import Any

from ..convert import refuse, stated
from ..errors import VerifyError
from ..op import OPS, Op
from ..tensor import Tensor
from .source import Cache, Source, Weight

__all__ = ["OPS", "Cache", "Source", "Weight", "describe", "make"]


def describe(kind: type[Op]) -> dict[str, Any]:
    """What there is to know of an op, as `llmir ops` lists it.

    >>> from llmir.op import OPS
    >>> described = describe(OPS["rms_norm"])
    >>> described["takes"], described["equation"], described["flops"]
    ('x, weight', '* h!, h! -> * h!', '4 an element')
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
    """How it counts: 2·m·n·k of its matrix products, and what its class says of the rest."""
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
    """The op called `opcode`; `VerifyError` for attributes whose names or types are not its own."""
    if opcode not in OPS:
        raise VerifyError(f"op {opcode!r} does not exist; there are {', '.join(sorted(OPS))}")
    given = dict(attributes)
    for field in fields(OPS[opcode]):
        if field.name in given:
            where = f"{opcode}: {field.name}"
            value = stated(where, given[field.name], field.type, field.metadata, VerifyError)
            if field.type == "Tensor" and not isinstance(value, Tensor):
                refuse(where, value, "a type such as bf16[B, T, 8]", VerifyError)
            given[field.name] = value
    try:
        return OPS[opcode](**given)
    except TypeError as error:
        raise VerifyError(f"{opcode}: {str(error).split('__init__() ')[-1]}") from None
