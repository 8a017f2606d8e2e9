"""Errors of whole models, as the README and docs/results.md show them: tables in Markdown.

llmir validate e2e.csv e2e_recent.csv -o rows.csv
python benchmarks/whole.py rows.csv

Llamas and Qwens, which hosts are fitted to, by what was measured; models of other families; and all rows on
A100, H100 and B200 by the number of GPUs. Left out are rows that are faster than the roofline of what their
table says ran, and, where no line names it, the time to first token of servers, which has a queue in it.

For serving runs (`serving_2026.csv`) it prints instead, for TPOT and for throughput, groups by device,
engine, model, basis and bin of users, with the printed error and the share of rows within it.

*Decisions*: of the configurations (engine, precision, tp; and device) of a model and workload, predictions
choose the one with the most throughput per GPU within a limit of TPOT. It scores its highest measured
throughput within the limit, against the highest of all. Where no configuration is predicted within the limit,
none is chosen, and all throughput is lost.

*TTFT* of `serving_2026_ttft.csv` is the median over requests, and of each point the median over its dates.
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
LIMITS_MS = (8, 12, 20, 30, 50, 80)
CASE, CHOICE = ("model", "workload"), ("engine", "dtype", "tp")


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
        if not (some := [r for r in rows if r["metric"] == metric]):
            continue
        print(f"\n| {title} | rows | mean error | median | bias | ± | within ± | within 2 ± |")
        print("|---|---|---|---|---|---|---|---|")
        _with_bands("all", some)
        for keys in GROUPS:
            groups: dict[str, list[Row]] = {}
            for r in some:
                groups.setdefault(", ".join(r[key] for key in keys.split(",")), []).append(r)
            for name in sorted(groups):
                _with_bands(name, groups[name])


def decisions(rows: list[Row]) -> None:
    """How often predictions choose the best configuration, and the throughput that they lose."""
    by_row: dict[tuple[str, str], dict[str, Row]] = {}
    for r in rows:
        by_row.setdefault((r["file"], r["row"]), {})[r["metric"]] = r
    points = [of for of in by_row.values() if {"tpot", "token"} <= of.keys()]
    print("\n| decisions | cases | right | throughput lost | nothing chosen |\n|---|---|---|---|---|")
    for title, case, choice in (
        ("on a given device", ("device", *CASE), CHOICE),
        ("device chosen too", CASE, ("device", *CHOICE)),
    ):
        found = [score for each in _cases(points, case, choice).values() for score in _scores(each)]
        if found:
            right, lost = (fmean(each) for each in zip(*[(s == 1, 1 - s) for s, _ in found], strict=True))
            none = sum(not chosen for _, chosen in found)
            print(f"| {title} | {len(found):,} | {right:.1%} | {lost:.1%} | {none} |")


Points = list[dict[str, Row]]


def _cases(
    points: Points, case: tuple[str, ...], choice: tuple[str, ...]
) -> dict[tuple[str, ...], list[Points]]:
    """The configurations of each case that has several."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], Points]] = {}
    for point in points:
        row = point["tpot"]
        configurations = found.setdefault(tuple(row[key] for key in case), {})
        configurations.setdefault(tuple(row[key] for key in choice), []).append(point)
    return {key: [*each.values()] for key, each in found.items() if len(each) > 1}


def _scores(configurations: list[Points]) -> list[tuple[float, bool]]:
    """For each limit that a measurement meets: the share of the highest throughput, and if any was chosen."""
    found = []
    for limit_ms in LIMITS_MS:
        measured, predicted = (
            [_most(points, which, 1e-3 * limit_ms) for points in configurations]
            for which in ("measured_s", "predicted_s")
        )
        if max(measured):
            best = measured[predicted.index(max(predicted))] if max(predicted) else 0.0
            found.append((best / max(measured), max(predicted) > 0))
    return found


def _most(points: Points, which: str, limit_s: float) -> float:
    """The highest throughput per GPU of the points within a limit, in output tokens per second; 0 of none."""
    within = [p["token"] for p in points if float(p["tpot"][which]) <= limit_s]
    return max((1 / (float(r[which]) * int(r["tp"])) for r in within), default=0.0)


def first_tokens(rows: list[Row]) -> None:
    """Errors of TTFT by engine, of points whose measurement is the median over their dates."""
    dates: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        keys = "device", "engine", "model", "dtype", "tp", "workload", "concurrency", "predicted_s"
        dates.setdefault(tuple(r[key] for key in keys), []).append(r)
    points = [
        each[0] | {"measured_s": str(median(float(r["measured_s"]) for r in each))} for each in dates.values()
    ]
    print("\n| TTFT | points | mean error | median | bias | ± | within ± | within 2 ± |")
    print("|---|---|---|---|---|---|---|---|")
    _with_bands("all", points)
    for keys in (("engine",), ("device", "engine"), ("users",)):
        groups: dict[str, list[Row]] = {}
        for r in points:
            groups.setdefault(", ".join(r[key] for key in keys), []).append(r)
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
        if any(r["metric"] == "token" for r in loops):
            decisions(loops)
        if firsts := [r for r in loops if r["metric"] == "ttft"]:
            first_tokens(firsts)
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
    lines["Not in that: static batch, MI250 by kernels of MI300X, MI355X and A100"] = where(
        ours, static("vllm", "MI250")
    )
    lines |= {f"… TTFT of servers: {name}": where(ours, of(engine, "ttft")) for engine, name in names.items()}
    show("whole runs of Llama and Qwen, but where engines are named", lines)
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
