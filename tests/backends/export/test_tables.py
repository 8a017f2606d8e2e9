"""Tables say what a report says, whatever program it is of."""

from __future__ import annotations

import re

import llmir
from llmir.backends.export import units, wording
from llmir.backends.export.json import workload_markdown
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from tests.commands import TINY


def test_notebooks_show_names_as_text() -> None:
    job = llmir.workload(llmir.load({**TINY, "_name_or_path": "<script>"}), "cpu", prompt=8, generate=2)
    for html in (job._repr_html_(), job.prefill._repr_html_()):
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert html.count("<table>") == html.count("</table>") > 0


def test_a_grid_is_its_ranges_in_units_and_never_an_exponent() -> None:
    program = llmir.load(TINY)
    html = llmir.analyze(program, "cpu", batch=[1, 2, 4000], new=[[1], [300]])._repr_html_()
    assert "grid (2, 3)" in html
    assert not re.search(r"\de[+-]?\d", html)
    for batch, new in ((1, 1), (4000, 300)):  # the least and the most of every figure
        point = llmir.analyze(program, "cpu", batch=batch, new=new)
        for figure in (units.time(point.time_s), units.flops(point.flops), units.bytes(point.read_bytes)):
            assert f">{figure}<" in html


def test_a_program_that_takes_no_time_and_moves_no_bytes_has_its_tables() -> None:
    b = Builder("main")
    b.output(b.input("bf16[B, T, 64]", name="hidden"))
    nothing = Program("nothing", {"main": b.graph()})
    job = llmir.workload(nothing, "h100-sxm", prompt=8, generate=2, estimation=llmir.Estimation(cost="ideal"))
    assert (job.prefill.time_s, job.prefill.read_bytes) == (0, 0)
    total = wording.total_line(job.prefill)
    assert (total.time, total.bytes, total.intensity, total.bound) == ("0 s", "0 B", "–", "–")
    assert ("bound by", "–") in wording.step_lines(job.prefill)
    for text in (job._repr_html_(), job.prefill._repr_html_(), workload_markdown(job)):
        assert "nothing" in text
    assert "nothing" in str(job)
