"""Measure the CPU time of eager transformers: decode steps of models with very small kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.kernels.cpu import CpuDeviceEngine
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.silicon.calibrate.runs import step_shape
from llmir.backends.silicon.rows import ErrorStatistics, error_statistics, group_folds
from llmir.backends.step.evaluate import step_evaluator
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

from .kernels import EagerMachine
from .machine import MeasurePoint

LAYERS, BATCHES, CONTEXT = (1, 2, 4, 8), (1, 4, 16), 16
Build = Callable[[Mapping[str, Any]], Program]


def config(layers: int, dtype: str = "float32", **sizes: int) -> dict[str, Any]:
    """The config of a small Llama; `sizes` are other fields."""
    small = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    return {
        **small,
        **sizes,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "vocab_size": sizes.get("vocab_size", 128),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "dtype": dtype,
    }


@dataclass(frozen=True)
class TorchLlama:
    """transformers' Llama of a config, with random weights, on the device of the machine."""

    machine: EagerMachine
    network: Any

    def prefill(self, batch: int, new: int) -> tuple[float, Any]:
        """Seconds of a prefill step with `new` tokens per sequence, and the resulting cache."""
        tokens = self.machine.torch.ones(batch, new, dtype=int, device=self.machine.place)
        cache: Any = None

        def call() -> None:
            nonlocal cache
            cache = self.network(tokens, use_cache=True, logits_to_keep=1).past_key_values

        return self._timed(call), cache

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a decode step after `context` tokens per sequence."""
        torch, tokens = self.machine.torch, self.prefill(batch, context)[1]
        one = torch.ones(batch, 1, dtype=int, device=self.machine.place)

        def call() -> None:
            self.network(one, past_key_values=tokens, use_cache=True)
            tokens.crop(-1)

        return self._timed(call)

    def _timed(self, call: Callable[[], None]) -> float:
        with self.machine.torch.inference_mode():
            return self.machine.median(call)


def load(machine: EagerMachine, config: Mapping[str, Any]) -> TorchLlama | None:
    """Load the model; None without transformers."""
    with contextlib.suppress(ImportError):
        from transformers import LlamaConfig, LlamaForCausalLM

        settings = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "dtype")}
        network = LlamaForCausalLM(LlamaConfig(**settings, attn_implementation="sdpa")).eval()
        dtype = getattr(machine.torch, str(config["dtype"]))
        return TorchLlama(machine, network.to(machine.place, dtype))
    return None


def measure_steps(machine: EagerMachine) -> list[tuple[MeasurePoint, float]]:
    """Time decode steps of models with 1 to 8 layers and 1 to 16 sequences; empty without transformers."""
    found = []
    for layers in LAYERS:
        model = load(machine, config(layers, machine.facts.dtypes[0]))
        if model is None:
            return []
        for batch in BATCHES:
            cells = {"layers": layers, "batch": batch, "context": CONTEXT}
            found.append((MeasurePoint("steps", cells), model.decode(batch, CONTEXT)))
    return found


def fit_eager_cpu(
    timed: Sequence[tuple[MeasurePoint, float]], device: Device, build: Build
) -> tuple[EngineCpu, ErrorStatistics]:
    """Fit the engine CPU time to these steps, with errors on held-out numbers of layers.

    Time of a step = step_us + sequence_us · sequences + kernel_us · kernels, by non-negative least squares of
    the relative error. On a CPU, the time of the kernels is added to this; on a GPU, each kernel ends before
    the next launch.
    """
    made = {layers: build(config(layers)) for layers in {p["layers"] for p, _ in timed}}
    terms = np.array([_terms(made[p["layers"]], device, p) for p, _ in timed])
    seconds = np.array([s for _, s in timed])
    predicted = np.empty(len(timed))
    for seen, judged in group_folds([p["layers"] for p, _ in timed]):
        predicted[judged] = terms[judged] @ _solved(terms[seen], seconds[seen])
    _, step, sequence, kernel = _solved(terms, seconds) * 1e6
    kind = CpuDeviceEngine if device.cores else EngineCpu
    values = {"step_us": step, "sequence_us": sequence, "kernel_us": kernel}
    limits = {"step_us": 1.0, "sequence_us": 0.1, "kernel_us": 0.1}
    hidden = 0.0 if device.cores else EngineCpu().hidden
    return kind(hidden, **{n: max(v, limits[n]) for n, v in values.items()}), error_statistics(
        predicted, seconds
    )


def _terms(program: Program, device: Device, point: MeasurePoint) -> tuple[float, float, float, float]:
    """Seconds of the kernels that the CPU waits for, and the factor of each parameter."""
    at = Binding(B=point["batch"], T=1, C=point["context"])
    step = step_shape(step_evaluator(program, CalibratedModel(device)), at)
    return float(step.busy) if device.cores else 0.0, 1.0, point["batch"], float(step.kernels)


def _solved(terms: Any, seconds: Any) -> Any:
    """The factor of the kernels, which is 1, and the parameters in seconds."""
    from scipy.optimize import nnls

    found, _ = nnls(terms[:, 1:] / seconds[:, None], np.maximum(seconds - terms[:, 0], 0) / seconds)
    return np.concatenate([[1.0], found])
