"""Passes and pipelines: the base class `Pass`, the registry `PASSES`, and `run_passes`.

A pipeline is text such as `fuse-attention,fuse,unroll`, a pass, a function, or a list of these. The program
is verified before the first step and after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, field, fields, replace
from functools import lru_cache
from inspect import getdoc
from typing import Any, ClassVar, TypeGuard, cast

from llmir.base.arguments import check_field, choice, items, parse_field, refuse
from llmir.base.dataclass import dataclass
from llmir.base.errors import LlmirError, PassError
from llmir.base.gc_pause import pause_gc
from llmir.base.names import plain, unknown
from llmir.base.registry import Kind, load_plugin
from llmir.ir.core.op import type_name
from llmir.ir.core.program import APART, PHASES, Program
from llmir.ir.core.tensor import split_commas

from .verify import checked_program, verify


@dataclass(frozen=True)
class Pass:
    """Base class of passes: a pure function from program to program, whose options are its fields."""

    name: ClassVar[str] = ""
    encodes: ClassVar[bool] = True  # whether the pass also runs on image encoders
    phased: ClassVar[bool] = False  # whether it runs once on a program with all phases

    def __post_init__(self) -> None:
        for f in fields(self):
            value = check_field(
                f"{self.name}: {f.name}", getattr(self, f.name), f.type, f.metadata, PassError
            )
            object.__setattr__(self, f.name, value)

    def __init_subclass__(cls) -> None:
        if vars(cls).get("name"):
            PASSES.add(cls.name, cls, cls)

    def __call__(self, program: Program) -> Program:
        """The rewritten program; `program` itself if nothing changes."""
        raise PassError(f"{type(self).__name__}: a pass must define __call__")

    def __str__(self) -> str:
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return self.name + (f"{{{', '.join(f'{k}={v}' for k, v in given.items())}}}" if given else "")


@dataclass(frozen=True)
class InPhase(Pass):
    """A pass that runs on only one phase of a program; its text is the text of the pass with option `phase=`.

    If the pass changes nothing in the phase, the phase still shares the graphs of the program. A pass for
    decode also rewrites the draft phase, because both phases process few tokens.
    """

    phased: ClassVar[bool] = True

    step: Pass | Function
    phase: str

    def __post_init__(self) -> None:
        choice(f"{label(self.step)}: phase", self.phase, PHASES, error=PassError)

    def __call__(self, program: Program) -> Program:
        """The program with the rewritten phase."""
        if self.phase == "decode" and "draft" in program.phases:
            program = replace(self, phase="draft")(program)
        if self.phase in APART and self.phase not in program.phases:
            raise PassError(f"{self}: {program.name} has no phase {self.phase}")
        rest, before = (
            {n: p for n, p in program.phases.items() if n != self.phase},
            program.replace(phases={}),
        )
        now = program.phases.get(self.phase, before)
        after = _returned(self.step, now)
        if after is now:
            return program
        return program.replace(phases=rest if after == before else {**rest, self.phase: after})

    def __str__(self) -> str:
        text = label(self.step)
        return f"{text[:-1]}, phase={self.phase}}}" if text.endswith("}") else f"{text}{{phase={self.phase}}}"


def option(default: Any, **about: Any) -> Any:
    """Declare a field of a pass with a default and a range.

    Args:
        default: The default value.
        **about: The range from `least` to `most`, or the allowed `choices`.

    Returns:
        A dataclass field.

    >>> option(2, least=1, most=8).metadata["most"]
    8
    """
    return field(default=default, metadata=about)


Function = Callable[[Program], Program]
Step = str | Pass | Function

PASSES: Kind[type[Pass] | Function] = Kind("pass", "llmir.passes")


def parse_pipeline(text: str) -> list[Pass | Function]:
    """Parse a pipeline into its passes.

    Options have the form `name{option=value}`, and `str(pass)` gives text that parses to an equal pass.
    `mine.py:name` loads the plugin `mine.py`, and names a pass or a function from program to program in the
    plugin.

    Args:
        text: The passes, separated by commas.

    Returns:
        The passes and functions in order.

    Raises:
        PassError: A pass or an option is unknown.

    >>> from llmir.passes import fuse
    >>> [str(each) for each in parse_pipeline("fuse-attention,shard{tp=2}")]
    ['fuse-attention', 'shard{tp=2}']
    """
    return [_parse_pass(part.strip()) for part in split_commas(text)]


def _parse_pass(text: str) -> Pass | Function:
    name, brace, rest = text.partition("{")
    if brace and not rest.rstrip().endswith("}"):
        raise PassError(f"pass {text!r}: a closing brace is missing")
    kind = _named(name.strip())
    options = split_commas(rest.rstrip().removesuffix("}"))
    phases = [part for part in options if part.partition("=")[0].strip() == "phase"]
    if phases and not (is_pass(kind) and "phase" in {f.name for f in fields(kind)}):
        inner = ",".join(part for part in options if part not in phases)
        if len(phases) > 1:
            raise PassError(f"pass {name.strip()}: option 'phase' is given twice")
        step = _parse_pass(f"{name}{{{inner}}}")
        return InPhase(step, phases[0].partition("=")[2].strip())
    if is_pass(kind):
        return kind(**_options(kind, rest.rstrip().removesuffix("}")))
    if brace and rest.rstrip() != "}":
        raise PassError(f"pass {name.strip()} is a function and has no options")
    return cast(Function, kind)


def steps_of(pipeline: object) -> tuple[Step, ...]:
    """Convert a step or several steps to a tuple; PassError for another value."""
    several = isinstance(pipeline, Iterable) and not isinstance(pipeline, str)
    steps = items("pipeline", pipeline, "passes", error=PassError) if several else (pipeline,)
    for step in steps:
        if not isinstance(step, (str, Pass)) and (isinstance(step, type) or not callable(step)):
            refuse("pipeline", step, "a name, a Pass, or a function from program to program", PassError)
    return cast("tuple[Step, ...]", steps)


def is_pass(kind: object) -> TypeGuard[type[Pass]]:
    """Whether a step is a class of passes instead of a function."""
    return isinstance(kind, type) and issubclass(kind, Pass)


def label(step: Step) -> str:
    """The text of a step in a pipeline."""
    return str(step) if isinstance(step, str | Pass) else getattr(step, "__name__", type(step).__name__)


def _named(name: str) -> type[Pass] | Function:
    """The pass or the function for `name` or `plugin:name`."""
    plugin, colon, inner = name.rpartition(":")
    if colon:
        inside = vars(load_plugin(plugin))
        kinds = (thing for thing in inside.values() if is_pass(thing) and thing.name == inner)
        found: type[Pass] | Function | None = inside.get(inner) or next(kinds, None)
        if not callable(found):
            raise PassError(f"plugin {plugin} has no pass or function {inner!r}")
        return found
    if name not in PASSES:
        raise PassError(unknown("pass", name, PASSES))
    return PASSES[name]


def _options(kind: type[Pass], text: str) -> dict[str, Any]:
    """Parse the options between the braces; the types of the fields determine the values."""
    name, known = kind.name or kind.__name__, {f.name: f for f in fields(kind)}
    options: dict[str, Any] = {}
    for part in split_commas(text):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise PassError(f"pass {name}: option {key!r} does not exist; {allowed}")
        if key in options:
            raise PassError(f"pass {name}: option {key!r} is given twice")
        plainly = type_name(known[key]).split(" |")[0] in ("int", "float", "bool")
        options[key] = parse_field(value) if plainly else value
    missing = [k for k, f in known.items() if f.default is MISSING and k not in options]
    if missing:
        raise PassError(f"pass {name}: option {missing[0]!r} is required")
    return options


def describe(kind: type[Pass] | Function) -> dict[str, Any]:
    """The description and the options of a pass, as `llmir passes` lists them.

    A required option has no default. A default value that JSON cannot represent is given as text.
    """
    found: list[dict[str, Any]] = []
    for f in fields(kind) if is_pass(kind) else ():
        default = f.default if f.default_factory is MISSING else f.default_factory()
        option = {"name": f.name, "type": type_name(f), "required": default is MISSING}
        if default is not MISSING:
            option["default"] = default if isinstance(default, int | float | str | None) else str(default)
        found.append(option)
    return {"summary": (getdoc(kind) or "").partition("\n")[0], "options": found}


def around(step: str, pipeline: str) -> tuple[list[Pass | Function], list[Pass | Function]]:
    """Two pipelines, which end before and after one pass; a missing pass is added at the end.

    >>> [[label(p) for p in side] for side in around("fuse", "fuse-attention,fuse,dce")]
    [['fuse-attention'], ['fuse-attention', 'fuse']]
    """
    steps, usual = parse_pipeline(step), parse_pipeline(pipeline)
    if len(steps) != 1:
        raise PassError(f"expected one pass, got {step!r}")
    names = [label(p).partition("{")[0] for p in (*usual, *steps)]
    sooner = usual[: names.index(names[-1])]
    return sooner, [*sooner, *steps]


def _returned(step: Pass | Callable[[Program], Program], program: Program) -> Program:
    after = step(program)
    if not isinstance(after, Program):
        raise PassError(f"a pass returns a Program, got {type(after).__name__}")
    return after


def _everywhere(step: Pass | Callable[[Program], Program], program: Program) -> Program:
    """The program after a step that runs on each phase separately."""
    if getattr(step, "phased", False) or not program.phases:
        return _returned(step, program)
    before = program.replace(phases={})
    after = _returned(step, before)
    phases = {n: _phase(step, n, phase, after) for n, phase in program.phases.items()}
    same = after is before and all(phase is program.phases[name] for name, phase in phases.items())
    return program if same else after.replace(phases=phases)


def _phase(step: Pass | Function, name: str, phase: Program, program: Program) -> Program:
    """The phase of a program after a step."""
    if name == "draft" and len(program.entries) > 1:
        raise PassError(f"{label(step)}: the phase that drafts is one stage; load {program.name} without it")
    encodes = getattr(step, "encodes", True) or name != "encode"
    after = _returned(step, phase) if encodes else phase
    if name not in APART:
        return after
    how = {what: getattr(program, what) for what in ("mesh", "facts", "notes", "micro_batches")}
    return after if all(getattr(after, what) == now for what, now in how.items()) else after.replace(**how)


def _after(step: Pass | Callable[[Program], Program], program: Program) -> Program | None:
    """The program after a step, verified; None if nothing changes."""
    after = _everywhere(step, program)
    return None if after is program else verify(after)


# Pipelines often begin with equal steps. The cache size equals the cache size for rows and memory estimates.
_known_after = lru_cache(maxsize=256)(_after)


def _pure(step: Pass | Function) -> bool:
    """Whether equal steps have equal effects: the class declares purity, and the step has only options."""
    if not isinstance(step, Pass) or vars(step).keys() - {f.name for f in fields(step)}:
        return False
    return all(_pure(v) if isinstance(v, Pass) else type(v) in _OPTIONS for v in vars(step).values())


_OPTIONS = (str, int, float, bool, type(None))


@pause_gc()
def run_passes(
    program: Program,
    steps: Iterable[Pass | Callable[[Program], Program]],
    after: Callable[[str, Program], None] | None = None,
) -> Program:
    """Run passes on a program, which is verified before the first pass and after every pass.

    The result of a pass on an equal program is cached.

    Args:
        program: The program.
        steps: Passes and functions from program to program.
        after: Called with the text of each pass and the program after it.

    Returns:
        The program after all passes.

    Raises:
        PassError: A pass fails, or its result is invalid.

    >>> from llmir.api.load import load
    >>> run_passes(load("gpt2"), parse_pipeline("shard{tp=2}")).devices
    2
    """
    checked_program(program)
    done: list[str] = []
    for step in steps:
        done.append(label(step))
        try:
            program = (_known_after if _pure(step) else _after)(step, program) or program
        except LlmirError as error:
            where = f"in pass {len(done)} of {plain(','.join(done), 200)}"
            raise PassError(f"{error} [{where}]") from error
        if after:
            after(done[-1], program)
    return program
