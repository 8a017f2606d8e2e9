"""A Pareto front in characters: tokens/s of a GPU against tokens/s of a user."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import TYPE_CHECKING

from llmir.backends.search.plan import Plans

from . import units

if TYPE_CHECKING:
    from rich.text import Text

WIDTH, HEIGHT = 66, 9
MARKS = "○◇□△▽◁▷"  # of the devices, in their order
BEST = "✓"


def chart(plans: Plans) -> Iterator[Text]:
    """The front of each device, and the first plan as it is simulated; a user's tokens on a log scale."""
    from rich.text import Text

    users, gpus = plans.tokens_per_s_user[plans.front], plans.tokens_per_s_device[plans.front]
    of = [plans.structures[int(i)].device.name for i in plans.points.structure[plans.front]]
    best = plans.best
    points = list(zip(users.tolist(), gpus.tolist(), of, strict=True))
    every = points + ([(best.tokens_per_s_user, best.tokens_per_s_device, "")] if best else [])
    low, high = min(x for x, *_ in every), max(x for x, *_ in every)
    top = max(y for _, y, _ in every)
    names = list(dict.fromkeys(of))
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        column = round((WIDTH - 1) * log(x / low) / log(high / low)) if high > low else 0
        cells[HEIGHT - 1 - round((HEIGHT - 1) * y / top)][column] = mark

    for x, y, device in points:
        put(x, y, MARKS[names.index(device) % len(MARKS)])
    if best:
        put(best.tokens_per_s_user, best.tokens_per_s_device, BEST)
    title = Text("tokens/s a GPU", style="bold")
    title.append(" against tokens/s a user (log): the front of each device, saturated, by closed form", "")
    yield title
    for i, line in enumerate(cells):
        label = units.digits(top * (HEIGHT - 1 - i) / (HEIGHT - 1)) if i % 2 == 0 else ""
        yield Text(f"{label:>7} ┤{''.join(line).rstrip()}" if label else f"{'':>7} │{''.join(line).rstrip()}")
    yield Text(f"{'':>8}└{'─' * WIDTH}")
    middle = units.digits((low * high) ** 0.5)
    ends = units.digits(low), units.digits(high)
    yield Text(f"{'':>9}{ends[0]}{middle:^{WIDTH - len(ends[0]) - len(ends[1])}}{ends[1]}")
    legend = [f"{MARKS[i % len(MARKS)]} {device}" for i, device in enumerate(names)]
    legend += [f"{BEST} the first plan, at the rate asked for"] if best else []
    yield Text(f"{'':>9}{'   '.join(legend)}")
