"""Pictures: what they say is what the report says, and their text stays inside its box.

Tests of positions run with each of the font sets in `data/fonts`, since Graphviz measures text in the font
that it finds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import llmir
from llmir.backends.export import units
from llmir.backends.export.dot.labels import fit, width
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.errors import InputError, LlmirError, OutputError
from llmir.hw.library import load as device
from llmir.ir.core.program import Program
from llmir.ir.ops.sources import Source
from llmir.ir.tools.build import Builder
from tests.flat import records

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's dot is not installed")

FONT_SETS = {
    "dejavu": "fonts-dejavu-core",
    "liberation": "fonts-liberation",
    "none": "",
}  # and their packages
LEVELS = ("overview", "layer", "full")
# Every font set with every level, but one with `full`, which has the same tiles hundreds of times over.
VIEWS = [(fonts, level) for fonts in FONT_SETS for level in LEVELS if level != "full" or fonts == "none"]
MODELS = ("llama3.1-8b", "qwen3-30b-a3b")
# Advance widths of DejaVu Sans, regular and bold, of the characters from space to ~, in thousandths.
REGULAR = """
318 401 460 838 636 950 780 275 390 390 500 838 318 361 318 337 636 636 636 636 636 636 636 636 636
636 337 337 838 838 838 531 1000 684 686 698 770 632 575 775 752 295 295 656 557 863 748 787 603 787
695 635 611 732 684 989 685 611 685 390 337 390 838 500 500 613 635 550 635 615 352 635 634 278 278
579 278 974 634 612 635 635 411 521 392 634 592 818 592 592 525 636 337 636 838
"""
BOLD = """
348 456 521 838 696 1002 872 306 457 457 523 838 380 415 380 365 696 696 696 696 696 696 696 696 696
696 400 400 838 838 838 580 1000 774 762 734 830 683 683 821 837 372 372 775 637 995 837 850 733 850
770 720 682 812 774 1103 771 724 725 457 365 457 838 500 500 675 716 593 716 678 435 716 712 343 343
665 343 1042 712 687 716 716 493 595 478 712 652 924 645 652 582 712 365 712 838
"""
FONTS = {
    weight: dict(zip(map(chr, range(32, 127)), map(int, table.split()), strict=True))
    | {"µ": 736, "·": 380, "×": 838, "…": 1000, "±": 838, "–": 500, "→": 838, "−": 838}
    for weight, table in (("normal", REGULAR), ("bold", BOLD))
}
WIDER = 1.15
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=FONT_SETS)
def fonts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the font set that Graphviz finds, which has a fontconfig file."""
    name: str = request.param
    config = Path(__file__).parents[3] / "data" / "fonts" / f"{name}.conf"
    folder = ElementTree.parse(config).findtext("dir")
    if folder and not os.path.isdir(folder):
        pytest.skip(f"{folder} is not there: apt-get install {FONT_SETS[name]}")
    monkeypatch.setenv("FONTCONFIG_FILE", str(config))
    return name


@dataclass(frozen=True)
class Text:
    words: str
    start: float
    end: float
    line: float
    anchor: str
    x: float


@dataclass(frozen=True)
class Shape:
    """A node or cluster of an SVG: its name, the extent of its box, and its text."""

    name: str
    left: float
    right: float
    top: float
    bottom: float
    texts: tuple[Text, ...]

    @property
    def words(self) -> list[str]:
        return [t.words for t in self.texts]


def text_of(element: ElementTree.Element) -> Text:
    words = (element.text or "").replace("\u00a0", " ")
    table = FONTS[element.get("font-weight", "normal")]
    size = float(element.get("font-size", "14"))
    long = WIDER * size * sum(table[c] for c in words) / 1000
    x = float(element.get("x", "0"))
    anchor = element.get("text-anchor", "start")
    start = {"start": x, "middle": x - long / 2, "end": x - long}[anchor]
    return Text(words, start, start + long, float(element.get("y", "0")), anchor, x)


def shapes(picture: Path | BytesIO, kind: str) -> list[Shape]:
    found = []
    for group in ElementTree.parse(picture).iter(f"{SVG}g"):
        if group.get("class") == kind:
            frame = next((e for e in group.iter() if e.tag in (f"{SVG}path", f"{SVG}polygon")), None)
            if frame is None:
                continue
            points = re.findall(r"(-?[\d.]+),(-?[\d.]+)", frame.get("d") or frame.get("points") or "")
            xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
            texts = tuple(text_of(t) for t in group.iter(f"{SVG}text"))
            found.append(Shape(group.get("id", ""), min(xs), max(xs), min(ys), max(ys), texts))
    return found


HEADS = ("_head", "_group", "_period")  # how the names of the heads of frames end


def ops(path: Path) -> list[Shape]:
    """The nodes that are ops: named by panel and place in the schedule."""
    return [s for s in shapes(path, "node") if re.fullmatch(r"p\d+_\d+", s.name)]


@lru_cache(maxsize=8)
def job(model: str, pipeline: str = llmir.pipeline_of(), **changes: int) -> Workload:
    program = llmir.run(llmir.load(model), pipeline)
    return llmir.workload(
        program,
        "h100-sxm",
        **records(llmir.workload, **{"batch": 4, "prompt": 512, "generate": 8, **changes}),
    )


def program_of(name: str, op: str = "y", layers: int = 1) -> Program:
    """A layer of one linear op called `op`, repeated."""
    inner = Builder("body")
    x = inner.input("bf16[B, T, 64]", name="hidden")
    inner.output(
        inner.linear(x, inner.weight("bf16[64, 64]", name="w"), einsum="b t h, h f -> b t f", name=op)
    )
    outer = Builder("main")
    start = outer.embedding(
        outer.weight("bf16[100, 64]", name="e"), outer.input("int64[B, T]", name="tokens")
    )
    outer.output(outer.repeat(start, body="body", times=layers, name="layer"))
    return Program(name, {"main": outer.graph(), "body": inner.graph()})


def rows_that_run(report: Report) -> Iterator[tuple[str, str]]:
    for op in report.work:
        yield op.name.rpartition(".")[2], units.time(float(op.time_s))


@pytest.mark.mostly_slow(11)
@needs_dot
@pytest.mark.parametrize("pipeline", [llmir.pipeline_of(), "dce"], ids=["fused", "eager"])
@pytest.mark.parametrize(
    ("fonts", "level", "phase"),
    [
        (*view, phase)
        for view in VIEWS
        for phase in (("decode",) if "full" in view else ("prefill", "decode", "both"))
    ],
    indirect=["fonts"],
)
@pytest.mark.parametrize("model", MODELS)
def test_text_stays_in_its_box_in_a_font_15_percent_wider(
    tmp_path: Path, fonts: str, model: str, level: str, phase: str, pipeline: str
) -> None:
    stays_inside(llmir.draw(job(model, pipeline), tmp_path / "x.svg", level=level, phase=phase))


@pytest.mark.slow
@needs_dot
@pytest.mark.parametrize(("fonts", "level"), VIEWS, indirect=["fonts"])
@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("llama3.1-8b", "stages{layers=(1, 31), micro_batches=2},shard{tp=2, sp=1}"),
        ("qwen3-30b-a3b", "stages{pp=3},shard{tp=2, dp=2, ep=4},quantize{collectives=fp8}"),
    ],
)
def test_ranks_and_stages_are_drawn(tmp_path: Path, fonts: str, model: str, how: str, level: str) -> None:
    stays_inside(llmir.draw(job(model, f"{llmir.pipeline_of()},{how}"), tmp_path / "x.svg", level=level))


@needs_dot
def test_the_text_of_a_difference_stays_in_its_box(tmp_path: Path, fonts: str) -> None:
    eager = llmir.load("llama3.1-8b")
    programs = [llmir.run(eager, how) for how in ("dce", llmir.pipeline_of())]
    diff = llmir.diff(*programs, "h100-sxm", prompt=256, generate=4, batch=2)
    stays_inside(llmir.draw(diff, tmp_path / "x.svg"))


@needs_dot
def test_an_svg_is_the_same_with_any_fonts(
    tmp_path: Path, fonts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = llmir.draw(job("llama3.1-8b"), tmp_path / "x.svg").read_bytes()
    monkeypatch.delenv("FONTCONFIG_FILE")
    assert llmir.draw(job("llama3.1-8b"), tmp_path / "y.svg").read_bytes() == picture


@needs_dot
@pytest.mark.parametrize("level", ["overview", "layer"])
def test_graphviz_aligns_the_same_text_at_the_same_place(tmp_path: Path, fonts: str, level: str) -> None:
    """As PNG and PDF show it, where each text lies as Graphviz measures it; and in the SVG, by its anchor."""
    work = job("llama3.1-8b")
    text = llmir.draw(work, tmp_path / "x.dot", level=level)
    found = json.loads(subprocess.run(["dot", "-Tjson", text], capture_output=True, check=True).stdout)
    nodes = {s.name: s for s in shapes(llmir.draw(work, tmp_path / "x.svg", level=level), "node")}
    checked = {"start": 0, "end": 0}
    for node in (o for o in found["objects"] if o["name"] in nodes):
        drawn, middle = nodes[node["name"]], float(node["pos"].split(",")[0])
        runs = [run for run in node["_ldraw_"] if run["op"] == "T"]
        assert [run["text"].replace("\u00a0", " ") for run in runs] == drawn.words
        for run, words in zip(runs, drawn.texts, strict=True):
            x = run["pt"][0] + (run["width"] if words.anchor == "end" else 0)
            assert x - middle == pytest.approx(words.x - (drawn.left + drawn.right) / 2, abs=1)
            checked[words.anchor] += 1
    assert min(checked.values()) > 20


def stays_inside(path: Path) -> None:
    """Every text lies in its box, and over no other."""
    check_inside(path.read_bytes())


@lru_cache(maxsize=128)
def check_inside(svg: bytes) -> None:
    """Once for each picture: most font sets give the same."""
    found = [s for kind in ("node", "cluster") for s in shapes(BytesIO(svg), kind)]
    assert sum(len(s.texts) for s in found) > 10
    for shape in found:
        for text in shape.texts:
            assert shape.left <= text.start and text.end <= shape.right, (shape, text)
            assert shape.top < text.line < shape.bottom, (shape.name, text)
        for a in shape.texts:
            for b in shape.texts:
                if a is not b and abs(a.line - b.line) < 2 and a.start <= b.start:
                    assert a.end <= b.start, (a, b)


@pytest.mark.slow
@needs_dot
@pytest.mark.parametrize("model", MODELS)
def test_boxes_of_ops_do_not_overlap(tmp_path: Path, model: str) -> None:
    for level in LEVELS:
        found = ops(llmir.draw(job(model, "dce"), tmp_path / "x.svg", level=level))
        for i, a in enumerate(found):
            for b in found[i + 1 :]:
                apart = a.right < b.left or b.right < a.left or a.bottom < b.top or b.bottom < a.top
                assert apart, (a.name, b.name)


@needs_dot
@pytest.mark.parametrize("model", MODELS)
def test_a_layer_shows_each_op_with_the_time_of_the_report(tmp_path: Path, model: str) -> None:
    work = job(model)
    for phase, report in (("prefill", work.prefill), ("decode", work.decode)):
        assert report is not None
        shown = [s.words[:2] for s in ops(llmir.draw(work, tmp_path / "x.svg", phase=phase))]
        assert sorted(map(tuple, shown)) == sorted(rows_that_run(report))


def shares(words: list[str]) -> list[float]:
    """The percentages among some words; less than a tenth counts as none."""
    return [0.0 if w.startswith("<") else float(w[:-1]) for w in words if re.fullmatch(r"<?-?[\d.]+%", w)]


@needs_dot
@pytest.mark.parametrize("how", ["", "stages{pp=3, micro_batches=2},shard{tp=2}"])
@pytest.mark.parametrize("level", ["overview", "layer"])
def test_shares_add_up_to_the_step(tmp_path: Path, level: str, how: str) -> None:
    """What the engine adds and the bubble of each stage are boxes too; none is below 0."""
    work = job("llama3.1-8b", f"{llmir.pipeline_of()},{how}" if how else llmir.pipeline_of())
    for phase in ("prefill", "decode"):
        path = llmir.draw(work, tmp_path / "x.svg", level=level, phase=phase)
        boxes = [b for b in shapes(path, "node") if not b.name.endswith(HEADS)]
        named = {re.sub(r"_\d+$", "", b.name) for b in boxes}
        assert {"p0_engine_cpu", *(["p0_bubble", "p0_rank_skew"] if how else [])} <= named
        found = shares([line for box in boxes for line in box.words])
        rounded = sum(0.5 if share >= 10 else 0.1 for share in found)  # two digits, or less than a tenth
        assert sum(found) == pytest.approx(100, abs=rounded)
        assert min(found) >= 0


@pytest.mark.slow
@needs_dot
def test_the_totals_are_those_of_the_workload(tmp_path: Path) -> None:
    work = job("llama3.1-8b")
    for level in LEVELS:
        words = llmir.draw(work, tmp_path / "x.svg", level=level).read_text("utf-8").replace("&#160;", " ")
        assert f"TTFT {units.time(work.ttft_s)}" in words and f"TPOT {units.time(work.tpot_s or 0)}" in words
        assert f"peak memory {units.bytes(work.peak_bytes(4))} of" in words
        assert "PREFILL" in words and "DECODE" in words


def test_the_number_of_layers_does_not_change_the_number_of_nodes(tmp_path: Path) -> None:
    def nodes(layers: int, level: str) -> int:
        report = llmir.analyze(program_of("x", layers=layers), "h100-sxm", new=8)
        text = llmir.draw(report, tmp_path / "x.dot", level=level).read_text("utf-8")
        return len(re.findall(r"^\s*p0_\d+ \[label=", text, flags=re.M))

    assert [nodes(80, level) - nodes(1, level) for level in LEVELS] == [0, 0, 79]


@pytest.mark.parametrize(("model", "expected"), [("llama3.1-8b", "layer"), ("gemma-3n-e4b", "overview")])
def test_a_layer_of_more_than_60_ops_is_drawn_as_an_overview(
    tmp_path: Path, model: str, expected: str
) -> None:
    """Without passes a layer of Gemma 3n has 65 ops, one of Llama 23."""
    report = llmir.analyze(llmir.load(model), "h100-sxm", new=8)

    def drawn(level: str | None) -> str:
        return llmir.draw(report, tmp_path / "x.dot", level=level).read_text("utf-8")

    assert drawn(None) == drawn(expected) != drawn("layer" if expected == "overview" else "overview")


def test_unrolled_layers_that_are_equal_fold_again(tmp_path: Path) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    texts = []
    for same in (program, llmir.run(program, "unroll")):
        report = llmir.analyze(same, "h100-sxm", new=64)
        text = llmir.draw(report, tmp_path / "x.dot", level="overview").read_text("utf-8")
        texts.append(re.sub(r"_\d+", "_", re.sub(r'tooltip="[^"]*"', "", text)))
    assert "× 32" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.slow
@needs_dot
def test_full_shows_every_op_of_126_layers(tmp_path: Path) -> None:
    work = job("llama3.1-405b")
    flat = llmir.run(work.program, "unroll")
    names = [n.name.rpartition(".")[2] for n in flat["main"].nodes if not isinstance(n.op, Source)]
    for program in (work.program, flat):
        report = llmir.analyze(program, "h100-sxm", new=64)
        path = llmir.draw(report, tmp_path / "x.svg", level="full")
        assert [s.words[0] for s in ops(path)] == names
        assert {f"layer {i}" for i in range(126)} <= {s.words[0] for s in shapes(path, "node") if s.words}


@needs_dot
@pytest.mark.parametrize("level", LEVELS)
def test_names_are_text_and_never_markup(tmp_path: Path, level: str) -> None:
    name, op = '<b>x</b> & "q"', "<i>&amp;\\N"
    report = llmir.analyze(program_of(name, op, layers=3), "h100-sxm", new=8)
    path = llmir.draw(report, tmp_path / "x.svg", level=level)
    words = [t.text for t in ElementTree.parse(path).iter(f"{SVG}text")]
    assert any((w or "").replace("\u00a0", " ").startswith(name) for w in words), words
    assert op in words


@needs_dot
def test_experts_are_counted_on_their_ops(tmp_path: Path) -> None:
    for level in ("overview", "layer"):
        path = llmir.draw(job("qwen3-30b-a3b"), tmp_path / "x.svg", level=level)
        assert any("128 experts, 8 per token" in s.words for s in shapes(path, "node"))


def test_residuals_are_dashed_and_jump_over_the_spine(tmp_path: Path) -> None:
    text = llmir.draw(job("llama3.1-8b"), tmp_path / "x.dot", phase="prefill").read_text("utf-8")
    dashed = re.findall(r"(p0_\w+) -> (p0_\w+) \[.*style=dashed", text)
    names = {n: text.split(f"{n} [label=")[1].split("<B>")[1].split("<")[0] for pair in dashed for n in pair}
    assert [(names[tail], names[head]) for tail, head in dashed] == [
        ("hidden", "add_post_norm"),
        ("add_post_norm", "mlp_add"),
    ]


@needs_dot
def test_formats_are_what_their_suffix_says(tmp_path: Path) -> None:
    report = llmir.analyze(program_of("x"), "h100-sxm", new=8)
    for suffix, start in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".gv", b"digraph")):
        path = llmir.draw(report, str(tmp_path / f"x{suffix}"))
        assert path == tmp_path / f"x{suffix}" and path.read_bytes().startswith(start)
    assert len(os.listdir(tmp_path)) == 4


def test_without_graphviz_its_input_is_written_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = llmir.analyze(program_of("x"), "h100-sxm", new=8)
    monkeypatch.setenv("PATH", "")
    with pytest.warns(UserWarning, match=r"apt install graphviz.*x\.dot") as warned:
        path = llmir.draw(report, tmp_path / "x.svg")
    assert warned[0].filename == __file__
    assert "\n" not in str(warned[0].message)
    assert path == tmp_path / "x.dot" and path.read_text("utf-8").startswith("digraph")
    assert os.listdir(tmp_path) == ["x.dot"]


def test_a_workload_of_one_token_has_only_a_prefill(tmp_path: Path) -> None:
    work = job("llama3.1-8b", generate=1)
    text = llmir.draw(work, tmp_path / "x.dot").read_text("utf-8")
    assert "PREFILL" in text and "DECODE" not in text
    with pytest.raises(InputError, match="no decode step"):
        llmir.draw(work, tmp_path / "y.dot", phase="decode")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("x.jpeg", {}, InputError, "suffix '.jpeg' is not one of .dot, .gv, .pdf, .png, .svg"),
        ("x", {}, InputError, "suffix '' is not one of"),
        ("x.svg", {"level": "ops"}, InputError, "level: expected overview, layer or full, got 'ops'"),
        (
            "x.svg",
            {"phase": "train"},
            InputError,
            "phase: expected encode, prefill, decode, draft or both, got 'train'",
        ),
        ("x.svg", {"level": []}, InputError, "level: expected overview, layer or full, got []"),
        ("x.svg", {"phase": 5}, InputError, "phase: expected encode, prefill, decode, draft or both, got 5"),
        ("none/x.svg", {}, OutputError, "there is no folder"),
        ("a\0b.svg", {}, InputError, "path: expected the name of a file"),
        ("a" * 300 + ".svg", {}, OutputError, "name"),
        (".", {}, OutputError, "is a folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, options: dict[str, Any], error: type[LlmirError], message: str
) -> None:
    report = llmir.analyze(program_of("x"), "h100-sxm", new=8)
    with pytest.raises(error) as caught:
        llmir.draw(report, tmp_path / name, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("path", [None, 123, b"x.svg"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    report = llmir.analyze(program_of("x"), "h100-sxm", new=8)
    with pytest.raises(InputError, match=f"^path: expected the name of a file, got {path!r}$"):
        llmir.draw(report, path)


def test_a_folder_that_cannot_be_written_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    report = llmir.analyze(program_of("x"), "h100-sxm", new=8)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        llmir.draw(report, tmp_path / "x.dot")
    assert not os.listdir(tmp_path)


def test_a_grid_is_not_a_picture(tmp_path: Path) -> None:
    report = Report(program_of("x"), device("h100-sxm"), batch=np.array([1, 2]), new=1, context=0)
    with pytest.raises(InputError, match="grid"):
        llmir.draw(report, tmp_path / "x.dot")
    with pytest.raises(InputError, match="Report or a Workload"):
        llmir.draw(3, tmp_path / "x.dot")  # type: ignore[arg-type]


def test_width_holds_both_weights_of_a_wide_font() -> None:
    for words in (
        "gate_up_proj",
        "52.1 µs",
        "TTFT 9.81 s · TPOT 48.6 ms",
        "little_tilt",
        "WWW mmm",
        "128 MB",
    ):
        for bold, weight in ((False, "normal"), (True, "bold")):
            needed = 10 * sum(FONTS[weight][c] for c in words) / 1000
            assert width(words, 10, bold=bold) > (1.1 * needed if bold else needed)


def test_what_does_not_fit_is_cut() -> None:
    assert fit("short", 10, 100) == "short"
    cut = fit("a_very_long_name_of_an_op", 10, 60)
    assert cut.endswith("…") and width(cut, 10) <= 60
