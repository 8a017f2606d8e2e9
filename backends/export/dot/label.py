"""HTML-like labels: escaped, with cells wide enough for any usual font."""

from __future__ import annotations

import html
from collections.abc import Iterable
from functools import lru_cache

from llmir.base.dataclass import dataclass

FONT = "Helvetica,Arial,sans-serif"
INK, MUTED, FAINT = "#0f172a", "#64748b", "#e2e8f0"


@dataclass(frozen=True)
class Paint:
    """The colours of a bound: fill, saturated border and bar, and text; and how its boxes are drawn."""

    fill: str
    line: str
    ink: str
    style: str = "rounded,filled"

    def tinted(self, other: Paint) -> Paint:
        """With the border of another."""
        return Paint(self.fill, other.line, other.ink, self.style)


PAINT = {
    "memory": Paint("#e8f0fb", "#2f6db5", "#1c4a86"),
    "compute": Paint("#fdece3", "#d1602c", "#9a3b12"),
    "network": Paint("#f1e9fa", "#7a4bb0", "#5a2d8c"),
    "overhead": Paint("#f3f4f6", "#9aa3af", "#4b5563"),
    "bubble": Paint("#ffffff", "#9aa3af", "#4b5563", "rounded,filled,dashed"),
}
PLAIN = Paint("#ffffff", "#94a3b8", INK)

# Advance widths of DejaVu Sans, the widest of the usual sans-serif fonts, in thousandths of the size.
_WIDTHS = {
    302: "ijlI|'",
    340: " \N{NO-BREAK SPACE}.,:;/\\·",
    432: "()[]!-rtf",
    530: 'sz_?*`"',
    600: "cekvxyaLFPT",
    640: "0123456789bdghnopquµ{}$EJS–",
    700: "ABCKRVXYZ",
    790: "DGHNOQU&",
    840: "+=<>#~^×w−±→",
    980: "mMW%@…",
}
_WIDTH = {char: width for width, chars in _WIDTHS.items() for char in chars}
_BOLD, _SLACK = 1.14, 1.15


@lru_cache(maxsize=1 << 14)
def width(text: str, size: float, *, bold: bool = False) -> float:
    """Points that a line needs, with room for a font 15% wider than DejaVu Sans."""
    ems = sum(_WIDTH.get(c, 640 if c.isascii() else 1000) for c in text) / 1000
    return ems * size * _SLACK * (_BOLD if bold else 1.0)


def fit(text: str, size: float, limit: float, *, bold: bool = False) -> str:
    """`text`, cut to at most `limit` points."""
    if width(text, size, bold=bold) <= limit:
        return text
    while text and width(f"{text}…", size, bold=bold) > limit:
        text = text[:-1]
    return f"{text}…"


def escape(text: str) -> str:
    """Text as an XML document may hold it, on one line."""
    line = " ".join(text.split())
    return html.escape(_shown(line)).replace("\\", "\\\\")  # a single `\N` would become the node's name


def font(text: str, size: float, color: str = INK, *, bold: bool = False) -> str:
    """A run of text."""
    text = escape(text) or "&#160;"  # dot takes no empty run
    inner = f"<B>{text}</B>" if bold else text
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{color}">{inner}</FONT>'


def quoted(text: str) -> str:
    """Text as an attribute holds it, whose backslashes are no commands; its lines stay."""
    lines = (_shown(" ".join(line.split())) for line in text.split("\n"))
    return "\\n".join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)


def _shown(line: str) -> str:
    """A line without what cannot be shown."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def wrapped(text: str, size: float, first: float, limit: float, *, bold: bool = False) -> list[str]:
    """A name on one line of `first` points, or after one of its `_` on a second of `limit`, cut there."""
    if width(text, size, bold=bold) <= first:
        return [text]
    cuts = [
        i + 1 for i, c in enumerate(text) if c in "_.- " and width(text[: i + 1], size, bold=bold) <= first
    ]
    if not cuts:
        return [fit(text, size, first, bold=bold)]
    return [text[: cuts[-1]], fit(text[cuts[-1] :], size, limit, bold=bold)]


def left(content: str, attributes: str = "") -> str:
    """A cell whose text starts at its left edge."""
    return f'<TD ALIGN="TEXT" {attributes}>{content}<BR ALIGN="LEFT"/></TD>'


def right(content: str, attributes: str = "") -> str:
    """A cell whose text ends at its right edge, in the font that Graphviz measures.

    Graphviz writes where such a text starts; in a wider font it ends further right. So leave a margin.
    """
    return f'<TD ALIGN="TEXT" {attributes}>{content}<BR ALIGN="RIGHT"/></TD>'


def bar(share: float, length: float, color: str, height: float = 5) -> str:
    """A cell's content: a bar, filled to `share` of its length."""
    filled = round(max(0.0, min(1.0, share)) * length)
    parts = [(filled, color), (round(length) - filled, FAINT)]
    cells = "".join(
        f'<TD FIXEDSIZE="TRUE" WIDTH="{n}" HEIGHT="{height:g}" BGCOLOR="{paint}"></TD>'
        for n, paint in parts
        if n
    )
    return table([cells])


def table(rows: Iterable[str], attributes: str = "") -> str:
    """A borderless table of rows of cells."""
    body = "".join(f"<TR>{row}</TR>" for row in rows)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" {attributes}>{body}</TABLE>'


def label(content: str) -> str:
    """Content marked as HTML-like for Graphviz."""
    return f"<{content}>"
