"""Traces as HolisticTraceAnalysis reads them, against the timelines that they were written from.

    python scripts/read_traces.py [--environment .venv-hta]

It is installed into an environment of its own, since it needs a pandas below 3. Compared are, for each rank
of some programs, the µs of computing kernels, of collectives, and of all from the first kernel to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import llmir
from llmir.backends.step.evaluate import OVERHEAD
from llmir.backends.step.report import Report

PROGRAMS = {
    "llama3.1-8b": "",
    "qwen3-32b": "shard{tp=2}",
    "qwen3-30b-a3b": "shard{tp=2, ep=2}",
    "deepseek-v3": "shard{tp=8},stages{pp=2}",
    "llama3.1-405b": "stages{pp=2, micro_batches=2},shard{tp=8}",
    "nemotron-h-8b": "stages{pp=3}",
}
READER = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = []
for path in sys.argv[1:]:
    row = TraceAnalysis(trace_files={0: path}).get_temporal_breakdown(visualize=False).iloc[0]
    found.append([float(row[f"{name}_time(us)"]) for name in ("compute", "non_compute", "kernel")])
print(json.dumps(found))
"""


def ours(report: Report, stage: int) -> list[float]:
    """The same three of one stage, from the slices: those that run longer than nothing are kernels."""
    kernels = [s for s in report.timeline() if s.stage == stage and s.kind != OVERHEAD and s.time_s]
    sent = sum(s.time_s for s in kernels if s.comm_bytes)
    whole = kernels[-1].end_s - kernels[0].start_s
    return [1e6 * t for t in (sum(s.time_s for s in kernels) - sent, sent, whole)]


def installed(environment: Path) -> str:
    """The Python of an environment that has the reader, made if it is not there."""
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"installing HolisticTraceAnalysis in {environment}, a minute or two", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "HolisticTraceAnalysis", "pandas<3"], check=True)
    return str(python)


def main() -> None:
    """Write, read and compare; exit 1 if a time differs by more than a µs."""
    parser = argparse.ArgumentParser(description="Traces as HolisticTraceAnalysis reads them.")
    parser.add_argument("--environment", type=Path, default=Path(".venv-hta"), help="where it is")
    python = installed(parser.parse_args().environment)
    worst = 0.0
    print(f"{'µs':28}{'computing':>14}{'collectives':>14}{'all':>14}{'largest difference':>20}")
    for model, split in PROGRAMS.items():
        passes = [llmir.pipeline_of("vllm"), *([split] if split else [])]
        program = llmir.run(llmir.load(model), passes)
        job = llmir.analyze(program, "h200", batch=16, context=2000)
        each = program.devices // len(program.entries)
        with tempfile.TemporaryDirectory() as folder:
            ranks = range(0, program.devices, each)
            paths = [str(llmir.trace(job, Path(folder) / f"{r}.json", rank=r)) for r in ranks]
            # Without it times are cut to whole µs (pytorch/pytorch#122425), which most kernels are not.
            environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
            command = [python, "-c", READER, *paths]
            run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        for stage, (compute, other, kernel) in enumerate(json.loads(run.stdout.splitlines()[-1])):
            expected = ours(job, stage)
            differs = max(abs(a - b) for a, b in zip((compute, other, kernel), expected, strict=True))
            worst = max(worst, differs)
            print(f"{f'{model}, stage {stage}':28}{compute:14.3f}{other:14.3f}{kernel:14.3f}{differs:20.3f}")
    if worst > 1:
        sys.exit(f"a breakdown differs by {worst:.3f} µs")


if __name__ == "__main__":
    main()
