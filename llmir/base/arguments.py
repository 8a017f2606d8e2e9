"""Checks of arguments: each returns a Python value within its range, or raises a one-line error.

Public functions, options of passes and attributes of ops use these checks; the error names the argument.
NumPy numbers are accepted and converted. Booleans, NaN and infinities are not numbers.
"""

from __future__ import annotations

import operator
import os
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import InputError, LlmirError
from .names import bounded, plain, suggest
from .values import read_only

Error = type[LlmirError]
Number = Any  # an int, a float, or a float64 array

LARGEST = 1e300  # largest number that is not a count
MOST = 1 << 48  # beyond this a count is a typo, and products of counts would leave float64's exact integers
POINTS = 100_000_000  # number of points of a grid; an array of results then takes about a gigabyte
_MANY = 10_000  # items of a list from a caller; this bounds endless iterables


def show_value(value: object) -> str:
    """A value on one line, shortened if it is long."""
    try:
        return plain(" ".join(reprlib.repr(value).split()))
    except Exception:  # the printing of a caller's class may raise anything
        return f"a {type(value).__name__}"


def refuse(name: str, value: object, expected: str, error: Error = InputError) -> NoReturn:
    """Raise an error with the name of an argument, the allowed values and the given value."""
    raise error(f"{name}: expected {expected}, got {show_value(value)}")


def _range(what: str, least: float, most: float, *, above: bool = False) -> str:
    """Describe a range in words, for error messages. If the upper bound of a count is huge, it is not
    mentioned.
    """
    return what if (least, most) == (-MOST, MOST) else bounded(what, least, most, above=above)


def integer(name: str, value: object, least: int = 0, most: int = MOST, *, error: Error = InputError) -> int:
    """An integer in a range.

    >>> integer("tp", np.int64(8)), integer("tp", np.array(8))
    (8, 8)
    >>> integer("tp", True, 1, 64)
    Traceback (most recent call last):
    ...
    llmir.base.errors.InputError: tp: expected an integer from 1 to 64, got True
    """
    expected = _range("an integer", least, most)
    if isinstance(value, (bool, np.bool_)):
        refuse(name, value, expected, error)
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        refuse(name, value, expected, error)
    return found if least <= found <= most else refuse(name, value, expected, error)


def number(
    name: str,
    value: object,
    least: float = 0.0,
    most: float = float("inf"),
    *,
    above: bool = False,
    error: Error = InputError,
) -> float:
    """Check a finite number in a range; `above` excludes the lower end.

    >>> number("share", np.float32(0.5), most=1, above=True)
    0.5
    """
    expected = _range("a number", least, most, above=above)
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:  # an integer too large for a float
            refuse(name, value, expected, error)
        if (least < found or (found == least and not above)) and found <= most and found < float("inf"):
            return found
    refuse(name, value, expected, error)


def flag(name: str, value: object, *, error: Error = InputError) -> bool:
    """True or false."""
    return bool(value) if isinstance(value, (bool, np.bool_)) else refuse(name, value, "true or false", error)


def text(name: str, value: object, *, error: Error = InputError) -> str:
    """Text, possibly empty."""
    return str(value) if isinstance(value, str) else refuse(name, value, "text", error)


def choice(name: str, value: object, choices: Collection[Any], *, error: Error = InputError) -> Any:
    """Check that a value is one of a few names; the error suggests similar names."""
    for known in choices:
        if isinstance(value, type(known)) and value == known:
            return known
    words = [str(c) for c in choices]
    near = suggest(value, words) if isinstance(value, str) else ""
    allowed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    raise error(f"{name}: expected {allowed}, got {show_value(value)}{near}")


def path(name: str, value: object, *, error: Error = InputError) -> Path:
    """The name of a file."""
    try:
        found = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if not isinstance(found, str) or not found or "\0" in found:
        refuse(name, value, "the name of a file", error)
    return Path(found)


def counts(name: str, value: object, least: int = 0, most: int = MOST) -> Number:
    """An integer in a range, or a read-only float64 array of integers, as a copy.

    >>> counts("batch", [1, 2.0]), counts("batch", np.int8(3), 1)
    (array([1., 2.]), 3)
    """
    if type(value) is int and least <= value <= most:
        return value
    try:
        array = _asarray(name, value)
        with np.errstate(invalid="ignore"):  # of infinity
            whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool(np.all(array % 1 == 0)))
        if array.ndim and whole and array.size and least <= array.min() and array.max() <= most:
            return read_only(array.astype(np.float64))
    except (ValueError, TypeError):  # values that cannot be compared
        array = np.zeros(())
    if array.ndim:
        refuse(name, value, _range("integers", least, most))
    return integer(name, value, least, most)


def _asarray(name: str, value: object) -> np.ndarray[Any, np.dtype[Any]]:
    """Convert a value to a NumPy array; a value without dimensions becomes an object array."""
    try:
        many = not isinstance(value, np.ndarray) and len(value) > POINTS  # type: ignore[arg-type] # or an error
    except Exception:  # a number has no length; a caller's object may have anything
        many = False
    if many:
        refuse(name, value, f"at most {POINTS:,} numbers")
    try:
        return np.asarray(value)
    except Exception:  # such as a ragged list, or a caller's object that raises on access
        return np.zeros((), dtype=object)


def array(name: str, value: object, *, error: Error = InputError) -> np.ndarray[Any, np.dtype[Any]]:
    """An array of real numbers."""
    found = _asarray(name, value)
    return found if found.dtype.kind in "biuf" else refuse(name, value, "an array of numbers", error)


def items(
    name: str, value: object, of: str, *, most: int = _MANY, error: Error = InputError
) -> tuple[Any, ...]:
    """Collect the items of a list, tuple or other iterable, but not of a text or a mapping."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        refuse(name, value, f"a list of {of}", error)
    found = tuple(islice(_guarded(name, value, of, error), most + 1))
    return found if len(found) <= most else refuse(name, value, f"a list of at most {most:,} {of}", error)


def _guarded(name: str, value: Iterable[Any], of: str, error: Error) -> Iterator[Any]:
    try:
        yield from value
    except TypeError:  # such as an array without dimensions
        refuse(name, value, f"a list of {of}", error)


def mapping(name: str, value: object, of: str, *, error: Error = InputError) -> dict[str, Any]:
    """Check a mapping with text keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        refuse(name, value, f"a mapping of {of}", error)
    return dict(value)


def check_field(name: str, value: object, kind: object, about: Mapping[str, Any], error: Error) -> Any:
    """Check a value against the declaration of its field: `kind` is the annotation, `about` the range or
    `choices`.

    The range is `least` to `most`; `above` excludes the lower end. `words` are allowed instead of a number. A
    class checks fields of other kinds itself.
    """
    word = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if word.endswith("| None"):
        if value is None:
            return value
        word = word.removesuffix("| None").strip()
    least, most = about.get("least"), about.get("most")
    if words := about.get("words"):
        if isinstance(value, str):
            known = f"{_range('an integer', least or -MOST, most or MOST)}, or {' or '.join(words)}"
            return value if value in words else refuse(name, value, known, error)
        word = word.removesuffix("| str").strip()
    if "choices" in about:
        value = choice(name, value, about["choices"], error=error)
    elif word == "int":
        value = integer(name, value, -MOST if least is None else least, most or MOST, error=error)
    elif word == "float":
        low, above = -LARGEST if least is None else least, bool(about.get("above"))
        value = number(name, value, low, most or LARGEST, above=above, error=error)
    elif word == "bool":
        value = flag(name, value, error=error)
    elif word == "str":
        value = text(name, value, error=error)
    elif word.startswith("tuple["):
        inner = word[len("tuple[") : -1].partition(",")[0]
        found = items(name, value, "values", error=error)
        value = tuple(check_field(f"{name}[{i}]", each, inner, {}, error) for i, each in enumerate(found))
    return value


def parse_field(said: str) -> Any:
    """The value that a text stands for (a number, true or false, or the text itself), which `stated` then
    checks.

    >>> parse_field("1.5"), parse_field("8"), parse_field("true"), parse_field("fp8")
    (1.5, 8, True, 'fp8')
    """
    if re.fullmatch(r"[+-]?\d{1,400}", said, re.ASCII):
        return int(said)
    if said.lower() in ("true", "false"):
        return said.lower() == "true"
    try:
        return float(said) if said.isascii() and "_" not in said else said
    except ValueError:
        return said
