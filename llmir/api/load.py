"""Load a model as a program, list models and devices, and run passes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.base import arguments
from llmir.base.budget import check_work
from llmir.base.errors import InputError
from llmir.base.formats import Displayable
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import Pass, Step, parse_pipeline, run_passes, steps_of

if TYPE_CHECKING:
    from llmir.backends.export.sections import Rows


def load(model: object, logits: str | None = None, *, lenient: bool = False, draft: bool = False) -> Program:
    """The unfused, unsharded program of a model, quantized if its config says that its checkpoint is.

    `model` is a preset's name or HF id, a path to a config.json or its folder, a dict, or an object with
    `.to_dict()`; `logits` is `last` (one position a sequence, the default) or `all`. `lenient` turns config
    fields that llmir does not model from errors into notes; with `draft` the layer that predicts further
    tokens is a phase of its own. The path of an `.ir` file is that program as it is. Raises `ConfigError`,
    `UnsupportedError` or `ParseError`.
    """
    from llmir.frontends.load import load as read
    from llmir.ir.tools.text import read_program

    path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if isinstance(path, str) and is_ir(path):
        if logits is not None:
            raise InputError(f"logits: {path} is IR, which says already what lm_head runs on")
        if draft:
            raise InputError(f"draft: {path} is IR, which has already the phases that it has")
        return read_program(path)
    program = read(model, logits="last" if logits is None else logits, lenient=lenient, draft=draft)
    stored = program.facts.get("quantization")
    return run(program, stored) if isinstance(stored, str) else program


class ModelSource(NamedTuple):
    """A model as an argument: a name, path or config with the options of `load`, or a program."""

    model: object
    lenient: bool = False
    draft: bool = False

    @classmethod
    def of(cls, model: object) -> ModelSource:
        """The source of an argument that may already be one."""
        return model if isinstance(model, ModelSource) else cls(model)

    @property
    def is_program(self) -> bool:
        """Whether it is a program or an `.ir` file, which an estimate takes as it is."""
        return isinstance(self.model, Program) or (
            isinstance(self.model, str | os.PathLike) and is_ir(self.model)
        )

    def load(self, logits: str | None = None) -> Program:
        """The program before any pass of an engine."""
        if isinstance(self.model, Program):
            return self.model
        if isinstance(self.model, Displayable):  # a result has `to_dict`, as a config has
            arguments.refuse("model", self.model, "a Program, or a model as llmir.load takes it")
        return load(self.model, logits, lenient=self.lenient, draft=self.draft)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of an estimate of the model, whatever passes its engine runs."""
        from llmir.backends.step.facts import program_notes

        program = self.load()
        return program_notes(program) if self.is_program else program.notes


def models(name: str = "") -> Rows:
    """The bundled models, or those that have `name` in theirs; of one model that `load` knows, its weights.

    >>> [row["name"] for row in models("llama-3.2")]
    ['Llama-3.2-1B', 'Llama-3.2-3B']
    """
    from llmir.backends.export import catalog
    from llmir.frontends import model_sizes
    from llmir.frontends.models import presets

    if preset := presets.find(arguments.text("name", name)):
        return catalog.model(load(preset.config), model_sizes.bundled_row(preset))
    if rows := model_sizes.rows(name):
        return catalog.models(rows)
    program = load(name)
    return catalog.model(program, model_sizes.row(program, program.name, ""))


def devices(name: Any = None) -> Rows:
    """The bundled devices and clusters; of one, by name or YAML file, each number and its source.

    >>> {row["field"]: row["value"] for row in devices("h100-sxm")}["memory_Bps"]
    3350000000000.0
    >>> [device["name"] for device in devices() if device["memory_kind"] == "GDDR6X"][:2]
    ['rtx3090', 'rtx4090']
    """
    from llmir.backends.export import catalog
    from llmir.hw.library import load

    return catalog.devices() if name is None else catalog.device(load(name))


def run(
    program: Program,
    pipeline: str | Step | Iterable[Step],
    after: Callable[[str, Program], None] | None = None,
) -> Program:
    """`program` after a pipeline: a string such as `"fuse-attention,fuse"`, a pass, a function, or a list.

    Verified before the first pass and after every one; raises `PassError`. `after` is called with the text
    of each pass and the program after it.
    """
    if not (after is None or callable(after)):
        arguments.refuse("after", after, "a function of a pass's text and the program after it")
    passes: list[Pass | Callable[[Program], Program]] = []
    for step in steps_of(pipeline):
        passes += parse_pipeline(step) if isinstance(step, str) else [step]
    found = run_passes(program, passes, after)
    advice = "use a model of fewer layers that differ"
    check_work(f"an estimate of {found.title}", advice, seconds=_seconds(found))
    return found


# Seconds of an op, of two ops of one program and of two ops of one graph, measured on programs of 160 to
# 7,100 ops in 3 to 1,000 graphs.
OP_S, PROGRAM_PAIR_S, GRAPH_PAIR_S = 1e-4, 2.6e-7, 2.6e-6


def _seconds(program: Program) -> float:
    """About how long an estimate of a program takes."""
    ops = [len(graph.nodes) for graph in program.graphs.values()]
    return OP_S * sum(ops) + PROGRAM_PAIR_S * sum(ops) ** 2 + GRAPH_PAIR_S * sum(n * n for n in ops)


def is_ir(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a program in text form, by its suffix `.ir`."""
    return str(os.fspath(path)).lower().endswith(".ir")
