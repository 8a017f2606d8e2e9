"""Sweeps in files and folders: the same rows, whoever computes them, interrupted or not, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.search import sweep
from llmir.base.errors import InputError, OutputError
from llmir.ir.core.program import Program
from tests.commands import TINY, Run, environment, interruptible

from .equal_rows import same

AXES = {"tp": (1, 2, 3), "weights": (None, "fp8"), "batch": (1, 2, 4, 8), "context": (0, 100, 7)}
ROWS = 2 * 2 * 12 + 2
FORMS = ("csv", "jsonl", "parquet", "arrow")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of lines, or of all parts in a folder, by their names."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


@dataclass(frozen=True)
class Deadly(llmir.Pass):
    """Ends the process of what has two ranks: each time, or where a file is not there yet, which it makes.

    It has no name, by which tests of all passes would run it.
    """

    once: str = ""
    by: int = signal.SIGKILL

    def __call__(self, program: Program) -> Program:
        """The program as it is."""
        if not self.once or not Path(self.once).exists():
            if self.once:
                Path(self.once).touch()
            os.kill(os.getpid(), self.by)
        return program


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_files_and_folders_hold_the_rows(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    if form in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(sweep, "BLOCK", 5)
    read = {
        "csv": pandas.read_csv,
        "jsonl": lambda path: pandas.DataFrame(rows_of(path)),
        "parquet": pandas.read_parquet,
        "arrow": pandas.read_feather,
    }[form]
    memory = llmir.sweep(TINY, AXES)
    assert len(memory) == len([*memory.rows()]) == ROWS
    file = llmir.sweep_to(tmp_path / f"grid.{form}", TINY, AXES)
    assert (file.rows, file.refused, file.structures, file.read) == (ROWS, 2, 6, 0)
    assert "cannot be split" in str(file.why)
    assert [f.name for f in tmp_path.iterdir()] == [f"grid.{form}"]
    folder = llmir.sweep_to(f"{tmp_path}/parts/", TINY, AXES, format=form)
    assert folder.rows == ROWS
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 6
    together = pandas.concat([read(f) for f in parts])
    for found in (read(tmp_path / f"grid.{form}"), together):
        assert list(found.columns) == list(memory.names)
        for name in ("tp", "batch", "context", "time_s", "peak_memory_bytes", "weights", "refused"):
            said = [None if pandas.isna(v) else v for v in found[name].tolist()]
            assert said == [row[name] for row in memory.rows()], name


def test_pieces_are_the_points_in_order() -> None:
    points = ((3, 1, 2), (1, 5), tuple(range(7)))
    every = [(b, n, c) for b in points[0] for n in points[1] for c in points[2]]
    for most in (1, 2, 6, 7, 13, 14, 41, 42, 1000):
        found: list[tuple[int, ...]] = []
        for grid in sweep.row_grids(points, most):
            shape = [axis.size for axis in grid]
            assert shape[0] * shape[1] * shape[2] <= most
            for b in grid[0].ravel():
                found += [(int(b), int(n), int(c)) for n in grid[1].ravel() for c in grid[2].ravel()]
        assert found == every


@pytest.mark.slow
def test_whole_parts_are_read_and_others_computed(tmp_path: Path) -> None:
    path = f"{tmp_path}/parts/"
    whole = llmir.sweep_to(path, TINY, AXES, format="jsonl")
    before = rows_of(tmp_path / "parts")
    for kept in (0, 3, 6):
        files = sorted((tmp_path / "parts").iterdir())
        for file in files[kept:]:
            file.unlink()
        again = llmir.sweep_to(path, TINY, AXES, format="jsonl")
        assert again.read == kept
        assert (again.rows, again.refused, again.why) == (whole.rows, whole.refused, whole.why)
        assert rows_of(tmp_path / "parts") == before
    more = llmir.sweep_to(path, TINY, {**AXES, "tp": (2, 1)}, format="jsonl")
    assert (more.read, more.rows) == (4, 48)
    assert rows_of(tmp_path / "parts") == [*llmir.sweep(TINY, {**AXES, "tp": (2, 1)}).rows()]


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize(
    "other",
    [
        {"axes": {**AXES, "context": (0, 100, 8)}},
        {"axes": {**AXES, "hw": "h200"}},
        {"axes": {**AXES, "engine": "sglang"}},
        {"model": {**TINY, "intermediate_size": 128}},
        {"pipeline": "dce"},
        {"price": {"h100": 1.5}},
        {"format": "csv"},
    ],
)
def test_other_sweeps_read_none_of_them(other: dict[str, Any], tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": TINY, "axes": {**AXES, "tp": 1}, "format": "jsonl"}
    path = f"{tmp_path}/parts/"
    llmir.sweep_to(path, **asked)
    assert llmir.sweep_to(path, **{**asked, **other}).read == 0


@pytest.mark.slow
def test_an_interrupt_leaves_what_is_whole(tmp_path: Path) -> None:
    def interrupt(done: int, of: int, refused: int) -> None:
        if done > of // 2:
            raise KeyboardInterrupt

    alone = [*llmir.sweep(TINY, AXES).rows()]
    file = tmp_path / "grid.jsonl"
    with pytest.raises(KeyboardInterrupt, match=r"interrupted; 3 of 6 .* goes on"):
        llmir.sweep_to(file, TINY, AXES, progress=interrupt)
    assert not file.exists()
    told: list[int] = []
    found = llmir.sweep_to(file, TINY, AXES, progress=lambda done, of, refused: told.append(done))
    assert found.read == 3
    assert told[-1] == 72
    same(rows_of(file), alone)
    assert [f.name for f in tmp_path.iterdir()] == ["grid.jsonl"]


@pytest.mark.slow
def test_an_interrupt_while_the_file_is_put_together_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "grid.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr("llmir.backends.export.sweep.SweepFolder._join", interrupt)
        with pytest.raises(KeyboardInterrupt, match=r"interrupted; 6 of 6 .* goes on"):
            llmir.sweep_to(file, TINY, AXES)
    assert llmir.sweep_to(file, TINY, AXES).read == 6
    same(rows_of(file), [*llmir.sweep(TINY, AXES).rows()])


@pytest.mark.slow
@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_writes_the_same(executor: Callable[[int], Executor], tmp_path: Path) -> None:
    with executor(2) as workers:
        llmir.sweep_to(tmp_path / "x.jsonl", TINY, AXES, executor=workers)
    assert rows_of(tmp_path / "x.jsonl") == [*llmir.sweep(TINY, AXES).rows()]


@pytest.mark.slow
def test_a_worker_that_dies_once_loses_nothing(tmp_path: Path) -> None:
    axes = {**AXES, "tp": (1, 2)}
    alone = [*llmir.sweep(TINY, axes, pipeline="").rows()]
    with ProcessPoolExecutor(2) as workers:
        found = llmir.sweep(TINY, axes, pipeline=Deadly(str(tmp_path / "died")), executor=workers)
    assert (tmp_path / "died").exists()
    same([*found.rows()], alone)


@dataclass(frozen=True)
class DeadlyForNarrow(Deadly):
    """As it is, of narrow weights alone."""

    def __call__(self, program: Program) -> Program:
        """The program as it is."""
        narrow = "fp8" in llmir.print_program(program)
        return super().__call__(program) if narrow else program


def check_lost(found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    """Structures of narrow weights are lost, each as one row, and no others."""
    lost = [row for row in found if row["weights"]]
    assert [(row["tp"], row["batch"]) for row in lost] == [(tp, None) for tp in (1, 2)]
    assert all("died twice" in row["refused"] for row in lost)
    kept, expected = ([row for row in rows if not row["weights"]] for rows in (found, alone))
    same(kept, expected)


@pytest.mark.slow
def test_a_structure_whose_workers_die_is_a_row(tmp_path: Path) -> None:
    axes = {**AXES, "tp": (1, 2)}
    alone = [*llmir.sweep(TINY, axes, pipeline="").rows()]
    path = f"{tmp_path}/parts/"
    for read in (0, 2):  # what was lost is tried again
        with ProcessPoolExecutor(2) as workers:
            found = llmir.sweep_to(
                path, TINY, axes, format="jsonl", pipeline=DeadlyForNarrow(), executor=workers
            )
        assert (found.read, found.refused) == (read, 2)
        check_lost(rows_of(tmp_path / "parts"), alone)


@pytest.fixture
def cluster() -> Any:
    """Two workers of dask, in processes of their own."""
    distributed = pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as found,
        distributed.Client(found) as client,
    ):
        yield client


@pytest.mark.slow
def test_workers_of_dask(cluster: Any, tmp_path: Path) -> None:
    axes = {**AXES, "tp": (1, 2)}
    alone = [*llmir.sweep(TINY, axes, pipeline="").rows()]
    with cluster.get_executor() as executor:
        once = Deadly(str(tmp_path / "died"))
        found = llmir.sweep(TINY, axes, pipeline=once, executor=executor)
        assert (tmp_path / "died").exists()
        same([*found.rows()], alone)
        lost = llmir.sweep(TINY, axes, pipeline=DeadlyForNarrow(), executor=executor)
        check_lost([*lost.rows()], alone)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        ("grid.xlsx", "suffix '.xlsx' is unknown"),
        ("grid", "no suffix"),
        ("none/grid.csv", "there is no folder"),
        ("none/grid/", "there is no folder"),
        ("file/", "cannot be written"),
    ):
        with pytest.raises((InputError, OutputError), match=why):
            llmir.sweep_to(f"{tmp_path}/{path}", TINY, AXES)
    for form in ("json", "csvv"):
        with pytest.raises(InputError, match="expected csv, jsonl, parquet or arrow"):
            llmir.sweep_to(f"{tmp_path}/x/", TINY, AXES, format=form)
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


MANY = r"""
import re, llmir
llmir.sweep_to("grid.parquet", "llama3.2-1b", {"batch": "1:3000", "context": "1000:1999"})
with open("/proc/self/status") as status:  # getrusage begins with the peak of the parent
    print(re.search(r"VmHWM:\s*(\d+) kB", status.read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read as Linux has it")
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    how: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", MANY], **how, timeout=120, check=True)
    assert int(ran.stdout) < 400 * 1024  # KiB; the three million rows are 630 MiB


def test_too_many_rows_are_for_a_file() -> None:
    with pytest.raises(InputError, match=r"100,000,000 rows.*-o FILE"):
        llmir.sweep(TINY, {"batch": "1:10000", "context": "1:10000"})
    with pytest.raises(InputError, match=r"structures; the limit of a sweep is 100,000"):
        llmir.sweep(TINY, {"tp": "1:1000", "pp": "1:1000"})


@pytest.mark.slow
def test_the_command_writes_a_folder(run: Run, tmp_path: Path) -> None:
    asked = ("sweep", "tiny.json", "--tp", "1,3", "--batch", "1,2", "-o", "grid/", "--format", "jsonl")
    first, second = run(*asked), run(*asked)
    assert (first.code, second.code) == (0, 0)
    assert "wrote: grid/: 3 rows, 1 refused: shard" in first.err
    assert "2 structures were there" in second.err
    assert len(rows_of(tmp_path / "grid")) == 3
    ran = run("sweep", "tiny.json", "--tp", "3", "-o", "none/", "--format", "csv")
    assert ran.code == 2
    assert "the one step is refused: " in ran.err
    assert not (tmp_path / "none").exists()
    ran = run("sweep", "tiny.json", "-o", "none/", "--format", "json")
    assert ran.code == 2
    assert "expected csv" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_command_says_how_to_go_on(jobs: str, tmp_path: Path) -> None:
    asked = ["llama3.2-1b", "--tp", "1,2,4,8", "--weights", "bf16,fp8", "--batch", "1:64"]
    command = [sys.executable, "-m", "llmir", "sweep", *asked, "--jobs", jobs, "-o", "grid.jsonl"]
    how: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "stderr": subprocess.PIPE, "text": True}
    own = {"start_new_session": True, "preexec_fn": interruptible}
    with subprocess.Popen(command, **how, **own) as ran:
        parts = tmp_path / "grid.jsonl.parts"
        until = time.monotonic() + 60
        while not [*parts.glob("0*.jsonl")] and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(ran.pid, signal.SIGINT)
        _, said = ran.communicate(timeout=60)
    # Where the interrupt meets `exec` of a text, Python ends by the signal: 130 in a shell.
    assert ran.returncode in (130, -signal.SIGINT), said
    assert said.count("\n") == 1
    assert "of 8 structures are whole in grid.jsonl.parts, from which the same command goes on" in said
    done = subprocess.run(command, **how, timeout=120, check=True)
    assert "structures were there" in done.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["grid.jsonl"]
    assert len((tmp_path / "grid.jsonl").read_text("utf-8").splitlines()) == 8 * 64
