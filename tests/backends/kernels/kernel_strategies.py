"""Devices and random kernels that properties of kernels are tested on."""

from __future__ import annotations

from hypothesis import strategies as st

from llmir.backends.kernels.base import Kernel
from llmir.backends.kernels.base import parameters as parameters_of
from llmir.hw import library

GPUS = [library.load(name) for name in ("v100", "a100", "h100-sxm", "h20", "b200", "l40s", "rtx4090")]


@st.composite
def kernels(draw: st.DrawFn, kind: type[Kernel]) -> Kernel:
    values = {
        p.name: draw(st.sampled_from(p.choices) if p.choices else st.floats(p.low, p.high))
        for p in parameters_of(kind)
    }
    return kind.of(values, "drawn")
