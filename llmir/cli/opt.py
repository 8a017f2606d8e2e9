"""`llmir opt`: run passes and print the IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from llmir.api.options import Lowering
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command, echo

if TYPE_CHECKING:
    from llmir.ir.core.program import Program
    from llmir.ir.tools.pipeline import Step


@command("opt", "Run passes and print the IR.")
@click.argument("model", metavar="MODEL|FILE.ir|-")
@options.take(
    Lowering,
    "pipeline",
    default="",
    help="Passes to run, such as 'fuse-attention,unroll', or ./mine.py:function.",
)
@options.take(Lowering, "logits", help="Positions for which lm_head computes logits.")
@options.draft
@options.precision
@options.parallel
@click.option("--print-after-all", is_flag=True, help="Print the IR after each pass to stderr.")
@click.option(
    "--print-after",
    multiple=True,
    metavar="PASS",
    help="Print the IR after a pass of this name to stderr; may be repeated.",
)
@options.lenient
@options.output("Write a file (.ir) instead of stdout.")
def opt(
    model: str,
    pipeline: str,
    logits: str | None,
    lenient: bool,
    draft: bool,
    output_file: str | None,
    print_after_all: bool,
    print_after: tuple[str, ...],
    **given: Any,
) -> None:
    """Lower a model, or read IR from a file or stdin (-), run passes over it, and print the IR.

    The IR is verified before the first pass and after every pass. The output is valid input.
    --print-after-all and --print-after print the IR between passes on stderr, below a line `# after PASS`.
    Options for dtypes run before the passes of --pipeline, options for ranks after them.

    \b
    llmir opt llama3.1-8b -p 'fuse-attention,fuse,dce' -o llama.ir
    llmir opt llama.ir -p unroll
    llmir opt qwen3-30b-a3b -p fuse-attention,fuse --tp 4 --ep 4 --collectives fp8
    llmir opt llama3.1-8b -p 'quantize{weights=int4_g64, plan=(down_proj:fp8)}'
    llmir opt llama3.1-8b -p fuse,./mine.py:epilogue
    llmir opt llama3.1-8b -p fuse-attention,fuse --tp 2 --print-after shard
    cat llama.ir | llmir opt - -p dce
    """
    from llmir.api.load import run
    from llmir.ir.core.program import Program

    form = output.choose(output_file, None, Program)

    program = inputs.read(model, logits, lenient=lenient, draft=draft)
    steps = inputs.around(given, pipeline)
    program = run(program, steps, _printer(steps, print_after_all, print_after))
    output.result(program, form, output_file)
    output.note(*program.notes)


def _printer(
    steps: Sequence[Step], every: bool, names: Sequence[str]
) -> Callable[[str, Program], None] | None:
    """A function that prints the IR after each pass, or after passes with these names; None if neither option
    is given.

    InputError if both options are given, or if a named pass does not run.
    """
    from llmir.base.names import suggest
    from llmir.ir.tools.pipeline import PASSES, label, parse_pipeline
    from llmir.ir.tools.text import print_program

    if every and names:
        raise InputError("--print-after-all: prints after each pass, leave --print-after out")
    if names:
        parsed = (parse_pipeline(step) if isinstance(step, str) else [step] for step in steps)
        runs = list(dict.fromkeys(_name(label(each)) for several in parsed for each in several))
        for name in names:
            if name in runs:
                continue
            known = (
                f"passes that run are {', '.join(runs)}" if runs else "no pass runs; set some with --pipeline"
            )
            if name in PASSES:
                raise InputError(f"--print-after {name}: the pass does not run; {known}")
            near = suggest(name, (*runs, *PASSES))
            raise InputError(f"--print-after: pass {name!r} does not exist; {known}{near}")

    def after(text: str, program: Program) -> None:
        if every or _name(text) in names:
            echo(f"# after {text}\n{print_program(program)}", err=True, nl=False)

    return after if every or names else None


def _name(text: str) -> str:
    """The name of a pass in its text form, without its options."""
    return text.partition("{")[0]
