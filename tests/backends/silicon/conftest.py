"""Fixtures for tests of measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.silicon.validate.rows import Validation


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    def run(text: str, **options: Any) -> Validation:
        path = tmp_path / "rows.csv"
        path.write_text(text)
        return llmir.validate(path, **{"cost": "ideal"} | options)

    return run
