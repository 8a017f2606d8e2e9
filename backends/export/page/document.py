"""The document of a page of results, as JSON: figures, tables and charts; and results as HTML files.

`document` collects `figure`, `sheet` and `marks`; each value states its kind of unit. `write_page` writes a
result in any format. In files and pipes, HTML is a whole page; in notebooks, it stays a fragment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmir.backends.export import wording
from llmir.base.formats import export
from llmir.base.version import __version__

# Parts of a page

Document = dict[str, Any]


def json_value(given: Any) -> Any:
    """A JSON value; NaN and infinity become null."""
    plain = given.item() if hasattr(given, "item") else given
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def figure(title: str, kind: str, given: Any, beside: str = "") -> Document:
    """A card of the strip."""
    return {"title": title, "kind": kind, "value": json_value(given), "beside": beside}


def column(key: str, title: str, kind: str = "text", more: str = "", *, prose: bool = False) -> Document:
    """A column of a table: `key` is its heading in CSV, and `more` is its tooltip."""
    return {"key": key, "title": title, "kind": kind, "more": more or None, "prose": prose}


def sheet(
    title: str, columns: Sequence[Document], rows: Iterable[Sequence[Any]], *, file: str, **more: Any
) -> Document:
    """A table. If rows are `choosable`, you can also choose them in charts; `wrong` contains, by row, the
    columns that miss a limit.
    """
    cells = [[json_value(cell) for cell in row] for row in rows]
    told = {"kind": "sheet", "title": title, "columns": list(columns), "rows": cells, "file": file}
    return {**told, "look": "wide", "choosable": False, "wrong": {}, "note": "", **more}


def axis(title: str, kind: str, key: str = "", **more: Any) -> Document:
    """An axis of a chart; `log` selects a logarithmic axis; by default, the chart decides."""
    return {"title": title, "kind": kind, "key": key or None, **more}


def point(x: Any, y: Any, row: int | None = None, words: str = "", letter: str = "") -> list[Any]:
    """A mark of a chart with its tooltip, and the table row that it stands for."""
    return [json_value(x), json_value(y), row, wording.plain(words) if words else "", letter]


def marks(
    title: str, x: Document, y: Document, series: Sequence[Document], *, file: str, **more: Any
) -> Document:
    """A chart of lines and marks; `limits` are drawn as lines, and the region beyond each limit is shaded."""
    told = {"kind": "marks", "title": title, "x": x, "y": y, "series": list(series), "file": file}
    return {**told, "look": "", "limits": [], "note": "", **more}


def document(
    model: str,
    chips: Iterable[tuple[str, str]],
    figures: Iterable[Document],
    views: Iterable[Document],
    *,
    answer: str = "",
    lines: Iterable[str] = (),
    basis: str = "",
    notes: Iterable[str] = (),
    about: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The whole page: `answer` and `lines` come first; `about` contains descriptions of rows, which are shown
    for a selected row.
    """
    return {
        "version": __version__,
        "model": model,
        "chips": [("model", model), *chips],
        "answer": answer,
        "lines": list(lines),
        "figures": list(figures),
        "views": list(views),
        "basis": basis,
        "notes": list(notes),
        "about": list(about),
    }


# Results as HTML files

# In narrow windows, tables scroll sideways and their first column stays; printed pages are A4 landscape,
# black on white.
STYLE = """
:root { color-scheme: light dark; --text: #1d2129; --paper: #fff; --line: #c9ced6; --band: #f4f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e6eb; --paper: #16181d; --line: #454b55; --band: #1f2229 }
}
body { max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; color: var(--text); background: var(--paper);
  font: 14px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums }
p { margin: 1.2rem 0 .4rem }
p:has(small) { margin: .2rem 0 }
table { display: block; width: fit-content; max-width: 100%; overflow-x: auto; border-collapse: collapse;
  margin: .4rem 0 1rem }
th, td { padding: .15rem .9rem .15rem 0; vertical-align: top }
thead th { border-bottom: 1px solid var(--line) }
thead ~ tbody td { white-space: nowrap }
tr > :first-child { position: sticky; left: 0; background: var(--paper) }
thead ~ tbody tr:nth-child(even) td { background: var(--band) }
pre { overflow-x: auto }
@media print {
  @page { size: A4 landscape; margin: 12mm }
  :root { color-scheme: light; --text: #000; --paper: #fff; --line: #999; --band: #fff }
  body { margin: 0; max-width: none; padding: 0; font-size: 8pt }
  table { display: table; overflow: visible }
  thead { display: table-header-group }
  tr { break-inside: avoid }
  p { break-after: avoid }
  th, td { padding-right: .5rem }
  pre { white-space: pre-wrap }
}
"""


def write_page(thing: object, format: str, **options: Any) -> str | bytes:
    """A result in a format; HTML is a whole page."""
    made = export(thing, format, **options)
    return page(made) if format == "html" and isinstance(made, str) else made


def page(part: str) -> str:
    """A whole page around a fragment; its title is the first line of the fragment. A fragment that already is
    a whole page stays unchanged.

    >>> page("<p><b>a &amp; b</b></p>").splitlines()[3]
    '<title>a &amp; b</title>'
    """
    if part.lstrip().lower().startswith(("<!doctype", "<html")):
        return part
    first = re.search(r"<(?:b|pre)>([^<\n]+)", part)
    title = " ".join(first[1].split()) if first else "llmir"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<title>{title}</title>\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n{part}\n</html>\n"
    )
