"""Tables of memory from engine logs; `silicon/validate/memory.py` defines the meaning of a row."""

from __future__ import annotations

from math import nan
from typing import ClassVar

from llmir.backends.request.workload import LONGEST
from llmir.backends.silicon.rows import Column
from llmir.base.values import FrozenDict

from .table import TableFormat

GIB = Column(0, 1e6, whole=False, empty=nan)
MIB = Column(0, 1e9, whole=False)
KIND = MIB._replace(empty=nan)
LIMIT = Column(1, LONGEST, empty=nan)


class MemoryTable(TableFormat):
    """Amounts of memory, grouped by the column `by`."""

    by: ClassVar[str] = "engine"


class EngineStartTable(MemoryTable):
    """Starts of an engine: its settings, and the memory in its log."""

    name = "engine memory"
    numbers = FrozenDict(
        {
            "gpu_total_gib": Column(0.1, 1e6, whole=False),
            "util": Column(0.01, 1, whole=False),
            **dict.fromkeys(("tp", "pp"), Column(1, 1e5)),
            **dict.fromkeys(("max_batched_tokens", "max_num_seqs", "max_model_len", "tokens"), LIMIT),
            **dict.fromkeys(("weights_gib", "act_gib", "nontorch_gib", "kv_gib"), GIB),
        }
    )
    words = ("engine", "gpu", "model", "dtype", "quant", "kv")
    more = ("source",)


class PeakMemoryTable(MemoryTable):
    """Runs of a model on one GPU, and their peak memory."""

    name = "peak memory"
    by = "framework"
    numbers = FrozenDict(
        {
            **dict.fromkeys(("batch", "tokens_in"), Column(1, LONGEST)),
            "tokens_out": Column(1, LONGEST, empty=1),
            "tp": Column(1, 1e5, empty=1),
            **dict.fromkeys(("value_gib", "value_gb"), GIB),
        }
    )
    words = ("model", "gpu", "weight_dtype", "kv_dtype", "metric")
    more = ("framework", "note", "source")


class MemorySeriesTable(MemoryTable):
    """Memory while a request runs, by output tokens or by seconds."""

    name = "memory series"
    numbers = FrozenDict(
        {
            "input_tokens": Column(1, LONGEST / 2),
            "memory_MiB": MIB,
            "token": Column(0, LONGEST / 2, empty=nan),
            "time_s": Column(0, 1e9, whole=False, empty=nan),
            **dict.fromkeys(("weights_MiB", "activations_MiB", "overhead_MiB", "kv_MiB"), KIND),
        }
    )
