"""Write files atomically: a reader sees the whole file or none of it, even after a crash.

A file is written in a temporary folder next to its target, flushed to the disk, and renamed. The process
locks the folder while it runs, so that the next writer can remove the folders of killed processes.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from llmir.base import arguments
from llmir.base.errors import OutputError
from llmir.base.names import plain

try:
    import fcntl
# Windows has no advisory locks: writers do not wait, and folders of killed processes stay
except ModuleNotFoundError:
    fcntl = None  # type: ignore[assignment]  # a name of a module

_STAGING = ".llmir-staging-"
_NO_LOCKS = -1  # the descriptor if the system or the file system has no locks
_LOG = logging.getLogger("llmir")


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The file that a write to `path` replaces; the target if `path` is a link.

    OutputError if the file cannot be written, InputError if it is not a path.
    """
    path = arguments.path("path", path)
    shown = plain(os.fspath(path), limit=1000)
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise OutputError(f"{shown}: is a folder; expected a file")
        if not target.parent.is_dir():
            raise OutputError(f"{shown}: there is no folder {plain(str(target.parent), limit=1000)}")
        needed = [(target, os.W_OK)] if target.exists() else []
        if not _is_device(target):  # devices are written directly, without a temporary file
            needed.append((target.parent, os.W_OK | os.X_OK))
        writable = all(os.access(p, how) for p, how in needed)
    except (OSError, ValueError) as error:  # the name is too long, or contains a NUL character
        raise OutputError(f"{shown}: not a file name ({getattr(error, 'strerror', None) or error})") from None
    if not writable:
        raise OutputError(f"{shown}: no permission to write")
    return target


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that no reader sees a partial file, even after a failure. Raises `OutputError`."""
    target = check_writable(path)
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        if _is_device(target):
            target.write_bytes(data)
            return
        with staging(target.parent) as folder:
            whole = folder / "whole"
            whole.write_bytes(data)
            move(whole, target)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise OutputError(f"{plain(os.fspath(path), limit=1000)}: {reason}") from None


def check_folder(folder: str | os.PathLike[str], names: Iterable[str], inputs: Iterable[str]) -> None:
    """`OutputError` if files with these names cannot be written into the folder, or if one of them is an
    input.

    The folder may be missing, but its parent has to exist.
    """
    target, shown = Path(arguments.path("emit_to", folder)), plain(os.fspath(folder), limit=1000)
    if not target.exists():
        check_writable(target)
    elif not target.is_dir():
        raise OutputError(f"{shown}: is a file; expected a folder")
    read = {os.path.realpath(each) for each in inputs}
    for name in names:
        if target.exists():
            check_writable(target / name)
        if os.path.realpath(target / name) in read:
            raise OutputError(
                f"{plain(str(target / name), limit=1000)}: is an input of this command, and is not "
                "overwritten"
            )


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Write files into a folder, which is created if missing; a failure leaves no new file."""
    target, shown = Path(os.path.realpath(folder)), plain(os.fspath(folder), limit=1000)
    made, written = not target.exists(), list[Path]()
    try:
        target.mkdir(exist_ok=True)
        with staging(target) as aside:
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8")
            for name in files:
                new = not (target / name).exists()
                move(aside / name, target / name)
                written += [target / name] if new else []
    except (OSError, KeyboardInterrupt) as error:
        for path in written:
            path.unlink(missing_ok=True)
        if made:
            with suppress(OSError):  # not empty, because another process writes to it, too
                target.rmdir()
        if isinstance(error, KeyboardInterrupt):
            raise
        raise OutputError(f"{shown}: cannot be written ({error.strerror or error})") from None


def move(file: Path, target: Path) -> None:
    """Flush a finished file to the disk and rename it to `target`, with the mode of the file it replaces."""
    if target.exists():
        shutil.copymode(target, file)
    _flush(file)
    os.replace(file, target)
    _flush(target.parent)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A temporary folder in `folder`; folders of killed processes are removed first."""
    for left in folder.glob(f"{_STAGING}*"):
        with suppress(PermissionError):  # the folder belongs to another user
            if (lock := _locked(left)) is not None:
                if lock != _NO_LOCKS:  # otherwise, the process of the folder may still be running
                    shutil.rmtree(left, ignore_errors=True)
                _unlock(lock)
    lock = None
    while lock is None:  # try again if another process has taken the new folder for one of a killed process
        own = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
        lock = _locked(own)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        _unlock(lock)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder, created if missing; wait while another process or thread has the lock."""
    lock = None
    while lock is None:
        folder.mkdir(exist_ok=True)
        lock = _locked(folder)
        if lock is None:
            _LOG.info(f"{plain(str(folder), limit=1000)} is in use by another process; waiting for it")
            lock = _locked(folder, wait=True)
    try:
        yield
    finally:
        _unlock(lock)


def _locked(folder: Path, *, wait: bool = False) -> int | None:
    """The descriptor that holds the lock of a folder; None if another process holds it, or if the folder does
    not exist.

    `_NO_LOCKS` if locks are not supported. OSError for an unreadable folder.
    """
    if fcntl is None:
        return _NO_LOCKS
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(lock), os.stat(folder)):  # the folder was not removed in the meantime
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # the file system has no locks
        os.close(lock)
        return _NO_LOCKS
    os.close(lock)
    return None


def _unlock(lock: int) -> None:
    """Release a lock, also if child processes have inherited its descriptor."""
    if lock != _NO_LOCKS:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # on systems that cannot open folders
        return
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _is_device(target: Path) -> bool:
    """Whether the file is a device or a pipe, which cannot be replaced."""
    return target.exists() and not target.is_file()
