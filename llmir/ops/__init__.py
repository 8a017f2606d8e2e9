"""The ops, one class each, in `OPS` by their names."""

from dataclasses import fields
from typing import Any

from ..errors import VerifyError
from ..op import OPS, Op, type_name
from .source import Cache, Source, Weight

__all__ = ["OPS", "Cache", "Source", "Weight", "make"]

_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "tuple": (tuple,),
}


def make(opcode: str, **attributes: Any) -> Op:
    """The op called `opcode`; `VerifyError` for attributes whose names or types are not its own."""
    if opcode not in OPS:
        raise VerifyError(f"op {opcode!r} does not exist; there are {', '.join(sorted(OPS))}")
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}
    for field in fields(OPS[opcode]):
        if field.name not in given:
            continue
        value, wanted = given[field.name], _FIELD_TYPES.get(type_name(field), (object,))
        boolean = isinstance(value, bool) and not {bool, object} & set(wanted)
        if boolean or not isinstance(value, wanted):
            raise VerifyError(f"{opcode}: attribute {field.name} is {value!r}, expected {type_name(field)}")
    try:
        return OPS[opcode](**given)
    except TypeError as error:
        raise VerifyError(f"{opcode}: {str(error).split('__init__() ')[-1]}") from None
