"""However a command is cut off: an exit code that says why, one line, and no half-written file."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmir.api import load
from llmir.base.errors import InputError
from tests.commands import TINY, Run, interruptible, runner

FULL = Path("/dev/full")
COMMAND = f"'{sys.executable}' -m llmir"
TO_STDOUT = ("models llama", "--version", "--help", "analyze --help", "analyze tiny.json", "opt tiny.json")
NO_MODEL = "error: unknown model"

# What is run by a shell, the exit code, and the line on stderr: "" for none, None where nobody can read it.
ENDS: list[tuple[str, int, str | None]] = [
    *((f"{command} >&-", 2, "error: stdout: it is closed") for command in TO_STDOUT),
    *((f"{command} >&- 2>&-", 2, None) for command in TO_STDOUT[:2]),
    *((f"{command} 2>&-", 0, None) for command in TO_STDOUT[:2]),
    *((f"{command} <&-", 0, "") for command in TO_STDOUT[:2]),
    ("models llama <&- >&- 2>&-", 2, None),
    ("models llama 1</dev/null", 2, "error: stdout: Bad file descriptor"),
    ("models llama -o out.csv >&-", 0, "wrote: out.csv"),
    ("models llama -o out.csv >&- 2>&-", 0, None),
    ("analyze nope 2>&-", 2, None),
    ("analyze nope >&-", 2, NO_MODEL),
    ("analyze nope <&-", 2, NO_MODEL),
    ("--traceback analyze nope 2>&-", 2, None),
    ("opt - <&-", 2, "error: stdin: it is closed"),
    ("opt - </dev/null", 2, "error: stdin: no graph found"),
    ("models llama -o none/out.csv", 2, "error: none/out.csv: there is no folder"),
]
ON_A_FULL_DISK: list[tuple[str, int, str | None]] = [
    ("models llama >/dev/full", 2, "error: stdout: No space left on device"),
    ("analyze tiny.json >/dev/full", 2, "error: stdout: No space left on device"),
    ("--version >/dev/full", 2, "error: No space left on device"),
    ("models llama 2>/dev/full", 0, None),
    ("models llama -o out.csv 2>/dev/full", 0, None),
    ("analyze nope 2>/dev/full", 2, None),
    ("models --format csv -o /dev/full", 2, "error: /dev/full: cannot be written (No space left on device)"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.json").write_text(json.dumps({**TINY, "max_position_embeddings": 4096}))
    return tmp_path


def started(folder: Path, command: str, **how: Any) -> subprocess.Popen[str]:
    here = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": here, "LLMIR_TRACEBACK": ""}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": interruptible, **how}
    return subprocess.Popen(command, cwd=folder, env=environment, shell=True, text=True, **streams)


def ends(folder: Path, command: str, code: int, says: str | None, **how: Any) -> None:
    process = started(folder, command, **how)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in error) == (code, False), error
    if says is not None:
        assert error.startswith(says)
        assert error.count("\n") == bool(says)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code", "says"), ENDS, ids=[e[0] for e in ENDS])
def test_standard_streams_that_are_closed(folder: Path, arguments: str, code: int, says: str | None) -> None:
    ends(folder, f"{COMMAND} {arguments}", code, says)


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("arguments", "code", "says"), ON_A_FULL_DISK, ids=[e[0] for e in ON_A_FULL_DISK])
def test_a_full_disk(folder: Path, arguments: str, code: int, says: str | None) -> None:
    ends(folder, f"{COMMAND} {arguments}", code, says)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", TO_STDOUT)
def test_a_reader_that_went_away_ends_a_command_without_a_word(folder: Path, arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ends(folder, f"{COMMAND} {arguments}", 141, "", stdout=writer)
    finally:
        os.close(writer)


@pytest.mark.slow
def test_a_file_that_does_not_fit_leaves_nothing_behind(folder: Path) -> None:
    """The limit stands for a disk that is nearly full."""
    (folder / "old.json").write_text("old")
    before = sorted(folder.rglob("*"))
    for file in ("new.json", "old.json"):
        says = f"error: {file}: cannot be written (File too large)"
        ends(folder, f"{COMMAND} analyze tiny.json -o {file}", 2, says, preexec_fn=small_files)
    assert sorted(folder.rglob("*")) == before
    assert (folder / "old.json").read_text() == "old"


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def plugin(folder: Path, does: str) -> str:
    """A command line whose command does that."""
    about = "import pathlib, time, numpy\nfrom llmir.cli.command import command\n"
    (folder / "mine.py").write_text(f'{about}@command("mine", "Mine.")\ndef mine():\n    {does}\n')
    return f"exec {COMMAND} mine --plugin ./mine.py"


@pytest.mark.slow
def test_arrays_beyond_the_memory_are_one_line(folder: Path) -> None:
    ends(folder, plugin(folder, "numpy.zeros(1 << 60)"), 2, "error: plugin")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "code", "says"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_is_no_bug(by: int, code: int, says: str, folder: Path) -> None:
    process = started(folder, plugin(folder, "pathlib.Path('here').touch(); time.sleep(60)"))
    until = time.monotonic() + 60
    while not (folder / "here").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(by)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (code, f"error: {says}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        "analyze tiny.json -o tiny.json",
        "analyze . -o ./config.json",
        "diff llama3.2-1b tiny.json -o ./tiny.json",
        "analyze llama3.2-1b --hw tiny.json -o tiny.json",
        "sweep llama3.2-1b --hw l4,tiny.json -o tiny.json",
        "serve-sim tiny.json --rate 1 --requests 5 --requests-out tiny.json",
    ],
)
def test_no_command_overwrites_its_input(run: Run, tmp_path: Path, arguments: str) -> None:
    shutil.copy(tmp_path / "tiny.json", tmp_path / "config.json")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    done = run(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"error: --\S+ \S+\.json: is an input of this command, .*\n", done.err), done.err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (MemoryError(), 2, "error: not enough memory"),
        (MemoryError("Unable to allocate 8 TiB"), 2, "error: not enough memory: Unable to allocate 8 TiB"),
        (OverflowError("int too large"), 2, "error: a number is too large to compute with: int too large"),
        (RecursionError("maximum"), 2, "error: nested too deeply for Python's stack"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (OSError(5, "Input/output error", "disk"), 2, "error: disk: Input/output error"),
        (InputError("batch: is odd"), 2, "error: batch: is odd"),
        *((e, 70, f"error: {type(e).__name__}: ") for e in (ValueError("x"), EOFError("x"), KeyError("x"))),
    ],
)
def test_how_work_ends(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    says: str,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    run: Run = runner(capsys, tmp_path, monkeypatch)
    monkeypatch.setattr(load, "models", fails)
    before = sorted(tmp_path.rglob("*"))
    ran = run("models", "-o", "out.csv")
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert ran.err.startswith(says)
    assert sorted(tmp_path.rglob("*")) == before
