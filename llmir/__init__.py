"""llmir: an operator-graph IR that says how fast a language model runs, how much memory it takes, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

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
        speculate,
        workload,
    )
    from .backends.cost import CostModel
    from .beamed import beam_search
    from .build import Builder
    from .code import compile, emit, surface
    from .errors import LlmirError
    from .graph import Graph, Program
    from .limited import largest
    from .many import candidates
    from .measured import calibrate, measure, validate
    from .passes import DEFAULT_PIPELINE
    from .pipeline import Pass
    from .planned import plan
    from .plotted import (
        plot_batch,
        plot_context,
        plot_distributions,
        plot_front,
        plot_latencies,
        plot_memory,
        plot_roofline,
        plot_serving,
    )
    from .plugins import load_plugin
    from .reported import page
    from .simulated import pools, replicate, server, simulate, traffic
    from .staged import stages
    from .swept import sweep, sweep_to
    from .text import parse_program, print_program
    from .transferred import kv
    from .usual import pipeline_of
    from .written import draw, save, trace

# name -> the module that defines it, imported when first asked for (PEP 562)
_LAZY = {
    "analyze": "api",
    "beam_search": "beamed",
    "calibrate": "measured",
    "candidates": "many",
    "check": "api",
    "compile": "code",
    "devices": "api",
    "diff": "api",
    "draw": "written",
    "emit": "code",
    "equivalent": "api",
    "explain": "api",
    "interpret": "api",
    "kv": "transferred",
    "largest": "limited",
    "load": "api",
    "measure": "measured",
    "models": "api",
    "page": "reported",
    "plan": "planned",
    "plot_batch": "plotted",
    "plot_context": "plotted",
    "plot_distributions": "plotted",
    "plot_front": "plotted",
    "plot_latencies": "plotted",
    "plot_memory": "plotted",
    "plot_roofline": "plotted",
    "plot_serving": "plotted",
    "pools": "simulated",
    "replicate": "simulated",
    "run": "api",
    "sensitivity": "api",
    "save": "written",
    "server": "simulated",
    "simulate": "simulated",
    "speculate": "api",
    "stages": "staged",
    "surface": "code",
    "sweep": "swept",
    "sweep_to": "swept",
    "trace": "written",
    "traffic": "simulated",
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
    "beam_search",
    "calibrate",
    "candidates",
    "check",
    "compile",
    "devices",
    "diff",
    "draw",
    "emit",
    "equivalent",
    "explain",
    "interpret",
    "kv",
    "largest",
    "load",
    "load_plugin",
    "measure",
    "models",
    "page",
    "parse_program",
    "pipeline_of",
    "plan",
    "plot_batch",
    "plot_context",
    "plot_distributions",
    "plot_front",
    "plot_latencies",
    "plot_memory",
    "plot_roofline",
    "plot_serving",
    "pools",
    "print_program",
    "replicate",
    "run",
    "save",
    "sensitivity",
    "server",
    "simulate",
    "speculate",
    "stages",
    "surface",
    "sweep",
    "sweep_to",
    "trace",
    "traffic",
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
