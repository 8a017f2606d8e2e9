"""`llmir diff` and `llmir passes`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import llmir
from llmir.backends.compare.diff import FIGURES
from llmir.hw import library
from llmir.ir.tools.pipeline import PASSES
from tests.commands import Run, config

USUAL = llmir.pipeline_of("vllm")  # which prices where none is named
FIRST = "rotate,absorb-mla{phase=decode}"
POINT = ("--prompt", "32", "--generate", "8", "--batch", "2")


def compared(run: Run, *arguments: str, model: str = "tiny.json") -> dict[str, Any]:
    ran = run("diff", model, *POINT, "--format", "json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    data: dict[str, Any] = json.loads(ran.out)
    return data


def pipelines(data: dict[str, Any]) -> tuple[str, str]:
    return data["before"]["pipeline"], data["after"]["pipeline"]


@pytest.mark.parametrize(
    ("arguments", "before", "after"),
    [
        ((), "", USUAL),
        (("--before", "fuse"), "fuse", USUAL),
        (("--after", "fuse-attention"), "", "fuse-attention"),
        (("--before", "fuse", "--after", ""), "fuse", ""),
        (("--pass", "fuse-attention"), FIRST, f"{FIRST},fuse-attention"),
        (("--pass", "fuse"), f"{FIRST},fuse-attention", f"{FIRST},fuse-attention,fuse"),
        (("--pass", "unroll"), USUAL, f"{USUAL},unroll"),
        (("--hw-after", "a100"), USUAL, USUAL),
        (("--engine", "sglang"), "", llmir.pipeline_of("sglang")),
        (("--engine", "hf-transformers", "--hw-after", "a100"), *[llmir.pipeline_of("hf-transformers")] * 2),
        (
            ("--engine", "vllm@0.6", "--engine-after", "trtllm"),
            *map(llmir.pipeline_of, ("vllm@0.6", "trtllm")),
        ),
        (("--hw-after", "tpu-v6e"), llmir.pipeline_of(), llmir.pipeline_of()),
        (("--cost", "ideal"), "", llmir.pipeline_of()),
        (("tiny.json",), USUAL, USUAL),
        (("tiny.json", "--before", ""), "", USUAL),
    ],
)
def test_what_is_compared(run: Run, arguments: tuple[str, ...], before: str, after: str) -> None:
    assert pipelines(compared(run, *arguments)) == (before, after)


def test_both_sides_are_what_analyze_says(run: Run) -> None:
    data = compared(run, "--hw-after", "a100", "--before", "", "--after", "fuse")
    for side, hw, pipeline in (("before", "h100-sxm", ""), ("after", "a100", "fuse")):
        ran = run("analyze", "tiny.json", *POINT, "--hw", hw, "--pipeline", pipeline, "--format", "json")
        own = json.loads(ran.out)
        assert data["ttft_s"][side] == own["ttft_s"]
        assert data["tpot_s"][side] == own["tpot_s"]
        for name, phase in data["phases"].items():
            for figure in (*FIGURES, "peak_memory_bytes", "weight_bytes"):
                assert phase[figure][side] == own["phases"][name][figure]


def test_a_file_of_ir_is_a_side(run: Run, tmp_path: Path) -> None:
    run("opt", "tiny.json", "-p", f"{FIRST},fuse-attention", "-o", "flash.ir")
    run("opt", "tiny.json", "-p", f"{FIRST},fuse-attention,fuse", "-o", "fused.ir")
    data = compared(run, "fused.ir", model="flash.ir")
    assert pipelines(data) == ("", "")
    assert data["phases"] == compared(run, "--pass", "fuse")["phases"]
    assert pipelines(compared(run, model="flash.ir")) == ("", USUAL)


def test_stdin_is_read_once_for_both_sides(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("opt", "tiny.json").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert compared(run, model="-")["phases"] == compared(run)["phases"]


def test_the_table_is_plain_and_narrow(run: Run) -> None:
    for model in ("llama3.1-8b", "qwen3-30b-a3b"):
        out = run("diff", model, "--batch", "8").out
        assert max(map(len, out.splitlines())) <= 100
        assert "\x1b" not in out
        for text in ("flash_attention", "was scores, mask", "layer ×", "TTFT", "peak memory", "total"):
            assert text in out


def test_nothing_is_said_to_change_when_nothing_does(run: Run) -> None:
    data = compared(run, "--after", "")
    for phase in data["phases"].values():
        assert phase["changes"] == []
        assert {phase[f]["delta"] for f in FIGURES} == {0}
    assert "as before" in run("diff", "tiny.json", "--after", "").out


def test_the_csv_holds_the_numbers_of_the_json(run: Run) -> None:
    data = compared(run)
    rows = list(csv.DictReader(io.StringIO(run("diff", "tiny.json", *POINT, "--format", "csv").out)))
    for name, phase in data["phases"].items():
        *changes, total = (row for row in rows if row["phase"] == name)
        assert total["what"] == "total"
        for row, change in zip(changes, phase["changes"], strict=True):
            assert row["what"] == change["what"]
            assert row["after"].split() == [op["name"] for op in change["after"]]
            assert {f: float(row[f"{f}_delta"]) for f in FIGURES} == change["delta"]
        for figure in FIGURES:
            deltas = [float(row[f"{figure}_delta"]) for row in changes]
            assert sum(deltas) == pytest.approx(float(total[f"{figure}_delta"]))


@pytest.mark.parametrize(
    ("suffix", "form"), [("txt", "table"), ("json", "json"), ("csv", "csv"), ("md", "md")]
)
@pytest.mark.parametrize("command", [("diff", "tiny.json", *POINT), ("passes",)])
def test_a_suffix_decides_the_format(
    run: Run, tmp_path: Path, command: tuple[str, ...], suffix: str, form: str
) -> None:
    written = run(*command, "-o", f"out.{suffix}")
    assert (written.code, written.out) == (0, "")
    assert (tmp_path / f"out.{suffix}").read_text("utf-8") == run(*command, "--format", form).out


@pytest.mark.parametrize("form", ["table", "md"])
def test_markup_in_a_name_is_text(run: Run, tmp_path: Path, form: str) -> None:
    path = config(tmp_path, _name_or_path="[red]x")
    out = run("diff", path, *POINT, "--format", form).out.replace("\\", "")
    assert "[red]x on H100-SXM" in out


def test_a_prompt_without_decode_is_compared(run: Run) -> None:
    data = compared(run, "--generate", "1")
    assert (data["phases"]["decode"], data["tpot_s"]["delta"]) == (None, None)
    for form in ("table", "csv", "md"):
        assert run("diff", "tiny.json", "--generate", "1", "--format", form).code == 0


@dataclass(frozen=True)
class Cut(llmir.Pass):
    """Cuts into parts.

    And more of it.
    """

    name: ClassVar[str] = "cut"

    parts: int
    how: str = "evenly"


del PASSES["cut"]  # no other test should meet it


def test_passes_are_listed_from_their_classes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "cut", Cut)
    data = json.loads(run("passes", "--format", "json").out)
    assert data["default"] == llmir.pipeline_of()
    names = {engine.split()[0]: pipeline for engine, pipeline in data["engines"].items()}
    assert names == {name: llmir.pipeline_of(name) for name in library.engines()}
    said = " ".join(run("passes").out.split())
    assert all(f"{engine}" in said for engine in data["engines"])
    assert all(pipeline.replace(",", ", ") in said for pipeline in {*names.values(), llmir.pipeline_of()})
    assert [p["name"] for p in data["passes"]] == list(PASSES)
    for p in data["passes"]:
        assert p["summary"] == (PASSES[p["name"]].__doc__ or "").splitlines()[0]
    assert next(p for p in data["passes"] if p["name"] == "cut") == {
        "name": "cut",
        "summary": "Cuts into parts.",
        "options": [
            {"name": "parts", "type": "int", "required": True},
            {"name": "how", "type": "str", "required": False, "default": "evenly"},
        ],
    }
    for form in ("table", "csv", "md"):
        out = run("passes", "--format", form).out
        assert all(text in out for text in ("Cuts into parts.", "parts: int", "how: str = 'evenly'"))
