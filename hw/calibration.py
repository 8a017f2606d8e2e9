"""Fitted kernel parameters of a device, by engine and kernel family, and their YAML form.

The order of `ENGINES` decides which engine's parameters a device uses by default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from textwrap import wrap

from llmir.base.dataclass import dataclass
from llmir.base.values import Record

# The order of preference: the first engine with measurements on a device is its default. If the engine lacks
# a kernel, the kernel is transferred from the next engine in this order. Other engines follow by name.
ENGINES = ("vllm", "sglang", "trtllm", "vidur", "pytorch", "nccl", "torch.distributed nccl")
# Kernel libraries that are not engines. If only a library was measured on a device, all other kernels are
# transferred from other devices. vLLM and SGLang use AITER on AMD's GPUs (github.com/ROCm/aiter).
LIBRARIES = ("nccl", "torch.distributed nccl", "aiter")
# Kernels of 2023 and earlier, and collectives that a program launches one by one: engines prefer current
# kernels of a similar device.
DATED = ("vidur", "pytorch", "torch.distributed nccl")


@dataclass(frozen=True, eq=False)
class KernelParameters(Record):
    """The parameters of one family of kernels, fitted to `rows` measured rows.

    `error` is the mean absolute relative error on held-out shapes, as a ratio.
    """

    parameters: Mapping[str, float]
    origin: str
    rows: int
    error: float


@dataclass(frozen=True, eq=False)
class Calibration(Record):
    """The fitted kernels by engine and family; `engine` is the default engine."""

    engine: str
    engines: Mapping[str, Mapping[str, KernelParameters]]

    @property
    def partial(self) -> bool:
        """Whether kernels of a library were measured on the device, but none of an engine."""
        return self.engine in LIBRARIES


def rank(engine: str) -> tuple[int, str]:
    """The sort key of an engine in the order of preference.

    >>> sorted(["ours", "trtllm", "sglang-triton", "vllm"], key=rank)
    ['vllm', 'trtllm', 'ours', 'sglang-triton']
    """
    return ENGINES.index(engine) if engine in ENGINES else len(ENGINES), engine


def to_yaml(calibration: Calibration) -> str:
    """The block `calibration:` of a device file."""
    said = ["calibration:", f"  engine: {_quoted(calibration.engine)}"]
    for engine, families in calibration.engines.items():
        said.append(f"  {_quoted(engine)}:")
        said += [f"    {line}" for line in engine_yaml(families).splitlines()]
    return "\n".join(said) + "\n"


def engine_yaml(families: Mapping[str, KernelParameters]) -> str:
    """A file of `hw/calibrations/DEVICE/` for an engine; parameters have three digits."""
    return "".join(f"{line}\n" for family, fitted in families.items() for line in _lines(family, fitted))


def _lines(family: str, fitted: KernelParameters) -> Iterator[str]:
    yield f"{family}: {{origin: {json.dumps(fitted.origin)}, rows: {fitted.rows},"
    values = {"error_percent": 100 * fitted.error, **fitted.parameters}
    said = ", ".join(f"{name}:\0{digits(value)}" for name, value in values.items())
    lines = wrap(said + "}", 96, initial_indent="  ", subsequent_indent="  ")
    yield from (line.replace("\0", " ") for line in lines)


def _quoted(name: str) -> str:
    """The name as YAML reads it back; it is in quotes if YAML could read it as something other than text."""
    return name if re.fullmatch(r"[A-Za-z][\w.-]*( [\w.-]+)*", name) else json.dumps(name)


def digits(value: float) -> str:
    """Three significant digits and no exponent, which YAML would read as text; 0 below a billionth.

    >>> digits(1234.5), digits(0.40), digits(1.234e-7), digits(1e-15)
    ('1234', '0.4', '0.000000123', '0')
    """
    if value >= 100:
        return f"{value:.0f}"
    return f"{Decimal(f'{value:.3g}'):f}" if value >= 1e-9 else "0"
