"""Locks of folders, and files that several processes write at once."""

from __future__ import annotations

import errno
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from llmir.backends.export import files

fcntl = pytest.importorskip("fcntl")


def test_a_lock_is_free_after_use_though_a_forked_worker_lives(tmp_path: Path) -> None:
    """A forked process inherits the descriptor of the lock."""
    with files.exclusive(tmp_path):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        lock = files._locked(tmp_path)
        assert lock is not None
        files._unlock(lock)
    finally:
        child.kill()
        child.join()


def test_a_folder_in_use_stays_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with files.staging(tmp_path) as first, files.staging(tmp_path) as second:
        assert first.is_dir() and second.is_dir()
    with files.exclusive(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_user_stays_though_its_name_begins_as_ours(tmp_path: Path) -> None:
    """Only folders that `staging` made are leftovers."""
    own = tmp_path / ".llmir-models"
    own.mkdir()
    with files.staging(tmp_path):
        pass
    assert own.is_dir()


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its lock. The superuser may read everything, so that the call is replaced."""

    def refuse(*args: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.os, "open", refuse)
    with pytest.raises(PermissionError), files.exclusive(tmp_path):
        pass


def test_an_interrupt_leaves_no_new_file_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C after the first of two files; the folder is removed if nobody else has written there."""
    move = files.move

    def interrupted(file: Path, target: Path) -> None:
        if target.name == "b":
            raise KeyboardInterrupt
        move(file, target)

    monkeypatch.setattr(files, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_folder(tmp_path / "new", {"a": "1", "b": "2"})
    assert not (tmp_path / "new").exists()
