"""`llmir opt`: run passes and print the IR."""

from __future__ import annotations

from typing import Any

import click

from llmir.api.options import Lowering

from . import inputs, options, output
from .command import command


@command("opt", "Run passes and print the IR.")
@click.argument("model", metavar="MODEL|FILE.ir|-")
@options.take(
    Lowering,
    "pipeline",
    default="",
    help="Passes to run, such as 'fuse-attention,unroll', or ./mine.py:function.",
)
@options.take(Lowering, "logits", help="Positions that lm_head runs on.")
@options.draft
@options.precision
@options.parallel
@options.lenient
@options.output("Write a file (.ir) instead of stdout.")
def opt(
    model: str,
    pipeline: str,
    logits: str | None,
    lenient: bool,
    draft: bool,
    output_file: str | None,
    **given: Any,
) -> None:
    """Lower a model, or read IR from a file or stdin (-), run passes over it, and print the IR.

    The IR is verified before the first pass and after every one. What is printed can be read again.
    --weights and its like come before the passes of --pipeline, --tp and its like after them.

    \b
    llmir opt llama3.1-8b -p 'fuse-attention,fuse,dce' -o llama.ir
    llmir opt llama.ir -p unroll
    llmir opt qwen3-30b-a3b -p fuse-attention,fuse --tp 4 --ep 4 --collectives fp8
    llmir opt llama3.1-8b -p 'quantize{weights=int4_g64, plan=(down_proj:fp8)}'
    llmir opt llama3.1-8b -p fuse,./mine.py:epilogue
    cat llama.ir | llmir opt - -p dce
    """
    from llmir.api.load import run
    from llmir.ir.core.program import Program

    form = output.choose(output_file, None, Program)

    program = run(inputs.read(model, logits, lenient=lenient, draft=draft), inputs.around(given, pipeline))
    output.result(program, form, output_file)
    output.note(*program.notes)
