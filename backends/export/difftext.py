"""A difference as Markdown and as rows of CSV."""

from __future__ import annotations

from typing import Any

from llmir.backends.compare.diff import FIGURES, Change, WorkloadDiff
from llmir.base.formats import exporter

from . import diff as diffview
from . import json


@exporter("md", ".md", of=WorkloadDiff)
def to_markdown(diff: WorkloadDiff) -> str:
    """Two workloads to read."""
    parts = ["# Difference\n", json.to_markdown(("", ""), diffview.head(diff))]
    parts.append(json.to_markdown(diffview.ANSWERS, diffview.answers(diff), range(1, 5)))
    for name, step in diff.phases:
        title = diffview.titled(diff, name, step)
        parts += [
            f"## {title[:1].upper()}{title[1:]}\n",
            json.to_markdown(*diffview.flat(step)),
            f"{json.md(diffview.memory(step))}.\n",
        ]
    return "\n".join([*parts, f"{' '.join(diffview.LEGEND)}\n"])


@exporter("csv", ".csv", of=WorkloadDiff)
def to_csv(diff: WorkloadDiff) -> str:
    """One line for each change of each phase, and a total for each phase."""
    return json.to_csv(to_rows(diff))


def to_rows(diff: WorkloadDiff) -> list[dict[str, Any]]:
    """One flat row for each change of each phase, and a total for each phase, in SI units."""
    found = []
    for phase, step in diff.phases:
        lines: list[tuple[dict[str, Any], Any]] = [(_said(c), c.figure) for c in step.changes]
        sides = {"before": step.basis.before, "after": step.basis.after}
        bases = {f"basis_{name}": "; ".join(map(str, side.shares)) for name, side in sides.items()}
        for said, figure in [*lines, (_said(Change((), ())) | {"what": "total"} | bases, step.total)]:
            pairs = {name: figure(name).to_dict() for name in FIGURES}
            found.append(
                {"phase": phase} | said | {f"{n}_{k}": v for n, p in pairs.items() for k, v in p.items()}
            )
    return found


def _said(change: Change) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    names = {name: " ".join(p.name for p in parts) for name, parts in sides.items()}
    times = {f"repeat_{name}": diffview.times(parts).replace("×", "") for name, parts in sides.items()}
    bases = {
        f"basis_{name}": "; ".join(dict.fromkeys(str(p.basis) for p in parts))
        for name, parts in sides.items()
    }
    return {"what": change.what, **names, **times, **bases}
