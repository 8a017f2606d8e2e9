"""`llmir validate` on the command line: formats, files, pictures, and what it says of bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import llmir
from tests.commands import Run, runner

GEMM = "gpu,dtype,m,n,k,latency_us,framework\n"
GOOD = "h100_sxm,bfloat16,64,4096,4096,12,vllm-1\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "gemm.csv").write_text(
        GEMM + GOOD + "h100_sxm,bfloat16,8192,8192,8192,2000,vllm-1\nx9,bfloat16,1,1,1,5,y\n", "utf-8"
    )
    (tmp_path / "chat.csv").write_text("id,input_tokens,output_tokens,ttft_ms\na,16,8,9\nb,40,1,\n", "utf-8")
    return runner(capsys, tmp_path, monkeypatch)


def test_the_json_has_rows_refusals_and_groups(run: Run) -> None:
    found = json.loads(run("validate", "gemm.csv", "--format", "json").out)
    assert [r["row"] for r in found["rows"]] == [1, 2]
    assert found["refused"][0]["reason"] == "unknown device 'x9' (list: llmir hw)"
    judged = next(g for g in found["groups"] if g["n"])
    assert {"kind", "device", "framework", "n", "mape", "median", "bias", "p90"} <= judged.keys()
    assert (judged["kind"], judged["device"], judged["framework"]) == ("gemm", "H100-SXM", "vllm-1")


def test_the_table_says_what_was_priced_and_what_was_not(run: Run) -> None:
    said = run("validate", "gemm.csv")
    assert said.code == 0
    assert said.out.startswith("2 of 3 rows priced, 1 refused, cost model calibrated")
    assert "unknown device 'x9'" in said.out
    assert str(llmir.validate("gemm.csv")) == said.out.rstrip()


def test_a_csv_has_every_row_and_the_statistics_are_still_shown(run: Run, tmp_path: Path) -> None:
    said = run("validate", "gemm.csv", "--by", "engine,size", "-o", "rows.csv")
    assert "vllm" in said.out
    assert "10–100 µs" in said.out
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [r["row"] for r in rows] == ["1", "2", "3"]
    assert all(float(r["ideal_s"]) <= float(r["predicted_s"]) for r in rows[:2])
    assert (rows[2]["predicted_s"], rows[2]["refused"]) == ("", "unknown device 'x9' (list: llmir hw)")
    assert "| gemm" in run("validate", "gemm.csv", "--format", "md").out


def test_a_page_is_html(run: Run, tmp_path: Path) -> None:
    assert run("validate", "gemm.csv", "-o", "page.html").code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "rows priced" in page


def test_a_log_gets_its_predictions_beside_its_own_columns(run: Run, tmp_path: Path) -> None:
    said = run(
        "validate", "chat.csv", "--model", "tiny.json", "--hw", "rtx3090", "--tp", "2", "-o", "out.csv"
    )
    assert said.code == 0
    first, second = csv.DictReader((tmp_path / "out.csv").open())
    assert (first["id"], first["ttft_ms"], second["id"]) == ("a", "9", "b")
    assert 0 < float(first["predicted_ttft_s"]) < float(first["predicted_e2e_s"])
    assert second["predicted_tpot_s"] == ""


def test_a_log_keeps_the_rows_that_are_not_priced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chat.csv").write_text("id,input_tokens,output_tokens\na,16,8\nb,40,\n", "utf-8")
    run("validate", "chat.csv", "--model", "tiny.json", "--hw", "rtx3090", "-o", "out.csv")
    first, second = csv.DictReader((tmp_path / "out.csv").open())
    assert float(first["predicted_e2e_s"]) > 0
    assert (second["id"], second["predicted_e2e_s"], second["basis"]) == ("b", "", "")


@pytest.mark.slow
def test_pictures_of_each_kind_and_metric(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("validate", "gemm.csv", "--plot", "plots").code == 0
    run("validate", "chat.csv", "--model", "tiny.json", "--hw", "rtx3090", "--plot", "plots")
    names = {f.name for f in (tmp_path / "plots").iterdir()}
    assert {"gemm-latency-scatter.png", "gemm-latency-error.png", "chat-ttft-requests.png"} <= names
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in (tmp_path / "plots").iterdir())


def test_without_matplotlib_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    said = run("validate", "gemm.csv", "--plot", "plots")
    assert (said.code, said.err) == (2, "error: --plot needs matplotlib: pip install 'llmir[plot]'\n")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("h100_sxm,bfloat16,x,4096,4096,12,vllm-1", "m must be a number, got 'x'"),
        ("h100_sxm,bfloat16,-64,4096,4096,12,vllm-1", "m must be a number from 1 to"),
        ("h100_sxm,bfloat16,64,4096,4096,-12,vllm-1", "latency_us must be a number from 0.001 to"),
        ("h100_sxm,bfloat16,64,4096,4096,1e300,vllm-1", "latency_us must be a number from 0.001 to"),
        ("h100_sxm,bfloat16,1e40,4096,4096,12,vllm-1", "m must be a number from 1 to"),
        ("h100_sxm,bfloat16,64,4096,4096,nan,vllm-1", "latency_us must be"),
        ("h100_sxm,bfloat16,64,4096", "k is empty"),
        ("h100_sxm,bfloat16,6.5,4096,4096,12,vllm-1", "m must be an integer"),
    ],
)
def test_rows_that_make_no_sense_are_named_and_the_rest_used(
    run: Run, tmp_path: Path, row: str, problem: str
) -> None:
    (tmp_path / "bad.csv").write_text(GEMM + GOOD + row + "\n" + GOOD, "utf-8")
    said = run("validate", "bad.csv")
    assert said.code == 0
    assert said.out.startswith("2 of 3 rows priced, 1 unreadable")
    assert said.err.startswith("note: bad.csv: row 2: ")
    assert problem in said.err


def test_a_request_of_absurd_length_is_named_and_the_rest_priced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("input_tokens,output_tokens\n5,5\n9000000,9000000\n0,3\n", "utf-8")
    said = run("validate", "long.csv", "--model", "tiny.json", "--hw", "h100", "--format", "json")
    assert {r["row"] for r in json.loads(said.out)["rows"]} == {1}
    assert [x.split(":")[2] for x in said.err.splitlines()] == [" row 2", " row 3"]


def test_many_rows_that_make_no_sense_are_summed_up(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(GEMM + GOOD + "h100_sxm,bfloat16,x,1,1,1,y\n" * 50, "utf-8")
    assert (
        run("validate", "bad.csv").err.splitlines()[-1]
        == "note: bad.csv: 45 more rows could not be read: 7–51"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.csv: the file is empty"),
        (b"\n\n", "bad.csv: the file is empty"),
        (b"\xff\xfe\x00\x01", "bad.csv: not readable as CSV"),
        (b"a,b\n1,2\n", "bad.csv: not a table that can be validated; nearest is"),
        (
            b"gpu,dtype,m,n,latency_us,framework\n",
            "nearest is gemm, without k (it has gpu, dtype, m, n, latency_us",
        ),
        (b"input_tokens,output_tokens\n1,1\n", "bad.csv: a chat log requires --model and --hw"),
    ],
)
def test_a_file_that_is_nothing_is_one_line(run: Run, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.csv").write_bytes(content)
    said = run("validate", "bad.csv")
    assert said.code == 2
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.csv",), "error: nothing.csv: cannot be read, No such file or directory"),
        ((".",), "cannot be read, Is a directory"),
        (("gemm.csv", "--by", "modell"), "error: --by: unknown key 'modell'; allowed are kind, metric"),
        (("gemm.csv", "--tp", "2"), "error: --tp: applies only to chat logs with --model"),
        (("gemm.csv", "--hw", "h100"), "error: --hw: applies only to chat logs with --model"),
        (("chat.csv", "--model", "tiny.json"), "error: --model: chat logs also need --hw"),
        (("gemm.csv", "--model", "tiny.json", "--hw", "h100"), "a table of gemm rows says on what it ran"),
        (("gemm.csv", "-o", "rows.xlsx"), "suffix '.xlsx' is unknown"),
        ((), "missing argument"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    said = run("validate", *arguments)
    assert said.code == 2
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_table_without_rows_is_no_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text(GEMM, "utf-8")
    assert run("validate", "none.csv").out.startswith("0 of 0 rows priced")
    (tmp_path / "empty.csv").write_text("input_tokens,output_tokens\n", "utf-8")
    assert run("validate", "empty.csv", "--model", "tiny.json", "--hw", "h100", "--format", "csv").code == 0
