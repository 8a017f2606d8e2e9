"""Modules that `emit` writes, run by node, beside the reports that they stand for.

    PYTHONPATH=. python -m tests.backends.export.emit_cases 400

compares so many programs; the tests take the first few.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llmir
from llmir.backends.request.portable import STEP
from llmir.backends.work.rows import AMOUNTS
from llmir.base.errors import LlmirError
from tests.backends.step.code_cases import STEPS, asked, cases
from tests.flat import records

RUN = """
import { readFileSync } from "fs";
const module = await import(process.argv[2]);
const points = JSON.parse(readFileSync(process.argv[3]));
const plain = (key, value) => (typeof value === "bigint" ? { exact: value.toString() } : value);
const found = points.map((at) => [module.price(...at), module.ops(...at)]);
process.stdout.write(JSON.stringify(found, plain));
"""


def available() -> bool:
    return shutil.which("node") is not None


def run(source: str, points: list[Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """What a module's `price` and `ops` say at points, exact numbers as integers."""
    with TemporaryDirectory() as folder:
        names = {"module.mjs": source, "run.mjs": RUN, "points.json": json.dumps(points)}
        paths = [Path(folder) / name for name in names]
        for path, text in zip(paths, names.values(), strict=True):
            path.write_text(text)
        module, script, given = map(str, paths)
        done = subprocess.run(["node", script, module, given], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found: Any = json.loads(done.stdout, object_hook=lambda d: int(d["exact"]) if "exact" in d else d)
    return found


def off(source: str, program: llmir.Program, points: list[Any], **priced: Any) -> tuple[float, float]:
    """Of what the module says at points to reports: the largest relative difference, and of exact figures."""
    most, exact = 0.0, 0
    for at, (step, ops) in zip(points, run(source, points), strict=True):
        report = llmir.analyze(
            program,
            **records(llmir.analyze, **dict(zip(("batch", "new", "context"), at, strict=True)), **priced),
        )
        work = [op for op in report.ops if op.kind != "overhead"]
        assert [op.name for op in work] == [op["name"] for op in ops]
        for name in STEP:
            most = max(most, _off(step[name], getattr(report, name)))
            exact += step[name] != getattr(report, name) and name.endswith("_bytes")
        for own, other in zip(ops, work, strict=True):
            most = max(most, *(_off(own[name], getattr(other, name)) for name in ("time_s", "ideal_time_s")))
            fixed = (own["repeat"], own["bound"], own["basis"], own["error"])
            exact += fixed != (other.repeat, other.bound, str(other.basis), other.error)
            for name in AMOUNTS:
                value = getattr(other, name)
                exact += isinstance(value, int) and (not isinstance(own[name], int) or own[name] != value)
                most = max(most, _off(own[name], value))
    return most, exact


def _off(found: Any, expected: Any) -> float:
    return abs(found - expected) / max(abs(expected), 1e-30) if math.isfinite(expected) else math.inf


def compared(case: dict[str, Any], points: list[Any]) -> tuple[float, float] | None:
    """The same of a case of `code_cases`; None of one that there is not."""
    try:
        program, priced = asked(case)
        source = llmir.emit(program, **records(llmir.emit, **priced))
        points = [(b * program.micro_batches, *rest) for b, *rest in points]
        return off(source, program, points, **priced)
    except LlmirError:
        return None


def main(count: int) -> None:
    done = 0
    for case in cases():
        if (found := compared(case, STEPS)) is not None:
            done += 1
            if found[0] > 1e-12 or found[1]:
                print(found, case, flush=True)
        if done == count:
            break
    print(f"{done} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]))
