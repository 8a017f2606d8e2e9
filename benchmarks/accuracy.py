"""Measure the accuracy of llmir, and write it into docs/accuracy.json, docs/accuracy.md and the README.

    python -m benchmarks.accuracy DIR                     estimate all tables in DIR, and write the files
    python -m benchmarks.accuracy DIR --section kernels   one section only (repeatable)
    python -m benchmarks.accuracy DIR --without device    one kind of estimates only (repeatable)
    python -m benchmarks.accuracy --check                 exit 1 if a number is stale or a page differs
    python -m benchmarks.accuracy --write                 write the pages from docs/accuracy.json

The rows of `llmir validate` are saved in `.accuracy/`, one file per table (for serving runs: per model).
After an interrupt, the same command continues with the remaining files. A change to the estimating code, to a
calibration or to a table starts its files anew. docs/accuracy.json is written after each section. It holds
statistics of groups of rows, never the rows, and digests of the code and data that made the estimates.

Order of the file: digests; rows (`collect`); statistics (`summarize`); pages (`page`, `readme`); commands.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import yaml

from benchmarks import bars, whole
from benchmarks.whole import Groups, Row
from llmir.hw.engine import ENGINE_CPU_FAMILIES

ROOT = Path(__file__).parents[1]
JSON, PAGE, README = (ROOT / name for name in ("docs/accuracy.json", "docs/accuracy.md", "README.md"))
BEGIN, END = "<!-- accuracy: written by `make accuracy` -->", "<!-- end of accuracy -->"

# Digests

CODE = {  # what decides an estimate, by the word that --check prints
    "calibrations": ("hw/calibrations", "hw/transfer.yaml"),
    "engines and devices": ("hw/engines", "hw/devices", "hw/clusters"),
    "kernels": ("backends/kernels", "backends/cost", "backends/work"),
    "steps and requests": ("backends/step", "backends/request", "backends/memory", "backends/simulate"),
    "passes": ("passes",),
    "tables": (
        *("backends/silicon/tables", "backends/silicon/validate", "backends/silicon/sources.yaml"),
        *("backends/silicon/closed_loop.py", "backends/silicon/rows.py"),
    ),
}


@cache
def digests(root: Path = ROOT) -> dict[str, str]:
    """A digest for each part of `CODE`, which comments, docstrings and blank lines do not change."""
    return {part: _digest(root, paths) for part, paths in CODE.items()}


def _digest(root: Path, paths: Iterable[str]) -> str:
    found = hashlib.sha256()
    for path in (root / name for name in paths):
        files = (
            [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in (".py", ".yaml"))
        )
        for file in files:
            found.update(file.relative_to(root).as_posix().encode())
            found.update("\n".join(_statements(file)).encode())
    return found.hexdigest()[:16]


def _statements(file: Path) -> Iterator[str]:
    """The lines of a file without blank lines, comments on lines of their own, and docstrings."""
    text = file.read_text("utf-8")
    omitted: set[int] = set()
    if file.suffix == ".py":
        stack: list[ast.AST] = [ast.parse(text)]
        while stack:
            node = stack.pop()
            body: list[ast.stmt] = getattr(node, "body", [])
            first = body[0] if isinstance(body, list) and body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno:
                omitted.update(range(first.lineno, first.end_lineno + 1))
            if isinstance(body, list):
                stack += [inner for inner in body if isinstance(inner, ast.ClassDef | ast.FunctionDef)]
    for number, line in enumerate(text.splitlines(), 1):
        if number not in omitted and line.strip() and not line.lstrip().startswith("#"):
            yield line.rstrip()


# Rows

NONE, MODEL, DEVICE, ENGINE = "none", "model", "device", "engine"
WITHOUT: dict[str, dict[str, str]] = {  # what is held out, and the argument of `llmir.validate`
    NONE: {},
    MODEL: {"folds": "model,device,version"},
    DEVICE: {"without": "device"},
    ENGINE: {"without": "engine"},
}
TABLES = {  # of each section
    "kernels": (
        *("gemm.csv", "gemm_amd.csv", "moe.csv", "moe_amd.csv", "collective.csv", "elementwise_recent.csv"),
        *("attention_prefill.csv", "attention_decode.csv", "attention_encoder.csv", "mla.csv"),
        *("linear_attention.csv", "elementwise.csv", "p2p.csv"),
    ),
    "runs": ("e2e.csv", "e2e_recent.csv"),
    "serving": ("serving_2026.csv",),
    "first tokens": ("serving_2026_ttft.csv",),
    "saturation": ("e2e.csv",),
    "profiles": (),
}
HELD_OUT = {  # which estimates a section has
    "kernels": (NONE, DEVICE, ENGINE),
    "runs": (NONE, MODEL, DEVICE, ENGINE),
    "serving": (NONE, DEVICE, ENGINE),
    "first tokens": (NONE, DEVICE),
    "saturation": (NONE,),
    "profiles": (NONE,),
}
SPLIT = {"serving": "model", "first tokens": "model"}  # the column by which a table is cut into files
PAUSE_S = 20  # between two lines of progress


def collect(
    folder: Path, saved: Path, section: str, without: str, omit: Sequence[str] = ()
) -> list[Path] | None:
    """Files with the rows of a section, computed unless `saved` has them; None without its tables."""
    tables = [folder / name for name in TABLES[section] if (folder / name).exists()]
    if not tables:
        return None
    if without == MODEL:  # the fits need all tables
        return [_rows(tables, saved, f"{section}-{without}", without)]
    found = []
    for table in tables:
        if not (column := SPLIT.get(section)):
            found.append(_rows([table], saved, f"{table.stem}-{without}", without))
            continue
        with table.open(newline="") as file:
            lines = list(csv.DictReader(file))
        for value in sorted({line[column] for line in lines} - {*omit}, key=lambda v: (v in SLOW, v)):
            with TemporaryDirectory() as some:
                part = Path(some) / table.name
                with part.open("w", newline="") as file:
                    writer = csv.DictWriter(file, lines[0])
                    writer.writeheader()
                    writer.writerows(line for line in lines if line[column] == value)
                found.append(_rows([part], saved, f"{table.stem}-{value}-{without}", without))
    return found


SLOW = ("dsv4",)  # estimated last: DeepSeek-V4's closed loops take hours


def _rows(tables: Sequence[Path], saved: Path, name: str, without: str) -> Path:
    """The file of rows of some tables, which is written at once when it is complete."""
    data = hashlib.sha256(b"".join(table.read_bytes() for table in tables)).hexdigest()[:8]
    target = saved / f"{name}-{data}.csv"
    if not target.exists():
        import llmir
        from llmir.backends.export.json import to_csv
        from llmir.backends.silicon.validate.show import every_row

        begin = last = time.monotonic()

        def tell(file: str, done: int, rows: int) -> None:
            nonlocal last
            if time.monotonic() - last > PAUSE_S:
                last = time.monotonic()
                _say(f"{name}: {file}, {done:,} of {rows:,} rows after {last - begin:,.0f} s")

        found = llmir.validate(*tables, tell=tell, **WITHOUT[without])  # type: ignore[arg-type]
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text(to_csv(every_row(found)), "utf-8")
        part.rename(target)
        _say(f"{name}: {len(found.rows):,} estimates in {time.monotonic() - begin:,.0f} s")
    return target


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Statistics

KINDS = {  # by the first word of a kernel's kind in the tables
    "gemm": "products",
    **{"attention_prefill": "attention, prefill", "attention_decode": "attention, decode"},
    **{"attention_encoder": "attention, encoders", "mla": "latent attention", "moe": "experts"},
    **dict.fromkeys(("gdn", "kda", "conv"), "linear attention, convolutions"),
    **{"elementwise": "norms, elementwise", "collective": "collectives"},
}
GPUS = ("A100", "H100", "B200", "L40S", "MI300X", "MI355X")


def kind(row: Row) -> str:
    """The kind of a kernel: a row of the table by kind and device."""
    return KINDS.get(row["kind"]) or KINDS[row["kind"].split("_")[0]]


def kernels(rows: list[Row]) -> dict[str, Groups]:
    """Groups of kernels."""
    pairs = {
        f"{name} | {gpu}": [r for r in rows if whole.on(gpu)(r) and kind(r) == name]
        for name in dict.fromkeys(KINDS.values())
        for gpu in GPUS
    }
    goals = {name: [r for r in rows if holds(r)] for name, (_, holds) in bars.GOALS.items()}
    return {"goals": goals, "kind and device": pairs, "basis": whole.by(rows, "relation")}


def short_name(model: str) -> str:
    """The name of a model without its owner, in lower case and with hyphens.

    >>> short_name("meta-llama/Llama 3-8B")
    'llama-3-8b'
    """
    return model.rpartition("/")[2].lower().replace(" ", "-")


def runs(rows: list[Row]) -> dict[str, Groups]:
    """Groups of whole runs."""
    judged = [r for r in rows if not whole.queued(r)]
    by_model = whole.by([r | {"model": short_name(r["model"])} for r in judged], "model")
    return {**whole.whole_runs(rows), "model": by_model, "basis": whole.by(judged, "relation")}


def serving(rows: list[Row]) -> dict[str, Groups]:
    """Groups of closed loops of 2026."""
    found: dict[str, Groups] = {}
    keys = "device,engine", "model", "users", "relation", "device,engine,model"
    for metric, name in (("tpot", "TPOT"), ("token", "throughput")):
        some = [r for r in rows if r["metric"] == metric]
        found[name] = {"all": some}
        if metric == "tpot":
            found |= {f"{name} by {of}": whole.by(some, of) for of in keys}
    return found


def first_tokens(rows: list[Row]) -> dict[str, Groups]:
    """Groups of TTFT of 2026."""
    points = whole.first_tokens([r for r in rows if r["metric"] == "ttft"])
    return {"TTFT": {"all": points, **whole.by(points, "device,engine")}}


GROUPS: dict[str, Callable[[list[Row]], dict[str, Groups]]] = {
    "kernels": kernels,
    "runs": runs,
    "serving": serving,
    "first tokens": first_tokens,
}
Numbers = dict[str, Any]


def summarize(section: str, files: Iterable[Path]) -> Numbers:
    """The tables and the statistics of the groups of a section, from files of `llmir validate -o`.

    Rows without an estimate or a measurement, and rows faster than the roofline, are counted and in no group.
    """
    tables: dict[str, dict[str, int]] = {}
    rows: list[Row] = []
    for path in files:
        with path.open(newline="") as file:
            every = list(csv.DictReader(file))
        for r in every:
            count = tables.setdefault(
                r["file"], {"figures": 0, "estimated": 0, "faster than the roofline": 0}
            )
            count["figures"] += 1
            count["estimated"] += bool(r["predicted_s"])
            count["faster than the roofline"] += bool(r["exceeds"])
        rows += whole.read(path)
    groups: Numbers = {
        title: {name: _numbers(whole.errors(some)) for name, some in lines.items() if some}
        for title, lines in GROUPS[section](rows).items()
    }
    if section == "kernels":
        for name, numbers in groups["goals"].items():
            numbers["goal"] = bars.GOALS[name][0]
    if section == "serving":
        groups["decisions"] = {name: _numbers(found) for name, found in whole.decisions(rows).items()}
    return {"tables": tables, "groups": groups}


def _numbers(record: Any) -> Numbers:
    """The fields of a record, with four decimals."""
    return {k: v if isinstance(v, int) else round(v, 4) for k, v in record._asdict().items() if v is not None}


def saturation(table: Path, saved: Path) -> Numbers:
    """Statistics of the throughput of saturated servers, computed unless `saved` has them."""
    from benchmarks import saturation

    target = saved / f"saturation-{hashlib.sha256(table.read_bytes()).hexdigest()[:8]}.json"
    if target.exists():
        return json.loads(target.read_text("utf-8"))
    found = list(saturation.runs(table))
    groups = {
        title: {name: _numbers(whole.statistics([run.error for run in some])) for name, some in lines.items()}
        for title, lines in saturation.groups(found).items()
    }
    numbers: Numbers = {"tables": {table.name: {"figures": len(found)}}, "groups": groups}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(numbers), "utf-8")
    return numbers


def profiles(folder: Path) -> Numbers:
    """Profiled steps beside printed ones."""
    from benchmarks import traces

    found = {
        name: {kind: line._asdict() | {"error": line.error} for kind, line in lines.items()}
        for name, lines in traces.comparisons(folder).items()
    }
    return {"tables": {}, "groups": found}


def fits() -> Numbers:
    """What is fitted: engine overheads with their rows, and for each device its kernels."""
    engines, devices = {}, {}
    for path in sorted((ROOT / "hw" / "engines").glob("*/*.yaml")):
        said = yaml.safe_load(path.read_text("utf-8"))
        if host := next((of for section, of in said.items() if section in ENGINE_CPU_FAMILIES), None):
            keys = ("rows", "error_percent", "other_versions_percent", "origin")
            name = (
                f"{path.parent.name} {'–'.join(dict.fromkeys(map(str, said.get('versions', [path.stem]))))}"
            )
            engines[name] = {key: host[key] for key in keys if key in host}
    for folder in sorted((ROOT / "hw" / "calibrations").iterdir()):
        fitted = list(
            chain.from_iterable(
                yaml.safe_load(path.read_text("utf-8")).values() for path in sorted(folder.glob("*.yaml"))
            )
        )
        rows = [kernel["rows"] for kernel in fitted]
        errors = [kernel["error_percent"] for kernel in fitted if "error_percent" in kernel]
        devices[folder.name] = {
            **{"fits": len(rows), "rows": int(median(rows)), "least": min(rows), "most": max(rows)},
            **{"error_percent": round(median(errors), 1), "worst_percent": max(errors)},
        }
    return {"engines": engines, "devices": devices}


# Pages


def _percent(x: float) -> str:
    """A share with one decimal; two digits from 10% on, to keep the page short."""
    return f"{x:.1%}" if abs(x) < 0.0995 else f"{x:.0%}"


def _short(name: str) -> str:
    """The name of a group of the README, as the page shows it."""
    return name.strip().replace(" under steady load", "").partition(", with kernels")[0]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    found = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*found, *("| " + " | ".join(line) + " |" for line in lines), ""])


class Accuracy:
    """docs/accuracy.json: groups by section, by what is held out, and by table."""

    def __init__(self, data: Numbers) -> None:
        self.data = data

    def views(self, section: str) -> Numbers:
        """The estimates of a section by what is held out."""
        found: Numbers = self.data["sections"].get(section, {})
        return found

    def group(self, section: str, title: str, without: str = NONE) -> Numbers:
        """The lines of a table; empty if it is not there."""
        found: Numbers = self.views(section).get(without, {}).get("groups", {}).get(title, {})
        return found

    def lines(
        self, section: str, title: str, first: str, bands: bool = True, compare: bool = True, least: int = 1
    ) -> str:
        """A table of groups with at least `least` rows; `compare` adds the held-out columns."""
        views = HELD_OUT[section] if compare else ()
        held = [w for w in views if w != NONE and self.group(section, title, w)]
        cells = []
        for name, n in self.group(section, title).items():
            if n["rows"] < least or (section == "runs" and "in no row above" in name):
                continue
            line = [
                _short(name),
                f"{n['rows']:,}",
                *(_percent(n[key]) for key in ERRORS),
                *[_within(n)] * bands,
            ]
            for other in (self.group(section, title, w).get(name) for w in held):
                keys = ("mean", "median") if bands else ("mean",)
                line.append(", ".join(_percent(other[key]) for key in keys) if other else "–")
            cells.append(line)
        heads = [first, "rows", *ERRORS, *["within ±, 2 ±"] * bands]
        return _table([*heads, *(f"{w} held out" for w in held)], cells)

    def matrix(self) -> str:
        """Kernels by kind and device: mean (median) in-sample, and the mean with the device held out."""
        found, held = (self.group("kernels", "kind and device", w) for w in (NONE, DEVICE))
        cells = []
        for kind in dict.fromkeys(name.partition(" | ")[0] for name in found):
            line = [kind]
            for name in (f"{kind} | {gpu}" for gpu in GPUS):
                text = "{mean:.0%} ({median:.0%})".format(**found[name]) if name in found else "–"
                line.append(text + (f", {held[name]['mean']:.0%}" if name in held else ""))
            cells.append(line)
        return _table(["kernels", *GPUS], cells)


def _within(n: Numbers) -> str:
    return f"{n['within']:.0%}, {n['within_twice']:.0%}" if n["band"] else "–"


INTRO = """# Accuracy

`make accuracy` writes this page from measurements that others published. The error of a row is (estimate −
measurement) / measurement. *Mean* and *median* are of its size, *bias* is the mean with its sign. *Within ±*
is the share of rows with an error up to the [printed ±](basis.md), then up to twice the ±. Rows faster than
the roofline are excluded. Columns without a title of their own are *in-sample*: kernel models and engine
overheads were fitted to these rows, or to others of the same kind. *Held out* columns have the mean and the
median, or the mean alone in tables without ±:

- *Model held out*: engine overheads are fitted without the model on its device and version.
- *Device held out*: kernels are transferred from other devices.
- *Engine held out*: kernels come from another engine on the device.
"""
RUNS = """## Whole runs

The overhead of an engine is fitted to Llamas and Qwens. TTFT of servers includes the queue. A100 of 40 GB has
no measured kernels of its own, so its errors with the device held out are the in-sample ones.
"""
SERVING = """## Serving runs of 2026

Closed loops of [InferenceX](https://github.com/SemiAnalysisAI/InferenceX) (SemiAnalysis) with the flags of
each run, without speculation. Only the overhead of ATOM, set by hand, takes account of them.
"""
CHOICES = "Choice of the configuration with the most throughput per GPU within a TPOT limit of 8 to 80 ms: "
SATURATION = """## Saturated servers

Output throughput in NVIDIA's tables of TensorRT-LLM, simulated with default flags at a rate that no server
answers.
"""
PROFILES = """## Profiled steps

Kernels of a step in a profile of torch.profiler ([TraceLens](https://github.com/AMD-AGI/TraceLens)), and as
`llmir analyze` estimates them. Some kernels of MI300X, and copies of eager transformers, are fitted to them.
"""
KERNELS = """## Kernels

The kernel models are fitted to these rows.
"""
RELIABILITY = """## Reliability of ±

The [basis](basis.md) says where the kernels of most of a row's time were measured.
"""
FITS = """## Fits

Overheads of engines, with the error on held-out models, or on held-out tp of a single model:
"""
FITTED_KERNELS = """Kernels of each device, with the error on held-out shapes (a fit is one family of one
engine):
"""
ERRORS = ("mean", "median", "bias")
WIDTH = 118  # of a line of prose


def page(data: Numbers) -> str:
    """docs/accuracy.md."""
    known = Accuracy(data)
    parts = [INTRO]
    if known.views("runs"):
        parts += [RUNS, *_runs(known)]
    if known.views("serving"):
        parts += [SERVING, *_serving(known)]
        if omitted := known.views("serving").get(NONE, {}).get("omitted"):
            parts.append(f"Without the runs of {', '.join(omitted)}.\n")
    if known.views("first tokens"):
        parts.append(known.lines("first tokens", "TTFT", "TTFT, medians over dates"))
    if known.views("saturation"):
        parts += [SATURATION, known.lines("saturation", "device", "device", bands=False)]
    if known.views("profiles"):
        parts += [PROFILES, _profiles(known)]
    if known.views("kernels"):
        parts += [KERNELS, *_kernels(known)]
    parts += [RELIABILITY, _reliability(known), FITS, *_fits(data["fits"])]
    return "\n".join(parts)


def _runs(known: Accuracy) -> Iterator[str]:
    yield known.lines("runs", "whole runs", "Llama and Qwen")
    yield known.lines("runs", "first tokens of servers", "TTFT of Llama and Qwen", bands=False)
    yield known.lines("runs", "other models", "models in no fit of an overhead")
    title = "A100, H100 and B200"
    yield known.lines("runs", title, f"{title}, all models", bands=False, compare=False, least=100)
    yield known.lines("runs", "model", "model, all devices", bands=False, least=50)


def _serving(known: Accuracy) -> Iterator[str]:
    for keys in ("device,engine", "model", "users"):
        title = f"TPOT by {keys.replace(',', ' and ')}"
        yield known.lines(
            "serving", f"TPOT by {keys}", title, bands=keys == "device,engine", compare=keys != "users"
        )
    yield known.lines("serving", "throughput", "output throughput", bands=False, compare=False)
    choices = (
        f"{name}, right in {_percent(d['right'])} of {d['cases']:,} cases, with {_percent(d['lost'])} of the "
        "throughput lost"
        for name, d in known.group("serving", "decisions").items()
    )
    yield fill(f"{CHOICES}{'; '.join(choices)}.", WIDTH) + "\n"


def _profiles(known: Accuracy) -> str:
    cells = []
    for step in known.views("profiles")[NONE]["groups"].values():
        for name, n in step.items():
            times = (f"{1e3 * n[key]:.1f} ms" for key in ("measured_s", "printed_s"))
            if n["band"]:
                cells.append([name.replace("_", " "), *times, f"{n['error']:+.0%}", f"{n['band']:.0%}"])
    return _table(["profile", "measured", "estimated", "error", "±"], cells)


def _kernels(known: Accuracy) -> Iterator[str]:
    cells = [
        [name, f"{n['rows']:,}", _percent(n["goal"]), *(_percent(n[key]) for key in ERRORS), _within(n)]
        for name, n in known.group("kernels", "goals").items()
    ]
    yield _table(["kernels", "rows", "goal", *ERRORS, "within ±, 2 ±"], cells)
    yield "Mean (median) in-sample, and the mean with the device held out:\n"
    yield known.matrix()


def _reliability(known: Accuracy) -> str:
    cells: dict[tuple[str, ...], str] = {}  # without held-out lines that repeat the in-sample one
    for section, title in (("kernels", "basis"), ("runs", "basis"), ("serving", "TPOT by relation")):
        for without in known.views(section):
            for name, n in known.group(section, title, without).items():
                if n["band"] and n["rows"] >= 500:
                    shares = (f"{n[key]:.0%}" for key in ("band", "within", "within_twice"))
                    cells.setdefault((section, name, f"{n['rows']:,}", *shares), without)
    lines = [[section, held, *rest] for (section, *rest), held in cells.items()]
    return _table(["section", "held out", "basis", "rows", "mean ±", "within ±", "within 2 ±"], lines)


def _fits(found: Numbers) -> Iterator[str]:
    cells = []
    for name, n in found["engines"].items():
        other = f"{n['other_versions_percent']:.1f}%" if "other_versions_percent" in n else "–"
        cells.append([name, f"{n['rows']:,}", f"{n['error_percent']:.1f}%", other])
    yield _table(["engine and versions", "rows", "held-out error", "error on other versions"], cells)
    yield FITTED_KERNELS
    cells = []
    for name, n in found["devices"].items():
        rows = f"{n['rows']:,} ({n['least']:,} to {n['most']:,})"
        cells.append([name, str(n["fits"]), rows, f"{n['error_percent']:.1f}%", f"{n['worst_percent']:.1f}%"])
    yield _table(["device", "fits", "rows of a fit, median (range)", "error, median", "worst"], cells)


def readme(data: Numbers) -> str:
    """The part of the README between its markers."""
    known = Accuracy(data)
    held = known.group("runs", "whole runs", MODEL)
    cells = []
    for name, n in known.group("runs", "whole runs").items():
        line = [name, f"{n['rows']:,}", *(f"{n[key]:.1%}" for key in ERRORS)]
        cells.append([*line, *[f"{held[name]['mean']:.1%}" if name in held else "–"] * bool(held)])
    heads = ["whole runs", "rows", "mean error", "median", "bias", *["mean, model held out"] * bool(held)]
    other = known.group("runs", "other models")["NVIDIA GPUs, other models than Llama and Qwen"]
    first = known.group("runs", "first tokens of servers").items()
    medians = ", ".join(f"{n['median']:.0%} ({name.rpartition(', ')[2]})" for name, n in first)
    rest = [
        "*Model held out*: the engine's overhead is fitted without the runs of this model on the same device "
        "and engine version.",
        f"*Other models* than Llama and Qwen ({other['rows']:,} rows of Mixtral, gpt-oss, MiniMax and others "
        f"on NVIDIA GPUs) have a mean error of {other['mean']:.0%} and a median of {other['median']:.0%}.",
        f"*TTFT of servers*, which includes the queue, has a median error of {medians} for Llama and Qwen "
        "models.",
    ]
    lines = [fill(f"- {line}", WIDTH, subsequent_indent="  ") for line in rest[not held :]]
    return "\n".join([_table(heads, cells), *lines, ""])


def pages(data: Numbers) -> dict[Path, str]:
    """The texts of the page and of the README; the README needs the section of whole runs."""
    found = {PAGE: page(data)}
    if data["sections"].get("runs", {}).get(NONE):
        found[README] = _with_part(README.read_text("utf-8"), readme(data))
    return found


def _with_part(text: str, part: str) -> str:
    """The README with another part between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md: no lines {BEGIN} and {END}")
    return f"{before}{begin}\n{part}{end}{after}"


def differences(data: Numbers) -> list[str]:
    """The pages that differ from what the JSON file gives."""
    return [path.name for path, text in pages(data).items() if path.read_text("utf-8") != text]


def stale(data: Numbers) -> list[str]:
    """One line for each section that is missing, or that other code or data estimated."""
    now = digests()
    found = []
    for section, views in HELD_OUT.items():
        for without in views:
            name = f"{section}, {without} held out"
            if not (view := data["sections"].get(section, {}).get(without)):
                found.append(f"{name}: not computed")
            elif changed := [part for part, digest in now.items() if view["digests"].get(part) != digest]:
                found.append(f"{name}: computed before a change of {', '.join(changed)}")
    return found


# Commands


def load() -> Numbers:
    """docs/accuracy.json, or an empty one."""
    empty: Numbers = {"schema_version": 1, "sections": {}, "fits": {}}
    return json.loads(JSON.read_text("utf-8")) if JSON.exists() else empty


def write(data: Numbers) -> None:
    """Write the JSON file, one line for each group, and the pages."""
    JSON.write_text(_json(data) + "\n", "utf-8")
    for path, text in pages(data).items():
        path.write_text(text, "utf-8")


def _json(value: Any, indent: str = "") -> str:
    """JSON with objects of plain values on one line each."""
    if not isinstance(value, dict) or not any(isinstance(v, dict) for v in value.values()):
        return json.dumps(value, ensure_ascii=False)
    lines = [
        f"{indent} {json.dumps(k, ensure_ascii=False)}: {_json(v, indent + ' ')}" for k, v in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def update(folder: Path, sections: Sequence[str], withouts: Sequence[str], omit: Sequence[str]) -> None:
    """Compute sections, in-sample estimates first, and write all files after each."""
    now = digests()
    saved = ROOT / ".accuracy" / hashlib.sha256(json.dumps(now).encode()).hexdigest()[:12]
    for without in withouts:
        for section in sections:
            if without not in HELD_OUT[section]:
                continue
            found: Numbers | None = None
            if section == "saturation":
                if (folder / "e2e.csv").exists():
                    found = saturation(folder / "e2e.csv", saved)
            elif section == "profiles":
                if (traces := folder.parent / "traces").exists():
                    found = profiles(traces)
            elif files := collect(folder, saved, section, without, omit):
                found = summarize(section, files)
            if not found:
                _say(f"{section}: no tables in {folder}")
                continue
            if section in SPLIT and omit:
                found["omitted"] = list(omit)
            data = load()
            data["sections"].setdefault(section, {})[without] = {"digests": now, **found}
            data["sections"] = {
                name: {w: views[w] for w in WITHOUT if w in views}
                for name in TABLES
                if (views := data["sections"].get(name))
            }
            data["fits"] = fits()
            write(data)
            _say(f"wrote {section}, {without} held out")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="The folder of the measured tables.")
    parser.add_argument("--section", action="append", choices=[*TABLES], help="Only this section.")
    parser.add_argument("--without", action="append", choices=[*WITHOUT], help="Only these estimates.")
    parser.add_argument(
        "--omit", action="append", default=[], metavar="MODEL", help="Omit serving runs, such as dsv4."
    )
    parser.add_argument(
        "--check", action="store_true", help="Exit with 1 if a number is stale or a page differs."
    )
    parser.add_argument("--write", action="store_true", help="Write the pages from docs/accuracy.json.")
    given = parser.parse_args(arguments)
    if given.check:
        wrong = [f"{name} differs from docs/accuracy.json" for name in differences(load())] + stale(load())
        print("\n".join(f"accuracy: {line}" for line in wrong) or "accuracy: up to date")
        if wrong:
            print(
                "accuracy: run `make accuracy MEASURED=DIR`; for pages, python -m benchmarks.accuracy --write"
            )
        return bool(wrong)
    if given.write:
        write(load())
        return 0
    if not given.folder or not given.folder.is_dir():
        parser.error(f"expected a folder of measured tables, got {given.folder}")
    try:
        update(given.folder, given.section or [*TABLES], given.without or [*WITHOUT], given.omit)
    except KeyboardInterrupt:
        _say("interrupted; the same command continues with the remaining tables")
        return 130
    print(page(load()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
