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
    """Load a model as an unfused, unsharded program.

    It is quantized if the config declares a quantized checkpoint.

    Args:
        model: The name or Hugging Face id of a bundled model, the path of a config.json or of its folder, a
            dict, or an object with `.to_dict()`. The path of an `.ir` file loads the program in it unchanged.
        logits: `last` for logits of one position per sequence (the default), or `all`.
        lenient: Whether config fields that llmir does not model give notes instead of errors.
        draft: Whether to load the multi-token prediction layer as a draft phase.

    Returns:
        The program.

    Raises:
        ConfigError: A field of the config is missing or wrong.
        UnsupportedError: llmir does not model a part of the config.
        ParseError: The `.ir` file is malformed.

    >>> program = load("llama3.1-8b")
    >>> program.name, program.parameters
    ('Llama-3.1-8B', 8030261248)
    """
    from llmir.frontends.load import load as read
    from llmir.ir.tools.text import read_program

    path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if isinstance(path, str) and is_ir(path):
        if logits is not None:
            raise InputError(f"logits: {path} is IR, which already states for which tokens lm_head runs")
        if draft:
            raise InputError(f"draft: {path} is IR, to which llmir cannot add a draft phase")
        return read_program(path)
    program = read(model, logits="last" if logits is None else logits, lenient=lenient, draft=draft)
    stored = program.facts.get("quantization")
    return run(program, stored) if isinstance(stored, str) else program


class ModelSource(NamedTuple):
    """A model argument: a name, path or config with the options of `load`, or a program."""

    model: object
    lenient: bool = False
    draft: bool = False

    @classmethod
    def of(cls, model: object) -> ModelSource:
        """Wrap a model argument in a source; an argument that is already a source is returned."""
        return model if isinstance(model, ModelSource) else cls(model)

    @property
    def is_program(self) -> bool:
        """Whether the model is a program or an `.ir` file, which is estimated as it is."""
        return isinstance(self.model, Program) or (
            isinstance(self.model, str | os.PathLike) and is_ir(self.model)
        )

    def load(self, logits: str | None = None) -> Program:
        """Load the program, before any pass of an engine."""
        if isinstance(self.model, Program):
            return self.model
        if isinstance(self.model, Displayable):  # a result has `to_dict`, as a config has
            arguments.refuse("model", self.model, "a Program, or a model as llmir.load takes it")
        return load(self.model, logits, lenient=self.lenient, draft=self.draft)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that an estimate of the model shows."""
        from llmir.backends.step.facts import program_notes

        program = self.load()
        return program_notes(program) if self.is_program else program.notes


def models(name: str = "") -> Rows:
    """List the bundled models, or the weights of one model.

    Args:
        name: A part of the names to list. The full name of a model lists its weights.

    Returns:
        The models or weights as `Rows`.

    Raises:
        InputError: No model has this name.

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
    """List the bundled devices and clusters, or the numbers of one device with their sources.

    Args:
        name: Name or YAML file of a device. The default lists all devices.

    Returns:
        The devices or fields as `Rows`.

    Raises:
        HardwareError: The device is unknown, or its file is malformed.

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
    """Run a pipeline on a program and verify the program before the first pass and after every pass.

    Args:
        program: The program.
        pipeline: A string such as `"fuse-attention,fuse"`, a pass, a function, or a list of these.
        after: Called with the text of each pass and the program after it.

    Returns:
        The program after the pipeline.

    Raises:
        PassError: A pass fails, or its result is invalid.

    >>> program = run(load("llama3.1-8b"), "fuse-attention,shard{tp=4}")
    >>> program.devices
    4
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


# Seconds per op, per pair of ops in a program and per pair in a graph, measured on programs of 160 to
# 7,100 ops in 3 to 1,000 graphs.
OP_S, PROGRAM_PAIR_S, GRAPH_PAIR_S = 1e-4, 2.6e-7, 2.6e-6


def _seconds(program: Program) -> float:
    """Approximate time in seconds to estimate a program."""
    ops = [len(graph.nodes) for graph in program.graphs.values()]
    return OP_S * sum(ops) + PROGRAM_PAIR_S * sum(ops) ** 2 + GRAPH_PAIR_S * sum(n * n for n in ops)


def is_ir(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the suffix `.ir` of a program in text form."""
    return str(os.fspath(path)).lower().endswith(".ir")
