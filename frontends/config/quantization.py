"""`quantization_config`: in what types a checkpoint stores its weights, as the text of a pass.

Frontends know no passes, so a program says this as its fact `quantization`, and whoever loads it runs that.
"""

from __future__ import annotations

from collections.abc import Callable

from llmir.base.errors import UnsupportedError
from llmir.ir.core.program import Program

from . import unquantized
from .fields import METHOD, QUANTIZATION_INERT, QUANTIZATION_NEUTRAL
from .groups import KEY
from .methods import method
from .reader import Config
from .source import show
from .unquantized import Apart

__all__ = ["KEY", "scheme"]


def scheme(config: Config, build: Callable[[Apart], Program]) -> tuple[Program, dict[str, str]]:
    """A program, and its facts: the pass that gives it the types of its checkpoint, and the method's name.

    There are none for one that is not quantized.

    `build` makes the program, with bodies of their own for layers that leave other modules as they are.
    """
    program, inner = build(()), config.nested(KEY)
    if inner is None:
        return program, {}
    try:
        return _scheme(inner, program, build)
    except UnsupportedError as error:
        if not config.lenient:
            raise
        config.note(f"{error}; taken as not quantized")
        return program, {}


def _scheme(
    config: Config, program: Program, build: Callable[[Apart], Program]
) -> tuple[Program, dict[str, str]]:
    name, found = method(config)
    entries = tuple(entry for key in found.lists for entry in config.texts(key))
    apart = unquantized.by_layer(program, entries)
    program = build(apart) if len(set(apart)) > 1 else program
    options, blocks = found.read(config, entries), found.blocks
    config.finish(QUANTIZATION_INERT, QUANTIZATION_NEUTRAL)
    more = options.pop("plan", "")  # of lm_head
    if not (more or options.get("kv") or unquantized.quantizes(program, apart, blocks)):
        fact = "quantizes nothing of this model, of which every matrix stays as it is"
        raise config.error("quant_method", f"{show(options['weights'])} {fact}", UnsupportedError)
    others = [f"{b}:keep" for b in _blocks(program) if blocks and b not in (*blocks, "lm_head", "router")]
    plan = ", ".join(part for part in (*others, unquantized.plan(program, apart), more) if part)
    given = [f"{k}={v}" for k, v in options.items() if v] + ([f"plan=({plan})"] if plan else [])
    return program, {"quantization": f"quantize{{{', '.join(given)}}}", METHOD: name}


def _blocks(program: Program) -> list[str]:
    """The blocks that have products."""
    nodes = (n for g in program.graphs.values() for n in g.nodes)
    return list(dict.fromkeys(n.op.block for n in nodes if n.op.matrices))
