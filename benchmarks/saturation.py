"""Throughput of servers at a saturating rate, next to NVIDIA's tables for TensorRT-LLM, with default flags.

    python benchmarks/saturation.py e2e.csv [--rows FILE.csv]

Each row of `trtllm_perf_overview` is a run of trtllm-bench: requests of one prompt length and one output
length that all arrive at once. Their number is that of docs/source/performance/perf-overview.md of
TensorRT-LLM. The run is simulated like `llmir serve-sim` at a rate that no server can answer. Prompts with
more tokens than a step (8,192) are split into chunks (`--chunked-prefill`). The command prints errors by
device, model and lengths; `--rows` writes a line for each row.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import llmir
from llmir.backends.silicon.rows import device_for, engine_at_version
from llmir.backends.silicon.tables.table import load
from llmir.backends.silicon.validate.requests import plain_model, row_types
from llmir.base.errors import LlmirError

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.whole import statistics

SOURCE = "trtllm_perf_overview"
RATE = 1e5  # requests/s, which no server answers
STEP = 8192  # tokens of a step by default
REQUESTS = {  # by prompt and output tokens; perf-overview.md, "Preparing a Dataset"
    **{(128, 128): 30_000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000},
    **{(2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20_000, 2000): 1000},
}
OTHERS = 1500  # requests of other lengths, such as 1,000 + 2,000 tokens there


class Run(NamedTuple):
    """A row: the run, its measured and simulated output tokens/s of all GPUs, or the reason for a refusal."""

    about: Mapping[str, str]
    measured: float
    simulated: float
    reason: str = ""

    @property
    def error(self) -> float:
        """The relative error of the simulated throughput."""
        return self.simulated / self.measured - 1


def runs(path: Path) -> Iterator[Run]:
    """The rows of the table, simulated."""
    _, rows = load(path)
    for i in range(len(rows)):
        if rows["source"][i] != SOURCE:
            continue
        tp, prompt, generate = (int(float(rows[name][i])) for name in ("tp", "isl", "osl"))
        weights, activations, kv = row_types(rows, i)
        model, device = plain_model(rows["model"][i]), device_for(rows["gpu"][i])
        about = {
            "device": device,
            "model": f"{model}, tp {tp}",
            "lengths": f"{prompt:,} + {generate:,}",
        }
        requests = REQUESTS.get((prompt, generate), OTHERS)
        measured = float(rows["throughput_tok_s"][i])
        try:
            found = llmir.simulate(
                model,
                device,
                llmir.Traffic(rate=RATE, prompt=prompt, generate=generate, requests=requests),
                memory=llmir.Memory(chunked_prefill=True if prompt > STEP else None),
                parallel=llmir.Parallel(tp=tp),
                precision=llmir.Precision(
                    weights=weights or None, activations=activations or None, kv=kv or None
                ),
                estimation=llmir.Estimation(
                    engine=engine_at_version(rows["framework"][i], rows["version"][i])
                ),
            )
        except LlmirError as error:
            yield Run(about, measured, 0.0, str(error))
            continue
        yield Run(about, measured, found.output_tokens_per_s)


def groups(found: Iterable[Run]) -> dict[str, dict[str, list[Run]]]:
    """The simulated rows: all, by device, by model and by lengths."""
    known = [run for run in found if not run.reason]
    tables: dict[str, dict[str, list[Run]]] = {"throughput at saturation": {"all": known}}
    for key in ("device", "model", "lengths"):
        for run in known:
            tables.setdefault(key, {}).setdefault(run.about[key], []).append(run)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput at a saturating rate, beside NVIDIA's tables.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    found = list(runs(given.table))
    for title, lines in groups(found).items():
        print(f"\n| {title} | rows | mean error | median | bias |\n|---|---|---|---|---|")
        for name, each in lines.items():
            number, *shares = statistics([run.error for run in each])[:4]
            print(f"| {name} | {number} | " + " | ".join(f"{x:.1%}" for x in shares) + " |")
    for run in found:
        if run.reason:
            print(f"not simulated: {', '.join(run.about.values())}: {run.reason}")
    if given.rows:
        with given.rows.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*found[0].about, "measured_tokens_per_s", "simulated_tokens_per_s", "reason"])
            for run in found:
                writer.writerow([*run.about.values(), run.measured, run.simulated, run.reason])


if __name__ == "__main__":
    main()
