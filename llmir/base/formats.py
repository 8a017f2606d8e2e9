"""Output formats of results: each exporter is registered for the class that it shows.

>>> class Greeting(Displayable):
...     name = "world"
>>> @exporter("table", ".txt", of=Greeting)
... def _text(greeting, colour=False):
...     return f"hello {greeting.name}"
>>> print(Greeting())
hello world
>>> suffixes(Greeting)
{'.html': 'html', '.txt': 'table'}
>>> del EXPORTERS["table of Greeting"]
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from .dataclass import dataclass
from .errors import InputError
from .names import suggest
from .registry import Kind

FRAME = "allow-scripts allow-downloads"  # permissions of a page inside a notebook
Make = TypeVar("Make", bound=Callable[..., str | bytes])


@dataclass(frozen=True)
class Exporter:
    """An output format: `make` converts an object of class `of`, for files with these suffixes."""

    format: str
    of: type
    suffixes: tuple[str, ...]
    make: Callable[..., str | bytes]
    picture: bool = False


EXPORTERS: Kind[Exporter] = Kind(
    "exporter",
    "llmir.ir.tools.text",
    "llmir.backends.export",
    *(f"llmir.backends.export.{package}" for package in ("charts", "dot", "page")),
)


def exporter(format: str, *suffixes: str, of: type, picture: bool = False) -> Callable[[Make], Make]:
    """Register the decorated function as the exporter of a format for a class and its subclasses.

    `table` is the format of `print` and terminals; its function receives `colour`, whether the terminal shows
    colors. `html` is the format of notebooks. The function of a picture receives `level` and `phase`, as in
    `llmir.draw`.
    """

    def take(make: Make) -> Make:
        EXPORTERS.add(f"{format} of {of.__name__}", Exporter(format, of, suffixes, make, picture), make)
        return make

    return take


def export(thing: object, format: str, **options: Any) -> str | bytes:
    """A value in a format; InputError if the class of the value does not support it."""
    of = type(thing)
    own = f"{format} of {of.__name__}"  # this lookup needs no other exporters
    if own in EXPORTERS and EXPORTERS[own].of is of:
        return EXPORTERS[own].make(thing, **options)
    if found := _matching(of, lambda e: e.format == format):
        return found[0].make(thing, **options)
    known = formats(of)
    near = suggest(format, known)
    raise InputError(f"a {of.__name__} has no format {format!r}; it has {', '.join(known)}{near}")


def has_format(format: str, of: type, *, picture: bool = False) -> bool:
    """Whether a class has a format. Plugins are searched only if llmir itself has no such format."""
    return bool(_matching(of, lambda e: e.format == format and e.picture == picture))


def format_of(suffix: str, of: type, *, picture: bool = False, form: str | None = None) -> str | None:
    """The format for a file suffix; if there are several, `form` selects one. Plugins are searched only if
    llmir itself has none.
    """
    found = _matching(of, lambda e: suffix in e.suffixes and e.picture == picture)
    several = [e.format for e in found]
    return form if form in several else several[0] if several else None


def formats(of: type, *, picture: bool = False) -> list[str]:
    """All formats of a class, including those of installed plugins."""
    return list(dict.fromkeys(e.format for e in _of(of, picture)))


def suffixes(of: type, *, picture: bool = False) -> dict[str, str]:
    """The file suffixes of a class, and their formats."""
    return {suffix: e.format for e in _of(of, picture) for suffix in e.suffixes}


def _of(of: type, picture: bool) -> list[Exporter]:
    return [e for e in EXPORTERS.values() if e.picture == picture and issubclass(of, e.of)]


def _matching(of: type, fits: Callable[[Exporter], bool]) -> list[Exporter]:
    """The exporters that match, the most specific first; a full page comes before the notebook form."""
    found = EXPORTERS.matching(lambda e: issubclass(of, e.of) and fits(e))
    return sorted(found, key=lambda e: (-len(e.of.__mro__), e.format == "html"))


class Displayable:
    """An object that prints in one of its formats (`prints`) and shows its HTML in notebooks."""

    __slots__ = ()

    prints: ClassVar[str] = "table"

    def __str__(self) -> str:
        return str(export(self, self.prints)).rstrip("\n")

    def _repr_html_(self) -> str:
        return str(export(self, "html"))


class Result(Displayable, ABC):
    """Base class of results; `to_dict()` is the JSON form."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""


class Pairs(Result):
    """A result that consists of a few labels with values."""

    __slots__ = ()

    @abstractmethod
    def pairs(self) -> list[tuple[str, str]]:
        """The label and the text of each line."""


class Page(str):
    """A whole HTML page; a notebook shows it in a frame in which only its own scripts may run.

    >>> Page("<!doctype html><p>a & b")
    <Page of 23 bytes>
    """

    __slots__ = ()

    high = 900  # pixels of the frame

    def __repr__(self) -> str:
        return f"<Page of {len(self.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        own = html.escape(self)
        look = f"width:100%;height:{self.high}px;border:0"
        return f'<iframe sandbox="{FRAME}" title="llmir" style="{look}" srcdoc="{own}"></iframe>'


class PageExport(Displayable):
    """Mixin for results with an interactive page."""

    __slots__ = ()

    def page(self, *, max_size: int | None = None) -> Page:
        """Build the interactive page, which opens from disk or in a notebook.

        Args:
            max_size: Largest size in bytes. The default is 5 MB.

        Raises:
            InputError: The page is larger, or this result has no page.
        """
        return Page(export(self, "page", max_size=max_size))
