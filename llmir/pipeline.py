"""Passes, and pipelines of them: `fuse-attention,fuse,unroll`, verified after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from .errors import LlmirError, PassError
from .graph import Program
from .names import suggest
from .op import type_name
from .tensor import split_commas
from .verify import verify


@dataclass(frozen=True)
class Pass:
    """A pure function from program to program; its fields are its options."""

    name: ClassVar[str] = ""

    def __call__(self, program: Program) -> Program:
        """The rewritten program; the argument itself when there is nothing to do."""
        raise PassError(f"{type(self).__name__}: a pass must define __call__")

    def __str__(self) -> str:
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return self.name + (f"{{{', '.join(f'{k}={v}' for k, v in given.items())}}}" if given else "")


Step = str | Pass | Callable[[Program], Program]


def parse_pipeline(text: str, table: Mapping[str, type[Pass]]) -> list[Pass]:
    """The passes that `text` names, with their options; `PassError` for names that do not exist.

    Options are `name{option=value}`; a pass with options round-trips through `str`.
    """
    return [_parse_pass(part.strip(), table) for part in split_commas(text)]


def _parse_pass(text: str, table: Mapping[str, type[Pass]]) -> Pass:
    name, brace, rest = text.partition("{")
    name = name.strip()
    if name not in table:
        known = ", ".join(sorted(table))
        raise PassError(f"pass {name!r} does not exist; there are {known}{suggest(name, table)}")
    if brace and not rest.rstrip().endswith("}"):
        raise PassError(f"pass {text!r}: the brace does not close")
    stated = {f.name: f for f in fields(table[name])}
    options: dict[str, Any] = {}
    for part in split_commas(rest.rstrip().removesuffix("}")):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in stated:
            allowed = f"it has {', '.join(stated)}" if stated else "it has none"
            raise PassError(f"pass {name}: option {key!r} does not exist; {allowed}")
        if key in options:
            raise PassError(f"pass {name}: option {key!r} is given twice")
        options[key] = _option(name, key, value, type_name(stated[key]))
    missing = [k for k, f in stated.items() if f.default is MISSING and k not in options]
    if missing:
        raise PassError(f"pass {name}: option {missing[0]!r} is needed")
    return table[name](**options)


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "bool": ({"true": True, "false": False, "True": True, "False": False}.__getitem__, "true or false"),
    "str": (str, "text"),
}


def _option(name: str, key: str, value: str, stated: str) -> Any:
    read, expected = _READERS.get(stated, _READERS["str"])
    try:
        return read(value)
    except (ValueError, KeyError):
        raise PassError(f"pass {name}: option {key} is {value!r}, expected {expected}") from None


def run_passes(program: Program, steps: Iterable[Pass | Callable[[Program], Program]]) -> Program:
    """`program` after each step, verified before the first and after every one."""
    verify(program)
    done: list[str] = []
    for step in steps:
        label = str(step) if isinstance(step, Pass) else getattr(step, "__name__", type(step).__name__)
        done.append(label)
        try:
            after = step(program)
            if not isinstance(after, Program):
                raise PassError(f"a pass returns a Program, got {type(after).__name__}")
            program = after if after is program else verify(after)
        except LlmirError as error:
            raise PassError(f"{error} [in pass {len(done)} of {','.join(done)}]") from error
    return program
