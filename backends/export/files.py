"""Write files atomically: a reader sees the whole file or none of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmir.base import arguments
from llmir.base.errors import OutputError
from llmir.base.names import plain


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The file that writing to `path` replaces.

    `OutputError` if it cannot be written, `InputError` if it is no path.
    """
    path = arguments.path("path", path)
    shown = plain(os.fspath(path), limit=1000)
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise OutputError(f"{shown}: is a folder, a file is needed")
        if not target.parent.is_dir():
            raise OutputError(f"{shown}: there is no folder {plain(str(target.parent), limit=1000)}")
        needed = [(target, os.W_OK)] if target.exists() else []
        if not _is_device(target):  # which is written in place
            needed.append((target.parent, os.W_OK | os.X_OK))
        writable = all(os.access(p, how) for p, how in needed)
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        raise OutputError(f"{shown}: not a file name ({getattr(error, 'strerror', None) or error})") from None
    if not writable:
        raise OutputError(f"{shown}: no permission to write")
    return target


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that no reader, and no failure, ever sees half of it. Raises `OutputError`."""
    target = check_writable(path)
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        if _is_device(target):
            target.write_bytes(data)
            return
        with tempfile.TemporaryDirectory(prefix=".llmir-", dir=target.parent) as folder:
            whole = Path(folder) / "whole"
            whole.write_bytes(data)
            if target.exists():
                shutil.copymode(target, whole)
            os.replace(whole, target)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise OutputError(f"{plain(os.fspath(path), limit=1000)}: {reason}") from None


def check_folder(folder: str | os.PathLike[str], names: Iterable[str], inputs: Iterable[str]) -> None:
    """`OutputError` if files of these names cannot be written there, or if one of them is an input.

    The folder need not exist, its parent must.
    """
    target, shown = Path(arguments.path("emit_to", folder)), plain(os.fspath(folder), limit=1000)
    if not target.exists():
        check_writable(target)
    elif not target.is_dir():
        raise OutputError(f"{shown}: is a file, a folder is needed")
    read = {os.path.realpath(each) for each in inputs}
    for name in names:
        if target.exists():
            check_writable(target / name)
        if os.path.realpath(target / name) in read:
            raise OutputError(f"{plain(str(target / name), limit=1000)}: is an input, it is not overwritten")


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Write files into a folder, all of them or none; create the folder if there is none."""
    target, shown = Path(os.path.realpath(folder)), plain(os.fspath(folder), limit=1000)
    made, written = not target.exists(), list[Path]()
    try:
        target.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".llmir-", dir=target) as staging:
            for name, text in files.items():
                (Path(staging) / name).write_text(text, encoding="utf-8")
            for name in files:
                new = not (target / name).exists()
                os.replace(Path(staging) / name, target / name)
                written += [target / name] if new else []
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if made and target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        raise OutputError(f"{shown}: cannot be written ({error.strerror or error})") from None


def _is_device(target: Path) -> bool:
    """Whether it is a device or a pipe, which cannot be replaced."""
    return target.exists() and not target.is_file()
