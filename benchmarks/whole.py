"""Errors of whole models, as `make accuracy` summarizes them: tables in Markdown.

    llmir validate e2e.csv e2e_recent.csv -o rows.csv
    python benchmarks/whole.py rows.csv

Groups of whole runs: Llamas and Qwens, to which the overheads of engines are fitted, by metric; models of
other families; and all rows on A100, H100 and B200. Rows that are faster than the roofline of what their
table states are excluded. TTFT of servers, which includes a queue, has rows of its own.

Serving runs (`serving_2026.csv`) have tables of TPOT and throughput by device, engine, model, basis and bin
of users, with the printed ± and the share of rows within it.

*Decisions*: of the configurations (engine, precision, tp; and device) of a model and workload, predictions
choose the one with the most throughput per GPU within a limit of TPOT. The score is its highest measured
throughput within the limit, divided by the highest of all configurations. If no configuration is predicted
within the limit, nothing is chosen, and all throughput is lost.

*TTFT* of `serving_2026_ttft.csv` is the median over requests, and of each point the median over its dates.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

Row = dict[str, str]
Rule = Callable[[Row], bool]
Groups = dict[str, list[Row]]
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


class Errors(NamedTuple):
    """Statistics of relative errors (predicted - measured) / measured, as shares.

    `band` is the mean printed ±, `within` and `within_twice` the shares of rows with an error up to it and up
    to twice it; they count only rows with a ±, and are 0 without any.
    """

    rows: int
    mean: float
    median: float
    bias: float
    band: float = 0.0
    within: float = 0.0
    within_twice: float = 0.0


def statistics(errors: Sequence[float], bands: Sequence[float | None] = ()) -> Errors:
    """Statistics of some errors, and of the printed ± of each if `bands` has them.

    >>> statistics([0.25, -0.75], [0.5, 0.5])
    Errors(rows=2, mean=0.5, median=0.5, bias=-0.25, band=0.5, within=0.5, within_twice=1.0)
    """
    sizes = [abs(e) for e in errors]
    known = [(size, band) for size, band in zip(sizes, bands, strict=False) if band is not None]
    shares = (
        (fmean(b for _, b in known), *(fmean(size <= n * b for size, b in known) for n in (1, 2)))
        if known
        else ()
    )
    return Errors(len(sizes), fmean(sizes), median(sizes), fmean(errors), *shares)


def errors(rows: Sequence[Row]) -> Errors:
    """Statistics of rows of `llmir validate`."""
    found = [float(r["predicted_s"]) / float(r["measured_s"]) - 1 for r in rows]
    return statistics(found, [float(r["band"]) if r["band"] else None for r in rows])


def read(path: str | Path) -> list[Row]:
    """Rows with a measurement and an estimate, without those that are faster than the roofline."""
    with Path(path).open(newline="") as file:
        return [r for r in csv.DictReader(file) if r["predicted_s"] and r["measured_s"] and not r["exceeds"]]


def show(title: str, groups: Groups, bands: bool = False) -> None:
    """Print a line for each group: rows, mean and median error and bias; and ± with `bands`."""
    heads = ["rows", "mean error", "median", "bias", *(["±", "within ±", "within 2 ±"] if bands else [])]
    print(f"\n| {title} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, rows in groups.items():
        if rows:
            number, *shares = errors(rows)[: len(heads)]
            print(f"| {name} | {number:,} | " + " | ".join(f"{x:.1%}" for x in shares) + " |")


BY = ("device", "device,engine", "engine", "relation", "users", "model", "device,engine,model")


def by(rows: Sequence[Row], keys: str) -> Groups:
    """Rows by the values of some columns, in order."""
    groups: Groups = {}
    for r in rows:
        groups.setdefault(", ".join(r[key] for key in keys.split(",")), []).append(r)
    return dict(sorted(groups.items()))


def serving(rows: list[Row]) -> None:
    """A table for each metric of closed loops: all rows, and groups of them."""
    for metric, title in (("tpot", "TPOT"), ("token", "throughput")):
        if some := [r for r in rows if r["metric"] == metric]:
            groups = {"all": some}
            for keys in BY:
                groups |= by(some, keys)
            show(title, groups, bands=True)


class Decisions(NamedTuple):
    """Choices among the configurations of some cases; shares of one, and the cases without any choice."""

    cases: int
    right: float
    lost: float
    nothing: int


def decisions(rows: list[Row]) -> dict[str, Decisions]:
    """How often predictions choose the best configuration, and the throughput that they lose."""
    by_row: dict[tuple[str, str, str], dict[str, Row]] = {}
    for r in rows:
        by_row.setdefault((r["file"], r["model"], r["row"]), {})[r["metric"]] = r
    points = [of for of in by_row.values() if {"tpot", "token"} <= of.keys()]
    found = {}
    for title, case, choice in (
        ("on a given device", ("device", *CASE), CHOICE),
        ("device chosen too", CASE, ("device", *CHOICE)),
    ):
        scores = [score for each in _cases(points, case, choice).values() for score in _scores(each)]
        if scores:
            right, lost = (fmean(each) for each in zip(*[(s == 1, 1 - s) for s, _ in scores], strict=True))
            found[title] = Decisions(len(scores), right, lost, sum(not chosen for _, chosen in scores))
    return found


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


def first_tokens(rows: list[Row]) -> list[Row]:
    """Points of TTFT, the measurement of each the median over its dates."""
    dates: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        keys = "device", "engine", "model", "dtype", "tp", "workload", "concurrency", "predicted_s"
        dates.setdefault(tuple(r[key] for key in keys), []).append(r)
    return [
        each[0] | {"measured_s": str(median(float(r["measured_s"]) for r in each))} for each in dates.values()
    ]


def whole_runs(rows: list[Row]) -> dict[str, Groups]:
    """Groups of whole runs other than those of `serving`, by the title of their table."""

    def where(*rules: Rule) -> list[Row]:
        return [r for r in rows if all(rule(r) for rule in rules)]

    def ours(row: Row) -> bool:
        return any(name in row["model"].lower() for name in OURS)

    names = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "vllm": "vLLM"}
    nvidia = on("A100", "H100", "B200")
    main = {
        f"TPOT under steady load, {name} on {gpu}": where(ours, of(engine, "tpot", gpu))
        for gpu in ("H100", "B200")
        for engine, name in names.items()
    }
    main |= {
        f"Static batch, {names[engine]} on A100 40 GB": where(ours, static(engine, "A100-40-SXM"))
        for engine in ("trtllm", "vllm")
    }
    main["All runs on A100, H100 and B200, every metric except TTFT of servers"] = where(
        nvidia, lambda r: r["engine"] in HOSTS, lambda r: not queued(r)
    )
    main["Static batch on MI250, with kernels measured on MI300X, MI355X and A100 (not in the row above)"] = (
        where(ours, static("vllm", "MI250"))
    )
    first = {f"TTFT under steady load, {name}": where(ours, of(e, "ttft")) for e, name in names.items()}
    others = where(lambda r: not ours(r), lambda r: not queued(r))
    amd = [r for r in others if r["device"] == "MI250"]
    other = {
        "NVIDIA GPUs, other models than Llama and Qwen": [r for r in others if r not in amd],
        "MI250, other models than Llama and Qwen": amd,
    }
    few = where(nvidia, lambda r: not queued(r))
    lines = {"all engines": few, "engines with a fitted overhead": [r for r in few if r["engine"] in HOSTS]}
    lines |= {f"tp {n}": [r for r in few if r["tp"] == n] for n in "1248"}
    for row in sorted(where(nvidia), key=lambda r: (r["engine"], r["kind"], r["metric"])):
        name = f"{row['engine']}: {row['kind'].replace('_', ' ')}, {METRICS[row['metric']]}"
        lines.setdefault(name + (" (in no row above)" if queued(row) else ""), []).append(row)
    return {
        "whole runs": {name: each for name, each in main.items() if each},
        "first tokens of servers": {name: each for name, each in first.items() if each},
        "other models": {name: each for name, each in other.items() if each},
        "A100, H100 and B200": {name: each for name, each in lines.items() if each},
    }


def main(path: str) -> None:
    """Print the tables."""
    rows = read(path)
    if loops := [r for r in rows if r["kind"] == STEADY]:
        serving(loops)
        if choices := decisions(loops):
            print("\n| decisions | cases | right | throughput lost | nothing chosen |\n|---|---|---|---|---|")
            for title, d in choices.items():
                print(f"| {title} | {d.cases:,} | {d.right:.1%} | {d.lost:.1%} | {d.nothing} |")
        if points := first_tokens([r for r in loops if r["metric"] == "ttft"]):
            groups = {"all": points}
            for keys in ("engine", "device,engine", "users"):
                groups |= by(points, keys)
            show("TTFT", groups, bands=True)
    if others := [r for r in rows if r["kind"] != STEADY]:
        for title, lines in whole_runs(others).items():
            show(title, lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
