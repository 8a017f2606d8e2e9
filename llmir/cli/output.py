"""Results on stdout, or in a file whose suffix selects the format."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.base.errors import InputError

from .command import echo, line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from llmir.base.formats import Displayable


BINARY = ("parquet", "arrow", "png", "pdf")


def choose(
    output: str | None,
    form: str | None,
    of: type[Displayable] | Mapping[str, str] | None = None,
    *,
    picture: bool = False,
    option: str = "--format",
) -> str:
    """The format of a result; an error is raised at once if `output` cannot be written.

    The suffix of a file selects the format, and `option` must agree. Without a suffix, `option` selects it.
    On stdout it is `form`, or the format of `print`. `of` is the class of the result (None: some rows), or a
    mapping from formats to suffixes.
    """
    from llmir.base import formats

    kind = _rows() if of is None else of
    if isinstance(kind, Mapping):
        found = _suffixed(str(output), form, kind.get, lambda: kind, option)
        _plotted(str(output), found)
        return found
    if form and not formats.has_format(form, kind, picture=picture):
        known = ", ".join(formats.formats(kind, picture=picture))
        raise InputError(f"--format: expected one of {known}, got {form!r}")
    if output is None or output == "-":
        chosen = form or kind.prints
        if chosen in BINARY and sys.stdout is not None and sys.stdout.isatty():
            raise InputError(f"--format {chosen}: writes binary data; name a file with -o FILE")
        return chosen

    def find(suffix: str) -> str | None:
        return formats.format_of(suffix, kind, picture=picture, form=form)

    found = _suffixed(output, form, find, lambda: formats.suffixes(kind, picture=picture), option)
    if not picture:
        _plotted(output, found)
    return found


def _plotted(output: str, form: str) -> None:
    """`InputError` for a plot if the package that draws it is not installed."""
    from llmir.backends.export.charts.frame import FORMATS, check

    if form in FORMATS.values():
        check(f"-o {output}")


def _suffixed(
    output: str,
    form: str | None,
    find: Callable[[str], str | None],
    known: Callable[[], Iterable[str]],
    option: str,
) -> str:
    """The format of a file that can be written, by its suffix."""
    from llmir.backends.export.files import check_writable

    suffix = os.path.splitext(output)[1].lower()
    found = find(suffix) if suffix else form
    if found is None:
        got = f"suffix {suffix!r} is unknown" if suffix else "no suffix"
        raise InputError(f"{output}: {got}; allowed are {', '.join(known())}")
    if form not in (None, found):
        raise InputError(f"{output}: the suffix means {found}, but {option} is {form}")
    check_writable(output)
    return found


def _rows() -> type[Displayable]:
    from llmir.backends.export.sections import Rows

    return Rows


def file_name(model: str, suffix: str) -> str:
    """A valid file name for a model in the current folder."""
    return f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', model).strip('.-')[:100] or 'model'}{suffix}"


def result(thing: Displayable, form: str, output: str | None = None, **options: Any) -> None:
    """Print a result in a format, with colours where a terminal shows them, or write it to a file."""
    from llmir.backends.export.page.document import write_page

    stdout = output is None or output == "-"
    if form == "table":
        options["colour"] = stdout and _colours(sys.stdout)
    emit(write_page(thing, form, **options), output, colour=options.get("colour"))


def check_page(form: str, max_size: int | None) -> dict[str, int]:
    """The size argument of a page; InputError if no page is written."""
    if max_size is None:
        return {}
    if form != "page":
        raise InputError("--max-size: applies only to a page, such as -o page.html")
    return {"max_size": max_size}


def emit(text: str | bytes, output: str | None = None, *, colour: bool | None = None) -> None:
    """Print `text`, or write it to the file `output`; the file is written completely or not at all."""
    if output is None or output == "-":
        whole = isinstance(text, bytes) or text.endswith("\n")
        echo(text, nl=not whole, color=colour)
        return
    from llmir.backends.export.files import write

    write(output, text)
    line("wrote", output)


def emit_table(table: RenderableType, output: str | None = None) -> None:
    """Print a table, with colours where a terminal shows them, or write it as text."""
    from llmir.backends.export.table import text

    colour = (output is None or output == "-") and _colours(sys.stdout)
    emit(text(table, colour=colour), output, colour=colour)


def _colours(stream: Any) -> bool:
    asked = bool(os.environ.get("FORCE_COLOR"))
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and (asked or stream.isatty())


def emit_rows(
    rows: Sequence[Mapping[str, object]], form: str, output: str | None, table: RenderableType
) -> None:
    """Write rows in a format; `table` is the human-readable form with units."""
    from llmir.backends.export.sections import Rows

    result(Rows(rows, table), form, output)


def note(*messages: str) -> None:
    """Print notes on stderr, each once."""
    for message in dict.fromkeys(messages):
        line("note", message)
