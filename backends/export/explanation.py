"""Explanation, conservation and sensitivity reports as text for a terminal.

`render_explanation` prints the time of an op and its derivation. `render_conservation` prints the sums over
ranks and the replicated terms, and `render_sensitivity` one line per resource with its savings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmir.backends.compare.conservation import Conservation, ConservationTotal
from llmir.backends.compare.explain import Amount, Explanation, KernelExplanation, NetworkRoute
from llmir.backends.compare.sensitivity import Gain, Sensitivity
from llmir.ir.sizes.polynomial import ATOMS

from . import table, units, wording

if TYPE_CHECKING:
    from rich.console import RenderableType

# Explanation of an op

# numbers that are shortened to four digits
_LONG = re.compile(r"\d+\.\d{3,}(e[+-]?\d+)?|\d+e[+-]?\d+|\d{6,}\.\d+")


@table.table_of(of=Explanation)
def render_explanation(e: Explanation) -> RenderableType:
    """The time and its share of the step, and then the derivation."""

    def title(text: str) -> RenderableType:
        return table.stack("", _text(text, "bold"))

    if e.terms:
        return _overhead(e)
    where = ", ".join(f"{name} = {value:,}" for name, value in e.binding.items())
    parts: list[RenderableType] = [
        _text(f"{e.name} of {e.model} on {e.device}, {e.phase}", "bold"),
        *_total(e),
        "",
        _text(", ".join(part for part in (e.kind, e.block, e.layers) if part)),
        title("IR"),
        *(_indented(_text(part), 4 if i else 2) for i, part in enumerate(_broken(e.ir))),
        title("Equation"),
        _text(f"  {e.equation}"),
        _indented(table.pairs([(a.name, a.role, *_sized(a.expression, a.size)) for a in e.axes])),
        title(f"One call, with {where}  (B sequences, T new tokens each, C cached)"),
        _indented(_amount_table(e)),
    ]
    counted = [a.expression for a in (*e.reads, *e.writes, *e.sends, *e.results)]
    atoms = [a for a in ATOMS.values() if a.about and any(f"{a.name}(" in c for c in counted)]
    parts += [_indented(_text(atom.about)) for atom in atoms]
    largest = "Time is the largest of" if e.cost_model == "ideal" else "The roofline is the largest of"
    parts += [title(largest), _indented(_limits(e))]
    if e.kernel:
        kernel = f"the model of the kernel {e.kernel.family} of {e.kernel.engine}"
        bound = e.basis.kind == "roofline"
        parts += [title(f"A lower bound is {kernel}, in one node" if bound else f"The time is from {kernel}")]
        parts += [_indented(_kernel(e, e.kernel))]
    if e.routes:
        parts += [
            title("Ways to send it; the first suits small payloads, the last large ones"),
            _indented(_routes(e)),
        ]
    return table.stack(*parts)


def _overhead(e: Explanation) -> RenderableType:
    """The terms of a row that is not an op, such as engine overhead."""
    rows = [(t.what, t.says, f"= {units.time(t.time_s)}") for t in e.terms]
    name, last, first = e.name.rpartition(".")[2], e.terms[-1].what, e.terms[0].what
    rows.append((name, f"{last} less {first}", f"= {units.time(e.time_s)}"))
    return table.stack(
        _text(f"{e.name} of {e.model} on {e.device}, {e.phase}", "bold"),
        *_total(e),
        "",
        _indented(table.pairs(rows)),
    )


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(wording.plain(text), style=style)


def _indented(table: RenderableType, left: int = 2) -> RenderableType:
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, left), expand=False)


def _broken(ir: str) -> list[str]:
    """A line of IR on up to three lines: the op, its attributes, its types."""
    operation, _, types = ir.rpartition(" : ")
    name, brace, attributes = operation.partition(" {")
    return [name, *([f"{{{attributes}"] if brace else []), f": {types}"]


def _sized(expression: str, value: float) -> tuple[str, ...]:
    """An expression and its value, such as `B*T` and `= 2,048`; a constant is shown only once."""
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return (expression, f"= {number}") if not expression.isdigit() else (number, "")


def _amount_table(e: Explanation) -> RenderableType:
    rows: list[tuple[str, ...]] = []

    def put(label: str, amounts: Iterable[Amount], role: bool, unit: Any) -> None:
        for a in amounts:
            what = f"{a.role} {a.what}" if role else a.what
            rows.append((label, what, *_sized(a.expression, a.value), unit(a.value)))
            label = ""

    put("compute", [a for a in e.flops if a.value], False, units.flops)
    put("read", [a for a in e.reads if a.value], True, units.bytes)
    put("write", [a for a in e.writes if a.value], True, units.bytes)
    put("send", e.sends, True, units.bytes)
    results = [a if a.role == "new" else replace(a, what=f"{a.what}, {a.role}") for a in e.results]
    put("result", results, False, units.bytes)
    return table.pairs(rows, prose=(1, 2))


def _limits(e: Explanation) -> RenderableType:
    rows = []
    for x in e.limits:
        unit = units.bytes if x.bound in ("memory", "network") else units.flops
        hops = f"{units.time(x.latency_s)} + " if x.latency_s else ""
        sum_ = f"{hops}{unit(x.amount)} / {unit(x.rate)}/s"
        rows.append((x.bound, x.what, sum_, f"= {units.time(x.time_s)}", "← decides" if x.decides else ""))
    sources = dict.fromkeys(f"{x.constant}: {x.source}" for x in e.limits)
    return table.stack(table.pairs(rows, prose=(1, 2)), *map(_text, sources))


def _kernel(e: Explanation, kernel: KernelExplanation) -> RenderableType:
    given = ", ".join(
        f"{name} {value:,}" if isinstance(value, (int, float)) else f"{name} {value}"
        for name, value in kernel.given.items()
    )
    scope = f"fitted to {kernel.rows:,} calls on {kernel.device} ({kernel.origin})"
    off = f"{100 * kernel.error:.1f}% mean error on held-out shapes"
    more = f", and {100 * kernel.strange:.0f}% more for a shape like this one" * bool(kernel.strange)
    lines = [scope, f"{off}{more}; {e.basis}", f"arguments: {given}"]
    rows = [(p.name, f"{p.value:g} {p.unit}".strip(), p.meaning) for p in kernel.parameters]
    sums = [(x.name, f"= {_LONG.sub(_short, x.formula)}", f"= {x.value:.4g}") for x in kernel.lines]
    shown = [*map(_text, lines), table.pairs(rows)]
    if sums:
        shown += [
            _text("its formula with these values, in seconds and bytes; the last line is the time:"),
            table.pairs(sums, prose=(1,)),
        ]
    if e.time_s < kernel.alone_s:
        alone = f"The kernel alone takes {units.time(kernel.alone_s)}."
        hides = f"{100 * kernel.hidden:.3g}% of its {units.time(kernel.launch_s)} launch"
        shown.append(_text(f"{alone} The engine's graph hides {hides} and leaves {units.time(e.time_s)}."))
    return table.stack(*shown)


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.4g}"


def _routes(e: Explanation) -> RenderableType:
    def sum_(route: NetworkRoute) -> str:
        legs = [f"{units.bytes(s.bytes)} over {s.link} / {units.bytes(s.rate)}/s" for s in route.sends]
        sent = legs[0] if len(legs) == 1 else f"max({', '.join(legs)})"
        return f"{units.time(route.latency_s)} + {sent}"

    marks = {True: "← fastest", False: ""}
    return table.pairs(
        [(r.name, sum_(r), f"= {units.time(r.time_s)}", marks[r.fastest]) for r in e.routes], prose=(0, 1)
    )


def _total(e: Explanation) -> list[str]:
    once = units.time(e.time_s)
    total = f"{once} × {e.repeat} = {units.time(e.total_time_s)}" if e.repeat > 1 else once
    stages = f" on {e.stages} stages" if e.stages > 1 else ""
    step = f"{units.time(e.step_time_s)} of {'the step' if e.phase == 'step' else e.phase}{stages}"
    return [f"Total {total}, {units.percent(e.share)} of the {step}"]


# Conservation

LABELS = {"weights": "weights", "kv_cache": "KV cache", "matmul_flops": "matmul FLOPs"}


@table.table_of(of=Conservation)
def render_conservation(held: Conservation) -> RenderableType:
    """The sums, the names of replicated terms, and the verdict."""
    named, at = str(held.after.parallelism), held.at.symbols
    step = f"batch {at['B']:,}, {at['T']:,} new tokens each, {at['C'] or 'none'} cached"
    step = wording.images(at["B"], held.after.patches) if held.after.patches else step
    sums = ("unsharded", "+ replicated", "+ uneven", "= all ranks", "a rank")
    totals = table.columns(("", *sums), sums)
    for what, total in held.totals.items():
        table.add(totals, (LABELS[what], *_total_cells(what, total)), styles=["bold"])
    numeric = ("layers", "ranks each", "adds")
    copies = table.columns(("replicated", "what", "block", *numeric), numeric)
    for share in held.replicated:
        adds = _unit(share.what)(share.replicated)
        cells = (share.name, LABELS[share.what], share.block, f"{share.repeat:,}", f"{share.copies:,}", adds)
        table.add(copies, cells)
    ranks = f"{held.after.devices} ({named})" if named else f"{held.after.devices}"
    head = table.pairs([("model", held.after.name), ("ranks", ranks), ("step", step)])
    parts: list[RenderableType] = [head, "", totals, ""]
    parts += [copies, ""] if held.replicated else []
    rows = [("verdict", "NOT CONSERVED" if held.problems else "conserved")]
    return table.stack(*parts, table.pairs(rows + [("", problem) for problem in held.problems]))


def _unit(what: str) -> Any:
    return units.flops if what == "matmul_flops" else units.bytes


def _total_cells(what: str, total: ConservationTotal) -> list[str]:
    amounts = (total.unsharded, total.replicated, total.uneven, total.ranks, total.per_rank)
    return [_unit(what)(amount) if amount else "0" for amount in amounts]


# Sensitivity

OPS = 3  # number of ops that are named for a resource, those with the largest savings


@table.table_of(of=Sensitivity)
def render_sensitivity(of: Sensitivity) -> RenderableType:
    """One line per resource: its value, the saving in each phase's step, and the ops with the most."""
    from rich.padding import Padding
    from rich.text import Text

    what = f"what {100 * of.more:g}% more of each resource saves"
    time = ", ".join(f"{name} {units.time(seconds)}" for name, seconds in of.time_s.items())
    of_model = f"{of.title or of.model} on {of.device}, {of.cost_model}"
    title = Text(wording.plain(f"{of_model}: {what}"), style="bold")
    numeric, where = ["now", *of.time_s], "most of it in"
    rows = table.columns(["resource", *numeric, where], numeric, [where])
    for gain in of.gains:
        shares = [f"{100 * gain.saved_s[name] / seconds:.2f}%" for name, seconds in of.time_s.items()]
        now = "" if gain.value is None else f"{gain.value:,.4g}"
        table.add(rows, (gain.resource, now, *shares, _where(gain)), styles=["bold"])
    return table.stack(title, f"a step takes: {time}", "", Padding(rows, (0, 0, 0, 2), expand=False))


def _where(gain: Gain) -> str:
    """The ops that save the most time."""
    found = dict.fromkeys(op.op.rpartition(".")[2] for op in gain.ops if op.saved_s > 0)
    return ", ".join(list(found)[:OPS])
