"""Tables of whole models; `silicon/validate/requests.py` defines the meaning of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import ClassVar

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table
from llmir.base.values import FrozenDict

from .table import TableFormat

DEGREE = Column(0, 1e5, empty=nan)  # some tables write 0 instead of 1
MS = Column(1e-3, 1e9, whole=False, empty=nan)  # 1 µs to 11 days
# The method of a closed loop, which `silicon/sources.yaml` may state for a whole source.
MANNER = FrozenDict(
    rounds=Column(1, 1e4, empty=nan),
    shortest=Column(1e-3, 1, whole=False, empty=nan),
    apart_ms=Column(0, 1e4, whole=False, empty=nan),
    ahead=Column(0, 1, empty=nan),
    patience=Column(0, 1e6, empty=nan),
    enough=Column(0, 1, whole=False, empty=nan),
    utilization=Column(1e-2, 1, whole=False, empty=nan),
    receive=Column(0, 1e6, empty=nan),
)


class EngineRunTable(TableFormat):
    """Runs of a model on GPUs with an engine."""

    name = "model"
    numbers = FrozenDict(
        {
            **dict.fromkeys(("num_gpus", "tp", "pp", "ep", "dp"), DEGREE),
            **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_latency_ms"), MS),
            "throughput_tok_s": Column(1e-6, 1e12, whole=False, empty=nan),
            **MANNER,
        }
    )
    words = ("model", "gpu", "kind", "isl", "osl", "batch_or_concurrency")
    more = (
        "framework",
        "version",
        "weight_dtype",
        "kv_dtype",
        "throughput_kind",
        "mode",
        "flag",
        "note",
        "source",
        "chunk",
        "graphs",
    )


# The kind of rows with the steady-state figures of a closed loop, as in `analyze --concurrency`.
STEADY = "serving_steady_state"
RATE = Column(1e-9, 1e12, whole=False)


# Columns that are true if `mode` contains a certain word; the last match counts.
MODES = {
    "decode_dp_attention": "attention data parallelism",
    "is_multinode": "several nodes",
    "disagg": "disagg",
}


class ServingTable(TableFormat):
    """Closed loops of an engine with `conc` users, on one node: time per output token and throughput."""

    name = "serving"
    facts = EngineRunTable.name
    numbers = FrozenDict(
        {
            **dict.fromkeys(("tp", "isl", "osl", "conc"), Column()),
            **dict.fromkeys(("tpot_s", "tput_per_gpu"), RATE),
        }
    )
    words: ClassVar[Sequence[str]] = "hardware", "framework", "model", "precision", "spec_method", "source"

    def standard(self, rows: Table) -> Table:
        """The rows with the columns of `EngineRunTable`."""

        def same(value: float | str) -> np.ndarray[tuple[int, ...], np.dtype[np.object_ | np.float64]]:
            return np.full(len(rows), value, object if isinstance(value, str) else np.float64)

        def text(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
            return np.array([f"{value:.0f}" for value in rows[name]], dtype=object)

        drafts = rows["spec_method"] != "none"
        columns = {
            **{name: same("") for name in (*EngineRunTable.words, *EngineRunTable.more)},
            **{name: same(nan) for name in EngineRunTable.numbers},
            **rows.columns,
            **{name: text(name) for name in ("isl", "osl")},
            "gpu": rows["hardware"],
            "kind": same(STEADY),
            "batch_or_concurrency": text("conc"),
            "weight_dtype": rows["precision"],
            "throughput_kind": same("input+output per GPU"),
            "flag": np.where(drafts, "spec-decode on", "").astype(object),
            **self.figures(rows),
        }
        return Table(columns, rows.problems)

    def figures(self, rows: Table) -> Mapping[str, Array]:
        """Columns of `EngineRunTable` with other names in this table."""
        return {"tpot_ms": 1e3 * rows["tpot_s"], "throughput_tok_s": rows["tput_per_gpu"]}


class FirstTokenTable(ServingTable):
    """The benchmark of `ServingTable`, with the median time to first token and how the GPUs are used."""

    name = "serving_ttft"
    numbers = FrozenDict(
        {
            **dict.fromkeys(("decode_tp", "decode_ep", "isl", "osl", "conc"), Column()),
            "median_ttft": Column(1e-6, 1e6, whole=False, empty=nan),
        }
    )
    words = (*ServingTable.words, "disagg", "is_multinode", "decode_dp_attention")

    def figures(self, rows: Table) -> Mapping[str, Array]:
        """Time to first token, and the split of the model; `MODES` lists other settings."""
        mode = np.full(len(rows), "", object)
        for column, word in MODES.items():
            mode[np.char.lower(rows[column].astype(str)) == "true"] = word
        return {
            "ttft_ms": 1e3 * rows["median_ttft"],
            "tp": rows["decode_tp"],
            "ep": rows["decode_ep"],
            "mode": mode,
        }
