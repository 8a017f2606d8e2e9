"""llmir: an operator-graph IR that estimates the speed and memory of language models and explains both."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# A checkout without symbolic links has hw, passes, frontends and backends next to this folder, not in it.
if not os.path.isdir(os.path.join(__path__[0], "hw")):
    __path__.append(os.path.dirname(os.path.abspath(__path__[0])))

from llmir.base.version import __version__

if TYPE_CHECKING:
    from llmir.api.capacity import kv, largest
    from llmir.api.compare import check, diff, equivalent, explain, interpret, sensitivity
    from llmir.api.compile import compile, emit, surface
    from llmir.api.deployment import pipeline_of
    from llmir.api.draw import (
        plot_batch,
        plot_context,
        plot_distributions,
        plot_front,
        plot_latencies,
        plot_memory,
        plot_roofline,
        plot_serving,
    )
    from llmir.api.estimate import analyze, beam_search, candidates, speculate, stages, workload
    from llmir.api.load import devices, load, models, run
    from llmir.api.measure import calibrate, measure, validate
    from llmir.api.options import Drafts, Estimation, Memory, Parallel, Precision, Reserve, Servers, Traffic
    from llmir.api.page import page
    from llmir.api.plan import plan
    from llmir.api.save import draw, save, trace
    from llmir.api.serve import pools, replicate, server, simulate, traffic
    from llmir.api.sweep import sweep, sweep_to
    from llmir.backends.cost.models import CostModel
    from llmir.base.errors import LlmirError
    from llmir.base.registry import load_plugin
    from llmir.ir.core.graph import Graph
    from llmir.ir.core.program import Program
    from llmir.ir.tools.build import Builder
    from llmir.ir.tools.pipeline import Pass
    from llmir.ir.tools.text import parse_program, print_program

# name -> the module that defines it, imported on first access (PEP 562)
_LAZY = {
    "analyze": "api.estimate",
    "beam_search": "api.estimate",
    "calibrate": "api.measure",
    "candidates": "api.estimate",
    "check": "api.compare",
    "compile": "api.compile",
    "devices": "api.load",
    "diff": "api.compare",
    "draw": "api.save",
    "emit": "api.compile",
    "equivalent": "api.compare",
    "explain": "api.compare",
    "interpret": "api.compare",
    "kv": "api.capacity",
    "largest": "api.capacity",
    "load": "api.load",
    "measure": "api.measure",
    "models": "api.load",
    "page": "api.page",
    "plan": "api.plan",
    "plot_batch": "api.draw",
    "plot_context": "api.draw",
    "plot_distributions": "api.draw",
    "plot_front": "api.draw",
    "plot_latencies": "api.draw",
    "plot_memory": "api.draw",
    "plot_roofline": "api.draw",
    "plot_serving": "api.draw",
    "pools": "api.serve",
    "replicate": "api.serve",
    "run": "api.load",
    "sensitivity": "api.compare",
    "save": "api.save",
    "server": "api.serve",
    "simulate": "api.serve",
    "speculate": "api.estimate",
    "stages": "api.estimate",
    "surface": "api.compile",
    "sweep": "api.sweep",
    "sweep_to": "api.sweep",
    "trace": "api.save",
    "traffic": "api.serve",
    "validate": "api.measure",
    "workload": "api.estimate",
    "CostModel": "backends.cost.models",
    "Drafts": "api.options",
    "Estimation": "api.options",
    "Memory": "api.options",
    "Parallel": "api.options",
    "Precision": "api.options",
    "Reserve": "api.options",
    "Servers": "api.options",
    "Traffic": "api.options",
    "Builder": "ir.tools.build",
    "LlmirError": "base.errors",
    "Graph": "ir.core.graph",
    "Program": "ir.core.program",
    "Pass": "ir.tools.pipeline",
    "load_plugin": "base.registry",
    "parse_program": "ir.tools.text",
    "print_program": "ir.tools.text",
    "pipeline_of": "api.deployment",
}

__all__ = [
    "Builder",
    "CostModel",
    "Drafts",
    "Estimation",
    "Graph",
    "LlmirError",
    "Memory",
    "Parallel",
    "Pass",
    "Precision",
    "Program",
    "Reserve",
    "Servers",
    "Traffic",
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
