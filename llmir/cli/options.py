"""Click options from the records of `llmir.api.options`, and the types of their values.

A type parses a value from text and checks it as the API does, with the same error message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmir.api.options import (
    STEP_MEMORY,
    DiffSides,
    Drafts,
    Estimation,
    Lowering,
    Memory,
    Option,
    Output,
    Parallel,
    Precision,
    Record,
    Requests,
    option,
    options,
)
from llmir.base.errors import InputError

if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # not generic before click 8.3


# --- Types of values ---

_UNITS = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}iB": 1024**_power}
_SIZE = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_value(text: str) -> Any:
    """The number, boolean or text that a text stands for."""
    from llmir.base.arguments import parse_field  # inside functions, so that help imports no numpy

    return parse_field(text.strip())


class Count(_Kind):
    """An integer from 1 up."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The checked value; an `InputError` begins with the flag of the option."""
        name = param.opts[-1] if param else self.name
        return self.check(name, self.read(name, value) if isinstance(value, str) else value)

    def read(self, name: str, text: str) -> Any:
        """The value of a text; `InputError` if it cannot be parsed."""
        return parse_value(text)

    def check(self, name: str, value: Any) -> Any:
        """The value as the API takes it."""
        from llmir.base.arguments import integer

        return integer(name, value, 1)


class Integer(Count):
    """An integer from `least` to `most`, which may be written as 1e5; None means no bound."""

    def __init__(self, least: int | None = 1, most: int | None = None) -> None:
        self.least, self.most = least, most

    def check(self, name: str, value: Any) -> Any:
        """An int."""
        from llmir.base.arguments import MOST, integer

        whole = isinstance(value, float) and value.is_integer()
        least = -MOST if self.least is None else self.least
        most = MOST if self.most is None else self.most
        return integer(name, int(value) if whole else value, least, most)


class Number(Count):
    """A number above 0, or from `least` to `most`."""

    def __init__(self, name: str, least: float | None = None, most: float = float("inf")) -> None:
        self.name, self.least, self.most = name, least, most

    def check(self, name: str, value: Any) -> float:
        """A float."""
        from llmir.base.arguments import number

        return number(name, value, self.least or 0.0, self.most, above=self.least is None)


_BARE = re.compile(r"(?:[a-z][a-z0-9.]*:)?\d{1,30}(?:\.\d{1,30})?", re.ASCII)


def parse_limit(text: str) -> str:
    """A limit in the form that the API takes; a bare number is in milliseconds, also in `p50:30`."""
    return f"{text.strip()}ms" if _BARE.fullmatch(text.strip()) else text


class Milliseconds(Number):
    """A time above 0 in milliseconds, or with a unit such as `1s`."""

    def __init__(self) -> None:
        super().__init__("MS")

    def read(self, name: str, text: str) -> Any:
        """Milliseconds."""
        if text.strip().endswith("s"):
            from llmir.api.options import limit_seconds

            return (limit_seconds(name, text) or 0.0) * 1e3
        return parse_value(text)


class Declared(Count):
    """The value of an option of a record (`llmir.api.options`), which checks it."""

    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.metavar or "N"

    def check(self, name: str, value: Any) -> Any:
        """Return the value as its type; `InputError` outside its range."""
        return self.option.check(value, name)


class Bytes(Declared):
    """An amount of memory such as `2GiB` or `500MB`; a bare number is bytes."""

    def read(self, name: str, text: str) -> int:
        """Whole bytes."""
        match = _SIZE.fullmatch(text.strip())
        scale = {u.lower(): f for u, f in _UNITS.items()}.get((match[2] or "B").lower()) if match else None
        if not match or not scale:
            expected = f"a size such as 2GiB (units {', '.join(_UNITS)})"
            raise InputError(f"{name}: expected {expected}, got {text[:40]!r}")
        return int(Decimal(match[1]) * scale)


class Stages(Declared):
    """A number of pipeline stages, or the layers of each stage: `4`, `30,32,32,32`."""

    def read(self, name: str, text: str) -> tuple[Any, ...]:
        """The values between commas."""
        return tuple(map(parse_value, text.split(",")))

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        """Integers from 1 up."""
        each = value if isinstance(value, tuple) else (value,)
        return tuple(self.option.check(part, name) for part in each)


class Shares(Count):
    """`compute=0.7,memory=0.8`: numbers by name."""

    name = "SHARES"
    such_as = "shares such as compute=0.7,memory=0.8"

    def read(self, name: str, text: str) -> dict[str, Any]:
        """The values by name."""
        pairs = [[p.strip() for p in part.partition("=")] for part in text.split(",")]
        values = {key: parse_value(value) for key, _, value in pairs}
        if len(values) != len(pairs) or not all(key and value for key, _, value in pairs):
            raise InputError(f"{name}: expected {self.such_as}, got {text[:60]!r}")
        return values

    def check(self, name: str, value: Any) -> Any:
        """The unchanged value; the cost model checks names and numbers."""
        return value


class Prices(Shares):
    """`h200=3.5,b200=6`: USD per hour by device; `llmir.hw.library.with_prices` checks them."""

    name = "DEVICE=USD,…"
    such_as = "USD an hour by device, such as h200=3.5"


KINDS: Mapping[str, Callable[[Option], _Kind]] = {
    "size": Bytes,
    "stages": Stages,
    "shares": lambda option: Shares(),
    "prices": lambda option: Prices(),
}


def kind_of(option: Option) -> _Kind | None:
    """The click type of an option; None for text that is checked later."""
    if option.choices:
        return click.Choice(option.choices)
    if option.kind in ("any", "file", "plan") or option.type in ("str", "str | None"):
        return None
    return KINDS.get(option.kind, Declared)(option)


# --- Options ---

Function = TypeVar("Function", bound=Callable[..., Any])
_SAME: Any = object()  # an argument of `take` that is not given


class Parameter(click.Option):
    """An option of a command, with its declaration in a record."""

    def __init__(self, *flags: Any, declared: Option, **about: Any) -> None:
        super().__init__(*flags, **about)
        self.declared = declared


def _stack(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def take(
    record: type[Record],
    *names: str,
    default: Any = _SAME,
    shown: str | None = None,
    help: str | None = None,
    more: str = "",
    metavar: str | None = None,
    type: Any = _SAME,
    choices: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Decorate a command with options of a record: those of `names`, or all.

    The other arguments replace parts of the option's declaration in this command: the `default`, how help
    shows it (`shown`, "" for not at all), `help`, `metavar`, `type` or `choices`. `more` is appended to the
    help.
    """

    def one(declared: Option) -> Callable[[Function], Function]:
        kind = click.Choice(choices) if choices else kind_of(declared) if type is _SAME else type
        printed = declared.shown if shown is None else shown
        about: dict[str, Any] = {
            "type": kind,
            "default": declared.default if default is _SAME else default,
            "metavar": metavar or (declared.metavar or None if kind is None else None),
            "help": f"{declared.help if help is None else help}{more}"
            + (f"  [default: {printed}]" if printed else ""),
        }
        spelling = declared.key.replace("_", "-")
        flags = declared.flags or (f"--{spelling}",)
        if declared.kind in ("flag", "switch") and type is _SAME:
            about = {"is_flag": True, "help": about["help"]}
        elif declared.kind == "either":
            flags, about = (f"--{spelling}/--no-{spelling}",), {"default": None, "help": about["help"]}
        return click.option(*flags, declared.key, cls=Parameter, declared=declared, **about)

    chosen = [option(record, name) for name in names] if names else options(record)
    return _stack(*map(one, chosen))


def axis(declared: Option, help: str | None = None, shown: str = "") -> Callable[[Function], Function]:
    """A decorator that adds an option for a list of values, which is an axis of `llmir sweep`."""
    how: dict[str, Any] = {"type": None, "default": None, "metavar": declared.list_metavar}
    return take(_RECORDS[declared.record], declared.name, help=help, shown=shown, **how)


_RECORDS = {record.__name__: record for record in (Estimation, Precision, Parallel, Requests)}


def _renamed(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Raise `InputError` for `--plan FILE`, the former name of `--precision FILE`."""
    if value is not None:
        raise InputError(f"--plan: is now called --precision {value}; `llmir plan` searches for plans")


lenient = take(Lowering, "lenient")
model = _stack(click.argument("model", metavar="MODEL"), lenient)
speculation = take(Drafts, "draft_tokens", "acceptance", "draft_model")
beams = take(Requests, "beams")
sides = _stack(click.argument("other", metavar="[MODEL2]", required=False), take(DiffSides))
draft = take(Lowering, "draft")
phase = take(Lowering, "phase")
logits = take(Lowering, "logits")
precision = _stack(
    take(Precision),
    click.option("--plan", "old_file", metavar="FILE", hidden=True, expose_value=False, callback=_renamed),
)
lowering = _stack(precision, take(Lowering, "attention", "mla", "pipeline", "logits"))
parallel = take(Parallel)
hardware = take(Estimation, "hw", "cluster", "network")
price_option = take(Estimation, "price")
cost_options = take(Estimation, "cost", "engine", "efficiency")
workload = _stack(
    hardware, take(Requests, "batch", "prompt", "generate", "image_tokens", "layer_tokens"), cost_options
)
prefill_options = take(Requests, "chunk", "cached")
receive_interval = take(Estimation, "receive_interval")
serving = _stack(take(Requests, "concurrency"), prefill_options)
MEMORY = tuple(each.key for each in options(Memory))
limits = take(
    Memory,
    "memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_batched_tokens",
    "chunked_prefill",
    "reserve_bytes",
)
memory = take(Memory)
step_memory = take(Memory, *STEP_MEMORY)
max_size = take(Output, "max_size")


def output(what: str, metavar: str = "FILE") -> Callable[[Function], Function]:
    """The option `-o FILE`."""
    return take(Output, "output_file", help=what, metavar=metavar)


def form(*choices: str) -> Callable[[Function], Function]:
    """The option `--format`: one of `choices`, or a format of a plugin (`output.choose`)."""
    return take(Output, "form", help=f"Default: {choices[0]}.", metavar=f"[{'|'.join(choices)}]")
