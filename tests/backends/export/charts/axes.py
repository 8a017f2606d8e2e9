"""What tests of plots share: models small and large, and what is read back from axes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import llmir

pytest.importorskip("matplotlib")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from llmir.backends.export.charts.frame import HEIGHT, WIDTH, pad
from tests.flat import records

MODELS = {  # dense, experts, latent attention over ranks
    "llama3.1-8b": ("h100-sxm", ""),
    "qwen3-30b-a3b": ("h100-sxm", ""),
    "deepseek-v3": ("h200", ",shard{tp=8}"),
}


@cache
def workload(name: str, **how: Any) -> Any:
    """Eight requests on a usual device."""
    device, ranks = MODELS[name]
    program = llmir.run(llmir.load(name), llmir.pipeline_of("vllm") + ranks)
    return llmir.workload(
        program, device, **records(llmir.workload, **{"batch": 8, "prompt": 2048, "generate": 64, **how})
    )


def new_axes(height: float = HEIGHT) -> Axes:
    """Axes of a page as the plots make them, which pyplot does not know."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", dpi=100)
    pad(figure)
    return figure.subplots()


def line(ax: Axes, label: str) -> tuple[Any, Any]:
    """x and y of the line of that label."""
    (found,) = (each for each in ax.get_lines() if each.get_label() == label)
    return found.get_xdata(), found.get_ydata()


def texts(ax: Axes) -> Iterator[Text]:
    """All words in a figure that are seen."""
    for text in ax.figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip():
            yield text


def outside(ax: Axes) -> list[str]:
    """Words that the page cuts off, once it is laid out."""
    figure = ax.figure
    figure.draw_without_rendering()
    page = figure.bbox
    found = []
    for text in {*texts(ax)} - {*_beyond(ax)}:
        box = text.get_window_extent()
        if box.x0 < -1 or box.y0 < -1 or box.x1 > page.width + 1 or box.y1 > page.height + 1:
            found.append(text.get_text())
    return found


def _beyond(ax: Axes) -> Iterator[Text]:
    """Words of ticks out of sight, which are not drawn."""
    for each in ax.figure.axes:
        for axis in (each.xaxis, each.yaxis):
            low, high = sorted(axis.get_view_interval())
            for minor in (False, True):
                places = axis.get_ticklocs(minor=minor)
                for place, label in zip(places, axis.get_ticklabels(minor=minor), strict=False):
                    if not low <= place <= high:
                        yield label


def overlapping(words: list[Text]) -> list[tuple[str, str]]:
    """Pairs of words that lie over one another."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in words]
    return [
        (a, b)
        for i, (a, one) in enumerate(boxes)
        for b, other in boxes[:i]
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 1
        and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
    ]


def grey(ax: Axes) -> Any:
    """The page in grey, as an array."""
    from matplotlib.image import imread

    file = io.BytesIO()
    ax.figure.savefig(file, format="png")
    file.seek(0)
    return np.asarray(imread(file))[..., :3] @ np.array([0.299, 0.587, 0.114])
