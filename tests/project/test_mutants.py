"""The script of `make mutants`: what it changes, and that the list of equivalent mutants is of real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script, which finds the other by its side."""
    spec = spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec and spec.loader
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        found = sys.modules["mutants"] = module_from_spec(spec)
        spec.loader.exec_module(found)
        yield found


def test_each_kind_of_change_is_made(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(
        '"""Doc 1."""\ndef f(a: int = 1, b=True):\n    if a < 2 and not b:\n'
        '        raise ValueError(f"{a + 1}")\n'
        "    return [x for x in a if x]\n"
    )
    found = [m.new.strip() for m in script.mutants(file, tmp_path)]
    assert found == [
        "def f(a: int = (2), b=True):",
        "def f(a: int = 1, b=(False)):",
        "if (not (a < 2 and (not b))):",
        "if (a < 2 or not b):",
        "if (not b):",
        "if (a < 2):",
        "if (a <= 2) and not b:",
        "if (a >= 2) and not b:",
        "if a < (3) and not b:",
        "if a < 2 and (b):",
        "pass",
        "return None",
        "return ([x for x in a])",
    ]


@pytest.mark.slow
def test_what_is_listed_as_equivalent_is_a_mutant_with_a_reason(script: ModuleType) -> None:
    made = {m.key for t in script.TARGETS for file in script._files(t) for m in script.mutants(file, ROOT)}
    listed = script.equivalent()
    assert listed
    assert not set(listed) - made
    assert all(len(why) > 20 for why in listed.values())
