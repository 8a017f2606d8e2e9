"""Plots as `public_calls` has other things that are public."""

from __future__ import annotations

import llmir

from .public_calls import CALLS, PROGRAM, REPORT, SERVED

try:
    from matplotlib.figure import Figure
except ImportError:
    AXES = None  # of which each plot says what it needs
else:
    AXES = Figure().subplots()

GRID = llmir.analyze(PROGRAM, "h100-sxm", batch=[1, 2])
SWEPT = llmir.sweep(PROGRAM, {"context": "1:4"})
SIMULATED = SERVED.run(llmir.traffic(llmir.Traffic(rate=2, prompt=8, generate=4, requests=5)))
PLOTS = {
    "plot_batch": (llmir.plot_batch, {"data": GRID, "ax": AXES}),
    "plot_context": (llmir.plot_context, {"data": SWEPT, "ax": AXES}),
    "plot_distributions": (llmir.plot_distributions, {"data": REPORT, "ax": AXES, "by": "kind"}),
    "plot_front": (llmir.plot_front, {"data": SWEPT, "ax": AXES}),
    "plot_latencies": (llmir.plot_latencies, {"data": [SIMULATED], "ax": AXES, "of": "tpot", "rate": 2.0}),
    "plot_memory": (llmir.plot_memory, {"data": REPORT, "ax": AXES}),
    "plot_roofline": (llmir.plot_roofline, {"data": REPORT, "ax": AXES}),
    "plot_serving": (llmir.plot_serving, {"data": SIMULATED, "ax": AXES}),
}
CALLS.update(PLOTS)
