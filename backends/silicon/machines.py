"""The devices that a folder of measured times names: bundled, or by a file beside the times."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from llmir.base.errors import InputError
from llmir.hw import library
from llmir.hw.device import Device

from .sources import FILE, known


def machine(gpu: str) -> str:
    """The device behind a table's word for a machine.

    >>> machine("a100_argonne"), machine("h100_sxm")
    ('a100-40-sxm', 'h100_sxm')
    """
    return str(known()["machines"].get(gpu.strip().lower(), gpu.strip()))


def engine(framework: str) -> str:
    """A framework without version, in one spelling.

    >>> [engine(f) for f in ("vllm-0.24.0", "vLLM", "trtllm-nan", "TensorRT-LLM", "nccl-2.27.3")]
    ['vllm', 'vllm', 'trtllm', 'trtllm', 'nccl']
    """
    word = re.sub(r"-(nan|\d).*$", "", framework.strip().lower()).split("(")[0].strip()
    return str(known()["engines"].get(word, word))


def at_version(framework: str, version: str = "") -> str:
    """An engine at its version, as `--engine` takes it; `version` where the framework's own name has none.

    >>> at_version("vllm-0.24.0"), at_version("trtllm-nan", "1.0"), at_version("SGLang")
    ('vllm@0.24.0', 'trtllm@1.0', 'sglang')
    """
    said = re.search(r"-v?(\d[\w.]*)", framework.strip())
    known_as = said[1] if said else version.strip()
    return f"{engine(framework)}@{known_as}" if known_as else engine(framework)


def named(framework: str, kernel: str = "") -> str:
    """An engine, and a kernel of its own behind it.

    >>> named("vllm-0.24.0"), named("vllm-0.24.0", "vllm_triton_attn"), named("SGLang", "triton")
    ('vllm', 'vllm-triton_attn', 'sglang-triton')
    """
    name = engine(framework)
    return f"{name}-{kernel.removeprefix(name + '_')}" if kernel else name


class Machines:
    """Devices by name: those of a YAML file in `folder` first, then of one here; each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path | str, Device] = {}

    def __call__(self, name: str) -> Device:
        """The device; HardwareError for an unknown one."""
        path = self.file(name)
        key = path.resolve() if path else name
        if key not in self.known:
            self.known[key] = library.load(path or machine(name))
        return self.known[key]

    def file(self, name: str) -> Path | None:
        """The file of this name, if it is one."""
        for folder in (self.folder, FILE.parent):
            beside = folder / f"{name}.yaml"
            with suppress(OSError):  # a name that is too long for one
                if os.sep not in name and beside.is_file() and beside != FILE:
                    return beside
        return Path(name) if name.endswith((".yaml", ".yml")) and "\0" not in name else None

    def base(self, device: Device, name: str, target: str) -> str:
        """What a file `target` says under `extend` to build on `device`, `name` if that is bundled."""
        path = next((k for k, d in self.known.items() if d is device and isinstance(k, Path)), None)
        if path is None:
            return name
        if path == Path(target).resolve():
            raise InputError(f"{target}: is what the fit builds on, write to another file")
        return os.path.relpath(path, Path(target).resolve().parent)
