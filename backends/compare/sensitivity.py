"""Estimate how much faster a workload becomes if a resource of the device is faster.

`sensitivity` raises each rate in the device file, one at a time; it also shortens launches and engine CPU
time. Other parameters stay the same: for example, a block that runs alone reads no more bytes per second from
a faster memory (`Kernel.moved`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from llmir.backends.cost.calibrated import CalibratedModel, FastLaunchModel
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.roofline import EfficiencyModel, IdealModel
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.arguments import number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import Figures
from llmir.hw.device import Device

MOST = 100.0  # largest increase; for a larger one, compare with another device instead
ENGINE_CPU = ("step_us", "sequence_us", "kernel_us")


@dataclass(frozen=True)
class OpGain:
    """The time that an op saves in a step of a phase, over all its repeats; negative if the op takes
    longer.
    """

    phase: str
    op: str
    time_s: float
    saved_s: float


@dataclass(frozen=True)
class Gain(Figures):
    """The time saved by more of one resource, in a step of each phase and in each op; the largest saving
    comes first.

    `value` is the current rate in the units of the device file; `launch` and `host` have no value, because
    they are times. `saved_s` contains the saved time by phase.
    """

    resource: str
    value: float | None
    saved_s: Mapping[str, float]
    ops: tuple[OpGain, ...]


@dataclass(frozen=True)
class Sensitivity(Figures, Result):
    """The effect of a relative increase `more` of each resource; resources without effect are omitted.

    `time_s` contains the seconds of a step of each phase; for decode, of the last step.
    """

    model: str
    device: str
    cost_model: str
    more: float
    time_s: Mapping[str, float]
    gains: tuple[Gain, ...]
    title: str = ""  # the name of the model for users

    def to_dict(self) -> dict[str, Any]:
        """Return the gains as JSON-compatible values."""
        return {
            "model": self.model,
            "device": self.device,
            "cost_model": self.cost_model,
            "more": self.more,
            "time_s": dict(self.time_s),
            "resources": [
                {
                    "resource": gain.resource,
                    "value": gain.value,
                    "saved_s": dict(gain.saved_s),
                    "saved_share": {name: saved / self.time_s[name] for name, saved in gain.saved_s.items()},
                    "ops": [vars(op) for op in gain.ops],
                }
                for gain in self.gains
            ],
        }


def sensitivity(job: Workload, more: float = 0.1) -> Sensitivity:
    """The effect of more of each resource on the steps of a workload; InputError for a custom cost model."""
    more, model = number("more", more, 0, MOST, above=True), job.model
    if not isinstance(model, (CalibratedModel, IdealModel, EfficiencyModel)):
        raise InputError(
            f"cost: {job.prefill.cost_model} is a custom cost model; sensitivity supports only cost "
            "models of llmir"
        )
    now = {name: step for name, step in job.steps.items() if step is not None}
    gains = []
    for resource, value, other in _models(model, 1 + more):
        then = _with(job, other).steps
        gain = _gain(resource, value, now, then)
        if gain.ops:
            gains.append(gain)
    gains.sort(key=lambda gain: -max(gain.saved_s[name] / float(now[name].time_s) for name in now))
    times = {name: float(step.time_s) for name, step in now.items()}
    program, cost = job.program, job.prefill.cost_model
    return Sensitivity(program.name, job.device.name, cost, more, times, tuple(gains), program.title)


def _with(job: Workload, model: DeviceCostModel) -> Workload:
    """The same requests with another cost model."""
    own = {f.name: getattr(job, f.name) for f in fields(Workload)}
    return Workload(**own | {"device": model.device, "model": model})


def _gain(resource: str, value: float | None, now: Mapping[str, Report], then: Mapping[str, Report]) -> Gain:
    saved = {name: float(step.time_s - then[name].time_s) for name, step in now.items()}
    ops = []
    for name, step in now.items():
        before, after = ({row.name: float(row.total_s) for row in of.ops} for of in (step, then[name]))
        for row in {**before, **after}:
            time, rest = before.get(row, 0.0), after.get(row, 0.0)
            if time != rest:
                ops.append(OpGain(name, row, time, time - rest))
    return Gain(resource, value, saved, tuple(sorted(ops, key=lambda op: -op.saved_s)))


def _models(model: DeviceCostModel, times: float) -> Iterator[tuple[str, float | None, DeviceCostModel]]:
    """Each resource with its value, and a cost model in which its rate is `times` as high."""
    kind: Any = model
    for resource, value, device in raise_rates(model.device, times):
        yield resource, value, replace(kind, device=device)
    if isinstance(model, CalibratedModel):
        held = {f.name: getattr(model, f.name) for f in fields(CalibratedModel)}
        yield "launch", None, FastLaunchModel(**held, times=times)
        if host := model.host:
            quick = replace(host, **{name: getattr(host, name) / times for name in ENGINE_CPU})
            yield "host", None, replace(model, host=quick)


def raise_rates(device: Device, times: float) -> Iterator[tuple[str, float, Device]]:
    """Each rate of a device, by its name and unit in the device file, and the device with a higher rate."""
    for group, key in (("matrix_flops", "matrix_tflops"), ("vector_flops", "vector_tflops")):
        rates: Mapping[str, float] = getattr(device, group)
        for name, rate in rates.items():
            more: dict[str, Any] = {group: {**rates, name: rate * times}}
            yield f"{key}.{name}", rate / 1e12, replace(device, **more)
    yield "memory_GBps", device.memory_Bps / 1e9, replace(device, memory_Bps=device.memory_Bps * times)
    for name, link in device.links.items():
        wide = replace(link, Bps=link.Bps * times)
        yield f"links.{name}.GBps", link.Bps / 1e9, replace(device, links={**device.links, name: wide})
        quick = replace(link, latency_s=link.latency_s / times)
        if link.latency_s:
            links = {**device.links, name: quick}
            yield f"links.{name}.latency_us", link.latency_s * 1e6, replace(device, links=links)
    if (node := device.node) and (network := node.network):
        wide = replace(network, Bps=network.Bps * times)
        yield "network.GBps", network.Bps / 1e9, replace(device, node=replace(node, network=wide))
