"""Errors of whole models, as the README and docs/results.md show them: tables in Markdown.

llmir validate e2e.csv e2e_recent.csv -o rows.csv
python benchmarks/whole.py rows.csv

Llamas and Qwens, which hosts are fitted to, by what was measured; models of other families; and all rows on
A100, H100 and B200 by the number of GPUs. Left out are rows that are faster than the roofline of what their
table says ran, and, where no line names it, the time to first token of servers, which has a queue in it.

For serving runs (`serving_2026.csv`) it prints instead, for TPOT and for throughput, groups by device,
engine, model, basis and bin of users, with the printed error and the share of rows within it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

Row = dict[str, str]
Rule = Callable[[Row], bool]
OURS = ("llama", "qwen", "vicuna")
HOSTS = ("vllm", "trtllm", "sglang", "deepspeed", "hf-transformers")
LOOP, STEADY = "serving_closed_loop", "serving_steady_state"


METRICS = {"ttft": "first token", "tpot": "later tokens", "token": "throughput", "e2e": "whole runs"}


def on(*devices: str) -> Rule:
    """Rows of these devices."""
    return lambda r: r["device"].split("-")[0] in devices


def of(engine: str, metric: str, device: str = "") -> Rule:
    """A metric of an engine's closed loops, on one device or on all."""
    return lambda r: (r["engine"], r["metric"], r["kind"]) == (engine, metric, LOOP) and device in r["device"]


def static(engine: str, device: str) -> Rule:
    """Whole static batches of an engine."""
    return lambda r: (
        (r["engine"], r["metric"], r["device"]) == (engine, "e2e", device)
        and r["kind"].startswith("static_batch")
    )


def queued(row: Row) -> bool:
    """Whether it is a server's time to first token."""
    return row["metric"] == "ttft" and row["kind"] == LOOP


def show(title: str, lines: dict[str, list[Row]]) -> None:
    """Rows, mean and median of the sizes of errors, and their mean."""
    print(f"\n| {title} | rows | mean error | median | bias |\n|---|---|---|---|---|")
    for name, rows in lines.items():
        errors = [float(r["predicted_s"]) / float(r["measured_s"]) - 1 for r in rows]
        if errors:
            sizes = [abs(e) for e in errors]
            print(
                f"| {name} | {len(rows):,} | {fmean(sizes):.1%} | {median(sizes):.1%} | {fmean(errors):.1%} |"
            )


GROUPS = ("device", "engine", "relation", "users", "model", "device,engine,model")


def serving(rows: list[Row]) -> None:
    """A table for each metric of closed loops: all rows, and groups of them."""
    for metric, title in (("tpot", "TPOT"), ("token", "throughput")):
        some = [r for r in rows if r["metric"] == metric]
        print(f"\n| {title} | rows | mean error | median | bias | ± | within ± | within 2 ± |")
        print("|---|---|---|---|---|---|---|---|")
        _with_bands("all", some)
        for keys in GROUPS:
            groups: dict[str, list[Row]] = {}
            for r in some:
                groups.setdefault(", ".join(r[key] for key in keys.split(",")), []).append(r)
            for name in sorted(groups):
                _with_bands(name, groups[name])


def _with_bands(name: str, rows: list[Row]) -> None:
    errors = [float(r["predicted_s"]) / float(r["measured_s"]) - 1 for r in rows]
    bands = [(abs(e), float(r["band"])) for e, r in zip(errors, rows, strict=True) if r["band"]]
    shares = [sum(e <= n * band for e, band in bands) / len(bands) if bands else 0.0 for n in (1, 2)]
    sizes = [abs(e) for e in errors]
    numbers = fmean(sizes), median(sizes), fmean(errors), fmean([b for _, b in bands] or [0.0]), *shares
    print(f"| {name} | {len(rows):,} | " + " | ".join(f"{x:.1%}" for x in numbers) + " |")


def main(path: str) -> None:
    """Three tables."""
    with Path(path).open(newline="") as file:
        read = [r for r in csv.DictReader(file) if r["predicted_s"] and r["measured_s"] and not r["exceeds"]]
    if loops := [r for r in read if r["kind"] == STEADY]:
        serving(loops)
    read = [r for r in read if r["kind"] != STEADY]
    if not read:
        return

    def where(*rules: Rule) -> list[Row]:
        return [r for r in read if all(rule(r) for rule in rules)]

    def ours(row: Row) -> bool:
        return any(name in row["model"].lower() for name in OURS)

    names = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "vllm": "vLLM"}
    nvidia = on("A100", "H100", "B200")
    lines = {
        f"TPOT under steady load, {gpu}: {name}": where(ours, of(engine, "tpot", gpu))
        for gpu in ("H100", "B200")
        for engine, name in names.items()
    }
    lines |= {
        f"Static batch, A100 40 GB: {names[engine]}": where(ours, static(engine, "A100-40-SXM"))
        for engine in ("trtllm", "vllm")
    }
    lines["Whole runs of engines with a host on A100, H100 and B200, every metric but TTFT of servers"] = (
        where(nvidia, lambda r: r["engine"] in HOSTS, lambda r: not queued(r))
    )
    lines["Not in that: static batch, MI250 by kernels of MI355X and A100"] = where(
        ours, static("vllm", "MI250")
    )
    lines |= {f"… TTFT of servers: {name}": where(ours, of(engine, "ttft")) for engine, name in names.items()}
    show("whole runs of Llama and Qwen, but where engines are named", lines)
    others = where(lambda r: not ours(r), lambda r: not queued(r))
    others = where(lambda r: not ours(r), lambda r: not queued(r))
    amd = [r for r in others if r["device"] == "MI250"]
    show("models of other families", {"NVIDIA": [r for r in others if r not in amd], "MI250": amd})
    rows = where(nvidia, lambda r: not queued(r))
    lines = {"all": rows, "engines with a host": [r for r in rows if r["engine"] in HOSTS]}
    lines |= {f"tp {n}": [r for r in rows if r["tp"] == n] for n in "1248"}
    for row in sorted(where(nvidia), key=lambda r: (r["engine"], r["kind"], r["metric"])):
        said = f"{row['engine']}: {row['kind'].replace('_', ' ')}, {METRICS[row['metric']]}"
        lines.setdefault(said + (", in no line above" if queued(row) else ""), []).append(row)
    show("A100, H100 and B200", lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
