"""A step as a compiled function: time and peak memory at many points, without reports.

`StepCode` takes sizes like `llmir.analyze` and returns `StepFigures`, seconds and bytes; `slope` returns
their derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import policy
from llmir.backends.tape import numba, python
from llmir.backends.tape.derivatives import derivatives
from llmir.backends.tape.languages import PRINTERS
from llmir.base.arguments import MOST, choice, integer
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

from .evaluate import step_evaluator
from .functions import SIZES, StepFunction
from .sizes import batch_program, check_sizes, phase_of

STEP = ("batch", "new", "context")


class StepFigures(NamedTuple):
    """Seconds of a step, and the bytes of the fullest rank."""

    time_s: Number
    peak_memory_bytes: Number


class StepCode:
    """`time_s` and `peak_memory_bytes` of a report as a compiled function, called like `analyze`.

    Steps with one new token have separate code, because more of their code is constant. Each function is
    compiled when it is first used; results that depend only on `batch` and `new` are reused for other
    contexts.
    """

    def __init__(
        self,
        program: Program,
        model: DeviceCostModel,
        phase: str = "",
        cache_policy: str = "exact",
        by: str = "numpy",
    ) -> None:
        self.by = str(choice("by", by, ("numpy", "numba")))
        if by == "numba" and not numba.available():
            raise InputError("by: numba is not installed: pip install 'llmir[numba]'")
        if not model.symbolic:
            raise InputError(
                f"cost: {model.name} is a custom cost model; only cost models of llmir can be compiled"
            )
        self.program, self.model, self.phase = program, model, phase
        self.cache_policy = policy(cache_policy).name
        self._codes: dict[tuple[Program, bool], StepFunction] = {}
        # False if images, whole prompts or drafts affect which program runs.
        self._plain = not (program.patches or program.splits or "prompt" in program.facts)
        self._quick: dict[bool, StepFunction] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return StepCode, (self.program, self.model, self.phase, self.cache_policy, self.by)

    def __repr__(self) -> str:
        return f"<StepCode {self.program.name} on {self.model.device.name}>"

    def __call__(self, batch: Any = 1, new: Any = 1, context: Any = 0) -> StepFigures:
        """Evaluate steps at numbers, or arrays that broadcast together. InputError as in `analyze`."""
        if type(batch) is type(new) is type(context) is int:
            parts, quick = self.program.micro_batches, self._quick.get(new == 1)
            if quick and 0 < batch <= MOST and 0 < new <= MOST and 0 <= context <= MOST and not batch % parts:
                return StepFigures(*quick.point(batch // parts, new, context))
        return self._checked(batch, new, context)

    def _checked(self, batch: Any, new: Any, context: Any) -> StepFigures:
        step = check_sizes(batch, new, context)
        program, _, at = batch_program(self.program, [step], self.phase)
        single = phase_of(step[1]) == "decode"
        code = self._code(program, single)
        if self._plain and not at.shape:
            self._quick[single] = code
        return StepFigures(*code(at))

    def slope(self, by: str, batch: int = 1, new: int = 1, context: int = 0) -> StepFigures:
        """The derivatives of the results with respect to `batch`, `new` or `context`.

        They are valid between the points at which the formula changes: rounded values count as constant, and
        the fastest kernel stays the same.
        """
        name = dict(zip(STEP, SIZES, strict=True))[str(choice("by", by, STEP))]
        given = integer("batch", batch, 1), integer("new", new, 1), integer("context", context)
        program, _, at = batch_program(self.program, [given], self.phase)
        sizes = [at.symbols[size] for size in SIZES]
        function = self._code(program, False).whole.function
        found = python.compiled(derivatives(function, name))(*sizes)
        return StepFigures(*(value / (program.micro_batches if name == "B" else 1) for value in found))

    def _code(self, program: Program, single: bool) -> StepFunction:
        """The code of a program, for one new token or for any number of new tokens."""
        if (program, single) not in self._codes:
            steps = step_evaluator(program, self.model, self.cache_policy)

            def figures(at: Binding) -> tuple[Number, ...]:
                return steps.timing(at).step, steps.fullest(lambda memory: memory.peak(at), at)

            self._codes[program, single] = StepFunction(figures, 1 if single else None, by=self.by)
        return self._codes[program, single]

    def text(self, printer: str = "python", new: int = 1) -> str:
        """The source for `new` new tokens: `early` computes from batch and new, `late` from the context and
        the results of `early`.
        """
        printer = str(choice("printer", printer, tuple(PRINTERS)))
        new = integer("new", new, 1)
        program, _, _ = batch_program(
            self.program, [check_sizes(self.program.micro_batches, new, 0)], self.phase
        )
        return self._code(program, new == 1).whole.text(printer)
