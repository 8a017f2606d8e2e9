"""A checkout without symbolic links, and an editable install in a folder that holds the clone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ("frontends", "passes", "backends", "hw")


def imported(folder: Path, **env: str) -> str:
    """The files of llmir and of a linked package, as Python that starts in a folder finds them."""
    code = "import llmir, llmir.hw; llmir.load('llama3.2-1b'); print(llmir.__file__, llmir.hw.__file__)"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    how = {"cwd": folder, "env": {**clean, **env}, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_checkout_without_links_is_imported(tmp_path: Path) -> None:
    """As git on Windows makes it by default: each link is a file that holds its target."""
    root = tmp_path / "clone"
    shutil.copytree(
        ROOT / "llmir", root / "llmir", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    without = shutil.ignore_patterns("__pycache__")
    for name in LINKS:
        assert (root / "llmir" / name).is_symlink()
        (root / "llmir" / name).unlink()
        (root / "llmir" / name).write_text(f"../{name}")
        shutil.copytree(ROOT / name, root / name, ignore=without)
    llmir, hw = imported(tmp_path, PYTHONPATH=str(root)).split()
    assert Path(llmir) == root / "llmir" / "__init__.py"
    assert Path(hw) == root / "hw" / "__init__.py"


def _is_on_the_path() -> bool:
    """Whether llmir is installed as a .pth file with its root."""
    files = [file for folder in site.getsitepackages() for file in Path(folder).glob("*llmir*.pth")]
    return any(file.read_text().strip() == str(ROOT) for file in files)


@pytest.mark.skipif(not _is_on_the_path(), reason="llmir is not installed as an editable clone")
def test_python_finds_an_editable_install_beside_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "llmir").mkdir()
    assert imported(tmp_path).split()[0] == str(ROOT / "llmir" / "__init__.py")
