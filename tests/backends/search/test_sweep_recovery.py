"""Sweeps whose process is killed, whose parts are damaged, and that several processes write at once.

A process is killed at every `LLMIR_KILLS`-th event of its file system (1 for all of them), and as many parts
of each format are damaged as `LLMIR_DAMAGES` says.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import InputError
from tests.commands import TINY, environment

AXES = {"tp": (1, 2), "batch": (1, 2, 4), "context": (0, 100)}
FORMS = ("csv", "jsonl", "parquet", "arrow")
KILLS = int(os.environ.get("LLMIR_KILLS", "11"))
DAMAGES = int(os.environ.get("LLMIR_DAMAGES", "4"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def swept(path: Path) -> Any:
    return llmir.sweep_to(path, TINY, AXES)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    if request.param in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    return str(request.param)


@pytest.fixture
def expected(form: str, tmp_path: Path) -> bytes:
    """The bytes of a sweep that nothing interrupts."""
    swept(tmp_path / f"whole.{form}")
    found = (tmp_path / f"whole.{form}").read_bytes()
    (tmp_path / f"whole.{form}").unlink()
    return found


def killed_at(number: int, folder: Path, path: Path) -> bool:
    """Whether a process that is killed at that event of its file system got so far."""
    child = os.fork()
    if child == 0:  # what it has not flushed to its files is lost, as by `kill -9`
        count = itertools.count(1)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            ours = event.startswith(("open", "os.", "shutil.", "tempfile.")) and str(folder) in str(args)
            if ours and next(count) == number:
                os._exit(9)

        sys.addaudithook(hook)
        swept(path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_killed_process_leaves_nothing_that_the_next_run_does_not_mend(
    form: str, expected: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"grid.{form}"
    for number in itertools.count(1, KILLS):
        reached = killed_at(number, tmp_path, path)
        swept(path)
        assert path.read_bytes() == expected, number
        assert [f.name for f in tmp_path.iterdir()] == [path.name], number
        path.unlink()
        if not reached:
            break


def test_an_old_file_is_whole_until_the_new_one_is(form: str, expected: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"grid.{form}"
    path.write_bytes(b"old")
    for number in itertools.count(1, KILLS):
        if not killed_at(number, tmp_path, path):
            break
        assert path.read_bytes() in (b"old", expected), number


def damage(part: Path, how: random.Random) -> None:
    """Cut, change, empty or replace a part."""
    data = bytearray(part.read_bytes())
    place = how.randrange(len(data))
    match how.randrange(5):
        case 0:
            data = data[:place]
        case 1:
            data[place] ^= 1 << how.randrange(8)
        case 2:
            data = data + data[:place]
        case 3:
            data = bytearray()
        case _:
            part.unlink()
            part.mkdir()
            return
    part.write_bytes(data)


def test_a_damaged_part_is_computed_again(
    form: str, expected: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how, path = random.Random(1), tmp_path / f"grid.{form}"
    whole = tmp_path / "parts"
    llmir.sweep_to(f"{whole}/", TINY, AXES, format=form)
    caplog.set_level("INFO", "llmir")
    for _ in range(DAMAGES):
        shutil.copytree(whole, f"{path}.parts")
        damage(how.choice(sorted(Path(f"{path}.parts").iterdir())), how)
        caplog.clear()
        assert swept(path).read == 1
        assert "is damaged; it is computed again" in caplog.text
        assert path.read_bytes() == expected
        assert {f.name for f in tmp_path.iterdir()} == {path.name, "parts"}
        path.unlink()


@pytest.mark.slow
def test_processes_that_write_one_file_wait_for_each_other(tmp_path: Path) -> None:
    asked = ["llama3.2-1b", "--tp", "1,2,4,8", "--batch", "1:64", "-o", "grid.csv"]
    command = [sys.executable, "-m", "llmir", "sweep", *asked]
    how: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "stderr": subprocess.PIPE, "text": True}
    several = [subprocess.Popen(command, **how) for _ in range(3)]
    said = [each.communicate(timeout=120)[1] for each in several]
    assert [each.returncode for each in several] == [0, 0, 0], said
    assert [f.name for f in tmp_path.iterdir()] == ["grid.csv"]
    assert len((tmp_path / "grid.csv").read_text("utf-8").splitlines()) == 4 * 64 + 1


def test_a_refused_sweep_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("old")
    with pytest.raises(InputError):
        llmir.sweep_to(path, TINY, {"tp": 3})
    assert path.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["grid.csv"]
