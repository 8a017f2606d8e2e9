"""What pages run is made of the modules of today, and small."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from llmir.backends.export.page.bundle import _script

ROOT = Path(__file__).parents[4]
WEB, BUILD = ROOT / "backends/export/page", ROOT / "scripts/web"
MADE = WEB / "made"
WITH = ("build.mjs", "d3.js", "package-lock.json")
ESBUILD = BUILD / "node_modules" / "esbuild"


def digest() -> str:
    """Of all that the files are made of, as `scripts/web/build.mjs` writes it beside them."""
    found = hashlib.sha256()
    modules = sorted(f for f in WEB.iterdir() if f.suffix in {".js", ".css"})
    for path in (*modules, *(BUILD / name for name in WITH)):
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def test_they_are_of_the_modules_beside_them() -> None:
    assert (MADE / "sources.txt").read_text().strip() == digest(), "run `make web`, and commit what it makes"


@pytest.mark.skipif(
    not (ESBUILD.exists() and shutil.which("node")), reason="no esbuild: npm --prefix scripts/web ci"
)
def test_made_again_they_are_the_same_bytes(tmp_path: Path) -> None:
    subprocess.run(["node", str(BUILD / "build.mjs"), str(WEB), str(tmp_path)], check=True)
    made = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert made == {f.name: f.read_bytes() for f in MADE.iterdir()}


def test_licences_are_no_part_of_what_runs() -> None:
    assert "Permission to use" in (MADE / "d3.js").read_text()
    assert "Permission to use" not in _script("main")


SIZES = {"main.js": 60_000, "style.css": 15_500, "served.js": 69_500}  # bytes; the last asks a server too


@pytest.mark.parametrize("name", SIZES)
def test_our_part_stays_small(name: str) -> None:
    assert (MADE / name).stat().st_size < SIZES[name]
