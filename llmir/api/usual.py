"""The passes that run where none are asked for: those of the engine that prices, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import HardwareError

if TYPE_CHECKING:
    from llmir.hw.engine import Engine
    from llmir.ir.tools.pipeline import Pass


# What an inference engine does to every model; the command line's default.
DEFAULT_PIPELINE = "absorb-mla{phase=decode},fuse-attention,fuse,dce"


def pipeline_of(engine: str | None = None) -> str:
    """The passes that an engine runs by default, `vllm@0.12` at a version; `DEFAULT_PIPELINE` of none.

    HardwareError for an unknown engine.

    >>> pipeline_of("hf-transformers")
    'concat-caches,fuse-attention,split-norms,dce'
    >>> pipeline_of("vllm@0.6")
    'rotate,absorb-mla{phase=decode},fuse-attention,fuse,dce,pad-vocab'
    """
    from llmir.hw import library

    return passes_of(
        None if engine is None else library.engine(arguments.text("engine", engine, error=HardwareError))
    )


def engines() -> dict[str, str]:
    """The passes of the newest version of each engine, by its name and version."""
    from llmir.hw import library

    newest = map(library.engine, library.engines())
    return {str(engine): passes_of(engine) for engine in newest}


def passes_of(engine: Engine | None) -> str:
    """The passes that an engine runs by default; `DEFAULT_PIPELINE` of none."""
    from llmir.hw.passes import Passes

    passes = engine.section(Passes) if engine else None
    return passes.pipeline if passes else DEFAULT_PIPELINE


def dispatch_of(engine: Engine | None, dp: int, ep: int) -> list[Pass]:
    """The pass by which an engine brings tokens to experts, where its ranks have tokens of their own."""
    from llmir.hw.dispatch import Dispatch
    from llmir.passes.dispatch import DispatchBy

    said = engine.section(Dispatch) if engine and gcd(dp, ep) > 1 else None
    return [DispatchBy(said.by)] if said else []


def priced_pipeline(devices: list[Any], options: Mapping[str, Any]) -> str:
    """The passes of the engine that prices a model on these devices by `cost`, `engine` and `efficiency`.

    `DEFAULT_PIPELINE` where none does, or different ones would.
    """
    from llmir.backends.cost.models import model
    from llmir.hw.library import load

    priced = [model(load(device), **options) for device in devices]
    found = {passes_of(each.runs) for each in priced}
    return found.pop() if len(found) == 1 else passes_of(None)
