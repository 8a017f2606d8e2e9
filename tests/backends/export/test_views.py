"""What results look like: printed, in notebooks, as files, as pictures; for any program."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
import llmir.hw
from llmir.base.errors import InputError, LlmirError
from llmir.base.formats import EXPORTERS, Displayable, Result, export, formats
from llmir.cli.main import cli
from llmir.ir.core.program import Program
from tests.commands import TINY


def results() -> dict[str, Displayable]:
    """One of each kind."""
    eager = llmir.load(TINY)
    fused = llmir.run(eager, llmir.pipeline_of())
    job = llmir.workload(fused, "h100-sxm", prompt=8, generate=3)
    step = llmir.analyze(fused, "h100-sxm", new=8)
    return {
        "Program": eager,
        "Graph": eager["layer"],
        "Report": step,
        "Workload": job,
        "StepDiff": llmir.diff(eager, fused, "h100-sxm", new=8),
        "WorkloadDiff": llmir.diff(job, job),
        "Explanation": llmir.explain(job, "qkv_proj", phase="decode"),
        "Conservation": llmir.check(llmir.run(fused, "shard{tp=2}"), fused),
        "Equivalence": llmir.equivalent(eager, fused),
    }


RESULTS = results()
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_prints_and_shows_in_notebooks(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = RESULTS[kind]
    assert type(result).__name__ == kind
    print(result)
    said = capsys.readouterr().out
    assert len(said.splitlines()) > 2
    assert "\x1b" not in said and "object at 0x" not in said
    html = result._repr_html_()
    opened, closed = (re.findall(rf"<{slash}(table|tr|td|pre|p|b)\b", html) for slash in ("", "/"))
    assert sorted(opened) == sorted(closed) != []
    assert len(repr(result).splitlines()) == 1


@pytest.mark.parametrize("kind", [k for k, r in RESULTS.items() if isinstance(r, Result)])
def test_every_result_is_json(kind: str) -> None:
    result = RESULTS[kind]
    assert isinstance(result, Result)
    assert json.loads(export(result, "json")) == json.loads(json.dumps(result.to_dict()))


def test_a_printed_workload_is_the_table_of_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY), "utf-8")
    with pytest.raises(SystemExit):
        cli.main(["analyze", str(tmp_path / "tiny.json"), "--prompt", "8", "--generate", "3"])
    program = llmir.run(llmir.load(str(tmp_path / "tiny.json")), llmir.pipeline_of())
    job = llmir.workload(program, "h100-sxm", prompt=8, generate=3)
    assert capsys.readouterr().out == f"{job}\n"


def test_a_printed_report_has_its_figures_and_each_op() -> None:
    step = RESULTS["Report"]
    text = str(step)
    for op in llmir.analyze(llmir.run(llmir.load(TINY), llmir.pipeline_of()), "h100-sxm", new=8).ops:
        assert op.name.rpartition(".")[2] in text


def test_ir_is_what_a_program_prints() -> None:
    program = llmir.load(TINY)
    assert llmir.parse_program(str(program)) == program
    assert str(program["layer"]) in str(program)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "title"), [("", "Qwen3-0.6B"), ("llama3.1-8b", "q_proj")])
def test_the_bundled_models_are_listed_in_python_too(name: str, title: str) -> None:
    found = llmir.models(name)
    assert title in str(found)
    whole = json.loads(export(found, "json"))
    assert whole == json.loads(json.dumps(whole if found.data is None else found.data))
    assert len(list(csv.DictReader(io.StringIO(str(export(found, "csv")))))) == len(found.rows)


def test_what_is_not_bundled_is_one_line() -> None:
    for wrong in ("no such model", 3, None):
        with pytest.raises(LlmirError):
            llmir.models(wrong)  # type: ignore[arg-type]  # the mistake that is tested
    with pytest.raises(LlmirError, match="did you mean h100"):
        llmir.devices("h100-xsm")
    assert {row["kind"] for row in llmir.devices().rows} == {"device", "cluster"}


def test_the_bundled_devices_are_iterable() -> None:
    folders = (llmir.hw.__path__[0] + f"/{kind}" for kind in ("devices", "clusters"))
    files = {file.stem for folder in folders for file in Path(folder).glob("*.yaml")}
    assert {device["name"] for device in llmir.devices()} == files
    assert len(llmir.devices()) == len(files)
    assert [row["name"] for row in llmir.models("llama-3.2")] == ["Llama-3.2-1B", "Llama-3.2-3B"]


def test_a_long_program_is_cut_in_notebooks_only() -> None:
    program = llmir.run(llmir.load("llama3.2-1b"), "unroll")
    assert len(program._repr_html_().splitlines()) <= 401
    assert "more lines" in program._repr_html_()
    assert llmir.parse_program(str(program)) == program


def test_files_are_written_as_their_suffix_says(tmp_path: Path) -> None:
    step = RESULTS["Report"]
    for suffix, name in ((".txt", "table"), (".json", "json"), (".csv", "csv"), (".html", "html")):
        written = llmir.save(step, tmp_path / f"step{suffix}")
        text = written.read_text("utf-8")
        assert str(export(step, name)) in text
        assert (text == export(step, name)) == (name != "html")
    page = (tmp_path / "step.html").read_text("utf-8")
    assert page.startswith('<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>')
    assert llmir.save(step, tmp_path / "page", "html").read_text("utf-8") == page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "step.csv").read_text("utf-8"))))
    assert [row["name"] for row in rows] == [op["name"] for op in step.to_dict()["ops"]]  # type: ignore[attr-defined]
    assert llmir.save(step, tmp_path / "plain", "json").read_text("utf-8") == export(step, "json")
    program = llmir.load(TINY)
    assert llmir.load(llmir.save(program, tmp_path / "tiny.ir")) == program
    assert llmir.load(tmp_path / "tiny.ir") == program


@pytest.mark.parametrize(
    ("name", "format", "says"),
    [
        ("x.ir", None, "suffix '.ir' is unknown; allowed are .csv, .html, .json, .txt"),
        ("x", None, "suffix '' is unknown"),
        ("x.json", "jsn", "a Report has no format 'jsn'; it has csv, html, json, table; did you mean json"),
        ("nowhere/x.json", None, "there is no folder"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_no_file(
    tmp_path: Path, name: str, format: str | None, says: str
) -> None:
    with pytest.raises(LlmirError) as error:
        llmir.save(RESULTS["Report"], tmp_path / name, format)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="expected a result"):
        llmir.save(3, tmp_path / "x.json")  # type: ignore[arg-type]  # the mistake that is tested


def test_each_format_of_a_class_is_made_by_what_registered_it() -> None:
    for name, entry in EXPORTERS.items():
        assert name == f"{entry.format} of {entry.of.__name__}"
        assert (entry.format in formats(entry.of, picture=entry.picture)) is True
        assert all(re.fullmatch(r"\.\w+", suffix) for suffix in entry.suffixes)


def test_every_name_of_the_public_face_is_there() -> None:
    assert dir(llmir) == sorted(llmir.__all__)
    for name in llmir.__all__:
        thing: Any = getattr(llmir, name)
        assert name.startswith("__") or name.isupper() or thing.__doc__, name


@pytest.mark.slow
def test_the_most_special_format_is_taken_whatever_was_imported_first() -> None:
    code = """
import llmir, llmir.backends.export.table
model = llmir.load("llama3.2-1b")
print(llmir.diff(model, model, "h100-sxm")._repr_html_()[:3])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ran.stdout, ran.stderr) == ("<p>\n", "")  # a table under its title, and no text as it prints


LETTERS = "abcdefgh"


@st.composite
def linears(draw: st.DrawFn) -> Program:
    """A program of a single linear: any axes, some shared, with or without a bias, some of them B or T."""
    shared = draw(st.lists(st.sampled_from(LETTERS[:3]), unique=True, max_size=2))
    of_x = draw(st.lists(st.sampled_from(LETTERS[3:5]), unique=True, max_size=2))
    of_w = draw(st.lists(st.sampled_from(LETTERS[5:]), unique=True, max_size=2))
    sizes: dict[str, Any] = {a: draw(st.integers(1, 64)) for a in LETTERS}
    sizes |= {a: draw(st.sampled_from(["B", "T", 7])) for a in of_x[:1]}
    result = of_x + of_w + [a for a in shared if draw(st.booleans())]
    b = llmir.Builder()

    def type_of(axes: list[str]) -> str:
        return f"bf16[{', '.join(str(sizes[a]) for a in axes)}]"

    x, w = b.input(type_of(of_x + shared), name="x"), b.weight(type_of(shared + of_w), name="w")
    terms, operands = [of_x + shared, shared + of_w], [x, w]
    if draw(st.booleans()):
        terms.append(of_w)
        operands.append(b.weight(type_of(of_w), name="bias"))
    einsum = f"{', '.join(' '.join(t) for t in terms)} -> {' '.join(result)}"
    b.output(b.linear(*operands, einsum=einsum))
    return Program("any linear", {"main": b.graph()})


@pytest.mark.slow
@given(linears(), st.sampled_from(("overview", "layer", "full")))
def test_any_linear_is_drawn_printed_and_explained(program: Program, level: str) -> None:
    step = llmir.analyze(program, "h100-sxm", batch=2, new=3)
    source = export(step, "dot", level=level, phase="both")
    assert isinstance(source, str) and "linear" in source
    assert "linear" in str(step)
    assert str(program["main"]["linear"].op.einsum) in str(llmir.explain(step, "linear"))  # type: ignore[attr-defined]
    assert llmir.parse_program(str(program)) == program


def test_requests_of_two_programs_are_compared_by_one_basis() -> None:
    eager = llmir.load(TINY)
    fused = llmir.run(eager, llmir.pipeline_of())
    found = llmir.diff(eager, fused, "h100-sxm", hw_after="tpu-v6e", prompt=8, generate=3)
    assert (found.before.prompt, found.before.generate, found.why != "") == (8, 3, True)  # type: ignore[union-attr]
    jobs = [
        llmir.workload(p, hw, prompt=8, generate=3, estimation=llmir.Estimation(cost="ideal"))
        for p, hw in ((eager, "h100-sxm"), (fused, "tpu-v6e"))
    ]
    assert found.total("ttft_s") == tuple(j.ttft_s for j in jobs)
    with pytest.raises(InputError, match="new and context describe a step"):
        llmir.diff(eager, fused, "h100-sxm", prompt=8, new=1)
