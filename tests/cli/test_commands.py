"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.cli.command import COMMANDS
from tests.commands import Ran, Run, config, environment


def analyzed(run: Run, *arguments: str) -> dict[str, Any]:
    ran = run("analyze", "tiny.json", "--prompt", "32", "--generate", "8", "--format", "json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    data: dict[str, Any] = json.loads(ran.out)
    return data


PHASE = {
    **dict.fromkeys(("time_s", "overhead_s"), float),
    **dict.fromkeys(("weight_read_bytes", "activation_read_bytes", "kv_cache_read_bytes"), int),
    **dict.fromkeys(("activation_write_bytes", "kv_cache_write_bytes"), int),
    **dict.fromkeys(("flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes"), int),
    **dict.fromkeys(("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes"), int),
    "peak_at": str,
    "bound": dict,
    "ops": list,
}
OP = {
    **dict.fromkeys(("name", "kind", "block", "bound"), str),
    **dict.fromkeys(("repeat", "flops", "read_bytes", "write_bytes"), int),
    **dict.fromkeys(("time_s", "share"), float),
    "shape": list,
}
REPORT = {
    "schema_version": int,
    "model": dict,
    "hardware": dict,
    "workload": dict,
    "cost_model": str,
    "fits": bool,
    "max_batch": int,
    **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"), float),
    "phases": dict,
}


def has(data: dict[str, Any], keys: dict[str, type]) -> None:
    assert {k: type(data[k]) for k in keys} == keys


def test_the_json_has_every_key_of_the_schema_and_its_type(run: Run) -> None:
    data = analyzed(run, "--batch", "2")
    has(data, REPORT)
    assert data["schema_version"] == 3
    model = {"architecture": str, "layers": int, "parameters": int, "active_parameters": int}
    has(data["model"], {"name": str, **model})
    assert data["model"]["name"] == "tiny"
    assert data["hardware"] == {"name": "H100-SXM", "devices": 1, "cluster": None, "nodes": None, "links": []}
    reads = {"chunk": 8192, "chunk_by": "vllm 0.21"}
    assert data["workload"] == {"batch": 2, "prompt": 32, "generate": 8, **reads, "cached": 0}
    assert list(data["phases"]) == ["prefill", "decode"]
    for phase in data["phases"].values():
        has(phase, PHASE)
        assert set(phase["bound"]) == {"compute", "memory", "network", "overhead", "bubble"}
        assert sum(phase["bound"].values()) == pytest.approx(1, rel=1e-12, abs=0)
        for op in phase["ops"]:
            has(op, OP)
            assert (op["intensity"] is None) == (op["kind"] == "overhead")


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_rows_times_repeats_are_the_phase(run: Run, attention: str) -> None:
    for phase in analyzed(run, "--attention", attention)["phases"].values():
        for key in ("flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes"):
            assert phase[key] == sum(op[key] * op["repeat"] for op in phase["ops"])
        time = sum(o["time_s"] * o["repeat"] for o in phase["ops"])
        assert phase["time_s"] == pytest.approx(time, rel=1e-12, abs=0)
        assert sum(op["share"] for op in phase["ops"]) == pytest.approx(1, rel=1e-12, abs=0)


def test_one_token_has_no_decode(run: Run) -> None:
    data = analyzed(run, "--generate", "1")
    assert (data["phases"]["decode"], data["tpot_s"]) == (None, None)
    assert data["e2e_s"] == data["ttft_s"]
    assert run("analyze", "tiny.json", "--generate", "1").code == 0


def test_eager_attention_is_a_pipeline_without_its_fusion(run: Run) -> None:
    eager = analyzed(run, "--attention", "eager")
    assert eager == analyzed(run, "--pipeline", "fuse,dce")
    names = [op["name"] for op in eager["phases"]["prefill"]["ops"]]
    assert "layer.softmax" in names
    assert "layer.flash_attention" not in names
    assert analyzed(run) == analyzed(run, "--pipeline", llmir.pipeline_of("vllm"))


def test_logits_of_all_positions_cost_more(run: Run) -> None:
    shapes = [
        analyzed(run, "--logits", which)["phases"]["prefill"]["ops"][-2]["shape"] for which in ("last", "all")
    ]
    assert shapes == [[1, 128], [1, 32, 128]]


def test_csv_holds_the_numbers_of_the_json(run: Run) -> None:
    data = analyzed(run)
    printed = run("analyze", "tiny.json", "--prompt", "32", "--generate", "8", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(printed)))
    ops = [(phase, op) for phase, report in data["phases"].items() for op in report["ops"]]
    assert len(rows) == len(ops)
    for row, (phase, op) in zip(rows, ops, strict=True):
        assert (row["phase"], row["name"], row["bound"]) == (phase, op["name"], op["bound"])
        assert [int(n) for n in row["shape"].split("x") if n] == op["shape"]
        for key in ("repeat", "flops", "read_bytes", "write_bytes"):
            assert int(row[key]) == op[key]
        for key in ("time_s", "intensity", "share"):
            assert float(row[key] or "nan") == op[key] or op[key] is None


@pytest.mark.parametrize(
    ("suffix", "form"), [("txt", "table"), ("json", "json"), ("csv", "csv"), ("md", "md")]
)
def test_a_suffix_decides_the_format(run: Run, tmp_path: Path, suffix: str, form: str) -> None:
    (tmp_path / f"out.{suffix}").write_text("old", "utf-8")
    written = run("analyze", "tiny.json", "--prompt", "8", "-o", f"out.{suffix}")
    assert (written.code, written.out) == (0, "")
    printed = run("analyze", "tiny.json", "--prompt", "8", "--format", form)
    assert (tmp_path / f"out.{suffix}").read_text("utf-8") == printed.out
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["tiny.json", f"out.{suffix}"])


def test_a_format_is_enough_for_a_path_without_a_suffix(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("analyze", "tiny.json", "--prompt", "8", "--format", "json", "-o")
    assert run(*asked, "out").code == 0
    assert json.loads((tmp_path / "out").read_text("utf-8"))["schema_version"] == 3
    monkeypatch.setattr(os, "access", lambda path, how: Path(path) == Path(os.devnull))  # as for most users
    assert (run(*asked, os.devnull).code, Path(os.devnull).is_file()) == (0, False)


def test_a_model_that_does_not_fit_is_analysed(run: Run) -> None:
    ran = run("analyze", "llama3.1-70b", "--hw", "t4", "--format", "json")
    data = json.loads(ran.out)
    assert (ran.code, data["fits"], data["max_batch"]) == (0, False, 0)
    assert "has no bf16" in ran.err
    assert "NO, peak" in run("analyze", "llama3.1-70b", "--hw", "t4").out


def test_a_prompt_beyond_the_positions_is_a_note(run: Run) -> None:
    ran = run("analyze", "tiny.json", "--prompt", "64", "--generate", "2")
    assert (ran.code, ran.err) == (
        0,
        "note: prompt 64 + generate 2 exceeds the model's 64 positions\n",
    )


def test_limits_of_the_user_decide_the_exit_code(run: Run) -> None:
    assert run("analyze", "llama3.1-8b", "--max-ttft", "1e6", "--max-tpot", "1e6", "--require-fit").code == 0
    ran = run("analyze", "llama3.1-70b", "--max-ttft", "1", "--max-tpot", "1", "--require-fit")
    assert ran.code == 1
    assert "Llama-3.1-70B" in ran.out
    assert [line.split(":")[1].split()[0] for line in ran.err.splitlines()] == [
        "--max-ttft",
        "--max-tpot",
        "--require-fit",
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5 kib", 1536), ("7", 7), ("0B", 0)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    from llmir.api.options import Memory, option
    from llmir.cli.options import Bytes

    assert Bytes(option(Memory, "reserve_bytes")).convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "time_ms"), [("50", 50.0), ("0.5", 0.5), ("50ms", 50.0), ("0.05s", 50.0), ("1s", 1000.0)]
)
def test_limits_of_latencies_are_milliseconds_or_have_a_unit(text: str, time_ms: float) -> None:
    from llmir.cli.options import Milliseconds

    assert Milliseconds().convert(text, None, None) == pytest.approx(time_ms, rel=1e-12, abs=0)


def test_a_reserve_leaves_room_for_fewer(run: Run) -> None:
    assert analyzed(run, "--reserve", "60GiB")["max_batch"] < analyzed(run)["max_batch"]


ONE_OP = "graph @main {\n  %x = input() : bf16[B, T]\n  %y = silu(%x) : bf16[B, T]\n  return %y\n}\n"
NAME = "<b>[red]x[/red]</b>|&"


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_markup_in_a_name_is_text(run: Run, tmp_path: Path, form: str) -> None:
    path = config(tmp_path, _name_or_path=NAME.replace("/", "\N{DIVISION SLASH}"))
    ran = run("analyze", path, "--prompt", "8", "--generate", "2", "--format", form)
    name = NAME.replace("/", "\N{DIVISION SLASH}")
    assert ran.code == 0
    if form == "md":
        name = re.sub(r"([<\[\]|&])", r"\\\1", name)
        assert not re.search(r"(?<!\\)<", ran.out)
    assert name in ran.out


def test_a_name_cannot_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    text = 'program "a\\u001b[31m\\nb"\n' + ONE_OP
    (tmp_path / "name.ir").write_text(text, "utf-8")
    for arguments in (("analyze", "name.ir"), ("analyze", "name.ir", "--format", "md")):
        ran = run(*arguments)
        assert (ran.code, "\x1b" in ran.out) == (0, False)
        assert "a [31m b" in ran.out.replace("\\", "")


def test_tables_are_whole_and_plain_when_piped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("analyze", "llama3.1-8b").out.splitlines()
    assert not [line for line in lines if "\x1b" in line or "…" in line or line != line.rstrip()]
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith((" gate_up_proj", " qkv_proj", "lm_head"))]
    assert len(rows) == 6
    assert all(re.search(r"\d+/\d+/\d+ (memory|compute) +[\d.]+%$", row) for row in rows)


def test_colours_are_shown_if_asked_for_and_not_forbidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("analyze", "tiny.json").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("analyze", "tiny.json").out
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == plain.split()
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("analyze", "tiny.json").out == plain


def test_ir_is_printed_and_read_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = run("opt", "tiny.json", "-p", llmir.pipeline_of()).out
    assert run("opt", "tiny.json", "-p", llmir.pipeline_of(), "-o", "tiny.ir").code == 0
    assert (tmp_path / "tiny.ir").read_text("utf-8") == fused
    assert run("opt", "tiny.ir").out == fused
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(fused.encode())))
    assert run("opt", "-", "-p", "unroll").out == run("opt", "tiny.ir", "-p", "unroll").out
    assert json.loads(
        run("analyze", "tiny.ir", "--prompt", "32", "--generate", "8", "--format", "json").out
    ) == analyzed(run)


def test_ir_is_printed_after_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each below its header, as it is where the pipeline ends there; the result stays what it was."""
    command = ("opt", "tiny.json", "-p", "fuse-attention,fuse", "--tp", "2")
    plain, ran = run(*command), run(*command, "--print-after-all")
    assert (ran.code, ran.out) == (0, plain.out)
    steps = [line for line in ran.err.splitlines() if line.startswith("#")]
    assert steps == ["# after fuse-attention", "# after fuse", "# after shard{tp=2}"]
    first, second, third = re.split("^# after .*\n", ran.err, flags=re.MULTILINE)[1:]
    assert first == run("opt", "tiny.json", "-p", "fuse-attention").out
    assert second == run("opt", "tiny.json", "-p", "fuse-attention,fuse").out
    assert third == plain.out + plain.err
    some = run(*command, "--print-after", "shard", "--print-after", "fuse")
    assert (some.out, some.err) == (plain.out, f"{steps[1]}\n{second}{steps[2]}\n{third}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{steps[1]}\n{second}".encode())))
    assert run("opt", "-").out == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("fuze",),
            "pass 'fuze' does not exist; passes that run are fuse-attention, fuse; did you mean",
        ),
        (("dce",), "dce: the pass does not run; passes that run are fuse-attention, fuse"),
        (("fuse", "--print-after-all"), "prints after each pass, leave --print-after out"),
    ],
)
def test_a_pass_that_does_not_run_is_not_printed_after(
    run: Run, options: tuple[str, ...], message: str
) -> None:
    ran = run("opt", "tiny.json", "-p", "fuse-attention,fuse", "--print-after", *options)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err


@pytest.mark.parametrize("suffix", ["dot", "gv"])
def test_draw_prints_where_the_picture_is(run: Run, tmp_path: Path, suffix: str) -> None:
    ran = run("draw", "tiny.json", "--prompt", "8", "--generate", "2", "-o", f"tiny.{suffix}")
    assert (ran.code, ran.err) == (0, "")
    assert Path(ran.out.strip()).name == f"tiny.{suffix}"
    assert (tmp_path / f"tiny.{suffix}").read_text("utf-8").startswith(("digraph", "graph", "//", "strict"))


def test_draw_without_graphviz_writes_the_source_and_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = run("draw", "tiny.json", "--prompt", "8", "--generate", "2")
    assert ran.code == 0
    assert Path(ran.out.strip()).name == "tiny.dot"
    assert (tmp_path / "tiny.dot").exists()
    assert not (tmp_path / "tiny.svg").exists()
    assert "raphviz" in ran.err
    assert ran.err.count("\n") == 1


def test_doctor_finds_this_installation_usable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert "8,030,261,248 parameters, 8,030,261,248 are published" in " ".join(ran.out.split())
    monkeypatch.setattr("llmir.cli.doctor.PACKAGES", ("networkx", "no-such-package"))
    ran = run("doctor")
    assert (ran.code, ran.err) == (1, "error: broken: no-such-package\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    ran = run(command, "-h")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run(command, "--help").out
    assert f"\n  llmir {command}" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_help_lists_the_commands(run: Run) -> None:
    ran = run("--help")
    assert all(re.search(rf"^  {name} +\w", ran.out, re.M) for name in COMMANDS)
    assert run().out == ran.out
    assert run("--version").out == f"llmir {llmir.__version__}\n"


def test_a_traceback_is_shown_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" in run("--traceback", "analyze", "nothing").err
    monkeypatch.setenv("LLMIR_TRACEBACK", "1")
    ran = run("analyze", "nothing")
    assert ran.code == 2
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: unknown model")


def test_an_interrupt_and_a_bug_of_ours_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: BaseException) -> Ran:
        def load(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("llmir.api.load.load", load)
        return run("analyze", "tiny.json")

    assert raising(KeyboardInterrupt()).code == 130
    assert raising(KeyboardInterrupt()).err.strip() == "error: interrupted"
    bug = raising(KeyError("x"))
    assert (bug.code, bug.err.count("\n")) == (70, 1)


def python(code: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    call, streams = [sys.executable, "-c", code], {"capture_output": True, "encoding": "utf-8"}
    return subprocess.run(call, check=False, env=environment(), **streams, **changes)


@pytest.mark.slow
def test_a_pipe_that_closes_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "llmir", "opt", "llama3.1-8b", "-p", "unroll"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.slow
def test_help_and_version_import_nothing_heavy() -> None:
    heavy = "{'numpy', 'networkx', 'rich', 'yaml', 'graphviz'}"
    code = f"""
import sys
from llmir.cli.main import cli
for arguments in (["--version"], ["--help"]):
    try:
        cli.main(arguments)
    except SystemExit:
        pass
print({heavy} & set(sys.modules), file=sys.stderr)
"""
    assert python(code).stderr.strip() == "set()"


def test_degrees_shard_the_model(run: Run) -> None:
    degrees = ("--tp", "2", "--dp", "2", "--ep", "4", "--sp")
    ran = run("analyze", "qwen3-30b-a3b", *degrees, "--format", "json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["hardware"]["devices"] == 4
    assert found["parallel"] == {"tp": 2, "pp": 1, "ep": 4, "dp": 2, "sp": True}
    assert found["phases"]["decode"]["comm_bytes"] > 0
    kinds = {op["kind"] for op in found["phases"]["decode"]["ops"]}
    assert "collective" in kinds
