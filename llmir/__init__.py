"""llmir: an operator-graph IR that says how fast a language model runs, how much memory it takes, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import (
        analyze,
        check,
        devices,
        diff,
        equivalent,
        explain,
        interpret,
        load,
        models,
        run,
        sensitivity,
        workload,
    )
    from .backends.cost import CostModel
    from .build import Builder
    from .code import compile, surface
    from .errors import LlmirError
    from .graph import Graph, Program
    from .many import candidates
    from .measured import calibrate, measure, validate
    from .passes import DEFAULT_PIPELINE
    from .pipeline import Pass
    from .plugins import load_plugin
    from .simulated import replicate, simulate
    from .staged import stages
    from .swept import sweep
    from .text import parse_program, print_program
    from .usual import pipeline_of
    from .written import draw, save, trace

# name -> the module that defines it, imported when first asked for (PEP 562)
_LAZY = {
    "analyze": "api",
    "calibrate": "measured",
    "candidates": "many",
    "check": "api",
    "compile": "code",
    "devices": "api",
    "diff": "api",
    "draw": "written",
    "equivalent": "api",
    "explain": "api",
    "interpret": "api",
    "load": "api",
    "measure": "measured",
    "models": "api",
    "replicate": "simulated",
    "run": "api",
    "sensitivity": "api",
    "save": "written",
    "simulate": "simulated",
    "stages": "staged",
    "surface": "code",
    "sweep": "swept",
    "trace": "written",
    "validate": "measured",
    "workload": "api",
    "CostModel": "backends.cost",
    "Builder": "build",
    "LlmirError": "errors",
    "Graph": "graph",
    "Program": "graph",
    "DEFAULT_PIPELINE": "passes",
    "Pass": "pipeline",
    "load_plugin": "plugins",
    "parse_program": "text",
    "print_program": "text",
    "pipeline_of": "usual",
}

__all__ = [
    "DEFAULT_PIPELINE",
    "Builder",
    "CostModel",
    "Graph",
    "LlmirError",
    "Pass",
    "Program",
    "__version__",
    "analyze",
    "calibrate",
    "candidates",
    "check",
    "compile",
    "devices",
    "diff",
    "draw",
    "equivalent",
    "explain",
    "interpret",
    "load",
    "load_plugin",
    "measure",
    "models",
    "parse_program",
    "pipeline_of",
    "print_program",
    "replicate",
    "run",
    "save",
    "sensitivity",
    "simulate",
    "stages",
    "surface",
    "sweep",
    "trace",
    "validate",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'llmir' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return __all__
