"""Whether a kernel that is changed in one place changes in all forms alike: text, numpy, numba and fits.

    PYTHONPATH=. python scripts/one_source.py --number 40

A mutant of a kernel's module is imported in a process of its own. There the prices of some programs, on
arrays, are compared with their code as Python, as numpy and as numba's loops, and kernels with the code that
fits run. A mutant that no kernel runs with, such as a sum of a number and a name, says nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from mutants import ROOT, Mutant, Target, _import_libraries, _Mutated, run_tests, started
from mutations import mutants

KERNELS = "backends/kernels"
LEFT_OUT = ("__init__.py", "base.py")  # what kernels are made with, and no kernel
FITS = Target("fits", (), ("tests/backends/silicon/test_fit_code.py::test_kernels_are_the_same_as_code",), 2)
CASES = (
    ("Llama-3.1-8B", "h100-sxm", "vllm", "", ""),
    ("Qwen3-30B-A3B", "b200", "trtllm", "quantize{weights=fp8, kv=fp8}", ""),
    ("DeepSeek-V3-671B", "h100-sxm", "sglang", "", "shard{tp=4, ep=4}"),
    ("Qwen3-Next-80B-A3B", "mi300x", None, "", ""),
)
AGREE, APART, BROKEN, SAME = range(4)
SAID = ("change all forms alike", "change them apart", "break the kernel", "change no price here")


def prices(mutant: Mutant | None, clean: Path) -> int:
    """Whether all forms agree, and whether prices are others than the clean ones, which none writes."""
    if mutant:
        sys.meta_path.insert(0, _Mutated(mutant))
    from tests.backends.step.code_cases import NEW, differences, looped, plans

    found: list[str] = []
    try:
        for model, device, engine, precision, sharding in CASES:
            case = {"model": model, "device": device, "engine": engine, "cost": "default"}
            known = plans({**case, "precision": precision, "sharding": sharding})
            for new, plan in known.items():
                if max(*differences(plan, new), *looped(plan, new)) > 1e-12:
                    return APART
                found += (repr(plan.timing(at).step) for at in _points(NEW[new]))
    except Exception:
        return BROKEN
    if mutant is None:
        clean.write_text("\n".join(found))
    return SAME if clean.read_text() == "\n".join(found) else AGREE


def _points(steps: list[tuple[int, int, int]]) -> list[object]:
    from llmir.ir.sizes.binding import Binding

    return [Binding(**dict(zip("BTC", step, strict=True))) for step in steps]


def ended(pid: int) -> int:
    """What a child gave."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    """0 where no mutant changes one form and not another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=40, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    _import_libraries()
    files = [file for file in sorted((ROOT / KERNELS).glob("*.py")) if file.name not in LEFT_OUT]
    every = [mutant for file in files for mutant in mutants(file, ROOT)]
    chosen = random.Random(asked.seed).sample(every, min(asked.number, len(every)))
    counts = Counter[int]()
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "prices"
        if ended(started(lambda: prices(None, clean))) != SAME:
            raise SystemExit("the forms differ on the code as it is")
        for mutant in chosen:
            code = ended(started(lambda m=mutant: prices(m, clean)))  # type: ignore[misc]
            if code == AGREE and ended(started(lambda m=mutant: run_tests(FITS, m, None))):  # type: ignore[misc]
                code = APART
            counts[code] += 1
            if code not in range(len(SAID)) or code == APART:
                print(f"{code}: {mutant}", flush=True)
    print(f"of {len(chosen)} mutants of {len(every)}:")
    print("\n".join(f"{counts[code]:4} {said}" for code, said in enumerate(SAID)))
    return int(bool(counts[APART]))


if __name__ == "__main__":
    raise SystemExit(main())
