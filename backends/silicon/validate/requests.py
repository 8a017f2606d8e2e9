"""Rows of whole models: how the model ran (`ModelSetup`), and measured figures (`MeasuredRequest`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from llmir.backends.request.workload import ALL
from llmir.backends.silicon.closed_loop import MeasurementMethod
from llmir.backends.silicon.rows import Table, engine_at_version, known_sources
from llmir.backends.silicon.tables.whole import MODES, STEADY
from llmir.base.errors import InputError
from llmir.base.names import normalize, split_format

_DEGREE = re.compile(r"\b(TP|PP|EP)\b(?: *= *(\d+))?")
KINDS = (
    "static_batch_latency",
    "static_batch_throughput",
    "single_stream",
    "serving_closed_loop",
    "serving_max_throughput",
    STEADY,
)


class ModelSetup(NamedTuple):
    """A model with its parallelism, dtypes and engine; a program can be built from it.

    Empty dtypes mean the dtypes of the model. The engine includes its version, if known, such as vllm@0.12.0.
    `passes` run in addition to those of the engine. `gpu` is the name of the device in the table. `variant`
    names kernels of the engine that ran instead of its main ones, such as `marlin`.
    """

    model: str
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    weights: str = ""
    activations: str = ""
    kv: str = ""
    engine: str = ""
    passes: str = ""
    gpu: str = ""
    variant: str = ""

    @property
    def kernels(self) -> str:
        """The engine with its variant as in `--engine`: `vllm-marlin@0.11`."""
        name, at, version = self.engine.partition("@")
        return f"{name}-{self.variant}{at}{version}" if self.variant else self.engine


class MeasuredRequest(NamedTuple):
    """A measured run and its figures in seconds. A `batch` of 0 is the largest batch that fits.

    `chunk` is the token budget of a prefill step, None for the engine's default. `manner` describes how a
    closed loop was measured.
    """

    layout: ModelSetup
    batch: int
    prompt: int
    generate: int
    figures: Mapping[str, float]
    serving: bool = False
    chunk: int | str | None = None
    manner: MeasurementMethod = MeasurementMethod()


def measured_request(t: Table, i: int) -> MeasuredRequest:
    """Row `i` of a table of whole models; InputError if it cannot be estimated."""
    kind = t["kind"][i]
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}; known are {', '.join(KINDS)}")
    if t["mode"][i] == "disagg":
        raise InputError("prefill and decode run on separate GPUs (disagg)")
    if t["mode"][i] in MODES.values():
        raise InputError(f"{t['mode'][i]}: the table does not state its layout")
    if "spec-decode" in t["flag"][i]:
        raise InputError("the row may include speculative decoding")
    layout = _layout(t, i)
    batch = (
        0
        if kind == "serving_max_throughput"
        else _count(t["batch_or_concurrency"][i], "batch_or_concurrency")
    )
    prompt = _count(t["isl"][i], "isl")
    osl = t["osl"][i].strip()
    generate = _count(osl, "osl") if osl else 0
    prompt, generate = (round(tokens * t["lengths"][i]) for tokens in (prompt, generate))
    devices = layout.tp * layout.pp * layout.dp
    figures = _figures(t, i, kind, batch, prompt, generate, devices)
    if not figures:
        raise InputError("the row has no measured value that can be compared" if generate else "osl is empty")
    serving, chunk = kind == "serving_closed_loop", _chunk(t, i)
    return MeasuredRequest(layout, batch, prompt, generate or 1, figures, serving, chunk, _manner(t, i))


def _chunk(t: Table, i: int) -> int | str | None:
    """The token budget: a number, `all`, or a sum of numbers and columns."""
    said = str(t["chunk"][i]).strip()
    return ALL if said == ALL else _sum(t, i, "chunk") or None


def _sum(t: Table, i: int, fact: str) -> int:
    """The value of a fact: the sum of numbers and columns; 0 without the fact."""
    said = str(t[fact][i]).strip()
    terms = [term.strip() for term in said.split("+")] if said else []
    return sum(_count(t[term][i], term) if term in t.columns else _count(term, fact) for term in terms)


def _manner(t: Table, i: int) -> MeasurementMethod:
    facts = "rounds", "shortest", "apart_ms", "ahead", "patience", "enough", "utilization", "receive"
    rounds, shortest, apart_ms, ahead, patience, enough, share, receive = (float(t[f][i]) for f in facts)
    goes, used = None if math.isnan(ahead) else bool(ahead), None if math.isnan(share) else share
    graphs = _sum(t, i, "graphs")
    return MeasurementMethod(
        int(rounds), shortest, apart_ms * 1e-3, goes, int(patience), enough, used, graphs, int(receive)
    )


def _figures(
    t: Table, i: int, kind: str, batch: int, prompt: int, generate: int, devices: int
) -> dict[str, float]:
    """The figures by metric, with the main one first; figures that follow from others, or that include
    queues, are omitted.
    """
    ttft, tpot, e2e = (t[c][i] * 1e-3 for c in ("ttft_ms", "tpot_ms", "e2e_latency_ms"))
    rate = t["throughput_tok_s"][i]
    said = t["throughput_kind"][i]
    if "per GPU" in said:
        rate = rate * devices
    each = (prompt + generate) / generate if "input+output" in said and generate else 1
    if kind == STEADY:
        found = {"tpot": tpot, "token": each / rate, "ttft": ttft}
    elif kind == "serving_closed_loop":
        found = {"tpot": tpot, "ttft": ttft}
    elif kind == "serving_max_throughput":
        found = {"token": each / rate}
    elif kind in ("single_stream", "static_batch_throughput"):
        tokens = batch * (prompt + generate if "input+output" in said else generate)
        found = {"e2e": tokens / rate if generate else math.nan}
    else:
        found = {"tpot": tpot} if math.isnan(e2e) else {"e2e": e2e}
        found["ttft"] = ttft
    if not generate:
        found = {m: s for m, s in found.items() if m == "ttft"}
    elif generate == 1:
        found = {m: s for m, s in found.items() if m != "tpot"}
    return {m: float(s) for m, s in found.items() if not math.isnan(s)}


def _layout(t: Table, i: int) -> ModelSetup:
    """The setup of a row. If only one degree is missing, it follows from the number of GPUs."""
    gpus, said = t["num_gpus"][i], {name: t[name][i] for name in ("tp", "pp", "dp", "ep")}
    if ran := degrees_of(t["ran"][i]):
        gpus, said = math.nan, dict.fromkeys(said, 1) | ran
    experts = said.pop("ep")
    degrees = {name: int(n) or 1 for name, n in said.items() if not math.isnan(n)}
    noted: Mapping[str, int] = {}
    if gpus > 1 and not degrees.keys() & {"tp", "pp"}:
        noted = split(t["note"][i], int(gpus))
    degrees |= {name: noted[name] for name in ("tp", "pp") if noted}
    missing = [name for name in said if name not in degrees]
    stated = math.prod(degrees.values())
    if missing:
        left = 1 if math.isnan(gpus) else gpus / stated
        if left % 1 or (left > 1 and len(missing) > 1):
            raise InputError(f"{', '.join(missing)}: the row does not state how {gpus:g} GPUs are used")
        degrees |= dict.fromkeys(missing, 1) | {missing[0]: int(left)}
    elif not math.isnan(gpus) and gpus != stated:
        raise InputError(f"num_gpus is {gpus:g}, but tp·pp·dp is {stated}")
    ep = noted.get("ep", 1) if math.isnan(experts) else int(experts) or 1
    weights, activations, kv = row_types(t, i)
    over, engine = (
        (degrees["tp"], degrees["pp"], ep, degrees["dp"]),
        engine_at_version(t["framework"][i], t["version"][i]),
    )
    types = weights, activations, kv
    beside = t["passes"][i], t["gpu"][i], t["variant"][i]
    return ModelSetup(plain_model(t["model"][i]), *over, *types, engine, *beside)


def row_types(t: Table, i: int) -> tuple[str, str, str]:
    """The dtypes of weights, activations and cache of row `i`; empty for those of the model."""
    stored = t["stored"][i]
    column = "weight_dtype" if stored in ("", "own") else "stored"
    weights, activations = _type(t[column][i], "weights", column)
    if stored == "own":  # the dtypes of the model's config
        weights = activations = ""
    stated = t["kv_dtype"][i]
    activations = t["activations"][i] or activations
    kv = t["cache"][i] if _unsaid(stated) else _type(stated, "caches", "kv_dtype")
    return weights, activations, kv or ("fp32" if weights == "fp32" else "")


def _unsaid(word: str) -> bool:
    return word.strip().lower() in ("", "nan", "none", "auto")


def _type(word: str, table: str, column: str) -> Any:
    types = known_sources()[table]
    spelled = "" if _unsaid(word) else word.strip().lower()
    if spelled not in types:
        raise InputError(f"{column} {word!r}; known are {', '.join(k for k in types if k)}")
    return types[spelled]


def _count(text: str, column: str) -> int:
    """An integer; `~10` means about 10."""
    try:
        value = float(text.strip().removeprefix("~"))
    except ValueError:
        raise InputError(f"{column} must be a number, got {text!r}") from None
    if not 1 <= value <= 1e7 or value % 1:
        raise InputError(f"{column} must be an integer from 1 to 10,000,000, got {text!r}")
    return int(value)


def plain_model(name: str) -> str:
    """The name of a model without its storage format, because the dtype column states the format.

    >>> [plain_model(m) for m in ("TheBloke/Llama-2-7B-GPTQ", "x/vicuna-7b-v1.5-awq-gemv", "Qwen/Qwen3-32B")]
    ['TheBloke/Llama-2-7B', 'x/vicuna-7b-v1.5', 'Qwen/Qwen3-32B']
    """
    plain, _ = split_format(name.strip())
    return str(known_sources()["models"].get(normalize(plain), plain))


def degrees_of(words: str, gpus: int = 1) -> dict[str, int]:
    """The parallel degrees in a text; a degree without a number applies to all GPUs.

    >>> degrees_of("TP = 4 and EP = 4"), degrees_of("PP", 2), degrees_of("")
    ({'tp': 4, 'ep': 4}, {'pp': 2}, {})
    """
    return {kind.lower(): int(count or gpus) for kind, count in _DEGREE.findall(words)}


def split(note: str, gpus: int) -> dict[str, int]:
    """How the GPUs are split according to a note: one kind of parallelism for all GPUs, or a number for each
    kind.

    Experts are sharded over the ranks of all other kinds.

    >>> split("PP", 4), split("Hybrid TP = 2 and PP = 2", 4), split("Hybrid TP = 2 and EP = 2", 4)
    ({'pp': 4, 'tp': 1}, {'tp': 2, 'pp': 2}, {'tp': 4, 'ep': 2, 'pp': 1})
    """
    found = degrees_of(note, gpus)
    if not found:
        return {}
    pp = found.get("pp", 1)
    return found | {"tp": found["tp"] if "pp" in found and "tp" in found else gpus // pp, "pp": pp}
