"""Tables of whole models; `silicon/validate/requests.py` defines the meaning of a row."""

from __future__ import annotations

from math import nan

from llmir.backends.silicon.rows import Column
from llmir.base.values import FrozenDict

from .table import TableFormat

DEGREE = Column(0, 1e5, empty=nan)  # some tables write 0 for no such ranks
MS = Column(1e-3, 1e9, whole=False, empty=nan)  # 1 µs to 11 days
# How a closed loop was measured, as `silicon/sources.yaml` may say of a whole source.
MANNER = FrozenDict(
    rounds=Column(1, 1e4, empty=nan),
    shortest=Column(1e-3, 1, whole=False, empty=nan),
    apart_ms=Column(0, 1e4, whole=False, empty=nan),
    ahead=Column(0, 1, empty=nan),
    patience=Column(0, 1e6, empty=nan),
    enough=Column(0, 1, whole=False, empty=nan),
    utilization=Column(1e-2, 1, whole=False, empty=nan),
)


class EngineRunTable(TableFormat):
    """Runs of a model on GPUs, by an engine."""

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
