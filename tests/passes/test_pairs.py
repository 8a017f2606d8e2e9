"""What each pass makes of a small program: pairs of IR that a person reads in the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmir
from llmir.ir.tools.pipeline import PASSES, is_pass

FOLDER = Path(__file__).parents[1] / "ir" / "pairs"
# Those of llmir itself: what other tests define is theirs to test.
OURS = sorted(name for name, kind in PASSES.items() if is_pass(kind) and kind.__module__.startswith("llmir."))
HEAD, BETWEEN = "# pass: ", "# becomes\n"


def pair(name: str) -> tuple[str, str, str, str]:
    """The remark on a pass, its text, the program before it and the one after, of `pairs/NAME.ir`."""
    path = FOLDER / f"{name}.ir"
    assert path.exists(), f"pass {name} has no pair: write tests/ir/pairs/{name}.ir up to '# becomes'"
    remark, step, rest = path.read_text("utf-8").split("\n", maxsplit=2)
    form = f"the first lines of {path.name} are '# ' with a sentence, and '{HEAD}{name}' with its options"
    assert remark.startswith("# ") and step.startswith(f"{HEAD}{name}"), form
    before, _, after = rest.partition(BETWEEN)
    return remark, step.removeprefix(HEAD), before, after


@pytest.mark.parametrize("name", OURS)
def test_a_pass_makes_of_its_program_what_is_written(name: str) -> None:
    """To accept a change, read it with `git diff` after `python -m tests.passes.test_pairs`."""
    _, step, before, after = pair(name)
    assert step.partition("{")[0] == name
    program = llmir.run(llmir.parse_program(before), [])
    assert llmir.print_program(program) == before
    found = llmir.run(program, step)
    assert found != program
    assert llmir.print_program(found) == after
    assert llmir.parse_program(after) == found


if __name__ == "__main__":
    for known in OURS:
        said, how, source, _ = pair(known)
        result = llmir.print_program(llmir.run(llmir.parse_program(source), how))
        (FOLDER / f"{known}.ir").write_text(f"{said}\n{HEAD}{how}\n{source}{BETWEEN}{result}", "utf-8")
